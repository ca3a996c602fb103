"""A call with a plan gives, bit for bit, what it gives without one, whatever has changed since the plan was made."""

import copy
import gc
import itertools
import pickle
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint

import headway as hw
from headway import masks, plans
from headway.call import make_call, prepared_keys_and_values
from headway.kernels import _tuned
from headway.kernels.cpu import _descriptor, _library, _prepared
from headway.positions import ENCODINGS, Compose, PositionEncoding, RoPE, _base
from kernels.encoded_calls import IN_ATTENTION, encoded

pytestmark = pytest.mark.skipif(_library.why_not() is not None, reason="the C++ library is not built")

PLANNED = {
    *("alibi", "axial-rope", "clipped-rope", "cope", "dinov3-rope", "dynamic-interpolation", "dynamic-ntk", "hope"),
    *("interleaved-m-rope", "irpe", "multimodal-rope", "resonance-rope"),
    *(
        "interpolated",
        "llama3",
        "llama4-temperature",
        "log-n",
        "longrope",
        "m-rope",
        "music-transformer",
        "nope-scaling",
    ),
    *("ntk-aware", "ntk-by-parts", "p-rope", "partial-rope", "position-interpolation", "random-float", "randomized"),
    *(
        "rope",
        "sandwich",
        "shaw",
        "sink",
        "softmax-one",
        "stick-breaking",
        "streaming-llm",
        "swin",
        "t5",
        "xpos",
        "yarn",
    ),
}
STEPS = {
    *("alibi", "clipped-rope", "dynamic-interpolation", "dynamic-ntk", "fope", "grape-m", "hope", "llama3"),
    *("lerope", "longrope", "music-transformer", "resonance-rope", "rope-pp"),
    *("ntk-aware", "ntk-by-parts", "p-rope", "partial-rope", "pope", "position-interpolation", "rope", "sandwich"),
    *("shaw", "sink", "softmax-one", "t5", "xpos", "yarn"),
}
"""Encodings whose decoding steps share one plan, whatever the number of keys."""
PLANNED_IN_TRAINING = PLANNED - {"random-float", "interpolated"}


