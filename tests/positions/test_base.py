"""What holds for every encoding of the table, through only its hooks."""

import copy
import inspect
import math
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.positions import ENCODINGS, Compose, Learned, PositionEncoding, RoPE
from headway.testing.inputs import CheckSizes, on_axes, randomized

KINDS = [*ENCODINGS.items(), ("compose", Compose)]
EXAMPLES = [(f"{name}-{number}", kind, number) for name, kind in KINDS for number in range(len(kind.examples()))]
GAPS = torch.tensor([0, 1, 5, 6, 40, 41])


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """``example`` runs over all encodings, ``learned`` over those with parameters, ``fixed`` over the others."""
    for wanted in {"example", "learned", "fixed"} & set(metafunc.fixturenames):
        chosen = [pytest.param(kind.examples()[number], id=name) for name, kind, number in EXAMPLES]
        if wanted != "example":
            chosen = [c for c in chosen if bool(list(c.values[0].parameters())) == (wanted == "learned")]
        metafunc.parametrize(wanted, chosen)


def outputs(encoding: PositionEncoding, x: Tensor, q: Tensor, k: Tensor, at: Coordinates) -> list[Tensor]:
    """Everything an encoding gives, as a flat list of tensors."""
    placed, _ = encoding.relocate(encoding.place(at), encoding.place(at), x, x)
    found = [encoding.embed(x, placed), encoding.prepare_query(q, placed), encoding.prepare_key(k, placed)]
    found += [encoding.prepare_value(k, placed), encoding.restore_output(q, placed)]
    found.append(q * encoding.default_scale(q.shape[-1]))
    for term in encoding.terms(placed, placed, x, x):
        found += tensors_of(term)
    return found


def span(encoding: PositionEncoding, n: int, **given: Any) -> Coordinates:
    return on_axes(Coordinates.span(n, **given), encoding.axes)


def tensors_of(part: Any) -> list[Tensor]:
    if isinstance(part, Tensor):
        return [part]
    if isinstance(part, tuple):
        return [t for item in part for t in tensors_of(item)]
    return [t for value in vars(part).values() for t in tensors_of(value)] if hasattr(part, "__dict__") else []


