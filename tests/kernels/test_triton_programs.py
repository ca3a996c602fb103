"""The Triton programs over several blocks, against the reference kernel in float64. ``test_triton`` runs it."""

import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import gpu_calls
import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from headway import masks as M
from headway import reductions as R
from headway import terms as T
from headway.call import make_call
from headway.coordinates import Coordinates
from headway.kernels import KERNELS, Call, Problem
from headway.kernels._parts import attend_in_parts, cut
from headway.kernels._reduce import reduce_blocks
from headway.kernels.triton import _installed
from headway.testing.kernels import mask_examples
from triton_on import moved

if _installed.reason_against("cpu"):
    pytest.skip("triton is to interpret, or a GPU to run them: tests/kernels/test_triton.py", allow_module_level=True)

BATCH, HEADS, KV, N, M_, WIDTH = 2, 2, 1, 70, 100, 24

Draw = Callable[..., Tensor]
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 2**-7}
"""What one rounding may be wrong by: the interpreter rounds to bfloat16 towards zero."""


def span() -> tuple[Coordinates, Coordinates]:
    return Coordinates.span(N, start=M_ - N, length=M_), Coordinates.span(M_)


def gaps() -> tuple[Coordinates, Coordinates]:
    """Whole positions with gaps of 0 to 3, other ones in each row."""
    steps = torch.randint(0, 4, (BATCH, M_), generator=torch.Generator().manual_seed(5))
    keys = Coordinates.of(steps.cumsum(1), M_)
    return keys.rows(M_ - N, M_), keys


def between() -> tuple[Coordinates, Coordinates]:
    """Positions that are not whole, in no order."""
    keys = Coordinates.of(torch.rand(BATCH, M_, generator=torch.Generator().manual_seed(6)) * 99, M_)
    return keys.rows(M_ - N, M_), keys


def packed() -> tuple[Coordinates, Coordinates]:
    """Three sequences in a row, with positions of their own."""
    keys = Coordinates.of(torch.cat([torch.arange(length) for length in (31, 8, M_ - 39)]), M_)
    return keys.rows(M_ - N, M_), keys