@pytest.fixture
def hits(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each plan that was asked had an answer."""
    seen: list[bool] = []
    real = plans.Plan.__call__

    def counted(self: plans.Plan, *inputs: Tensor) -> Tensor | None:
        out = real(self, *inputs)
        seen.append(out is not None)
        return out

    monkeypatch.setattr(plans.Plan, "__call__", counted)
    return seen


def without_plan(*inputs: Tensor, **arguments: Any) -> Tensor:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plans, "key_of", lambda *given: None)
        return hw.attention(*inputs, **arguments)


def inputs(n: int = 24, *, heads: int = 4, width: int = 16, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [torch.randn(2, heads, n, width).to(dtype) for _ in range(3)]


def agree(*qkv: Tensor, **arguments: Any) -> None:
    planned, plain = hw.attention(*qkv, **arguments), without_plan(*qkv, **arguments)
    assert planned.stride() == plain.stride()
    assert torch.equal(planned, plain)


@torch.no_grad()
@pytest.mark.parametrize("name", IN_ATTENTION)
@pytest.mark.parametrize("training", [False, True])
def test_a_second_call_gives_the_same_bits(name: str, training: bool) -> None:
    given, arguments = encoded(name, dtype=torch.float32)
    arguments["encoding"].train(training)
    takes = not hw.explain(*(x.detach() for x in given), **arguments).reasons["cpu"]
    kernel = "cpu" if takes else "auto"
    for seed in range(3):
        q, k, v = (x.detach() + seed for x in given)
        torch.manual_seed(seed)
        planned = hw.attention(q, k, v, **arguments, kernel=kernel)
        torch.manual_seed(seed)
        assert torch.equal(planned, without_plan(q, k, v, **arguments, kernel=kernel)), seed


@torch.no_grad()
@pytest.mark.parametrize("name", sorted(PLANNED))
def test_these_encodings_have_plans(name: str, hits: list[bool]) -> None:
    given, arguments = encoded(name, dtype=torch.float32)
    q, k, v = (x.detach() for x in given)
    for _ in range(3):
        hw.attention(q, k, v, **arguments, kernel="cpu")
    assert hits == [True] * 3, "the first call makes the plan and uses it"


@torch.no_grad()
@pytest.mark.parametrize("kernel", ["auto", "cpu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mask", [None, masks.Causal(), masks.Window(3, 2), masks.Chunked(5), masks.Dilated(2)])
def test_masks_and_dtypes(
    mask: masks.Mask | None, dtype: torch.dtype, kernel: str, hits: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_tuned, "has_amx", lambda: False)  # with AMX auto leaves some calls to SDPA, without a plan
    for _ in range(3):
        agree(*inputs(dtype=dtype), mask=mask, kernel=kernel)
    assert all(hits)
    assert len(hits) == 3


@torch.no_grad()
@pytest.mark.parametrize("name", ["kerple-log", "transformer-xl"])
def test_that_a_call_has_no_plan_is_found_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    real = plans._plan
    monkeypatch.setattr(plans, "_plan", lambda *given: (tried.append(name), real(*given))[1])
    given, arguments = encoded(name, dtype=torch.float32)
    for positions in (arguments["q_positions"], None):
        q, k, v = (x.detach() for x in given)
        arguments |= {"q_positions": positions, "k_positions": positions}
        tried.clear()
        for _ in range(3):
            hw.attention(q, k, v, **arguments, kernel="cpu")
        assert len(tried) <= 1, "later calls know it"


@pytest.fixture
def step_hits(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each planned step that was asked had an answer."""
    seen: list[bool] = []
    real = plans.Step.__call__

    def counted(self: plans.Step, *given: Any) -> Tensor | None:
        out = real(self, *given)
        seen.append(out is not None)
        return out

    monkeypatch.setattr(plans.Step, "__call__", counted)
    return seen


@torch.no_grad()
@pytest.mark.parametrize("name", ["none", *IN_ATTENTION])
def test_decoding_steps_share_a_plan(name: str, step_hits: list[bool]) -> None:
    heads, width, encoding = 4, 16, None
    arguments: dict[str, Any] = {"mask": masks.Causal(), "kernel": "auto"}
    if name != "none":
        given, own = encoded(name, dtype=torch.float32)
        encoding, heads, width = own["encoding"], given[0].shape[1], given[0].shape[3]
        if encoding.axes not in (1, None) or encoding.reads_input:
            pytest.skip("a stream has one axis and no inputs")
    keys, values = torch.randn(2, heads, 70, width), torch.randn(2, heads, 70, width)
    arguments["encoding"] = encoding
    for m in (40, 41, 42, 70, 2, 64):
        q, k, v = torch.randn(2, heads, 1, width), keys[:, :, :m], values[:, :, :m]
        agree(q, k, v, **arguments)
        agree(q, k.contiguous(), v.contiguous(), **arguments)
    assert step_hits == [True] * 12 * (name in STEPS or name == "none")


STEP_MASKS = (
    None, masks.Causal(), masks.Window(7), masks.Causal() & masks.Window(5), masks.Window(3, 0), masks.Dilated(2),
    masks.Causal() & masks.Dilated(3), masks.Causal() | masks.Prefix(4), masks.KeepFirst(14), masks.Padding(),
    masks.Causal() & (masks.Window(4) | masks.KeepFirst(2)), masks.Causal() & masks.Prefix(20) & masks.Window(9, 0),
    masks.Window(3, 0) | masks.Window(0), masks.Window(0, 0) | masks.Prefix(1),
)  # fmt: skip
"""Masks whose steps have a plan."""
CHUNKED = masks.Causal() & masks.Chunked(8)


def test_masks_of_steps_are_all_that_have_a_key() -> None:
    """Numbers among the bounds of such masks must be indices, and not slots of one number of keys."""
    tried = {kind for mask in (*STEP_MASKS, CHUNKED) for kind in kinds_in(mask)}
    without = {masks.Mask, masks.Boolean, masks.Documents, masks.Interval, masks.Bits}  # of tensors
    without |= {masks.Function, masks.BlockFunction}
    every = (getattr(masks, name) for name in masks.__all__)
    assert {kind for kind in every if isinstance(kind, type) and issubclass(kind, masks.Mask)} - without == tried
    assert masks.from_flex(lambda b, h, i, j: i >= j).plan_key() is None


def kinds_in(mask: masks.Mask | None) -> set[type]:
    parts = mask.masks if isinstance(mask, (masks.And, masks.Or)) else ()
    return set() if mask is None else {type(mask)}.union(*map(kinds_in, parts))


def decode(
    at: hw.Coordinates | None, m: int, n: int = 1, *, prepared: bool = False, batch: int = 2, **arguments: Any
) -> None:
    """Compares a step with what it gives without a plan, for queries that are the last of the keys."""
    encoding = arguments["encoding"]
    q, k, v = torch.randn(batch, 4, n, 16), torch.randn(batch, 4, m, 16), torch.randn(batch, 4, m, 16)
    if at is not None:
        arguments |= {"q_positions": at.rows(m - n, m), "k_positions": at}
        if prepared and encoding is not None and encoding.cache_prepared:
            k, v, _ = prepared_keys_and_values(encoding, k, v, at)
            arguments |= {"prepared_by": encoding, "q_positions": encoding.for_one_forward(arguments["q_positions"])}
    agree(q, k, v, **arguments, kernel="cpu")


def encoding_named(name: str) -> PositionEncoding | None:
    return None if name == "none" else hw.encoding(name, head_dim=16, num_heads=4)


@torch.no_grad()
@pytest.mark.parametrize("given", ["nothing", "coordinates", "starts later", "rows", "prepared"])
@pytest.mark.parametrize("name", ["none", "alibi", "t5", "rope", "dynamic-ntk", "shaw", "pope"])
@pytest.mark.parametrize("n", [1, 2, 4])
def test_steps_of_any_coordinates_and_masks(name: str, given: str, n: int, step_hits: list[bool]) -> None:
    encoding, start = encoding_named(name), 11 if given == "starts later" else 0
    for mask in (*STEP_MASKS, CHUNKED):
        step_hits.clear()
        for m in (30, 31, 57, 5, 300, 9):
            at = hw.Coordinates.span(m, start=start, length=m + start)
            if given == "rows":
                rows = torch.stack([torch.arange(m), 2 * torch.arange(m)])[..., None]
                at = hw.Coordinates(rows, at.index, length=3 * m, ordered=True, start=0)
            where = None if given == "nothing" else at
            decode(where, m, n, prepared=given == "prepared", encoding=encoding, mask=mask)
        assert step_hits == [True] * 6 * (mask is not CHUNKED), mask


@torch.no_grad()
@pytest.mark.parametrize("mask", STEP_MASKS, ids=repr)
@pytest.mark.parametrize("name", ["none", "alibi", "rope"])
def test_steps_of_a_cache_that_keeps_the_last_tokens(name: str, mask: masks.Mask | None, step_hits: list[bool]) -> None:
    encoding = encoding_named(name)
    made = len(plans._plans_of(encoding))
    for start in range(20):
        decode(hw.Coordinates.span(9, start=start), 9, 2, encoding=encoding, mask=mask)
    assert step_hits == [True] * 20
    assert encoding is None or len(plans._plans_of(encoding)) == made + 1


@torch.no_grad()
@pytest.mark.parametrize("given", ["given", "prepared"])
@pytest.mark.parametrize("name", ["none", "alibi", "t5", "rope", "dynamic-ntk", "shaw"])
@pytest.mark.parametrize("n", [1, 3])
def test_steps_of_padded_rows(name: str, given: str, n: int, step_hits: list[bool]) -> None:
    encoding = encoding_named(name)
    for mask in (*STEP_MASKS, CHUNKED, masks.Padding(torch.tensor([0, 3, 1, 2]))):
        step_hits.clear()
        plans._plans_of(encoding).clear()
        for m, padding in ((30, (0, 3, 27, 30)), (31, (0, 3, 27, 30)), (70, (9, 0, 1, 2)), (9, (4, 4, 4, 4))):
            real = torch.tensor([m - count for count in padding])
            if isinstance(mask, masks.Padding) and mask.lengths is not None:
                mask = masks.Padding(real, "left")
            at = hw.Coordinates.padded(real, m)
            decode(at, m, n, batch=4, prepared=given == "prepared", encoding=encoding, mask=mask)
        planned = mask is not CHUNKED and not (isinstance(mask, masks.Padding) and mask.lengths is not None)
        assert step_hits == [True] * 4 * planned, mask
        assert len(plans._plans_of(encoding)) == (mask is CHUNKED or planned)


@torch.no_grad()
@pytest.mark.parametrize("mask", [None, masks.Causal(), masks.Causal() & (masks.Window(4) | masks.KeepFirst(2))])
def test_steps_of_rows_that_end_in_padding(mask: masks.Mask | None, step_hits: list[bool]) -> None:
    alibi = encoding_named("alibi")
    for m in (20, 21):
        right = hw.Coordinates.padded([m, 5, 0], m, side="right")
        for length in (right.length, None, 12, torch.tensor([[3, 4], [5, 6], [7, 8]])[:, [0] * (m - 1) + [1]]):
            decode(right._with(length=length), m, 2, batch=3, encoding=alibi, mask=mask)
    assert step_hits == [True] * 8


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["none", "alibi", "t5", "rope"])
def test_steps_of_positions_that_are_no_whole_numbers(name: str, dtype: torch.dtype, step_hits: list[bool]) -> None:
    encoding = encoding_named(name)
    for m in (20, 21, 40):
        decode(hw.Coordinates.of(torch.arange(m, dtype=dtype) / 2, m), m, encoding=encoding, mask=masks.Causal())
        decode(hw.Coordinates.of(torch.arange(m), m), m, encoding=encoding, mask=masks.Causal())
    assert step_hits == [True] * 6


