"""Jagged batches and varlen_attention, against a loop over the sequences and against torch's own attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.testing import CompileCounter

import headway as hw
from headway import HeadwayError, jagged, plans
from headway import masks as M
from headway._torch import offsets_of
from headway.masks import Causal, Chunked, Documents, KeepFirst, Mask, Padding, Prefix, Window
from headway.positions import ENCODINGS, PositionEncoding
from headway.testing.inputs import Layer, on_axes, randomized

LENGTHS = [5, 1, 0, 7, 3]
OTHERS = [6, 2, 4, 7, 4]


def nested(parts: list[Tensor], *, grad: bool = False) -> Tensor:
    return torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=grad)


def like(x: Tensor, parts: list[Tensor]) -> Tensor:
    """A jagged tensor with the offsets of x, [batch, tokens, …]."""
    return torch.nested.nested_tensor_from_jagged(torch.cat(parts), offsets=offsets_of(x))


def heads_of(lengths: list[int], heads: int = 4, width: int = 8, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(n, heads, width, generator=generator, dtype=torch.float64) for n in lengths]


def call(parts: list[Tensor], *, grad: bool = False) -> Tensor:
    return nested(parts, grad=grad).transpose(1, 2)


def alone(part: Tensor) -> Tensor:
    """A sequence [n, heads, d] as a batch of one."""
    return part.transpose(0, 1)[None]


def assert_rows(found: Tensor, expected: list[Tensor], tolerance: float = 1e-12) -> None:
    assert found.is_nested
    assert found.layout == torch.jagged
    rows = found.unbind()
    assert len(rows) == len(expected)
    for row, one in zip(rows, expected, strict=True):
        torch.testing.assert_close(row, one[0], atol=tolerance, rtol=tolerance)


MASKS: dict[str, Mask | None] = {
    "none": None,
    "causal": Causal(),
    "window": Causal() & Window(left=2),
    "two-sided": Window(left=1, right=2),
    "sinks": Causal() & (Window(left=1) | KeepFirst(2)),
    "prefix": Causal() | Prefix(3),
    "chunks": Causal() & Chunked(2, previous=1),
}


@pytest.mark.parametrize("kernel", ["auto", "reference", "sdpa"])
@pytest.mark.parametrize("lengths", [LENGTHS, OTHERS], ids=["self", "cross"])
@pytest.mark.parametrize("name", MASKS)
def test_every_sequence_is_computed_by_itself(name: str, lengths: list[int], kernel: str) -> None:
    q, k, v = heads_of(LENGTHS), heads_of(lengths, heads=2, seed=1), heads_of(lengths, heads=2, width=6, seed=2)
    mask = MASKS[name]
    parts = {side: [x.clone().requires_grad_() for x in given] for side, given in (("q", q), ("k", k), ("v", v))}
    rows = list(zip(*parts.values(), strict=True))
    expected = [hw.attention(*map(alone, row), mask=mask, kernel="reference") for row in rows]
    jagged = [call(x, grad=False).requires_grad_() for x in (q, k, v)]
    if lengths is LENGTHS:  # of one batch, as a layer has them
        jagged[1:] = [like(jagged[0], x).transpose(1, 2).detach().requires_grad_() for x in (k, v)]
    found = hw.attention(*jagged, mask=mask, kernel=kernel)
    assert found.shape[2] == jagged[0].shape[2]
    assert_rows(found, expected)
    weights = heads_of(LENGTHS, width=6, seed=3)
    sum((out * alone(w)).sum() for out, w in zip(expected, weights, strict=True)).backward()  # type: ignore[union-attr]
    (found * like(found.transpose(1, 2), weights).transpose(1, 2)).values().sum().backward()
    for x, wanted in zip(jagged, parts.values(), strict=True):
        assert x.grad is not None
        assert_rows(x.grad, [alone(torch.zeros_like(one) if one.grad is None else one.grad) for one in wanted])


@pytest.mark.parametrize("name", ENCODINGS)
def test_every_encoding_treats_a_sequence_as_alone(name: str) -> None:
    for encoding in ENCODINGS[name].examples()[:1]:
        assert_encoding(encoding)


def assert_encoding(encoding: PositionEncoding) -> None:
    layer = Layer(
        randomized(encoding, torch.Generator().manual_seed(0), torch.float64), torch.Generator(), torch.float64
    )
    layer.eval()
    if layer.in_attention is None:
        pytest.skip("it acts on embeddings alone")
    lengths = [4, 1, 6]
    parts = [torch.randn(n, layer.sizes.embed_dim, dtype=torch.float64) for n in lengths]
    places = [on_axes(hw.Coordinates.span(n), encoding.axes) for n in lengths]
    with torch.no_grad():
        alones = [layer(x[None], at, mask=Causal()) for x, at in zip(parts, places, strict=True)]
        x = nested([layer.embed(x[None], at)[0] for x, at in zip(parts, places, strict=True)])
        q, k, v = (
            like(x, [one[0].transpose(0, 1) for one in some]).transpose(1, 2)
            for some in zip(*(layer.project(one[None]) for one in x.unbind()), strict=True)
        )
        several = encoding.axes not in (None, 1)
        at = like(x, [one.position[0] for one in places]) if several else None
        found = hw.attention(
            q, k, v, encoding=encoding, mask=Causal(), q_input=x, k_input=x, q_positions=at, k_positions=at
        )
    assert_rows(found, alones, 1e-9)


def test_positions_of_a_sequence_are_those_that_are_given() -> None:
    encoding = hw.encoding("rope", head_dim=8)
    parts = heads_of(LENGTHS)
    places = [torch.randint(0, 50, (n,)) for n in LENGTHS]
    q = call(parts)
    found = hw.attention(q, q, q, encoding=encoding, mask=Causal(), q_positions=nested(places))
    expected = [
        hw.attention(*[alone(x)] * 3, encoding=encoding, mask=Causal(), q_positions=at)
        for x, at in zip(parts, places, strict=True)
    ]
    assert_rows(found, expected)


@pytest.mark.parametrize("name", ["log-n", "dynamic-ntk", "alibi", "t5", "rope"])
def test_cross_attention_with_an_encoding(name: str) -> None:
    """Queries are the last of their keys; encodings of the total length read the length of the keys."""
    encoding = next(one for one in ENCODINGS[name].examples()).double()
    heads, width = encoding.sizes[0] or 4, encoding.sizes[2] or 8
    q, k = heads_of(LENGTHS, heads, width), heads_of(OTHERS, heads, width, seed=1)
    found = hw.attention(call(q), call(k), call(k), encoding=encoding, mask=Causal())
    expected = [
        hw.attention(alone(x), alone(y), alone(y), encoding=encoding, mask=Causal()) for x, y in zip(q, k, strict=True)
    ]
    assert_rows(found, expected)
    with pytest.raises(HeadwayError, match="more queries than keys"):
        hw.attention(call(k), call(q), call(q), encoding=encoding, mask=Causal())


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")  # of torch, which converts them
@pytest.mark.parametrize("scale", [None, 0.3])
def test_as_torch_computes_it(scale: float | None) -> None:
    """Without a mask, since torch has no causal attention of nested tensors on a CPU."""
    q, k = (call(heads_of(lengths, seed=seed)) for seed, lengths in enumerate(([5, 1, 7], [6, 2, 4])))
    with torch.no_grad():
        expected = F.scaled_dot_product_attention(q, k, k, scale=scale)
    assert_rows(hw.attention(q, k, k, scale=scale), [x[None] for x in expected.unbind()])


def test_an_encoding_by_name() -> None:
    q = call(heads_of([3, 5]))
    named = hw.attention(q, q, q, encoding="alibi", mask="causal")
    right = hw.attention(q, q, q, encoding=hw.encoding("alibi", num_heads=4), mask=Causal())
    torch.testing.assert_close(named.values(), right.values(), rtol=0, atol=0)


def test_the_log_sum_exp_is_jagged() -> None:
    q, k = heads_of(LENGTHS), heads_of(OTHERS, seed=1)
    sinks = [torch.randn(4, n, dtype=torch.float64) for n in LENGTHS]
    of_each = nested([x.transpose(0, 1) for x in sinks]).transpose(1, 2)
    _, found = hw.attention_with_lse(call(q), call(k), call(k), mask=Causal(), sink=of_each)
    rows = [
        hw.attention_with_lse(alone(x), alone(y), alone(y), mask=Causal(), sink=z[None])[1]
        for x, y, z in zip(q, k, sinks, strict=True)
    ]
    assert_rows(found, rows)


def test_dropout_drops_what_it_drops_in_the_packed_row() -> None:
    parts = heads_of([40, 60])
    q = call(parts)
    found = hw.attention(q, q, q, dropout=0.5, dropout_seed=3)
    row = torch.cat(parts).transpose(0, 1)[None]
    at = hw.Coordinates.packed([40, 60])
    expected = hw.attention(
        row, row, row, mask=Documents(), q_positions=at, k_positions=at, dropout=0.5, dropout_seed=3
    )
    assert torch.equal(found.values(), expected[0])
    assert not torch.equal(found.values(), hw.attention(q, q, q).values())


def test_a_view_of_a_padded_tensor_has_holes() -> None:
    padded = torch.randn(3, 9, 4, 8, dtype=torch.float64)
    starts, lengths = torch.tensor([0, 2, 1]), torch.tensor([3, 7, 1])
    q = torch.nested.narrow(padded, 1, starts, lengths, layout=torch.jagged).transpose(1, 2)
    expected = [
        hw.attention(*[alone(x[start : start + n])] * 3, mask=Causal())
        for x, start, n in zip(padded, starts, lengths, strict=True)
    ]
    assert_rows(hw.attention(q, q, q, mask=Causal()), expected)


def test_explain_speaks_of_the_call_that_is_computed() -> None:
    q = call([x.float() for x in heads_of(LENGTHS)])
    for mask in (None, Causal(), Causal() & Window(left=2)):
        found = hw.explain(q, q, q, mask=mask, encoding=hw.encoding("alibi", num_heads=4))
        assert found.kernel == hw.explain(*[q.values()[None]] * 3, mask=Causal()).kernel
        assert found.terms == ("DistanceBias",)


def test_autocast_and_half_precision() -> None:
    q = call([x.float() for x in heads_of(LENGTHS)])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert hw.attention(q, q, q).dtype == torch.bfloat16
    assert hw.attention(*[q.bfloat16()] * 3).dtype == torch.bfloat16


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")  # of torch, for the strided layout
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda q, k: (q.transpose(1, 2), k, k), r"q has shape \[5, j\d+, 4, 8\].*q.transpose\(1, 2\)"),
        (lambda q, k: (q, k, q), r"v has sequences of \[5, 1, 0, 7, …\] tokens but k of \[6, 2, 4, 7, …\]"),
        (lambda q, k: (q, k.values()[None], k), "k is not a nested tensor"),
        (lambda q, k: (q, *[call(heads_of([1, 2]))] * 2), "q has 5 sequences but k 2"),
        (lambda q, k: (torch.nested.nested_tensor(heads_of([1, 2])), k, k), "q is a nested tensor of layout"),
    ],
)
def test_what_does_not_fit(change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]], said: str) -> None:
    with pytest.raises(HeadwayError, match=said):
        hw.attention(*change(call(heads_of(LENGTHS)), call(heads_of(OTHERS))))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"mask": torch.ones(7, 7, dtype=torch.bool)}, "mask is a tensor"),
        ({"mask": Causal() & Padding([1, 2, 3, 4, 5])}, "mask is a Padding that holds a tensor"),
        ({"mask": "triangle"}, "mask"),
        ({"encoding": hw.encoding("rope", head_dim=8), "q_positions": torch.arange(7)}, "q_positions is not a nested"),
        ({"k_positions": nested([torch.arange(n) for n in OTHERS])}, r"k_positions has sequences of \[6, 2"),
        ({"q_input": nested([torch.zeros(n, 8) for n in OTHERS])}, r"q_input has sequences of \[6, 2"),
    ],
)
def test_arguments_that_do_not_fit(arguments: dict[str, Any], said: str) -> None:
    q = call(heads_of(LENGTHS))
    with pytest.raises(HeadwayError, match=said):
        hw.attention(q, q, q, **arguments)


@pytest.mark.parametrize("function", [hw.attention_weights, hw.attention_steps])
def test_weights_are_of_one_sequence(function: Callable[..., object]) -> None:
    q = call(heads_of(LENGTHS))
    with pytest.raises(HeadwayError, match=r"one sequence at a time, such as q.unbind\(\)\[0\]\[None\]"):
        function(q, q, q)


@pytest.mark.slow
@pytest.mark.parametrize("lengths", [LENGTHS, OTHERS], ids=["self", "cross"])
def test_one_graph_serves_other_lengths(lengths: list[int]) -> None:
    encoding = hw.encoding("rope", head_dim=8)
    compiled = torch.compile(
        lambda q, k: hw.attention(q, k, k, encoding=encoding, mask=Causal()), fullgraph=True, backend="aot_eager"
    )
    for number in range(2):
        q = call(heads_of([n + number for n in LENGTHS])).requires_grad_()
        k = q if lengths is LENGTHS else call(heads_of([n + number for n in lengths], seed=1))
        found, expected = compiled(q, k), hw.attention(q, k, k, encoding=encoding, mask=Causal())
        assert_rows(found, [x[None] for x in expected.unbind()])
        gradients = [torch.autograd.grad(out.values().square().sum(), q)[0] for out in (found, expected)]
        assert_rows(gradients[0], [x[None] for x in gradients[1].unbind()])


# ---------------------------------------------------------------- varlen_attention


@pytest.mark.parametrize("lengths", [LENGTHS, OTHERS], ids=["self", "cross"])
def test_functions_get_the_number_of_the_sequence_and_the_head(lengths: list[int]) -> None:
    q, k, v = heads_of(LENGTHS), heads_of(lengths, seed=1), heads_of(lengths, seed=2)

    def near(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (i - j).abs() <= h + 2 * b

    expected = []
    for number, (x, y, z) in enumerate(zip(q, k, v, strict=True)):
        n, m = len(x), len(y)
        i, j, h = torch.arange(m - n, m)[:, None], torch.arange(m), torch.arange(4)[:, None, None]
        seen = ((i - j).abs() <= h + 2 * number)[None]
        expected.append(hw.attention(alone(x), alone(y), alone(z), mask=seen))
    assert_rows(hw.attention(call(q), call(k), call(v), mask=near), expected)
    joined = hw.attention(call(q), call(k), call(v), mask=Causal() & near)
    one = hw.attention(call(q), call(k), call(v), mask=lambda b, h, i, j: near(b, h, i, j) & (i >= j))
    torch.testing.assert_close(joined.values(), one.values(), atol=1e-12, rtol=1e-12)


@dataclass(frozen=True, eq=False)
class ByHead(Mask):
    """A mask that reads the number of heads."""

    heads: int = 0

    def for_call(self, batch: int, heads: int) -> Mask:
        return self._with(heads=heads)

    def allowed(self, q: hw.Coordinates, k: hw.Coordinates) -> Tensor:
        return (q.index[:, None, :, None] - k.index[:, None, None, :]).abs() < self.heads


def test_masks_of_ones_own_are_told_the_heads() -> None:
    q, k, v = (heads_of(LENGTHS, seed=seed) for seed in range(3))
    found = hw.attention(call(q), call(k), call(v), mask=ByHead())
    expected = hw.attention(call(q), call(k), call(v), mask=Window(3, 3))
    torch.testing.assert_close(found.values(), expected.values(), atol=1e-12, rtol=1e-12)


class First(M.And):
    """Joins otherwise than And, and counts the keys itself."""

    def allowed(self, q: hw.Coordinates, k: hw.Coordinates) -> Tensor:
        return (k.index[:, None, None, :] < 2).expand(-1, 1, q.index.shape[1], -1)


def test_a_joined_mask_of_ones_own_counts_in_each_sequence() -> None:
    q, k, v = (heads_of(LENGTHS, seed=seed) for seed in range(3))
    found = hw.attention(call(q), call(k), call(v), mask=First((Causal(), Window(1))))
    expected = hw.attention(call(q), call(k), call(v), mask=KeepFirst(2))
    torch.testing.assert_close(found.values(), expected.values(), atol=1e-12, rtol=1e-12)


def flat(parts: list[Tensor]) -> tuple[Tensor, Tensor]:
    return torch.cat(parts), torch.tensor([0, *[len(x) for x in parts]]).cumsum(0).int()


@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [LENGTHS, OTHERS, [2, 4, 1, 3, 5]], ids=["self", "longer keys", "shorter keys"])
def test_varlen_is_a_loop_of_torchs_attention(lengths: list[int], causal: bool, window: int | None) -> None:
    """Causal masks and windows are aligned to the bottom right, as flash_attn_varlen_func documents."""
    q, k, v = heads_of(LENGTHS), heads_of(lengths, 2, seed=1), heads_of(lengths, 2, 6, seed=2)
    (q_flat, q_ends), (k_flat, k_ends), (v_flat, _) = map(flat, (q, k, v))
    mask: Mask | None = Causal() if causal else None
    if window is not None:
        around = Window(left=window)
        mask = around if mask is None else mask & around
    found = hw.varlen_attention(q_flat, k_flat, v_flat, q_ends, k_ends, mask=mask)
    assert found.shape == (sum(LENGTHS), 4, 6)
    for x, y, z, out in zip(q, k, v, found.split(LENGTHS), strict=True):
        n, m = len(x), len(y)
        i, j = torch.arange(n)[:, None] + m - n, torch.arange(m)[None]
        seen = torch.ones(n, m, dtype=torch.bool)
        seen = seen & (j <= i) if causal else seen
        seen = seen if window is None else seen & (j >= i - window)
        rows = [part.repeat_interleave(4 // part.shape[1], 1).transpose(0, 1) for part in (x, y, z)]
        wanted = F.scaled_dot_product_attention(rows[0], rows[1], rows[2], attn_mask=seen)
        wanted = torch.where(seen.any(1)[:, None], wanted, 0.0)
        torch.testing.assert_close(out.transpose(0, 1), wanted, atol=1e-12, rtol=1e-12)


def test_varlen_of_one_side_and_with_an_encoding() -> None:
    encoding = hw.encoding("rope", head_dim=8)
    parts = heads_of(LENGTHS)
    x, ends = flat(parts)
    found = hw.varlen_attention(x, x, x, ends, encoding=encoding, mask=Causal())
    q = call(parts)
    expected = hw.attention(q, q, q, encoding=encoding, mask=Causal()).transpose(1, 2)
    assert torch.equal(found, expected.values())
    shifted = hw.varlen_attention(
        x, x, x, ends, encoding=encoding, mask=Causal(), q_positions=torch.cat([torch.arange(n) + 9 for n in LENGTHS])
    )
    torch.testing.assert_close(found, shifted, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ([0, 5, 15], r"cu_seqlens_q is \[0, 5, 15\] for 16 tokens"),
        ([5, 16], r"cu_seqlens_q is \[5, 16\] for 16"),
        ([0, 9, 5, 16], "cu_seqlens_q is"),
        ([0.0, 16.0], "cu_seqlens_q is torch.float32"),
        ([[0, 16]], r"cu_seqlens_q is torch.int64 \[1, 2\]"),
    ],
)
def test_cumulative_lengths_that_do_not_fit(ends: list[Any], said: str) -> None:
    x = torch.cat(heads_of(LENGTHS))
    with pytest.raises(HeadwayError, match=said):
        hw.varlen_attention(x, x, x, torch.tensor(ends))


def test_varlen_says_what_to_give_in_place_of_flash_attentions_arguments() -> None:
    x, ends = flat(heads_of(LENGTHS))
    for name, said in [
        ("causal", r"masks\.Causal\(\)"),
        ("window_size", r"masks\.Window\(left, right\)"),
        ("softmax_scale", "scale="),
        ("softcap", "soft_cap="),
        ("alibi_slopes", "headway.encoding\\('alibi'"),
        ("max_seqlen_q", "leave it out"),
        ("max_seqlen_k", "leave it out"),
    ]:
        with pytest.raises(HeadwayError, match=said):
            hw.varlen_attention(x, x, x, ends, None, **{name: 1})  # type: ignore[arg-type]
    with pytest.raises(HeadwayError, match=r"give \[tokens, heads, head_dim\]"):
        hw.varlen_attention(x[None], x, x, ends)


# ---------------------------------------------------------------- layers


def drawn(lengths: list[int], width: int = 32, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(n, width, generator=generator, dtype=torch.float64) for n in lengths]


ROPE = hw.encoding("rope", head_dim=8)


@pytest.mark.parametrize("mask", [None, Causal(), Causal() | Prefix(2)], ids=["none", "causal", "prefix"])
@pytest.mark.parametrize("form", ["self", "same lengths", "cross", "value"])
def test_a_layer_of_a_jagged_tensor(form: str, mask: Mask | None) -> None:
    layer = hw.nn.MultiHeadAttention(32, 4, num_kv_heads=2, encoding=ROPE, qk_norm="rms", sink=0.5).double()
    x, lengths = drawn(LENGTHS), OTHERS if form == "cross" else LENGTHS
    y, z = drawn(lengths, seed=1), drawn(lengths, seed=2)
    given = nested(x, grad=True)
    of_keys = nested(y) if form == "cross" else like(given, y)
    rows: list[tuple[Tensor, ...]]
    if form == "self":
        arguments, rows = (given,), [(one,) for one in x]
    elif form == "value":
        arguments, rows = (given, of_keys, like(given, z)), list(zip(x, y, z, strict=True))  # type: ignore[assignment]
    else:
        arguments, rows = (given, of_keys), list(zip(x, y, strict=True))  # type: ignore[assignment]
    found = layer(*arguments, mask=mask)
    expected = [layer(*[one[None] for one in row], mask=mask) for row in rows]
    assert_rows(found, expected)
    (found + given).values().sum().backward()  # of one shape, as a residual connection needs
    assert given.grad is not None
    assert given.grad.values().abs().sum() > 0


@pytest.mark.parametrize("kind", [hw.nn.Block, hw.nn.ParallelBlock])
def test_a_block_of_a_jagged_tensor(kind: type[hw.nn.Block]) -> None:
    block = kind(32, 4).double()
    x = drawn(LENGTHS)
    expected = [block(one[None], mask=Causal(), encoding=ROPE) for one in x]
    assert_rows(block(nested(x), mask=Causal(), encoding=ROPE), expected)


def test_a_block_with_a_context_of_other_lengths() -> None:
    """The masks of the context count both sides from 0 in each sequence, though the row does not."""
    block = hw.nn.Block(32, 4, cross_attention=True).double()
    x, y = drawn(LENGTHS), drawn(OTHERS, seed=1)
    for mask in (None, Causal(), Window(left=1, right=1)):
        options = {"mask": Causal(), "context_mask": mask, "encoding": ROPE}
        expected = [block(a[None], context=b[None], **options) for a, b in zip(x, y, strict=True)]
        assert_rows(block(nested(x), context=nested(y), **options), expected)


CONFIG = hw.models.TransformerConfig(vocab_size=20, embed_dim=32, num_layers=2, num_heads=4)


def ids_of(lengths: list[int], seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 20, (n,), generator=generator) for n in lengths]


@pytest.mark.parametrize("name", ["rope", "sinusoidal", "t5"])
@pytest.mark.parametrize("kind", [hw.models.Encoder, hw.models.Decoder])
def test_a_model_of_jagged_ids(kind: type[Any], name: str) -> None:
    sizes = {"rope": {"head_dim": 8}, "sinusoidal": {"embed_dim": 32}, "t5": {"num_heads": 4}}[name]
    masks = [Causal() | Prefix(2), Window(left=2, right=2)]
    model = kind(CONFIG, hw.encoding(name, **sizes), masks).double().eval()
    ids = ids_of(LENGTHS)
    found = model(nested(ids))
    assert_rows(found, [model(one[None]) for one in ids], 1e-10)
    hidden = model.hidden(nested(ids))
    assert_rows(model.logits(hidden), [model.logits(model.hidden(one[None])) for one in ids], 1e-10)
    places = [torch.arange(n) + 3 for n in LENGTHS]
    at = nested(places)
    assert_rows(
        model(nested(ids), positions=at), [model(i[None], positions=p) for i, p in zip(ids, places, strict=True)], 1e-10
    )


def test_an_encoder_and_decoder_of_jagged_ids() -> None:
    model = hw.models.EncoderDecoder(CONFIG, *(hw.encoding("rope", head_dim=8) for _ in range(2))).double().eval()
    source, target = ids_of(OTHERS), ids_of(LENGTHS, seed=1)
    expected = [model(a[None], b[None]) for a, b in zip(source, target, strict=True)]
    assert_rows(model(nested(source), nested(target)), expected, 1e-10)


def test_training_on_jagged_ids_gives_the_gradients_of_single_sequences() -> None:
    model = hw.models.Decoder(CONFIG, hw.encoding("alibi", num_heads=4)).double()
    ids = ids_of(LENGTHS)
    model(nested(ids)).values().square().sum().backward()
    found = {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}
    model.zero_grad()
    sum(model(one[None]).square().sum() for one in ids).backward()
    for name, one in model.named_parameters():
        torch.testing.assert_close(found[name], one.grad, atol=1e-9, rtol=1e-9)


def test_what_no_jagged_tensor_continues() -> None:
    layer, x = hw.nn.MultiHeadAttention(32, 4).double(), nested(drawn(LENGTHS))
    with pytest.raises(HeadwayError, match="cache is given but cannot continue the sequences of a nested tensor"):
        layer(x, cache=hw.nn.KeyValueCache())
    model = hw.models.Decoder(CONFIG)
    with pytest.raises(HeadwayError, match="cache is given"):
        model(nested(ids_of(LENGTHS)), cache=model.new_cache())
    with pytest.raises(HeadwayError, match=r"there are 5 sequences, and 2 of the keys"):
        layer(x, nested(drawn([1, 2])))
    with pytest.raises(HeadwayError, match=r"value has sequences of \[6, 2"):
        layer(x, x, nested(drawn(OTHERS)))


def test_a_capture_sees_the_row() -> None:
    layer = hw.nn.MultiHeadAttention(32, 4)
    with hw.capture(layer, statistics=("entropy",)) as seen:
        layer(nested([x.float() for x in drawn(LENGTHS)]), mask=Causal())
    assert "entropy" in str(seen.table())


@pytest.mark.slow
def test_layers_of_jagged_tensors_compile_to_one_graph() -> None:
    layer, block = hw.nn.MultiHeadAttention(32, 4, encoding=ROPE).double(), hw.nn.Block(32, 4).double()
    model = hw.models.Decoder(CONFIG, hw.encoding("rope", head_dim=8)).double()
    for one, x, options in (
        (layer, nested(drawn(LENGTHS)), {"mask": Causal()}),
        (block, nested(drawn(LENGTHS)), {"mask": Causal()}),
        (model, nested(ids_of(LENGTHS)), {}),
    ):
        compiled = torch.compile(one, fullgraph=True, backend="aot_eager")
        assert_rows(compiled(x, **options), [row[None] for row in one(x, **options).unbind()], 1e-10)


# ---------------------------------------------------------------- calls of the same offsets


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each call that has a plan was computed by it."""
    found: list[bool] = []
    real = plans.Plan.__call__
    monkeypatch.setattr(jagged, "_recent", jagged._Recent())

    def run(self: plans.Plan, *given: Any) -> Tensor | None:
        out = real(self, *given)
        found.append(out is not None)
        return out

    monkeypatch.setattr(plans.Plan, "__call__", run)
    return found


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", ["none", "rope", "alibi", "t5"])
def test_later_calls_of_the_same_offsets_have_a_plan_and_the_same_bits(
    name: str, grad: bool, planned: list[bool]
) -> None:
    encoding = hw.encoding(name, num_heads=4, head_dim=8, bidirectional=False)
    q = call([part.float() for part in heads_of(LENGTHS)])
    others = [part.float() for part in heads_of(LENGTHS, seed=1)]

    def results() -> list[Tensor]:
        k = like(q.transpose(1, 2), others).transpose(1, 2)
        values = torch.cat(others).requires_grad_(grad)
        v = torch.nested.nested_tensor_from_jagged(values, offsets=offsets_of(q)).transpose(1, 2)
        with torch.set_grad_enabled(grad):
            out = hw.attention(q, k, v, encoding=encoding, mask=Causal()).values()
        if grad:
            out.square().sum().backward()
            assert values.grad is not None
            return [out, values.grad]
        return [out]

    first = results()
    assert not planned
    for _ in range(3):
        for found, expected in zip(results(), first, strict=True):
            assert torch.equal(found, expected)
    assert sum(planned) == 3