def axes() -> tuple[Coordinates, Coordinates]:
    """Places of a grid of 10 rows."""
    slots = torch.arange(M_)
    keys = Coordinates.of(torch.stack([slots // 10, slots % 10], -1)[None], M_)
    return keys.rows(M_ - N, M_), keys


def classes(tokens: int) -> Tensor:
    return torch.randint(0, 3, (BATCH, tokens), generator=torch.Generator().manual_seed(tokens))


def by_clip(draw: Draw, low: int, high: int) -> tuple[Any, ...]:
    return (T.DistanceBias(T.Rows(draw(HEADS, high - low + 1), T.Clip(low, high))),)


def one_slope(draw: Draw, heads: int = HEADS) -> tuple[Any, ...]:
    slopes = draw(heads).abs()
    return (T.DistanceBias(T.Linear(slopes, slopes)),)


def keys_of_their_own(draw: Draw, low: int = -20) -> T.RelativeKeys:
    """Relative keys of each head, of another width than the heads."""
    rows = T.Rows(draw(HEADS, 6 - low, 20), T.Clip(low, 5))
    return T.RelativeKeys(rows, draw(HEADS, 20), draw(BATCH, HEADS, N, 20))


def relative(draw: Draw, low: int = -20) -> tuple[Any, ...]:
    return (
        keys_of_their_own(draw, low),
        T.RelativeQueries(T.Rows(draw(1, 8 - low, WIDTH), T.Clip(low - 1, 6))),
        T.RelativeValues(T.Rows(draw(HEADS, 6 - low, 16), T.Clip(low, 5))),
    )


def sinusoids(draw: Draw) -> tuple[Any, ...]:
    rows = T.Sinusoids(draw(HEADS, WIDTH, 6), torch.tensor([1.0, 0.3, 0.05]))
    return (T.RelativeKeys(rows, query_bias=draw(HEADS, WIDTH)), T.QueryScale(draw(BATCH, HEADS, N)))


def stretched(draw: Draw, count: int = 5) -> tuple[Any, ...]:
    """A bias in pieces of some length each, whose outermost pieces no pair reaches, and another bias by distance."""
    first, rate, stretch = draw(1), draw(1), draw(BATCH, N)
    slope, edges = draw(HEADS, count + 1), torch.linspace(0.3, 2.5, count - 1)
    edges = torch.cat([torch.tensor([-torch.inf]), edges])
    steps = (slope[:, 1:-1] - slope[:, 2:]) * edges[1:].to(slope.dtype)
    intercept = first + torch.nn.functional.pad(steps.cumsum(-1), (2, 0))
    pieces = T.Stretched(edges, intercept, slope, rate.exp() / 9, stretch.abs())
    return (T.DistanceBias(pieces), T.DistanceBias(T.Linear(draw(1).abs(), draw(1).abs())))


TERMS: dict[str, tuple[Callable[[], tuple[Coordinates, Coordinates]], Callable[[Draw], tuple[Any, ...]]]] = {
    "clipped rows": (span, lambda draw: by_clip(draw, -20, 5)),
    "buckets": (
        span,
        lambda draw: (T.DistanceBias(T.Rows(draw(HEADS, 5), T.Bucketize(torch.tensor([-60, -9, -1, 1])))),),
    ),
    "linear, and a table of one head": (
        span,
        lambda draw: (T.DistanceBias(T.Linear(draw(HEADS).abs(), draw(HEADS).abs())), *by_clip(draw, -3, 3)),
    ),
    "one slope to both sides": (span, one_slope),
    "one slope, another that all heads share, and a table": (
        span,
        lambda draw: (*one_slope(draw, 1), *one_slope(draw), *by_clip(draw, -3, 3)),
    ),
    "one slope to both sides, positions with gaps": (gaps, one_slope),
    "piecewise": (span, lambda draw: (T.DistanceBias(T.Piecewise(torch.tensor([-50.0, -3, 0, 40]), draw(HEADS, 4))),)),
    "clipped rows, positions with gaps": (gaps, lambda draw: by_clip(draw, -90, 40)),
    "clipped rows, positions between whole numbers": (between, lambda draw: by_clip(draw, -20, 30)),
    "buckets within a reach, positions with gaps": (
        gaps,
        lambda draw: (T.DistanceBias(T.Rows(draw(1, 5), T.Bucketize(torch.tensor([-60.5, -9, 0, 1]), reach=61))),),
    ),
    "linear, positions of packed sequences": (
        packed,
        lambda draw: (T.DistanceBias(T.Linear(draw(HEADS).abs(), draw(HEADS).abs())),),
    ),
    "logarithm, positions between whole numbers": (
        between,
        lambda draw: (T.DistanceBias(T.Log(draw(HEADS).abs(), draw(1).abs())),),
    ),
    "power and clipped rows, positions with gaps": (
        gaps,
        lambda draw: (T.DistanceBias(T.Power(draw(1).abs(), draw(HEADS).abs())), *by_clip(draw, -90, 40)),
    ),
    "stretched": (span, stretched),
    "stretched in many pieces, positions between whole numbers": (between, lambda draw: stretched(draw, 20)),
    "two tables, two formulas, knots and cosines, positions with gaps": (
        gaps,
        lambda draw: (
            *by_clip(draw, -9, 4),
            *by_clip(draw, -30, 2),
            T.DistanceBias(T.Linear(draw(HEADS).abs(), draw(1).abs())),
            T.DistanceBias(T.Log(draw(HEADS).abs(), draw(1).abs())),
            T.DistanceBias(T.Piecewise(torch.tensor([-50.0, -3, 0, 40]), draw(HEADS, 4))),
            T.DistanceBias(T.Cosines(draw(HEADS, 3), torch.tensor([1.0, 0.3, 0.05]))),
        ),
    ),
    "a dense bias for each sequence and head": (span, lambda draw: (T.DenseBias(draw(BATCH, HEADS, N, M_)),)),
    "a dense bias shared by sequences": (span, lambda draw: (T.DenseBias(draw(HEADS, N, M_)),)),
    "a dense bias shared by heads, keys apart": (span, lambda draw: (T.DenseBias(draw(BATCH, 1, M_, N).mT),)),
    "dense biases of pairs, of keys and of queries": (
        gaps,
        lambda draw: (
            T.DenseBias(draw(N, M_)),
            T.DenseBias(draw(BATCH, 1, 1, M_)),
            T.DenseBias(draw(HEADS, N, 1)),
            T.DenseBias(draw()),
            T.SoftCap(3.0),
        ),
    ),
    "rows by a grid of axes": (
        axes,
        lambda draw: (T.DistanceBias(T.Rows(draw(HEADS, 35), T.Grid((T.Clip(-3, 3, axis=0), T.Clip(-2, 2, axis=1))))),),
    ),
    "rows by classes of each sequence, and by distance": (
        span,
        lambda draw: (
            T.DistanceBias(T.Rows(draw(HEADS, 9), T.Classes(classes(N), classes(M_), 3))),
            *by_clip(draw, -9, 9),
        ),
    ),
    "rows by classes and a distance between whole numbers": (
        between,
        lambda draw: (
            T.DistanceBias(T.Rows(draw(1, 63), T.Grid((T.Classes(classes(N), classes(M_), 3), T.Clip(-2, 4))))),
        ),
    ),
    "buckets of any reach between whole numbers, and a dense bias": (
        between,
        lambda draw: (
            T.DistanceBias(T.Rows(draw(1, 5), T.Bucketize(torch.tensor([-60.5, -9, 0, 1])))),
            T.DenseBias(draw(BATCH, HEADS, N, M_)),
        ),
    ),
    "relative keys": (
        span,
        lambda draw: (T.RelativeKeys(T.Rows(draw(1, 26, WIDTH), T.Clip(-20, 5)), query_bias=draw(HEADS, WIDTH)),),
    ),
    "relative queries": (
        span,
        lambda draw: (
            T.RelativeQueries(T.Rows(draw(HEADS, 5, WIDTH), T.Bucketize(torch.tensor([-60, -9, -1, 1]), reach=60))),
        ),
    ),
    "relative values": (span, lambda draw: (T.RelativeValues(T.Rows(draw(1, 26, 16), T.Clip(-20, 5))),)),
    "relative values, positions with gaps": (
        gaps,
        lambda draw: (T.RelativeValues(T.Rows(draw(HEADS, 9, 16), T.Clip(-6, 2))),),
    ),
    "relative keys, queries and values, scaled": (
        span,
        lambda draw: (*relative(draw), T.QueryScale(draw(BATCH, HEADS, N)), T.Sink(draw(HEADS)), T.SoftCap(3.0)),
    ),
    "relative keys, queries and values, positions with gaps": (
        gaps,
        lambda draw: (*relative(draw, -9), T.QueryScale(draw(BATCH, HEADS, N)), T.Sink(draw(HEADS))),
    ),
    "relative keys and a bias, positions between whole numbers": (
        between,
        lambda draw: (keys_of_their_own(draw), *by_clip(draw, -20, 30), T.SoftCap(3.0)),
    ),
    "relative queries by buckets, positions with gaps": (
        gaps,
        lambda draw: (
            T.RelativeQueries(T.Rows(draw(1, 5, WIDTH), T.Bucketize(torch.tensor([-60.5, -9, 0, 1]), reach=61))),
        ),
    ),
    "sinusoids": (span, sinusoids),
    "sinusoids, positions between whole numbers": (between, sinusoids),
    "everything else": (
        gaps,
        lambda draw: (
            T.QueryScale(draw(BATCH, HEADS, N)),
            T.TokenBias(draw(BATCH, HEADS, N), draw(BATCH, 1, M_)),
            T.Sink(draw(HEADS)),
            T.SoftCap(3.0),
        ),
    ),
}


def results(
    kernel: str,
    dtype: torch.dtype,
    terms: str,
    mask: M.Mask | None,
    dropout: float = 0.0,
    gradients: bool = True,
    parts: int = 1,
    reductions: Sequence[R.Reduction] = (),
) -> tuple[list[Tensor], Call]:
    """The output, the log-sum-exp and the gradients of all that was drawn, from so many parts of the keys.

    With reductions the output and the numbers of these, from one pass where the kernel has it.
    """
    g = torch.Generator().manual_seed(1)
    leaves: list[Tensor] = []

    def draw(*shape: int) -> Tensor:
        leaves.append(torch.randn(shape, generator=g, dtype=torch.float32).to(dtype).requires_grad_())
        return leaves[-1]

    q, k, v = draw(BATCH, HEADS, N, WIDTH), draw(BATCH, KV, M_, WIDTH), draw(BATCH, KV, M_, 16)
    q_at, k_at = TERMS[terms][0]()
    call = make_call(q, k, v, terms=list(TERMS[terms][1](draw)), mask=mask, q_positions=q_at, k_positions=k_at)
    assert KERNELS[kernel].why_not(Problem(call)) == []
    call = call._with(wants_lse=True, dropout=dropout, seed=torch.tensor([2**40 + 7]))
    if reductions:
        with torch.no_grad():
            out, _ = KERNELS[kernel].run(call)
            if kernel == "reference":
                values = reduce_blocks(call, reductions)
            else:
                same, values = KERNELS[kernel].run_and_reduce(call, reductions)
                assert torch.equal(same, out)
        return [out, *tree_flatten(values)[0]], call
    if parts == 1:
        out, lse = KERNELS[kernel].run(call)
    else:
        edges = torch.linspace(0, M_, parts + 1).int().tolist()
        cuts = [moved(cut(call, "keys", *pair), gpu_calls.DEVICE) for pair in pairwise(edges)]
        out, lse = (None if x is None else x.to("cpu") for x in attend_in_parts(cuts, kernel))
    assert out is not None
    assert lse is not None
    lse = lse.masked_fill(lse == -torch.inf, 0)
    if not gradients:
        return [out, lse], call
    up = [torch.randn(x.shape, generator=g, dtype=torch.float32).to(x.dtype) for x in (out, lse)]
    return [out, lse, *torch.autograd.grad([out, lse], leaves, up)], call


def agree(terms: str, mask: M.Mask | None, dropout: float = 0.0, gradients: bool = True, parts: int = 1) -> None:
    found, _ = results("triton", torch.float32, terms, mask, dropout, gradients, parts)
    expected, _ = results("reference", torch.float64, terms, mask, dropout, gradients)
    for number, (a, b) in enumerate(zip(found, expected, strict=True)):
        assert b.abs().max() > 0
        error = (a.double() - b).abs().max() / b.abs().max()
        assert error < 1e-5, f"result {number} of {terms} is wrong by {error:.1e} of its largest number"


@pytest.mark.parametrize("terms", TERMS)
def test_terms_over_several_blocks(terms: str) -> None:
    agree(terms, M.Window(None, 9))


@pytest.mark.parametrize("mask", [name for name in mask_examples(BATCH, N, M_) if name != "nothing"])
def test_masks_over_several_blocks(mask: str) -> None:
    agree("everything else", mask_examples(BATCH, N, M_)[mask])


def test_a_window_that_is_narrower_than_a_block_and_one_that_is_wider() -> None:
    for left, right in ((40, 0), (5, 3), (0, 60)):
        agree("clipped rows", M.Window(left, right))


def test_documents_by_ids_in_any_order() -> None:
    ids = torch.randint(0, 3, (BATCH, M_), generator=torch.Generator().manual_seed(2))
    agree("clipped rows, positions with gaps", M.Causal() & M.Documents(ids))


def in_blocks(*among: int) -> Tensor:
    """A mask of [*among, N, M_] with blocks of 32 that are in sight, out of sight, and neither; others per row."""
    g = torch.Generator().manual_seed(4)
    kind = torch.randint(0, 3, (*among, N // 32 + 1, M_ // 32 + 1), generator=g)
    kind = kind.repeat_interleave(32, -2).repeat_interleave(32, -1)[..., :N, :M_]
    return torch.where(kind == 2, torch.rand(kind.shape, generator=g) < 0.5, kind == 1)


IRREGULAR: dict[str, Callable[[], M.Mask]] = {
    "documents that come again": lambda: (
        M.Documents(torch.tensor([4] * 33 + [0] * 31 + [9] * 3 + [4] * 33)) & M.Causal()
    ),
    "documents of each sequence": lambda: M.Documents(classes(5).repeat_interleave(20, 1)),
    "blocks": lambda: M.Boolean(in_blocks()),
    "blocks of each head, and intervals of each sequence": lambda: (
        M.Boolean(in_blocks(1, HEADS)) & M.Padding(torch.tensor([M_, 64])) & (M.Window(40, 0) | M.KeepFirst(3))
    ),
    "blocks of each sequence and head": lambda: M.Boolean(in_blocks(BATCH, HEADS)),
    "keys alone": lambda: M.Boolean(in_blocks()[None, None, :1]),
}
"""Masks that are more than intervals."""


@pytest.mark.parametrize("mask", IRREGULAR)
def test_masks_that_are_more_than_intervals(mask: str) -> None:
    agree("everything else" if "head" in mask else "clipped rows", IRREGULAR[mask]())


def test_relative_keys_with_masks_that_are_more_than_intervals() -> None:
    agree("relative keys", IRREGULAR["documents that come again"]())


def test_lists_of_blocks_may_be_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    from headway.kernels.triton import _launch

    monkeypatch.setattr(_launch, "MOST_LISTED", 0)
    agree("everything else", IRREGULAR["blocks of each head, and intervals of each sequence"]())


@pytest.mark.parametrize("of_keys", [False, True], ids=["of queries", "of keys"])
@pytest.mark.parametrize("mask", IRREGULAR)
def test_lists_have_the_blocks_in_sight(mask: str, of_keys: bool) -> None:
    from headway.kernels.triton._launch import Launch
    from headway.kernels.triton._lowered import lower_for_programs

    q, k = torch.zeros(BATCH, HEADS, N, WIDTH), torch.zeros(BATCH, KV, M_, WIDTH)
    sides = span()
    call = make_call(q, k, k, mask=IRREGULAR[mask](), q_positions=sides[0], k_positions=sides[1])
    launch = Launch(lower_for_programs(moved(call, "cuda" if torch.cuda.is_available() else "cpu")))
    blocks = launch.blocks("keys" if of_keys else "forward")
    lists = launch.listed(blocks, of_keys).sight.lists
    assert lists is not None
    assert launch.listed(blocks, of_keys).sight.lists is lists  # not made again
    rows, width = blocks.rows, blocks.block
    seen = IRREGULAR[mask]().allowed(*sides).expand(*lists.at.shape[:2], N, M_)
    found = lists.at.tolist()
    for b, h, i, j in itertools.product(*map(range, (*seen.shape[:2], -(-N // rows), -(-M_ // width)))):
        tile = seen[b, h, i * rows : (i + 1) * rows, j * width : (j + 1) * width]
        one, other = (found[b][h][j], i) if of_keys else (found[b][h][i], j)
        open_, masked = one[2 : 2 + one[0]], one[-1 : -1 - one[1] : -1]
        assert sorted(open_) == open_
        assert sorted(masked) == masked
        # where all of it must be in sight: queries beyond the last one compute nothing that is kept, keys do
        complete = tile.shape[1] == width and (tile.shape[0] == rows or not of_keys)
        assert (other in open_) == (bool(tile.all()) and complete)
        assert (other in masked) == (bool(tile.any()) and other not in open_)


@pytest.mark.parametrize("terms", ["everything else", "relative values", "relative values, positions with gaps"])
def test_dropout_drops_the_weights_that_reference_drops(terms: str) -> None:
    agree(terms, M.Causal(), dropout=0.3)


def test_the_interpreter_stops_a_program_that_reads_outside_of_its_tensors() -> None:
    """What holds all tests here."""
    from headway.kernels.triton._start import run_sums

    if torch.cuda.is_available():
        pytest.skip("on a GPU nothing is watched")
    assert torch.equal(run_sums(torch.ones(2, 5), torch.tensor([0, 5])), torch.full((2, 1), 5.0))
    with pytest.raises(Exception, match="reads 1 of 6 numbers outside of its tensors"):
        run_sums(torch.ones(1, 5), torch.tensor([0, 6]))


def test_the_interpreter_stops_a_program_whose_numbers_are_too_large() -> None:
    import triton
    import triton.language as tl

    if torch.cuda.is_available():
        pytest.skip("on a GPU nothing is watched")

    @triton.jit
    def doubled(x, out):
        tl.store(out, tl.load(x) + tl.load(x))

    largest = torch.tensor([2**30], dtype=torch.int32)
    doubled[(1,)](largest - 1, found := torch.zeros_like(largest))
    assert found == 2**31 - 2
    with pytest.raises(Exception, match="computes 2147483648 to 2147483648 by add in int32"):
        doubled[(1,)](largest, found)


@pytest.mark.parametrize("layout", T.LAYOUTS)
@pytest.mark.parametrize(("width", "pairs", "start"), [(16, 8, 0), (24, 5, 3), (20, 10, 0), (7, 1, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rotations(
    layout: str, width: int, pairs: int, start: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of x as projections lay it out, by angles of each sequence or head, or of all; a gradient is rotated back."""
    from headway.kernels.triton import _start

    count, started = [], _start.rotations
    monkeypatch.setattr(_start, "rotations", lambda *arguments: count.append(1) or started(*arguments))
    g = torch.Generator().manual_seed(9)
    x = torch.randn(BATCH, 40, HEADS, width, generator=g).to(dtype).transpose(1, 2).requires_grad_()
    for among in ((BATCH, HEADS, 40), (1, 1, 40), (BATCH, 1, 40)):
        angle = torch.randn(*among, pairs, generator=g, dtype=torch.float64)
        rotation = T.Rotation(angle.cos() * 1.5, angle.sin() * 1.5, layout, start)
        found = KERNELS["triton"].rotate(x, rotation)
        assert found.stride() == x.stride()
        exact = rotation.of(x.detach().double().requires_grad_())
        torch.testing.assert_close(found.double(), exact, rtol=TOLERANCE[dtype], atol=1e-6)
        up = torch.randn(x.shape, generator=g).to(dtype)
        (gradient,) = torch.autograd.grad(found, x, up)
        back = T.Rotation(rotation.cos, -rotation.sin, layout, start).of(up.double())
        torch.testing.assert_close(gradient.double(), back, rtol=TOLERANCE[dtype], atol=1e-6)
    assert len(count) == 6, "torch rotated"


def test_rotations_of_tensors_that_lie_apart() -> None:
    rotate = KERNELS["triton"].rotate
    angle = torch.randn(1, 1, 5, 4, dtype=torch.float64)
    rotation = T.Rotation(angle.cos(), angle.sin())
    for x in (
        torch.randn(2, 2, 8, 5).mT,
        torch.randn(2, 2, 5, 16)[..., ::2],
        torch.randn(2, 2, 1, 8).expand(2, 2, 5, 8),
    ):
        torch.testing.assert_close(rotate(x, rotation), rotation.of(x))
    torch.testing.assert_close(
        rotate(torch.randn(2, 2, 0, 8), rotation._with(cos=angle.cos()[:, :, :0], sin=angle.sin()[:, :, :0])),
        torch.zeros(2, 2, 0, 8),
    )


# ---------------------------------------------------------------- few queries, whose keys are split


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Three queries and 200 keys, which are computed in three splits and merged two at once."""
    from headway.kernels.triton import _forward

    here, splits, run = sys.modules[__name__], [], _forward.Forward._run_in_splits

    def noted(self: _forward.Forward, results: Any, count: int, blocks: Any) -> None:
        splits.append(count)
        run(self, results, count, blocks)

    monkeypatch.setattr(here, "N", 3)
    monkeypatch.setattr(here, "M_", 200)
    monkeypatch.setattr(_forward.Forward, "_run_in_splits", noted)
    monkeypatch.setattr(_forward, "SPLITS", 2)
    if torch.cuda.is_available():
        monkeypatch.setattr(_forward, "_processors", lambda device: 2)
    yield
    assert set(splits) == {3}


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("terms", TERMS)
def test_few_queries(terms: str) -> None:
    agree(terms, M.Window(None, 9), gradients=False)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("mask", [name for name in mask_examples(BATCH, 3, 200) if name != "nothing"])
def test_few_queries_with_masks(mask: str) -> None:
    agree("everything else", mask_examples(BATCH, 3, 200)[mask], gradients=False)


@pytest.mark.usefixtures("few")
def test_few_queries_that_see_a_part_of_the_keys() -> None:
    """Splits are of what they see; more than there are blocks of it stay empty."""
    agree("clipped rows", M.Window(40, 0), gradients=False)
    agree("everything else", M.Padding(torch.tensor([200, 9])), gradients=False)
    agree("everything else", M.Padding(torch.tensor([200, 0])), gradients=False)


@pytest.mark.usefixtures("few")
def test_gradients_and_dropout_of_few_queries() -> None:
    agree("everything else", M.Causal(), dropout=0.3)
    agree("relative keys, queries and values, scaled", M.Causal())


def test_how_many_queries_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to 64 in all heads that share keys, in one block; one more is too many."""
    from headway.kernels.triton import _choices

    assert _choices.splits_for(64, 128, 1, 2, 32) == 2
    assert _choices.splits_for(65, 1 << 20, 1, 132, 64) == 0
    assert _choices.splits_for(1, 127, 1, 2, 32) == 2
    assert _choices.splits_for(1, 96, 1, 2, 32) == 0
    assert _choices.splits_for(4, 32768, 64, 132, 64) == 8
    assert _choices.splits_for(4, 32768, 5000, 132, 64) == 1
    monkeypatch.setattr(sys.modules[__name__], "M_", 200)
    for count in (8, 9, 32):  # rows of two heads: 16, 18 and 64
        monkeypatch.setattr(sys.modules[__name__], "N", count)
        agree("clipped rows", M.Causal(), gradients=False)


def test_a_value_that_is_nan_in_one_split() -> None:
    g = torch.Generator().manual_seed(7)
    q, k, v = (torch.randn(1, 2, n, 16, generator=g) for n in (2, 160, 160))
    v[0, 0, 100] = float("nan")
    k[0, 1, 150] = float("nan")
    seen = [KERNELS[name].run(make_call(q, k, v, mask=M.Causal()))[0] for name in ("triton", "reference")]
    hidden = [
        KERNELS[name].run(make_call(q, k, v, mask=M.Padding(torch.tensor([100]))))[0]
        for name in ("triton", "reference")
    ]
    assert seen[0].isnan().any()
    assert torch.equal(seen[0].isnan(), seen[1].isnan())
    torch.testing.assert_close(*hidden)


@pytest.mark.parametrize(
    "terms",
    [
        "everything else",
        "stretched",
        "relative keys, queries and values, scaled",
        "relative values, positions with gaps",
    ],
)
def test_parts_of_the_keys(terms: str) -> None:
    """Whose results are merged, and whose gradients are those of all keys."""
    agree(terms, M.Window(None, 9), parts=2)


def test_a_table_of_several_chunks_and_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    from headway.kernels.triton import _backward

    monkeypatch.setattr(_backward, "CHUNK", 32)
    monkeypatch.setattr(_backward, "PARTIAL", 2 * BATCH * HEADS * 131)
    agree("clipped rows, positions with gaps", M.Window(60, 10))


SOME_WITHOUT_PAIRS: dict[str, M.Mask] = {
    "causal": M.Causal(),
    "window": M.Window(4, 1),
    "window of the first tokens": M.Window(4, 0) & M.Prefix(torch.tensor([9])),
    "two intervals": M.Causal() & (M.Window(4) | M.KeepFirst(2)),
    "chunks": M.Chunked(16),
    "padding": M.Window(30, 2) & M.Padding(torch.tensor([33])),
    "documents": M.Window(9, 0) & M.Documents(torch.arange(70) // 20, torch.arange(40) // 20 + 1),
}


@pytest.mark.parametrize("start", [-25, 30, 60])
@pytest.mark.parametrize("mask", SOME_WITHOUT_PAIRS)
def test_nan_in_tokens_that_a_mask_leaves_without_pairs(mask: str, start: int) -> None:
    n, m = 40, 70
    at = {"q_positions": Coordinates.span(n, start=start), "k_positions": Coordinates.span(m)}
    g = torch.Generator().manual_seed(3)
    q, k, v, up = (torch.randn(1, 1, count, 16, generator=g) for count in (n, m, m, n))
    seen = SOME_WITHOUT_PAIRS[mask].allowed(*at.values()).broadcast_to(1, 1, n, m)

    def found(hidden: float) -> list[Tensor]:
        unused = ~seen.any(-2)[..., None]
        leaves = [q.masked_fill(~seen.any(-1)[..., None], hidden), k.masked_fill(unused, hidden)]
        leaves = [x.requires_grad_() for x in (*leaves, v.masked_fill(unused, hidden))]
        out, _ = KERNELS["triton"].run(make_call(*leaves, mask=SOME_WITHOUT_PAIRS[mask], **at))
        return [out, *torch.autograd.grad(out, leaves, up)]

    for a, b in zip(found(float("nan")), found(0.0), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


@pytest.mark.parametrize(
    "mask",
    [None, M.Causal(), M.Window(60, 70), M.Window(1), M.Documents(torch.tensor([1] * 55 + [0] * 45))],
    ids=["none", "causal", "window", "last two", "documents"],
)
@pytest.mark.parametrize("reach", [(-20, 5), (20, 60), (-90, -60), (3, 3)], ids=str)
def test_squares_beyond_the_ends_of_a_table(
    reach: tuple[int, int], mask: M.Mask | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of which the gradient of the table is summed with those of keys."""
    if gpu_calls.DEVICE == "cuda":
        pytest.skip("on a GPU squares have 128 tokens: test_a_table_of_several_squares")
    from triton import language as tl

    from headway.kernels.triton.programs import _scores, _sums

    for room in (_scores, _sums):
        monkeypatch.setattr(room, "SQUARE", tl.constexpr(32))
    if mask is not None:
        monkeypatch.setattr(sys.modules[__name__], "BATCH", 1)
    monkeypatch.setitem(TERMS, "clipped rows", (span, lambda draw: by_clip(draw, *reach)))
    agree("clipped rows", mask)


def test_a_table_of_several_squares() -> None:
    n, g = 290, torch.Generator().manual_seed(2)
    numbers = [torch.randn(shape, generator=g) for shape in ((1, 2, n, 16), *[(1, 1, n, 16)] * 2, (2, 25))]
    up = torch.randn(1, 2, n, 16, generator=g)

    def gradients(kernel: str, dtype: torch.dtype) -> list[Tensor]:
        q, k, v, table = (x.to(dtype).requires_grad_() for x in numbers)
        terms = [T.DistanceBias(T.Rows(table, T.Clip(-20, 4)))]
        at = {"q_positions": Coordinates.span(n), "k_positions": Coordinates.span(n)}
        out, _ = KERNELS[kernel].run(make_call(q, k, v, terms=terms, **at))
        return [out, *torch.autograd.grad(out, [q, k, v, table], up.to(dtype))]

    for a, b in zip(gradients("triton", torch.float32), gradients("reference", torch.float64), strict=True):
        assert (a.double() - b).abs().max() < 1e-5 * b.abs().max()


@pytest.mark.parametrize("where", [span, gaps])
def test_nan_in_tokens_without_pairs_reaches_nothing(
    where: Callable[[], tuple[Coordinates, Coordinates]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "BATCH", 1)
    g = torch.Generator().manual_seed(8)
    q, k, v, up = (torch.randn(BATCH, h, n, WIDTH, generator=g) for h, n in ((2, N), (1, M_), (1, M_), (2, N)))
    tables = [torch.randn(1, 12, WIDTH, generator=g).requires_grad_() for _ in range(3)]
    seen = torch.ones(N, M_, dtype=torch.bool)
    seen[5], seen[:, 40] = False, False
    q_at, k_at = where()

    def found(hidden: float) -> list[Tensor]:
        tensors = [x.clone() for x in (q, k, v)]
        tensors[0][:, :, 5], tensors[1][:, :, 40], tensors[2][:, :, 40] = hidden, hidden, hidden
        leaves = [x.requires_grad_() for x in tensors]
        kinds = (T.RelativeKeys, T.RelativeQueries, T.RelativeValues)
        terms = [kind(T.Rows(table, T.Clip(-8, 3))) for kind, table in zip(kinds, tables, strict=True)]
        terms += [T.SoftCap(4.0), T.QueryScale(torch.ones(BATCH, 2, N).requires_grad_())]
        call = make_call(*leaves, terms=terms, mask=M.Boolean(seen), q_positions=q_at, k_positions=k_at)
        out, _ = KERNELS["triton"].run(call)
        return [out, *torch.autograd.grad(out, [*leaves, *tables, terms[-1].factor], up)]

    for a, b in zip(found(float("nan")), found(0.0), strict=True):
        assert a.isfinite().all()
        torch.testing.assert_close(a, b, rtol=0, atol=0)


@pytest.mark.parametrize(
    "terms",
    [
        "relative keys, queries and values, scaled",
        "relative keys, queries and values, positions with gaps",
        "stretched",
    ],
)
def test_reductions_with_relative_vectors_and_stretched_biases(terms: str) -> None:
    """The output is that of a call without reductions; the cells of the map do not begin at blocks."""
    asked = [R.Entropy(), R.ColumnSums(), R.PooledMap(3, 2), R.TopKeys(2)]
    (found, _), (exact, _) = (
        results(kernel, dtype, terms, M.Window(None, 9), reductions=asked)
        for kernel, dtype in (("triton", torch.float32), ("reference", torch.float64))
    )
    for a, b in zip(found, exact, strict=True):
        torch.testing.assert_close(a.double(), b.double(), rtol=1e-4, atol=1e-5)


def test_sinusoids_of_many_pairs_are_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where positions have gaps."""
    from headway.kernels.triton import _lowered

    monkeypatch.setattr(_lowered, "REST_LIMIT", 0)
    agree("sinusoids, positions between whole numbers", M.Causal())
    _, call = results("triton", torch.float32, "sinusoids, positions between whole numbers", None, gradients=False)
    assert _lowered.lower_for_programs(call).q.shape[-1] == WIDTH + 6


def test_sinusoids_of_few_queries_are_multiplied_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where positions rise by one, and the products of all pairs would be too large."""
    from headway.kernels.triton import _lowered

    monkeypatch.setattr(_lowered, "REST_LIMIT", 0)
    monkeypatch.setattr(sys.modules[__name__], "N", 3)
    monkeypatch.setattr(sys.modules[__name__], "M_", 200)
    agree("sinusoids", M.Causal())
    _, call = results("triton", torch.float32, "sinusoids", None, gradients=False)
    relative = _lowered.lower_for_programs(call).scores.relative_keys
    assert relative is not None
    assert relative.q is None


@pytest.mark.parametrize("few", [False, True], ids=["", "few queries"])
@pytest.mark.parametrize("terms", [name for name in TERMS if name.startswith("rows by")])
def test_rows_by_axes_or_classes_that_would_be_a_large_dense_bias(
    terms: str, few: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headway.kernels.triton import _lowered

    monkeypatch.setattr(_lowered, "REST_LIMIT", 0)
    if few:
        monkeypatch.setattr(sys.modules[__name__], "N", 3)
        monkeypatch.setattr(sys.modules[__name__], "M_", 200)
    agree(terms, M.Window(None, 9))
    scores = _lowered.lower_for_programs(results("triton", torch.float32, terms, None, gradients=False)[1]).scores
    assert scores.grid is not None
    assert scores.dense is None


@pytest.mark.parametrize("terms", ["relative keys", "relative queries", "relative values"])
def test_blocks_that_are_farther_apart_than_any_vector_reaches(terms: str) -> None:
    """Their pairs share a vector, in the past and, without a mask, in the future."""
    agree(terms, None)


def test_vectors_of_several_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of one head of the vectors that have a part of the sequences and heads, and those that have all."""
    from headway.kernels.triton import _backward

    for most in (1, 1 << 24):
        monkeypatch.setattr(_backward, "PARTIAL", most)
        agree("relative keys", M.Causal())


@pytest.mark.parametrize("name", gpu_calls.CALLS)
def test_the_calls_of_a_gpu(name: str) -> None:
    """They are taken, and their gradients may be computed again."""
    tensors = gpu_calls.inputs(24)
    learned, arguments = gpu_calls.CALLS[name](24)
    one, other = (gpu_calls.both_ways(tensors, learned, arguments) for _ in range(2))
    for a, b in zip(one, other, strict=True):
        assert a.isfinite().all()
        assert torch.equal(a, b)


def test_the_same_bits_in_every_run() -> None:
    """Interpreted, it finds what is read before it is written; tests/kernels/test_triton_gpu.py has every path."""
    one, other = (results("triton", torch.bfloat16, "clipped rows", M.Causal())[0] for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("widths", [(1, 1), (96, 96), (20, 130), (256, 8)], ids=str)
def test_widths(widths: tuple[int, int]) -> None:
    g = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(1, 2, n, w, generator=g) for n, w in ((5, widths[0]), (40, widths[0]), (40, widths[1])))
    leaves = [x.requires_grad_() for x in (q, k, v)]
    expected = [x.double().detach().requires_grad_() for x in leaves]

    def of(kernel: str, inputs: list[Tensor]) -> list[Tensor]:
        call = make_call(*inputs, mask=M.Causal())
        out, _ = KERNELS[kernel].run(call)
        return [out, *torch.autograd.grad(out.sum(), inputs)]

    for a, b in zip(of("triton", leaves), of("reference", expected), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-5)


def test_nan_in_a_query_that_sees_nothing_does_not_reach_its_scale() -> None:
    """Where sinusoids are a dense bias."""
    g = torch.Generator().manual_seed(8)
    q, k, v = (torch.randn(1, 2, 8, WIDTH, generator=g) for _ in range(3))
    q[:, :, 3] = float("nan")
    seen = torch.ones(8, 8, dtype=torch.bool)
    seen[3] = False
    positions = Coordinates.of(torch.arange(8) * 3, 8)
    found = []
    for kernel, dtype in (("triton", torch.float32), ("reference", torch.float64)):
        factor = torch.ones(1, 2, 1, dtype=dtype, requires_grad=True)
        rows = T.Sinusoids(torch.ones(2, WIDTH, 6, dtype=dtype), torch.tensor([1.0, 0.3, 0.05]))
        call = make_call(
            *(x.to(dtype) for x in (q, k, v)),
            terms=[T.RelativeKeys(rows), T.QueryScale(factor)],
            mask=M.Boolean(seen),
            q_positions=positions,
            k_positions=positions,
        )
        out, _ = KERNELS[kernel].run(call)
        found += [x.double() for x in torch.autograd.grad(out.square().sum(), factor)]
    assert found[1].abs().min() > 0
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def test_the_default_dtype_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def found() -> list[Tensor]:
        several = ("clipped rows, positions with gaps", "relative values, positions with gaps")
        every = [x for terms in several for x in results("triton", torch.float32, terms, M.Causal())[0]]
        with monkeypatch.context() as few:
            few.setattr(sys.modules[__name__], "N", 3)
            few.setattr(sys.modules[__name__], "M_", 200)
            every += results("triton", torch.float32, "clipped rows", M.Causal(), gradients=False)[0]
        asked = [R.ColumnSums(), R.PooledMap(3, 2), R.TopKeys(2)]
        return every + results("triton", torch.float32, "clipped rows", M.Causal(), reductions=asked)[0]

    before, default = found(), torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.bfloat16)
        for a, b in zip(found(), before, strict=True):
            assert torch.equal(a, b)
            assert a.dtype == b.dtype
    finally:
        torch.set_default_dtype(default)


def test_no_sequences_have_a_dense_bias_with_a_gradient() -> None:
    q, bias = torch.zeros(0, HEADS, 5, WIDTH), torch.randn(HEADS, 5, 5, requires_grad=True)
    out, _ = KERNELS["triton"].run(make_call(q, q, q, terms=[T.DenseBias(bias)]))
    (gradient,) = torch.autograd.grad(out.sum(), bias)
    assert torch.equal(gradient, torch.zeros(HEADS, 5, 5))


def test_rows_of_positions_whose_distance_float32_would_round() -> None:
    g, far = torch.Generator().manual_seed(2), 1 << 25
    q, k, v = (torch.randn(1, HEADS, 6, WIDTH, generator=g) for _ in range(3))
    table = torch.randn(HEADS, 9, generator=g)
    sides = [Coordinates.of(x, 6) for x in (torch.zeros(6), far + 4 * torch.arange(6.0))]
    found = []
    for kernel, dtype in (("triton", torch.float32), ("reference", torch.float64)):
        rows = table.to(dtype).requires_grad_()
        terms = [T.DistanceBias(T.Rows(rows, T.Clip(far + 1, far + 9)))]
        call = make_call(*(x.to(dtype) for x in (q, k, v)), terms=terms, q_positions=sides[0], k_positions=sides[1])
        out, _ = KERNELS[kernel].run(call)
        found.append([x.double() for x in (out, *torch.autograd.grad(out.square().sum(), rows))])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_an_infinite_stretch_reads_no_further_than_the_last_piece() -> None:
    q = torch.randn(1, HEADS, 6, WIDTH, generator=torch.Generator().manual_seed(2))
    stretch = torch.tensor([[1, 2, torch.inf, 1, 2, 3]])
    pieces = torch.linspace(0.1, 2, 5), torch.zeros(HEADS, 6), torch.zeros(HEADS, 6), torch.ones(1), stretch
    term = T.DistanceBias(T.Stretched(*pieces))
    found, exact = (KERNELS[kernel].run(make_call(q, q, q, terms=[term]))[0] for kernel in ("triton", "reference"))
    assert found[:, :, 3:].isfinite().all()
    torch.testing.assert_close(found, exact, equal_nan=True)


@pytest.mark.parametrize("level", [2.0**29, -1e9, 1e10, -1e12, 1e30, -3.3e38, 3.3e38])
def test_rows_of_scores_that_are_all_as_large(level: float) -> None:
    """As those of queries whose keys are all hidden by finite biases."""
    g = torch.Generator().manual_seed(4)
    q, k, v, up = (torch.randn(1, 1, 40, 16, generator=g) for _ in range(4))
    bias = torch.full((1, 1, 40, 40), level)
    bias[..., ::3] -= abs(level) / 4 + (0 if level > 0 else 100)
    bias[:, :, 7] = torch.randn(40, generator=g)

    def found(kernel: str) -> list[Tensor]:
        leaves = [x.clone().requires_grad_() for x in (q, k, v, bias)]
        call = make_call(*leaves[:3], terms=[T.DenseBias(leaves[3]), T.Sink(torch.tensor([level]))])
        out, _ = KERNELS[kernel].run(call)
        return [out, *torch.autograd.grad(out, leaves, up)]

    for a, b in zip(found("triton"), found("reference"), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_scores_of_thousands() -> None:
    g = torch.Generator().manual_seed(4)
    q, k = (torch.randn(1, 2, 40, 16, generator=g) * 25 for _ in range(2))
    v = torch.randn(1, 2, 40, 16, generator=g)
    found, exact = (
        KERNELS[kernel].run(make_call(q.to(dtype), k.to(dtype), v.to(dtype), scale=1.0))[0]
        for kernel, dtype in (("triton", torch.float32), ("reference", torch.float64))
    )
    assert (q @ k.mT).abs().max() > 2000
    torch.testing.assert_close(found.double(), exact, rtol=1e-3, atol=1e-3)