@torch.no_grad()
@pytest.mark.parametrize("mask", [masks.Causal(), masks.Window(9, 0), masks.Causal() & masks.Dilated(2)], ids=repr)
def test_steps_of_long_streams(mask: masks.Mask, step_hits: list[bool]) -> None:
    q, far = torch.randn(1, 4, 3, 16), torch.randn(1, 4, _descriptor.FAR_SLOT + 9, 16)
    for name in ("none", "alibi", "rope"):
        encoding = encoding_named(name)
        for m in (30, *(_descriptor.FAR_SLOT + beside for beside in (-3, -2, 0, 1, 9))):
            agree(q, far[:, :, :m], far[:, :, :m], encoding=encoding, mask=mask)
    assert step_hits == [True] * 18


@torch.no_grad()
def test_what_a_step_does_not_foresee_is_not_planned(step_hits: list[bool]) -> None:
    alibi, span = encoding_named("alibi"), hw.Coordinates.span(30)
    padded = hw.Coordinates.padded([30, 27], 30)
    for at in (
        hw.Coordinates.packed([10, 20]),
        hw.Coordinates.span(30, start=-4),
        hw.Coordinates(span.position, span.index),
        hw.Coordinates.of(torch.arange(30.0), 30)._with(position=torch.arange(30.0).bfloat16()[None, :, None]),
        padded._with(length=torch.tensor([[30]])),
        padded._with(length=torch.tensor([[30.0], [27.0]])),
        padded._with(start=0),
        padded._with(padding=None),
        padded._with(ordered=False),
    ):
        for _ in range(2):
            decode(at, 30, encoding=alibi)
    q, k, v = torch.randn(2, 4, 1, 16), torch.randn(2, 4, 30, 16), torch.randn(2, 4, 30, 16)
    for at in (span, padded):  # queries that are not the last of the keys
        agree(q, k, v, encoding=alibi, q_positions=at.rows(3, 4), k_positions=at)
    assert not step_hits
    positions = torch.arange(30.0)[None, :, None].requires_grad_()
    with torch.enable_grad():
        at = hw.Coordinates(positions, span.index, ordered=True, start=0)
        out = hw.attention(q, k, v, encoding=alibi, q_positions=at.rows(29, 30), k_positions=at)
    assert out.requires_grad
    assert not step_hits


@torch.no_grad()
def test_a_step_follows_changes(step_hits: list[bool]) -> None:
    rope, t5 = RoPE(16), hw.encoding("t5", num_heads=4)
    q = torch.randn(1, 4, 1, 16)
    for m in range(20, 30):
        k, v = torch.randn(1, 4, m, 16), torch.randn(1, 4, m, 16)
        for encoding in (rope, t5):
            agree(q, k, v, encoding=encoding, kernel="cpu")
        rope.base += 1
        t5.get_parameter("table").data.mul_(1.5)
    assert all(step_hits)


def test_a_step_that_autograd_records_is_no_step(step_hits: list[bool]) -> None:
    q, k, v = torch.randn(1, 4, 1, 16), torch.randn(1, 4, 30, 16), torch.randn(1, 4, 30, 16)
    t5 = hw.encoding("t5", num_heads=4)
    for m in (20, 21):
        assert hw.attention(q, k[:, :, :m], v[:, :, :m], encoding=t5, kernel="cpu").requires_grad
        assert hw.attention(q.requires_grad_(), k[:, :, :m], v[:, :, :m], kernel="cpu").requires_grad
    assert not step_hits
    for m in (20, 21):
        agree(q.detach(), k[:, :, :m], v[:, :, :m], kernel="cpu")
    assert step_hits == [True, True]


def test_a_step_has_the_gradient_of_an_attribute(step_hits: list[bool]) -> None:
    rope = RoPE(16)
    rope.base = torch.tensor(1e4, dtype=torch.float64, requires_grad=True)  # type: ignore[assignment]
    for m in (5, 6):
        q, k, v = torch.randn(1, 4, 1, 16), torch.randn(1, 4, m, 16), torch.randn(1, 4, m, 16)
        for _ in range(2):
            assert hw.attention(q, k, v, encoding=rope, kernel="cpu").requires_grad
            with torch.no_grad():
                agree(q, k, v, encoding=rope, kernel="cpu")
    assert True in step_hits
    layer, cache = hw.nn.MultiHeadAttention(64, 4, encoding=rope).requires_grad_(False), hw.nn.KeyValueCache()
    assert layer(torch.randn(1, 5, 64), cache=cache).requires_grad, "the keys of a cache, too"


@torch.no_grad()
def test_a_step_reads_positions_of_ordinary_tensors_alone(step_hits: list[bool]) -> None:
    q, k, v = torch.randn(1, 4, 1, 16), torch.randn(1, 4, 9, 16), torch.randn(1, 4, 9, 16)
    at = hw.Coordinates.span(9)
    keys = at._with(position=TwoTensor(at.position.clone(), at.position.clone()))
    arguments: dict[str, Any] = {"encoding": hw.encoding("alibi", num_heads=4), "mask": masks.Causal()}
    expected = without_plan(q, k, v, **arguments)
    for _ in range(2):
        found = hw.attention(q, k, v, **arguments, q_positions=keys.rows(8, 9), k_positions=keys)
        assert torch.equal(found.a, expected)  # type: ignore[attr-defined]
    assert not step_hits


@torch.no_grad()
@pytest.mark.parametrize("name", ENCODINGS)
def test_a_block_of_a_rotation_is_that_of_its_positions(name: str) -> None:
    for encoding in ENCODINGS[name].examples():
        for position in (0, 1, 5000, 10**6):
            block = encoding.rotation_block(position)
            assert (block is None) == (not getattr(encoding, "constant_rates", False))
            if block is not None:
                first, rotation = block
                n = rotation.cos.shape[2]
                assert first <= position < first + n
                at = hw.Coordinates.of(torch.arange(first, first + n), n)
                for side in ("query", "key"):
                    x = torch.empty(1, 1, n, encoding.head_dim)  # type: ignore[arg-type]
                    expected = encoding.split(side, x, encoding.for_one_forward(at))[1]
                    assert expected is not None
                    assert torch.equal(rotation.cos, expected.cos)
                    assert torch.equal(rotation.sin, expected.sin)
                    assert (rotation.layout, rotation.start) == (expected.layout, expected.start)