def through_numpy(ends: Tensor) -> None:
    ends.numpy()[1] = 7


def through_data(ends: Tensor) -> None:
    ends.data[1] = 7


def in_place(ends: Tensor) -> None:
    ends[1] = 7


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("write", [in_place, through_data, through_numpy])
def test_offsets_that_were_written_into_are_read_anew(
    write: Callable[[Tensor], None], inference: bool, planned: list[bool]
) -> None:
    x = torch.randn(10, 4, 8)
    with torch.inference_mode(inference):
        ends = torch.tensor([0, 4, 10])
        for _ in range(3):
            before = hw.varlen_attention(x, x, x, ends, mask=Causal())
        assert planned == [True, True]
        write(ends)
        after = hw.varlen_attention(x, x, x, ends, mask=Causal())
    assert torch.equal(after, hw.varlen_attention(x, x, x, torch.tensor([0, 7, 10]), mask=Causal()))
    assert not torch.equal(before, after)


@pytest.mark.parametrize("name", ["none", "rope", "alibi"])
def test_coordinates_made_in_inference_mode_serve_a_backward_pass(name: str, planned: list[bool]) -> None:
    encoding = hw.encoding(name, num_heads=4, head_dim=8, bidirectional=False)
    x, ends = torch.randn(10, 4, 8), torch.tensor([0, 4, 10])
    with torch.inference_mode():
        expected = hw.varlen_attention(x, x, x, ends, encoding=encoding)
    q, k, v = (x.clone().requires_grad_() for _ in range(3))
    out = hw.varlen_attention(q, k, v, ends, encoding=encoding)
    out.sum().backward()
    assert torch.equal(out, expected)
    assert v.grad is not None