def inputs(encoding: PositionEncoding, n: int, batch: int = 2, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    sizes = CheckSizes.of(encoding)
    x = torch.randn(batch, n, sizes.embed_dim, dtype=dtype)
    return [x, *torch.randn(2, batch, sizes.heads, n, sizes.head_dim, dtype=dtype)]


@pytest.mark.one_in(31)
@pytest.mark.parametrize(
    "positions",
    [None, GAPS, GAPS.flip(0), GAPS.double()],
    ids=["span", "gaps", "falling", "floats"],
)
def test_hooks_agree_with_the_oracle(
    example: PositionEncoding, positions: Tensor | None, score_gap: Any, embed_gap: Any
) -> None:
    whole_numbers = isinstance(example, Learned) and example.extend is None
    if not whole_numbers or positions is None or not positions.is_floating_point():
        assert embed_gap(example, positions) < 1e-10
    assert score_gap(example, positions) < 1e-10


def test_it_acts_through_what_it_overrides(example: PositionEncoding) -> None:
    hooks = {"locate", "embed", "prepare", "terms", "values"}
    assert example.acts <= hooks
    assert example.acts or type(example).__name__ == "NoPE"


def test_nothing_that_a_cast_could_spoil_is_a_buffer(example: PositionEncoding) -> None:
    assert not list(example.buffers())


def test_angles_and_slopes_survive_half(fixed: PositionEncoding) -> None:
    """Without parameters everything is the same to the last bit after ``.bfloat16()``."""
    at = on_axes(Coordinates.of(torch.tensor([0, 70, 1000]), 3), fixed.axes)
    x, q, k = inputs(fixed, 3, dtype=torch.float64)
    cast = copy.deepcopy(fixed).bfloat16()
    for a, b in zip(outputs(fixed, x, q, k, at), outputs(cast, x, q, k, at), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_what_goes_in_comes_out_in_its_dtype_and_shape(example: PositionEncoding, dtype: torch.dtype) -> None:
    x, q, k = inputs(example, 5, dtype=dtype)
    given = outputs(example, x, q, k, span(example, 5))[:5]
    assert [(t.dtype, t.shape[:-1]) for t in given] == [(t.dtype, t.shape[:-1]) for t in (x, q, k, k, q)]
    assert [t.shape for t in given[3:]] == [k.shape, q.shape]


def test_autocast_changes_nothing(example: PositionEncoding) -> None:
    x, q, k = inputs(example, 6)
    at = on_axes(Coordinates.of(torch.tensor([0, 1, 2, 50, 51, 52]), 6), example.axes)
    plain = outputs(example, x, q, k, at)
    with torch.autocast("cpu", torch.bfloat16):
        cast = outputs(example, x, q, k, at)
    for a, b in zip(plain, cast, strict=True):
        assert torch.equal(a, b)


FLOATS = [
    (name, argument.name)
    for name, kind in ENCODINGS.items()
    for argument in inspect.signature(kind).parameters.values()
    if str(argument.annotation).split(" | ")[0] == "float"
]


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(("name", "argument"), FLOATS)
def test_a_number_that_is_not_finite_is_refused(name: str, argument: str, number: float) -> None:
    """It would spoil angles or scores, or be lost in them without a word."""
    kind = ENCODINGS[name]
    with pytest.raises(HeadwayError, match=f"{argument}.*{number}"):
        kind(**kind.examples()[0].arguments() | {argument: number})


def test_works_without_data(example: PositionEncoding) -> None:
    """On the meta device, where shapes are all there is."""
    example = copy.deepcopy(example).to("meta")
    x, q, k = (t.to("meta") for t in inputs(example, 5))
    given = outputs(example, x, q, k, span(example, 5, device="meta"))
    assert all(t.device.type == "meta" for t in given)


@pytest.mark.parametrize("n", [0, 1])
def test_no_token_and_one(example: PositionEncoding, n: int) -> None:
    x, q, k = inputs(example, n)
    for given, taken in zip(outputs(example, x, q, k, span(example, n))[:3], (x, q, k), strict=True):
        assert given.shape[:-1] == taken.shape[:-1]
        assert given.isfinite().all()


def test_every_parameter_gets_a_gradient(learned: PositionEncoding) -> None:
    learned = randomized(copy.deepcopy(learned), torch.Generator().manual_seed(0), torch.float32)
    x, q, k = inputs(learned, 12)
    sum(
        (t.double() ** 2).sum() for t in outputs(learned, x, q, k, span(learned, 12)) if t.is_floating_point()
    ).backward()
    for name, parameter in learned.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name


def test_copies_and_pickles(example: PositionEncoding) -> None:
    x, q, k = inputs(example, 5)
    expected = outputs(example, x, q, k, span(example, 5))
    for twin in (copy.deepcopy(example), pickle.loads(pickle.dumps(example))):
        for a, b in zip(outputs(twin, x, q, k, span(example, 5)), expected, strict=True):
            assert torch.equal(a, b)
    assert repr(example) == repr(copy.deepcopy(example))


def test_rows_and_joined_coordinates_are_placed_again(example: PositionEncoding) -> None:
    """A cut of placed coordinates has lost its tables, and is not located a second time."""
    if example.reads_input:
        return  # what it prepares with comes of the whole stream
    x, q, k = inputs(example, 8)
    whole = example.place(span(example, 8, length=8))
    half = example.place(whole.rows(4, 8))
    hooks = (example.prepare_query, example.prepare_key, example.prepare_value, example.restore_output)
    for a, b in zip((q, k, k, q), hooks, strict=True):
        assert torch.equal(b(a, whole)[:, :, 4:], b(a[:, :, 4:], half))
    assert torch.equal(whole.position[:, 4:], half.position)
    assert torch.equal(example.embed(x, whole)[:, 4:], example.embed(x[:, 4:], half))


def test_positions_given_as_a_plain_tensor(example: PositionEncoding) -> None:
    if example.axes not in (None, 1):
        return
    x, *_ = inputs(example, 4)
    at = torch.tensor([[0, 1, 2, 3], [0, 0, 1, 2]])
    assert torch.equal(example.embed(x, at), example.embed(x, Coordinates.of(at, 4)))
    assert torch.equal(example.embed(x), example.embed(x, Coordinates.span(4)))


@pytest.mark.parametrize("hook", ["embed", "prepare_query"])
def test_positions_without_an_axis_raise(hook: str) -> None:
    encoding = RoPE(8) if hook == "prepare_query" else ENCODINGS["index"]()
    x = torch.randn(1, 1, 4, 8) if hook == "prepare_query" else torch.randn(1, 4, 8)
    with pytest.raises(HeadwayError, match="positions have 0 axes"):
        getattr(encoding, hook)(x, Coordinates(torch.zeros(1, 4, 0), torch.arange(4)[None]))


def test_a_stream_as_long_as_its_largest_position_by_itself() -> None:
    at = Coordinates(torch.tensor([[[0.0], [4.0]]]), torch.tensor([[0, 1]]))
    x = torch.zeros(1, 2, 1)
    assert ENCODINGS["unit-index"]().embed(x, at).flatten().tolist() == [0, 1]
    stretched = ENCODINGS["learned"](3, 1, initial=torch.tensor([[1.0], [2.0], [3.0]]), extend="interpolate")
    assert stretched.embed(x, at).flatten().tolist() == [1, 3]