def test_frequencies_that_are_said_to_be_constant_are() -> None:
    said = [kind for kind in ENCODINGS.values() if getattr(kind, "constant_rates", False)]
    assert {RoPE, ENCODINGS["llama3"], ENCODINGS["yarn"], ENCODINGS["partial-rope"]} <= set(said)
    sides = hw.Coordinates.span(3, start=10**5, length=10**6), hw.Coordinates.of(torch.rand(7) * 100, 7)
    for encoding in (one for kind in said for one in kind.examples()):
        first = encoding.frequencies(hw.Coordinates.span(1))  # type: ignore[operator]
        assert all(torch.equal(encoding.frequencies(at), first) for at in sides)  # type: ignore[operator]


def test_a_subclass_says_for_itself_that_its_frequencies_are_constant() -> None:
    class Slower(RoPE):
        def frequencies(self, coordinates: hw.Coordinates) -> Tensor:
            return super().frequencies(coordinates) / (1 + coordinates.index.shape[1])

    assert Slower(16).rotation_block(0) is None
    rope = RoPE(16)
    rope.frequencies = lambda coordinates: torch.ones(8, dtype=torch.float64)  # type: ignore[method-assign]
    assert rope.rotation_block(0) is None


@torch.no_grad()
@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_steps_are_rotated_by_rows_across_blocks(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[bool] = []
    real = plans.rotated_by_rows

    def rotated(*given: Any) -> Tensor | None:
        out = real(*given)
        found.append(out is not None)
        return out

    monkeypatch.setattr(plans, "rotated_by_rows", rotated)
    encoding = RoPE(16, layout=layout)
    size, mask = encoding._block, masks.Causal()
    for start in (0, size - 9, size - 5, size, 3 * size + 2):
        found.clear()
        for m in (6, 7, 9):
            for n in (1, 3):
                at = hw.Coordinates.span(m, start=start)
                decode(at, m, n, encoding=encoding, mask=mask)
                decode(at, m, n, encoding=encoding, mask=mask, prepared=True)
        inside = start % size <= size - 9
        assert all(found) is inside, start
    found.clear()
    for base in (100, 1e4):  # the block is that of the base
        encoding.base = base
        decode(None, 7, encoding=encoding, mask=mask)
    rotation = encoding.rotation_block(0)[1]  # type: ignore[index]
    rotation.sin.zero_()  # a table that was written to is not read
    decode(None, 7, encoding=encoding, mask=mask)
    assert found == [True] * 4 + [False] * 2


@torch.no_grad()
def test_rows_are_those_of_the_positions_that_the_encoding_reads() -> None:
    """Another encoding has moved the positions; the tables of the step are those of the positions as given."""
    rope, moved = RoPE(16), Compose(hw.encoding("position-interpolation", head_dim=16, factor=2.0))
    for m in (7, 8):
        at = hw.Coordinates.span(m)
        q, k, v = torch.randn(2, 4, 1, 16), torch.randn(2, 4, m, 16), torch.randn(2, 4, m, 16)
        placed = [moved.for_one_forward(side) for side in (at.rows(m - 1, m), at)]
        agree(q, k, v, encoding=rope, q_positions=placed[0], k_positions=placed[1], kernel="cpu")


SAME_TERMS = [name for name in IN_ATTENTION if ENCODINGS[name].same_terms]


@torch.no_grad()
@pytest.mark.parametrize("name", SAME_TERMS)
def test_terms_that_are_said_to_be_the_same_are(name: str) -> None:
    for encoding in ENCODINGS[name].examples():
        sides = [
            hw.Coordinates.span(5), hw.Coordinates.span(9, start=4), hw.Coordinates.of(torch.rand(7) * 100, 7),
            hw.Coordinates.packed([3, 4]), hw.Coordinates.padded([2, 5], 5), hw.Coordinates.span(3, length=1000),
        ]  # fmt: skip
        found = [encoding.terms(encoding.place(q_at), encoding.place(k_at)) for q_at in sides for k_at in sides]
        assert all(terms == found[0] for terms in found)


def changes() -> dict[str, Callable[[PositionEncoding], None]]:
    def write(encoding: PositionEncoding) -> None:
        encoding.get_parameter("table").mul_(3)

    def write_through_data(encoding: PositionEncoding) -> None:
        encoding.get_parameter("table").data.mul_(3)

    def write_through_numpy(encoding: PositionEncoding) -> None:
        encoding.get_parameter("table").detach().numpy()[:] *= 3

    def replace(encoding: PositionEncoding) -> None:
        encoding.table = torch.nn.Parameter(encoding.get_parameter("table") * 3)

    def point_elsewhere(encoding: PositionEncoding) -> None:
        encoding.get_parameter("table").data = encoding.get_parameter("table").data * 3

    def load(encoding: PositionEncoding) -> None:
        encoding.load_state_dict({"table": encoding.get_parameter("table") * 3}, assign=True)

    def cast(encoding: PositionEncoding) -> None:
        encoding.get_parameter("table").mul_(3)
        encoding.to(torch.float64)

    return {
        one.__name__: one
        for one in (write, write_through_data, write_through_numpy, replace, point_elsewhere, load, cast)
    }


@torch.no_grad()
@pytest.mark.parametrize("change", changes().values(), ids=changes())
def test_changed_parameters_are_read(change: Callable[[PositionEncoding], None], hits: list[bool]) -> None:
    qkv, encoding = inputs(), hw.encoding("t5", num_heads=4)
    before = hw.attention(*qkv, encoding=encoding)
    change(encoding)
    agree(*qkv, encoding=encoding)
    assert not torch.equal(before, hw.attention(*qkv, encoding=encoding))
    assert hits[0]


def test_changed_attributes_are_read(hits: list[bool]) -> None:
    qkv, rope = inputs(), RoPE(16)
    both = Compose(rope, hw.encoding("alibi", num_heads=4))
    for encoding in (rope, both):
        before = hw.attention(*qkv, encoding=encoding)
        rope.base *= 2  # in a composed encoding, an attribute of a part
        agree(*qkv, encoding=encoding)
        assert not torch.equal(before, hw.attention(*qkv, encoding=encoding))
    assert all(hits), "a changed encoding has another key"


@pytest.mark.parametrize(
    "change",
    [
        lambda one: setattr(one, "num_heads", 4),
        lambda one: delattr(one, "max_distance"),
        lambda one: one.double(),
        lambda one: one.load_state_dict(one.state_dict(), assign=True),
    ],
)
def test_any_change_of_an_encoding_is_counted(change: Callable[[PositionEncoding], object]) -> None:
    encoding = hw.encoding("t5", num_heads=4)
    both = Compose(RoPE(16), encoding)
    before = encoding.plan_key(), both.plan_key()
    change(encoding)
    assert encoding.plan_key() != before[0]
    assert both.plan_key() != before[1]


@torch.no_grad()
def test_what_does_not_change_an_encoding_leaves_its_plans(hits: list[bool]) -> None:
    qkv, rope, alibi = inputs(), RoPE(16), hw.encoding("alibi", num_heads=4)
    encodings = [rope, alibi, hw.encoding("t5", num_heads=4), Compose(RoPE(16), hw.encoding("log-n"))]

    def plans_made() -> int:
        for encoding in encodings:
            hw.attention(*qkv, encoding=encoding)
        return sum(len(encoding.__dict__["_plans"]) for encoding in encodings)

    assert plans_made() == 4
    other = torch.nn.Sequential(torch.nn.Dropout(), hw.encoding("alibi", num_heads=8), RoPE(16))
    for change in (other.eval, other.train, *(one.eval for one in encodings), *(one.train for one in encodings)):
        change()
        assert plans_made() == 4
    assert all(hits)


@torch.no_grad()
def test_what_is_drawn_in_training_is_not_planned(hits: list[bool]) -> None:
    qkv, inner = inputs(), hw.encoding("randomized", limit=64)
    both = Compose(inner, RoPE(16))
    for change in (both.eval, inner.train, both.eval, both.train):
        change()
        drawn = [hw.attention(*qkv, encoding=both) for _ in range(2)]
        assert torch.equal(*drawn) is not inner.training
    assert len(hits) == 4


@torch.no_grad()
def test_positions_written_in_place_are_read(hits: list[bool]) -> None:
    for encoding in (RoPE(16), hw.encoding("alibi", num_heads=4), hw.encoding("t5", num_heads=4)):
        qkv, at = inputs(), hw.Coordinates.of(torch.arange(24), 24)
        arguments: dict[str, Any] = {"encoding": encoding, "q_positions": at, "k_positions": at}
        before = hw.attention(*qkv, **arguments)
        at.position.mul_(2)
        agree(*qkv, **arguments)
        assert not torch.equal(before, hw.attention(*qkv, **arguments))
    assert hits.count(True) > hits.count(False) > 0


@pytest.mark.parametrize("training", [False, True])
def test_tables_of_coordinates_are_part_of_the_plan(training: bool) -> None:
    t5 = hw.encoding("t5", num_heads=4)
    hw.attention(*(recorded() if training else inputs()), encoding=t5.requires_grad_(training), kernel="cpu")
    (plan,) = t5.__dict__["_plans"].values()
    gc.collect()
    assert len(plan.run.patches) == 1, "the table, and not the boundaries of its buckets"
    boundaries = plan.sides[0].tables[0].data_ptr()
    for one in (plan.run, plan.run.gradients) if training else (plan.run,):
        assert boundaries in [x.data_ptr() for x in one.keep_alive]


@torch.no_grad()
def test_other_positions_have_another_plan(hits: list[bool]) -> None:
    alibi, qkv = hw.encoding("alibi", num_heads=4), inputs()
    for step in range(1, 40):  # more than the plans that are kept; each object is gone before the next is made
        at = hw.Coordinates.of(torch.arange(0, 24 * step, step), 24)
        agree(*qkv, encoding=alibi, q_positions=at, k_positions=at)
    assert len(hits) == 39
    assert len(alibi.__dict__["_plans"]) == plans.MOST


@torch.no_grad()
@pytest.mark.parametrize(
    "second", [{"mask": masks.Window(2)}, {"scale": 0.1}, {"scale": 1.0}, {"mask": masks.Causal()}]
)
def test_each_argument_has_its_own_plan(second: dict[str, Any]) -> None:
    qkv, encoding = inputs(), hw.encoding("alibi", num_heads=4)
    for arguments in ({}, second, {"mask": masks.Window(1)}, second):
        agree(*qkv, encoding=encoding, **arguments)


@torch.no_grad()
def test_sizes_and_strides() -> None:
    q, k, v = inputs()
    rope = RoPE(16)
    for qkv in (
        (q, k, v),
        (q.transpose(1, 2).contiguous().transpose(1, 2), k, v),
        (q, k[:, :2], v[:, :2]),
        (q, k.expand(2, 4, 24, 16), v[..., :8]),
        (q[:1], k[:1], v[:1]),
        (q[:, :, -5:], k, v),
        (q[:, :, :, :], k.flip(2), v),
        (q[:, :, :0], k, v),
    ):
        for encoding in (None, rope):
            for _ in range(2):
                agree(*qkv, encoding=encoding, kernel="cpu")


@torch.no_grad()
def test_a_short_storage_is_an_error() -> None:
    q, k, v = inputs()
    hw.attention(q, k, v, kernel="cpu")
    freed = k.clone()
    freed.untyped_storage().resize_(64)
    with pytest.raises(hw.HeadwayError, match="word"):
        hw.attention(q, freed, v, kernel="cpu")


@torch.no_grad()
def test_memory_that_is_not_aligned() -> None:
    q, k, v = inputs()
    agree(q, k, v, kernel="cpu")
    raw = torch.empty(q.nbytes + 1, dtype=torch.uint8)
    odd = torch.frombuffer(raw.numpy().data, dtype=torch.float32, count=q.numel(), offset=0)
    moved = torch.frombuffer(bytearray(b"\0" + q.numpy().tobytes()), dtype=torch.float32, count=q.numel(), offset=1)
    assert odd.data_ptr() % 4 == 0
    assert moved.data_ptr() % 4 == 1
    for encoding in (None, RoPE(16)):
        for _ in range(2):
            agree(moved.view(q.shape), k, v, encoding=encoding, kernel="cpu")


@torch.no_grad()
@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_first_call_of_unaligned_memory_says_nothing_of_later_ones(
    which: int, hits: list[bool], step_hits: list[bool]
) -> None:
    plans._plans_of(None).clear()
    for encoding in (None, RoPE(16)):
        q, k, v = inputs(23)
        for first in (q, q[:, :, -1:].contiguous()):
            qkv = [first, k, v]
            x = qkv[which]
            raw = bytearray(b"\0" + x.numpy().tobytes())
            odd = torch.frombuffer(raw, dtype=torch.float32, count=x.numel(), offset=1).view(x.shape)
            for one in (odd, odd, x):
                hits.clear()
                step_hits.clear()
                agree(*(one if i == which else other for i, other in enumerate(qkv)), encoding=encoding, kernel="cpu")
            assert [*hits, *step_hits] == [True]


Gradients = tuple[Tensor | None, ...]


def gradients(qkv: list[Tensor], upstream: Tensor | None = None, **arguments: Any) -> Gradients:
    """The output and the gradients of q, k, v and the encoding's parameters, as far as they require one."""
    encoding = arguments.get("encoding")
    leaves = [*qkv, *(() if encoding is None else encoding.parameters())]
    out = hw.attention(*qkv, **arguments)
    wanted = [x for x in leaves if x.requires_grad]
    found = torch.autograd.grad(out, wanted, torch.ones_like(out) if upstream is None else upstream, allow_unused=True)
    return out, *found


def same(found: Gradients, expected: Gradients) -> bool:
    return all(
        x is y is None or (x is not None and y is not None and x.stride() == y.stride() and torch.equal(x, y))
        for x, y in zip(found, expected, strict=True)
    )


def gradients_agree(qkv: list[Tensor], upstream: Tensor | None = None, **arguments: Any) -> None:
    planned = gradients(qkv, upstream, **arguments)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plans, "LONGEST", -1)
        assert same(planned, gradients(qkv, upstream, **arguments))