def test_coordinates_of_offsets_that_are_gone_are_not_those_of_others() -> None:
    for middle in (3, 4, 5, 6, 7):
        at = jagged.coordinates(torch.tensor([0, middle, 10]), 10)
        assert at.document is not None
        assert at.document[0].tolist() == [0] * middle + [1] * (10 - middle)
    kept = jagged.coordinates(torch.tensor([0, 4, 10]), 10)
    assert jagged.coordinates(torch.tensor([0, 4, 10]), 10) is kept
    assert jagged.coordinates(torch.tensor([0, 4, 10]), 12) is not kept
    kept = jagged.coordinates(torch.tensor([0, 4, 10]), 10)
    assert jagged.recent(torch.tensor([0, 4, 10]), 10) is kept
    kept.position[:] = 0
    assert jagged.coordinates(torch.tensor([0, 4, 10]), 10).position.flatten().tolist() == [*range(4), *range(6)]


def test_coordinates_on_a_device_are_made_anew() -> None:
    offsets = torch.zeros(3, dtype=torch.int64, device="meta")  # a device has streams, and graphs that are replayed
    jagged.coordinates(offsets, 10)
    assert jagged.recent(offsets, 10) is None


def test_calls_whose_positions_are_given_make_no_plan(planned: list[bool]) -> None:
    x, ends, encoding = torch.randn(10, 4, 8), torch.tensor([0, 4, 10]), hw.encoding("rope", head_dim=8)
    for _ in range(3):
        hw.varlen_attention(
            x, x, x, ends, encoding=encoding, q_positions=torch.arange(10), k_positions=torch.arange(10)
        )
        jagged.coordinates(ends, 10)
    assert not planned
    assert "_plans" not in vars(encoding)


def test_calls_without_a_compiler_do_not_compile_others_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jagged, "_recent", jagged._Recent())

    def of(x: Tensor, ends: Tensor) -> Tensor:
        return hw.varlen_attention(x, x, x, ends, mask=Causal())

    counter, x = CompileCounter(), torch.randn(10, 4, 8)
    compiled = torch.compile(of, backend=counter, fullgraph=True)
    for middle in (3, 4, 5):
        ends = torch.tensor([0, middle, 10])
        torch.testing.assert_close(of(x, ends), compiled(x, ends), rtol=1e-5, atol=1e-5)
    assert counter.frame_count == 1
