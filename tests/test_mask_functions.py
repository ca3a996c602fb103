"""Masks that are Python: of a user's class, functions of FlexAttention and BlockMasks, and masks by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, and_masks, create_block_mask, flex_attention, or_masks

import headway as hw
from headway import masks as M
from headway import models
from headway.call import make_call
from headway.kernels import KERNELS, _masks
from headway.testing.kernels import widest

B, H, N = 2, 4, 41


class Counted(M.Mask):
    """A mask that counts how often it is evaluated."""

    def __init__(self, rule: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.rule, self.calls = rule, [0]

    def allowed(self, q: hw.Coordinates, k: hw.Coordinates) -> Tensor:
        self.calls[0] += 1
        return self.rule(q.index[:, None, :, None], k.index[:, None, None, :])


class Beside(Counted):
    """A mask that says its interval."""

    def __init__(self) -> None:
        super().__init__(lambda i, j: (i - j).abs() <= 2)

    def allowed(self, q: hw.Coordinates, k: hw.Coordinates) -> Tensor:
        return super().allowed(q, k)

    def interval(self, q: hw.Coordinates, k: hw.Coordinates) -> M.Bounds | None:
        assert q.start is not None
        assert k.start is not None
        beside = q.start - k.start
        return M.Slot(beside - 2), M.Slot(beside + 3)


class Table(M.Mask):
    """A mask of a tensor [batch or 1, heads or 1, n, m], whose dimensions have names."""

    axes = hw.records.named(table="1|batch 1|heads queries keys")

    def __init__(self, table: Tensor) -> None:
        self.table = table

    def allowed(self, q: hw.Coordinates, k: hw.Coordinates) -> Tensor:
        return self.table


def holes(*shape: int, seed: int = 0) -> Tensor:
    found = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.4
    found[..., 3, :] = False
    found[..., 5] = False
    return found


OWN: dict[str, Callable[[int], M.Mask]] = {
    "one run": lambda n: Counted(lambda i, j: (j <= i) & (j > i - 5)),
    "two runs": lambda n: Counted(lambda i, j: (j <= i) & ((j > i - 5) | (j < 3))),
    "bits": lambda n: Counted(lambda i, j: (j <= i) & ((i - j) % 3 != 1)),
    "bits after runs": lambda n: Counted(lambda i, j: (j <= i) & ((i < n // 2) | ((i - j) % 3 != 1))),
    "runs within causal": lambda n: M.Causal() & Counted(lambda i, j: (j > i) | (j > i - 5)),
    "two runs within two": lambda n: (
        M.Causal() & (M.Window(4) | M.KeepFirst(2)) & Counted(lambda i, j: (j != 1) & (j != i - 2))
    ),
    "or": lambda n: Counted(lambda i, j: (i - j) % 4 == 0) | M.Window(1, 1),
    "padding": lambda n: M.Padding([n, n - 3]) & Counted(lambda i, j: j <= i),
    "nothing": lambda n: Counted(lambda i, j: j > j + i),
    "everything": lambda n: Counted(lambda i, j: j == j + 0 * i),
    "keys alone": lambda n: Counted(lambda i, j: j % 3 != 1),
    "by row": lambda n: Table(holes(B, 1, n, n)),
    "by head": lambda n: Table(holes(1, H, n, n)),
    "interval": lambda n: M.Causal() & Beside(),
    "interval or holes": lambda n: Beside() | M.Boolean(holes(n, n)),
    "function": lambda n: M.from_flex(lambda b, h, i, j: (i >= j) & ((j % (h + 1) == 0) | (i - j < 3 + b))),
}


def inputs(n: int, m: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    draw = torch.Generator().manual_seed(n * 100 + m)
    shapes = ((B, H, n, 8), (B, H // 2, m, 8), (B, H // 2, m, 8))
    return [torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]


@pytest.fixture(params=["whole", "in blocks"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "in blocks":
        monkeypatch.setattr(_masks, "WHOLE", 1)
        monkeypatch.setattr(_masks, "PAIRS", 200)


# ---------------------------------------------------------------- a mask of a user's class


@pytest.mark.parametrize("kernel", [name for name in KERNELS if name != "reference"])
@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("n", [N, 40, 7])
def test_output_and_gradients_are_those_of_the_reference(name: str, kernel: str, n: int, blocks: None) -> None:
    mask = OWN[name](n)
    q, k, v = inputs(n, n, widest(kernel))
    upstream = torch.randn(B, H, n, 8, dtype=q.dtype)
    results = []
    for one in (kernel, "reference"):
        out = hw.attention(q, k, v, mask=mask, kernel=one)
        results.append([out, *torch.autograd.grad(out, (q, k, v), upstream)])
    torch.testing.assert_close(*results)


MADE = {
    "one run": "Interval",
    "two runs": "Or",
    "bits": "Bits",
    "bits after runs": "Bits",
    "runs within causal": "And of Causal, Interval",
    "two runs within two": "And of Causal, Or, Bits",
    "or": "Bits",
    "padding": "And of Padding, Interval",
    "nothing": "Interval",
    "everything": "Interval",
    "keys alone": "Bits",
    "by row": "Bits",
    "by head": "Bits",
    "interval": "And of Causal, Interval",
    "interval or holes": "Bits",
    "function": "Bits",
}


@pytest.mark.parametrize("name", OWN)
def test_what_an_own_mask_becomes(name: str, blocks: None) -> None:
    call = make_call(*inputs(N, N), mask=OWN[name](N))
    found = _masks.evaluated(call).mask
    made = type(found).__name__
    assert made + (f" of {', '.join(type(x).__name__ for x in found.masks)}" if made == "And" else "") == MADE[name]
    assert not M.is_python(found)
    allowed = [x.allowed(call.q_coordinates, call.k_coordinates).expand(B, H, N, N) for x in (found, call.mask)]
    assert torch.equal(*allowed)
    for start, stop in ((0, 5), (5, 21), (20, N)):
        rows = found.block(start, stop, N).allowed(call.q_coordinates.rows(start, stop), call.k_coordinates)
        assert torch.equal(rows.expand(B, H, -1, N), allowed[0][:, :, start:stop])
        keys = found.of_keys(start, stop, N, N).allowed(call.q_coordinates, call.k_coordinates.rows(start, stop))
        assert torch.equal(keys.expand(B, H, N, -1), allowed[0][..., start:stop])


def test_evaluated_once_for_forward_and_backward_and_never_with_an_interval() -> None:
    q, k, v = inputs(N, N)
    for mask, calls in ((OWN["bits"](N), 1), (Beside(), 0)):
        hw.attention(q, k, v, mask=mask, kernel="cpu").sum().backward()
        assert mask.calls == [calls]


def test_a_step_of_decoding_evaluates_its_own_row() -> None:
    mask = OWN["bits"](N)
    q, k, v = inputs(N, N)
    whole = hw.attention(q, k, v, mask=mask)
    for m in (3, 17, N):
        step = hw.attention(q[:, :, m - 1 : m], k[:, :, :m], v[:, :, :m], mask=mask, kernel="cpu")
        torch.testing.assert_close(step, whole[:, :, m - 1 : m])


def test_a_tensor_without_named_dimensions_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_masks, "WHOLE", 1)
    monkeypatch.setattr(_masks, "PAIRS", 200)

    class Unnamed(Table):
        axes = {}

    q, k, v = inputs(N, N)
    table = holes(1, 1, N, N)
    found = hw.attention(q, k, v, mask=Unnamed(table), kernel="cpu")
    torch.testing.assert_close(found, hw.attention(q, k, v, mask=table, kernel="cpu"), rtol=0, atol=0)


def test_parts_of_a_call() -> None:
    from headway.kernels import attend_in_parts, cut

    q, k, v = inputs(N, N)
    for name in ("bits", "two runs", "by head"):
        call = make_call(q, k, v, mask=OWN[name](N))
        halves = [cut(call, "keys", 0, 19), cut(call, "keys", 19, N)]
        out, _ = attend_in_parts(halves, "cpu")
        torch.testing.assert_close(out, hw.attention(q, k, v, mask=call.mask, kernel="reference"))


def test_statistics() -> None:
    q, k, v = inputs(N, N)
    mask = OWN["bits"](N)
    dense = mask.allowed(*[hw.Coordinates.span(N)] * 2)
    found, expected = (hw.attention_statistics(q, k, v, ("entropy", "visible"), mask=x) for x in (mask, dense))
    torch.testing.assert_close(found.entropy, expected.entropy, equal_nan=True)
    assert torch.equal(found.visible, expected.visible)


def test_explain_says_what_it_costs() -> None:
    q = torch.zeros(1, 2, 4096, 8)
    found = hw.explain(q, q, q, mask=M.Causal() & Counted(lambda i, j: i >= j))
    assert found.kernel == "cpu"
    assert "Counted.allowed is evaluated for 16,777,216 pairs" in found.mask
    assert "at most 2,048 KiB of bits: Counted.interval would avoid that" in str(found)
    assert hw.explain(q, q, q, mask=Beside()).mask == ""
    assert hw.explain(q, q, q, mask=M.Causal()).mask == ""
    assert "would spare" not in hw.explain(q, q, q, mask=lambda b, h, i, j: i >= j).mask


def test_one_that_reads_positions_needs_no_encoding() -> None:
    class Near(M.Mask):
        def allowed(self, q: hw.Coordinates, k: hw.Coordinates) -> Tensor:
            return (q.axis()[:, :, None] - k.axis()[:, None, :])[:, None].abs() <= 1

    q, k, v = inputs(3, 3)
    positions = torch.tensor([0.0, 5.0, 0.5])
    found = hw.attention(q, k, v, mask=Near(), q_positions=positions, k_positions=positions)
    seen = torch.tensor([[True, False, True], [False, True, False], [True, False, True]])
    torch.testing.assert_close(found, hw.attention(q, k, v, mask=seen))
    with pytest.raises(hw.HeadwayError, match=r"positions are given but no encoding, term or mask of your own"):
        hw.attention(q, k, v, mask=M.Causal(), q_positions=positions, k_positions=positions)


def test_padding_as_a_tensor_says_what_to_give() -> None:
    q, k, v = inputs(N, N)
    with pytest.raises(hw.HeadwayError, match=r"\(2, 41\): .* if it is \[batch, m\].*give mask\[:, None, None\], or"):
        hw.attention(q, k, v, mask=torch.ones(B, N, dtype=torch.bool))
    with pytest.raises(hw.HeadwayError, match=r"so mask\[:, None\] if it is \[batch, n, m\]"):
        hw.attention(q, k, v, mask=torch.ones(B, N, N, dtype=torch.bool))


# ---------------------------------------------------------------- what is kept for the next layer


@dataclass(frozen=True, eq=False)
class Read(M.Mask):
    """A mask that reads a tensor and a number."""

    axes = hw.records.named(step="one")

    step: Tensor
    least: int = 0

    def allowed(self, q: hw.Coordinates, k: hw.Coordinates) -> Tensor:
        CALLS.append(1)
        behind = q.index[:, None, :, None] - k.index[:, None, None, :]
        return (behind >= self.least) & (behind % self.step != 1)


CALLS: list[int] = []


def read(step: int) -> Read:
    return Read(torch.tensor([step]))


@pytest.fixture
def calls() -> list[int]:
    CALLS.clear()
    return CALLS


def test_layers_of_one_forward_pass_share_it_and_nothing_remains(calls: list[int]) -> None:
    config = models.TransformerConfig(vocab_size=9, embed_dim=16, num_layers=3, num_heads=2, kernel="cpu")
    for encoding in (None, "rope", "alibi"):
        decoder = models.Decoder(config, encoding)
        ids = torch.randint(0, 9, (2, N))
        calls.clear()
        out = decoder(ids, mask=read(3))
        assert len(calls) == 1
        out.sum().backward()
        assert len(calls) == 1
        decoder(ids, mask=read(3))
        assert len(calls) == 2
        calls.clear()
        decoder(ids, mask=lambda b, h, i, j: calls.append(1) or i >= j)
        by_layers = len(calls)
        calls.clear()
        hw.nn.MultiHeadAttention(16, 2, kernel="cpu")(
            torch.randn(2, N, 16), mask=lambda b, h, i, j: calls.append(1) or i >= j
        )
        assert by_layers < 3 * len(calls), "it is evaluated once; each layer looks at one pair"
        assert _masks._shared.get() is None


def test_a_mask_that_a_layer_writes_into_is_evaluated_for_the_next_one() -> None:
    q, k, v = inputs(N, N)
    table, at = holes(1, 1, N, N), hw.Coordinates.span(N)
    mask = Table(table)
    with _masks.shared_masks():
        for _ in range(2):
            found = hw.attention(q, k, v, mask=mask, kernel="cpu", q_positions=at, k_positions=at)
            torch.testing.assert_close(found, hw.attention(q, k, v, mask=table, kernel="reference"))
            table.logical_not_()


WIDTH = [9]


def test_a_call_keeps_nothing_for_the_next_one(calls: list[int]) -> None:
    """Whatever a mask reads may have changed, seen or not."""
    q, k, v = inputs(N, N)
    at = hw.Coordinates.span(N)

    class Near(M.Mask):
        def allowed(self, q: hw.Coordinates, k: hw.Coordinates) -> Tensor:
            return (q.index[:, None, :, None] - k.index[:, None, None, :]).abs() < WIDTH[0]

    for mask in (Near(), lambda b, h, i, j: (i - j).abs() < WIDTH[0]):
        for WIDTH[0] in (9, 2):
            found = hw.attention(q, k, v, mask=mask, q_positions=at, k_positions=at, encoding="none", kernel="cpu")
            expected = hw.attention(q, k, v, mask=M.Window(WIDTH[0] - 1, WIDTH[0] - 1))
            torch.testing.assert_close(found, expected)


def test_a_function_reads_what_it_captures(calls: list[int]) -> None:
    q, k, v = inputs(N, N)
    at = hw.Coordinates.span(N)
    document = torch.arange(N) // 7

    def same(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        calls.append(1)
        return (i >= j) & (document[i] == document[j])

    for change in (False, False, True):
        if change:
            document.copy_(torch.arange(N) // 3)
        found = hw.attention(q, k, v, mask=same, q_positions=at, k_positions=at, encoding="none", kernel="cpu")
        ids = M.Causal() & M.Documents(document)
        torch.testing.assert_close(found, hw.attention(q, k, v, mask=ids))


# ---------------------------------------------------------------- functions of FlexAttention

DOCUMENT = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2, 3] * 5)
PREFIX = torch.tensor([5, 11])
TABLE = holes(B, H, 50, 50)


def causal(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    return q_idx >= kv_idx


FUNCTIONS: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    "causal": causal,
    "sliding window": and_masks(causal, lambda b, h, i, j: i - j <= 6),
    "prefix": or_masks(causal, lambda b, h, i, j: j < PREFIX[b]),
    "document": and_masks(causal, lambda b, h, i, j: DOCUMENT[i] == DOCUMENT[j]),
    "dilated": lambda b, h, i, j: (i - j).abs() % 3 == 0,
    "checkerboard": lambda b, h, i, j: (i // 4 + j // 4) % 2 == 0,
    "by head": lambda b, h, i, j: (i >= j) & ((h % 2 == 0) | (i - j < 4)),
    "table": lambda b, h, i, j: TABLE[b, h, i, j] | (i == j),
    "rows of a table": lambda b, h, i, j: TABLE[0, 0][i][j] | (i == j),
    "keys": lambda b, h, i, j: j < 13,
    "all": lambda b, h, i, j: torch.tensor(True),
}


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("given", ["function", "block mask"])
@pytest.mark.parametrize("kernel", ["auto", *KERNELS])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_flex_attention_gives_the_same(name: str, kernel: str, given: str) -> None:
    dtype = torch.float32 if kernel == "auto" else widest(kernel)
    q, k, v = (x.detach() for x in inputs(N, N, dtype))
    block_mask = create_block_mask(FUNCTIONS[name], B, H, N, N, device="cpu", BLOCK_SIZE=16)
    mask: Any = FUNCTIONS[name] if given == "function" else block_mask
    found = hw.attention(q, k, v, mask=mask, kernel=kernel)
    expected = flex_attention(q, k, v, block_mask=block_mask, enable_gqa=True)
    torch.testing.assert_close(found, expected)


def test_a_dimension_that_does_not_matter_has_size_one() -> None:
    at = hw.Coordinates.span(N)
    shapes = {name: tuple(M.from_flex(f).for_call(B, H).allowed(at, at).shape) for name, f in FUNCTIONS.items()}
    assert shapes["causal"] == (1, 1, N, N)
    assert shapes["prefix"] == (B, 1, N, N)
    assert shapes["by head"] == (1, H, N, N)
    assert shapes["table"] == (B, H, N, N)
    assert shapes["keys"] == (1, 1, 1, N)
    assert shapes["all"] == (1, 1, 1, 1)


def test_lists_of_blocks_count_without_a_function() -> None:
    """As in the compiled FlexAttention: blocks that are listed as full are visible, others are not."""
    counts = torch.tensor([[[1, 2, 1]]], dtype=torch.int32)
    indices = torch.tensor([[[[1, 0, 2], [2, 0, 1], [0, 1, 2]]]], dtype=torch.int32)
    mask = BlockMask.from_kv_blocks(counts, indices, BLOCK_SIZE=16, seq_lengths=(N, N))
    seen = torch.tensor([[False, True, False], [True, False, True], [True, False, False]])
    dense = seen.repeat_interleave(16, 0).repeat_interleave(16, 1)[:N, :N]
    q, k, v = inputs(N, N)
    for kernel in ("cpu", "reference"):
        found = hw.attention(q, k, v, mask=mask, kernel=kernel)
        torch.testing.assert_close(found, hw.attention(q, k, v, mask=dense, kernel=kernel))


def test_a_block_mask_is_of_its_sizes_and_slots() -> None:
    """Its function counts queries from 0, also where they are the last of the keys."""
    n, m = 5, N
    q, k, v = inputs(n, m)
    mask = create_block_mask(lambda b, h, i, j: j <= i + 10, None, None, n, m, device="cpu")
    seen = torch.arange(m) <= torch.arange(n)[:, None] + 10
    torch.testing.assert_close(hw.attention(q, k, v, mask=mask), hw.attention(q, k, v, mask=seen))
    with pytest.raises(hw.HeadwayError, match=r"made for 1 rows, 1 heads, 5 queries and 41 keys and the call has 2, 4"):
        hw.attention(k.repeat(1, 2, 1, 1), k, v, mask=mask)


def test_joined_by_and_and_or() -> None:
    q, k, v = inputs(N, N)
    near = lambda b, h, i, j: (i - j).abs() <= 3  # noqa: E731
    found = hw.attention(q, k, v, mask=M.Causal() & near | M.KeepFirst(2))
    torch.testing.assert_close(found, hw.attention(q, k, v, mask=(M.Window(3, 0)) | M.KeepFirst(2)))


def test_decoding_with_a_function_equals_a_full_pass() -> None:
    """The numbers of a function are the order in the stream, which a cache continues."""
    config = models.TransformerConfig(vocab_size=9, embed_dim=16, num_layers=2, num_heads=2)
    torch.manual_seed(0)
    decoder = models.Decoder(config, "rope").eval()
    ids = torch.randint(0, 9, (2, 12))
    mask = FUNCTIONS["document"]
    with torch.no_grad():
        whole = decoder(ids, mask=mask)
        cache = decoder.new_cache()
        steps = [decoder(part, mask=mask, cache=cache) for part in (ids[:, :5], *ids[:, 5:].split(1, dim=1))]
        torch.testing.assert_close(torch.cat(steps, dim=1), whole)
        at = hw.Coordinates.padded([12, 9], 12)
        rows = torch.cat([torch.zeros(3, dtype=torch.long), ids[1, :9]])
        padded = decoder(torch.stack([ids[0], rows]), mask=mask, positions=at)
        torch.testing.assert_close(padded[1, 3:], decoder(ids[1:, :9], mask=mask)[0])


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["cpu", "reference", "sdpa"])
@pytest.mark.parametrize("name", ["document", "by head", "own"])
def test_compiled_and_exported(name: str, kernel: str) -> None:
    mask: Any = OWN["bits"](N) if name == "own" else FUNCTIONS[name]
    q, k, v = inputs(N, N)

    class Layer(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return hw.attention(q, k, v, mask=mask, encoding="rope", kernel=kernel)

    out = Layer()(q, k, v)
    compiled = torch.compile(Layer(), backend="aot_eager", fullgraph=True)(q, k, v)
    torch.testing.assert_close(compiled, out)
    torch.testing.assert_close(*(torch.autograd.grad(x.sum(), (q, k, v)) for x in (compiled, out)))
    plain = [x.detach() for x in (q, k, v)]
    torch.testing.assert_close(torch.export.export(Layer(), tuple(plain)).module()(*plain), out)


# ---------------------------------------------------------------- by name


def test_masks_by_name() -> None:
    q, k, v = inputs(N, N)
    assert torch.equal(hw.attention(q, k, v, mask="causal"), hw.attention(q, k, v, mask=M.Causal()))
    at = hw.Coordinates.packed([20, 21])
    places: dict[str, Any] = {"q_positions": at, "k_positions": at}
    found = hw.attention(q, k, v, mask="documents", **places)
    assert torch.equal(found, hw.attention(q, k, v, mask=M.Documents(), **places))
    layer = hw.nn.MultiHeadAttention(16, 2, encoding="rope")
    x = torch.randn(2, N, 16)
    assert torch.equal(layer(x, mask="causal"), layer(x, mask=M.Causal()))
    block = hw.nn.Block(16, 2, encoding="alibi")
    assert torch.equal(block(x, mask="causal"), block(x, mask=M.Causal()))
    stack = models.Stack([block, block], masks=["causal", None])
    assert torch.equal(stack(x), models.Stack([block, block], masks=[M.Causal(), None])(x))


def test_encodings_by_name() -> None:
    q, k, v = inputs(N, N)
    for name in ("rope", "alibi", "rope(base=500.0)", "log-n + rope"):
        made = hw.encoding(name, num_heads=H, head_dim=8)
        for _ in range(2):
            found = hw.attention(q, k, v, encoding=name)
            assert torch.equal(found, hw.attention(q, k, v, encoding=made))
        assert torch.equal(hw.attention_weights(q, k, v, encoding=name), hw.attention_weights(q, k, v, encoding=made))
        assert hw.explain(q, k, v, encoding=name).kernel == hw.explain(q, k, v, encoding=made).kernel


def test_layers_and_models_make_their_encodings() -> None:
    layer = hw.nn.MultiHeadAttention(48, 4, encoding="t5", dtype=torch.float64)
    assert isinstance(layer.encoding, hw.positions.T5)
    assert {p.dtype for p in layer.encoding.parameters()} == {torch.float64}
    assert any(name.startswith("encoding.") for name in layer.state_dict())
    block = hw.nn.Block(48, 4, encoding="rope", cross_attention=True)
    assert block.attention.encoding.head_dim == 12
    assert block.cross_attention.encoding is None
    config = models.TransformerConfig(vocab_size=9, embed_dim=48, num_layers=2, num_heads=4)
    encoder, decoder = models.Encoder(config, "t5"), models.Decoder(config, ["t5", None])
    assert [x.encodings[0].bidirectional for x in (encoder.stack, decoder.stack)] == [True, False]
    assert decoder.stack.encoding_of_layer[1] is None
    both = models.EncoderDecoder(config, "t5", "t5")
    assert [x.encodings[0].bidirectional for x in (both.encoder, both.decoder)] == [True, False]
    same = models.Decoder(config, hw.encoding("rope", head_dim=12))
    named = models.Decoder(config, "rope")
    named.load_state_dict(same.state_dict())
    ids = torch.randint(0, 9, (1, 6))
    assert torch.equal(named(ids), same(ids))