@pytest.fixture
def backward_hits(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each planned backward pass that was asked had an answer."""
    seen: list[bool] = []
    real = _prepared.PreparedGradients.__call__

    def counted(self: _prepared.PreparedGradients, *given: Any) -> Any:
        found = real(self, *given)
        seen.append(found is not None)
        return found

    monkeypatch.setattr(_prepared.PreparedGradients, "__call__", counted)
    return seen


def recorded(*shape: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [x.requires_grad_() for x in inputs(*shape, dtype=dtype)]


@pytest.mark.parametrize("name", IN_ATTENTION)
def test_gradients_are_the_same_bits(name: str, backward_hits: list[bool]) -> None:
    given, arguments = encoded(name, dtype=torch.float32)
    takes = not hw.explain(*given, **arguments).reasons["cpu"]
    for seed in range(3):
        qkv = [(x.detach() + seed).requires_grad_() for x in given]
        gradients_agree(qkv, **arguments, kernel="cpu" if takes else "auto")
    assert backward_hits == [True] * 3 * (name in PLANNED_IN_TRAINING)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("mask", [None, masks.Causal(), masks.Window(3, 2), masks.Chunked(5), masks.Dilated(2)])
def test_gradients_of_masks_and_dtypes(
    mask: masks.Mask | None, dtype: torch.dtype, hits: list[bool], backward_hits: list[bool]
) -> None:
    kernel = "auto" if dtype == torch.float64 else "cpu"  # the kernel does not take it
    for _ in range(2):
        gradients_agree(recorded(dtype=dtype), mask=mask, kernel=kernel)
    assert hits == backward_hits == [True] * 2 * (kernel == "cpu")


@pytest.mark.parametrize("wanted", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 1, 1), (0, 0, 0)])
def test_what_requires_a_gradient_is_part_of_the_plan(wanted: tuple[int, ...], backward_hits: list[bool]) -> None:
    for encoding in (None, RoPE(16), hw.encoding("t5", num_heads=4), hw.encoding("shaw", head_dim=16)):
        for flags in (wanted, (1, 1, 1), wanted):
            qkv = [x.requires_grad_(bool(flag)) for x, flag in zip(inputs(), flags, strict=True)]
            if any(flags) or (encoding is not None and [*encoding.parameters()]):
                gradients_agree(qkv, encoding=encoding, kernel="cpu")
    assert all(backward_hits)


def test_some_of_the_gradients(backward_hits: list[bool]) -> None:
    for encoding in (None, RoPE(16), hw.encoding("t5", num_heads=4)):
        qkv = recorded()
        whole = gradients(qkv, encoding=encoding, kernel="cpu")
        for i in range(3):
            out = hw.attention(*qkv, encoding=encoding, kernel="cpu")
            (found,) = torch.autograd.grad(out, qkv[i], torch.ones_like(out))
            assert torch.equal(found, whole[1 + i])  # type: ignore[arg-type]
    assert all(backward_hits)


def test_frozen_parameters(hits: list[bool], backward_hits: list[bool]) -> None:
    qkv, t5 = recorded(), hw.encoding("t5", num_heads=4)
    for needed in (False, True, False, True):
        t5.requires_grad_(needed)
        gradients_agree(qkv, encoding=t5)
    assert True in hits
    assert all(backward_hits)
    at = torch.linspace(0, 1, 24)[None, :, None]
    placed = hw.Coordinates(at, torch.arange(24)[None])
    arguments: dict[str, Any] = {"encoding": RoPE(16), "q_positions": placed, "k_positions": placed}
    hw.attention(*inputs(), **arguments)
    at.requires_grad_()
    assert hw.attention(*inputs(), **arguments).requires_grad


@pytest.mark.parametrize("name", ["none", "rope", "t5"])
@pytest.mark.parametrize(
    "upstream",
    [
        lambda out: torch.ones((), dtype=out.dtype).expand_as(out),
        lambda out: torch.randn(*out.shape[::-1], dtype=out.dtype).permute(3, 2, 1, 0),
        lambda out: torch.randn_like(out, memory_format=torch.contiguous_format),
        lambda out: torch.randn(2, dtype=torch.complex64).conj().imag[0].expand_as(out),
    ],
    ids=["one number", "permuted", "contiguous", "negated"],
)
def test_gradients_of_the_output_in_any_layout(upstream: Callable[[Tensor], Tensor], name: str) -> None:
    encoding = None if name == "none" else hw.encoding(name, head_dim=16, num_heads=4)
    qkv = recorded()
    given = upstream(hw.attention(*qkv, encoding=encoding, kernel="cpu"))
    for _ in range(2):
        gradients_agree(qkv, given, encoding=encoding, kernel="cpu")


@pytest.mark.parametrize("name", ["none", "rope", "t5"])
def test_one_tensor_in_several_places(name: str, hits: list[bool]) -> None:
    encoding = None if name == "none" else hw.encoding(name, head_dim=16, num_heads=4)
    gradients_agree(recorded(), encoding=encoding, kernel="cpu")
    q, k, _ = recorded()
    for qkv in ([q, q, k], [k, q, q], [q, k, q], [q, q, q]):
        out = hw.attention(*qkv, encoding=encoding, kernel="cpu")
        (found,) = torch.autograd.grad(out.sum(), q)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(plans, "LONGEST", -1)
            (expected,) = torch.autograd.grad(hw.attention(*qkv, encoding=encoding, kernel="cpu").sum(), q)
        assert torch.equal(found, expected)
    assert hits.count(True) == 1


@pytest.mark.parametrize("name", ["none", "rope", "t5"])
def test_a_gradient_is_not_differentiated(name: str, backward_hits: list[bool]) -> None:
    encoding = None if name == "none" else hw.encoding(name, head_dim=16, num_heads=4)
    qkv = recorded()
    expected = gradients(qkv, encoding=encoding, kernel="cpu")
    out = hw.attention(*qkv, encoding=encoding, kernel="cpu")
    found = torch.autograd.grad(out, qkv, torch.ones_like(out), create_graph=True)
    assert same(found, expected[1:4])
    with pytest.raises(hw.HeadwayError, match="supports first derivatives only"):
        found[0].sum().backward()
    out = hw.attention(*qkv, encoding=encoding, kernel="cpu")
    with pytest.raises(hw.HeadwayError, match="one gradient at a time"):
        torch.autograd.grad(out, qkv, torch.ones(2, *out.shape), is_grads_batched=True)
    assert backward_hits == [True]


@pytest.mark.parametrize("name", ["none", "rope", "t5"])
def test_saved_tensors_that_return_in_another_layout(name: str, backward_hits: list[bool]) -> None:
    encoding = None if name == "none" else hw.encoding(name, head_dim=16, num_heads=4)
    qkv = [x.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for x in inputs()]
    expected = gradients(qkv, encoding=encoding, kernel="cpu")
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.contiguous().clone(), lambda x: x):
        found = gradients(qkv, encoding=encoding, kernel="cpu")
    assert all(map(torch.equal, found, expected))  # type: ignore[arg-type]
    assert backward_hits == [True, False]


@pytest.mark.parametrize("name", ["none", "rope", "t5", "shaw"])
@pytest.mark.parametrize("planned", ["forward", "again"])
def test_a_checkpoint_may_have_a_plan_in_one_pass_alone(
    name: str, planned: str, hits: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoding = None if name == "none" else hw.encoding(name, head_dim=16, num_heads=4)
    qkv = recorded()

    def layer(*given: Tensor) -> Tensor:
        return hw.attention(*given, encoding=encoding, kernel="cpu")

    expected = gradients(qkv, encoding=encoding, kernel="cpu")
    monkeypatch.setattr(plans, "LONGEST", 2048 if planned == "forward" else -1)
    out = checkpoint(layer, *qkv, use_reentrant=False)
    monkeypatch.setattr(plans, "LONGEST", -1 if planned == "forward" else 2048)
    found = torch.autograd.grad(out, qkv, torch.ones_like(out))
    assert same(found, expected[1:4])
    # a checkpoint ends the second pass by an exception, when it has what it looks for
    assert hits.count(True) == (2 if planned == "forward" else 1)


def test_positions_written_between_forward_and_backward() -> None:
    at = hw.Coordinates.of(torch.arange(24), 24)
    alibi = hw.encoding("alibi", num_heads=4)
    out = hw.attention(*recorded(), encoding=alibi, q_positions=at, k_positions=at, kernel="cpu")
    at.position.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_other_threads_and_instruction_sets_in_the_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    qkv, threads, seen = recorded(), torch.get_num_threads(), []
    run = _library.run
    monkeypatch.setattr(_library, "run", lambda words: (seen.append(words[_descriptor.AT_THREADS]), run(words))[1])
    expected = gradients(qkv, kernel="cpu")
    try:
        torch.set_num_threads(1)
        out = hw.attention(*qkv, kernel="cpu")
        torch.set_num_threads(2)
        assert same(torch.autograd.grad(out, qkv, torch.ones_like(out)), expected[1:])
        assert seen[-2:] == [1, 2]
    finally:
        torch.set_num_threads(threads)
    for isa in _library.isas():
        out = hw.attention(*qkv, kernel="cpu")
        with _library.using(isa):
            gradients_agree(qkv, kernel="cpu")
            torch.autograd.grad(out, qkv, torch.ones_like(out))


def test_memory_that_is_not_aligned_in_a_recorded_call() -> None:
    _, k, v = inputs()
    numbers = torch.randn(2, 4, 24, 32)
    raw = bytearray(b"\0" + numbers.numpy().tobytes())
    moved = torch.frombuffer(raw, dtype=torch.float32, count=numbers.numel(), offset=1).view(numbers.shape)
    odd, even = (x[..., :16].requires_grad_() for x in (moved, numbers))  # of which a copy has other strides
    for encoding in (None, RoPE(16)):
        for first in (odd, even, odd):
            gradients_agree([first, k, v], encoding=encoding, kernel="cpu")


def test_autocast_and_inference_mode(hits: list[bool]) -> None:
    qkv, rope = inputs(), RoPE(16)
    agree(*qkv, encoding=rope)
    with torch.autocast("cpu", torch.bfloat16):
        assert hw.attention(*qkv, encoding=rope).dtype == torch.bfloat16
    with torch.inference_mode():
        agree(*qkv, encoding=rope)
        made = hw.attention(*qkv, encoding=rope)
    assert made.is_inference()
    assert not hw.attention(*qkv, encoding=rope).is_inference()
    assert all(hits)


def test_forward_mode_has_its_tangents(hits: list[bool]) -> None:
    qkv, tangents = inputs(), inputs()

    def tangent(kernel: str) -> Tensor:
        with forward_ad.dual_level():
            out = hw.attention(*map(forward_ad.make_dual, qkv, tangents), kernel=kernel)
            return forward_ad.unpack_dual(out).tangent

    agree(*qkv)
    assert torch.equal(tangent("auto"), tangent("reference"))
    agree(*qkv)
    assert hits == [True, True], "neither uses the plan of the other"


def test_a_compiler_sees_no_plan(hits: list[bool]) -> None:
    qkv, alibi = inputs(), hw.encoding("alibi", num_heads=4)
    eager = hw.attention(*qkv, encoding=alibi)
    assert len(hits) == 1
    compiled = torch.compile(lambda *given: hw.attention(*given, encoding=alibi), backend="eager", fullgraph=True)
    assert torch.equal(compiled(*qkv), eager)
    assert len(hits) == 1


def test_copies_have_no_plans_of_the_original() -> None:
    qkv, rope = inputs(), RoPE(16)
    hw.attention(*qkv, encoding=rope)
    assert rope.__dict__["_plans"]
    for make in (copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))):
        other = make(rope)
        other.__dict__["base"] = 50.0  # unseen
        agree(*qkv, encoding=other)
    agree(*qkv, encoding=rope)


@torch.no_grad()
def test_the_count_of_changes_of_another_process(monkeypatch: pytest.MonkeyPatch, hits: list[bool]) -> None:
    file = pickle.dumps(RoPE(16))
    monkeypatch.setattr(_base, "_editions", itertools.count(1))
    qkv, rope = inputs(), pickle.loads(file)
    keys = {rope.plan_key()}
    for _ in range(pickle.loads(file)._edition + RoPE(16)._edition):  # beyond the number in the file
        agree(*qkv, encoding=rope)
        rope.base *= 1.01
        assert rope.plan_key() not in keys
        keys.add(rope.plan_key())
    assert all(hits)


@torch.no_grad()
def test_a_method_replaced_in_an_object_has_no_plan(hits: list[bool], step_hits: list[bool]) -> None:
    alibi = hw.encoding("alibi", num_heads=4)
    both = Compose(alibi, hw.encoding("log-n"))
    slope = torch.ones(4)

    def terms(q_at: hw.Coordinates, k_at: hw.Coordinates, *inputs: Any) -> tuple[hw.terms.Term, ...]:
        slopes = slope / k_at.index.shape[1]
        return (hw.terms.DistanceBias(hw.terms.Linear(slopes, slopes)),)

    alibi.terms = terms  # type: ignore[method-assign, assignment]
    for encoding in (alibi, both):
        for _ in range(2):
            slope += 1
            agree(*inputs(), encoding=encoding, kernel="cpu")
            for m in (20, 40):
                k, v = torch.randn(1, 4, m, 16), torch.randn(1, 4, m, 16)
                agree(torch.randn(1, 4, 1, 16), k, v, encoding=encoding, kernel="cpu")
    assert not hits
    assert not step_hits


@torch.no_grad()
def test_a_change_is_counted_after_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """What another thread computes in between is kept under the number from before."""
    qkv, rope, changed = inputs(), RoPE(16), PositionEncoding._changed

    def meanwhile(self: PositionEncoding) -> None:
        hw.attention(*qkv, encoding=rope)
        changed(self)
        hw.attention(*qkv, encoding=rope)

    monkeypatch.setattr(PositionEncoding, "_changed", meanwhile)
    rope.base = 50.0
    agree(*qkv, encoding=rope)


@torch.no_grad()
def test_threads_and_instruction_sets() -> None:
    qkv, encoding = inputs(), hw.encoding("shaw", head_dim=16)
    threads = torch.get_num_threads()
    for isa in _library.isas():
        with _library.using(isa):
            agree(*qkv, encoding=encoding, kernel="cpu")
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            agree(*qkv, encoding=encoding, kernel="cpu")
    finally:
        torch.set_num_threads(threads)


@torch.no_grad()
def test_threads_share_plans() -> None:
    encodings = [None, RoPE(16), hw.encoding("t5", num_heads=4), hw.encoding("alibi", num_heads=4)]
    failed: list[str] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for turn in range(40):
                q, k, v = (torch.randn(1, 4, 24, 16, generator=generator) for _ in range(3))
                encoding = encodings[turn % len(encodings)]
                if not torch.equal(hw.attention(q, k, v, encoding=encoding, kernel="cpu"), reference[seed, turn]):
                    failed.append(f"{seed} {turn}")

    reference = {}
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        for turn in range(40):
            q, k, v = (torch.randn(1, 4, 24, 16, generator=generator) for _ in range(3))
            reference[seed, turn] = without_plan(q, k, v, encoding=encodings[turn % len(encodings)], kernel="cpu")
    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failed


@torch.no_grad()
def test_threads_share_steps(step_hits: list[bool]) -> None:
    encodings = [None, RoPE(16), hw.encoding("alibi", num_heads=4)]
    failed: list[str] = []

    def steps(seed: int) -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        for turn in range(30):
            m = 20 + turn + seed
            at = hw.Coordinates.padded([m, m - 3 * seed, turn], m) if turn % 2 else hw.Coordinates.span(m, start=seed)
            q, k, v = (torch.randn(3, 4, n, 16, generator=generator) for n in (2, m, m))
            arguments: dict[str, Any] = {"q_positions": at.rows(m - 2, m), "k_positions": at, "kernel": "cpu"}
            mask = masks.Causal() & (masks.Window(9) | masks.KeepFirst(2))
            yield hw.attention(q, k, v, encoding=encodings[turn % len(encodings)], mask=mask, **arguments)

    def work(seed: int) -> None:
        with torch.no_grad():
            if not all(map(torch.equal, steps(seed), expected[seed])):
                failed.append(str(seed))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plans, "key_of", lambda *given: None)
        expected = [list(steps(seed)) for seed in range(4)]
    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failed
    assert step_hits == [True] * 120


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", [name for name in ENCODINGS if name in IN_ATTENTION])
def test_a_kept_plan_holds_no_inputs(name: str, training: bool) -> None:
    """Nothing of the first call's q, k and v stays in memory."""

    given, arguments = encoded(name, dtype=torch.float32)
    q, k, v = (x.detach().clone().requires_grad_(training) for x in given)
    with torch.set_grad_enabled(training):
        hw.attention(q, k, v, **arguments)
    watched = [weakref.ref(x) for x in (q, k, v)]
    memory = {x.untyped_storage().data_ptr() for x in (q, k, v)}
    for plan in arguments["encoding"].__dict__.get("_plans", {}).values():
        if isinstance(plan, plans.Plan):
            assert isinstance(plan.run, _prepared.PreparedCall)
            passes = [plan.run] if plan.run.gradients is None else [plan.run, plan.run.gradients]
            held = [x for one in passes for x in one.keep_alive]
            held += [] if plan.run.gradients is None else [x for x in plan.run.gradients.tensors if x is not None]
            assert memory.isdisjoint(x.untyped_storage().data_ptr() for x in held)
    del q, k, v
    gc.collect()
    assert [one() for one in watched] == [None] * 3


@pytest.mark.parametrize(
    "terms",
    [
        lambda: (hw.terms.DenseBias(torch.randn(24, 24, requires_grad=True)),),  # whose buffer must be zero before
        lambda: (hw.terms.Sink(torch.randn(4, requires_grad=True)), hw.terms.Sink(torch.randn(4))),
        lambda: (hw.terms.TokenBias(keys=torch.randn(1, 4, 24, dtype=torch.float64, requires_grad=True)),),
    ],
    ids=["a dense bias", "two sinks", "another dtype"],
)
def test_terms_whose_gradients_are_not_planned(terms: Callable[[], tuple[hw.terms.Term, ...]]) -> None:
    call = make_call(*recorded(), terms=terms())
    assert isinstance(_prepared.PreparedCall.of(call, True), str)


def test_gradients_of_positions_are_not_planned() -> None:
    at = torch.arange(24.0)[None, :, None].requires_grad_()
    placed = hw.Coordinates(at, torch.arange(24)[None])
    slopes = torch.rand(4)
    bias = hw.terms.DistanceBias(hw.terms.Linear(slopes, slopes))
    call = make_call(*recorded(), terms=(bias,), q_positions=placed, k_positions=placed)
    assert isinstance(_prepared.PreparedCall.of(call, True), str)


@pytest.mark.parametrize("learned", [False, True])
def test_terms_that_require_a_gradient_are_not_constants(learned: bool) -> None:
    past, future = (torch.rand(4, requires_grad=learned) for _ in range(2))
    call = make_call(*recorded(), terms=(hw.terms.DistanceBias(hw.terms.Linear(past, future)),))
    assert isinstance(_prepared.PreparedCall.of(call, False), str) is learned
