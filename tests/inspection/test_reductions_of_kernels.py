"""Reductions of the weights by every kernel that has its own: of several sizes, and what is easily wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from reduced_calls import counting, naive_reductions, pairs, reductions_of

import headway as hw
from headway import masks as M
from headway import reductions as R
from headway import terms as T
from headway.call import make_call
from headway.inspection import PooledMap, TopKeys, attention_statistics
from headway.kernels import KERNELS, Call, Problem
from headway.kernels._base import Kernel
from headway.kernels._reduce import reduce_blocks
from headway.testing.kernels import mask_examples
from headway.testing.tolerances import DRAWS, Comparison

REDUCE = [name for name, kernel in KERNELS.items() if type(kernel).reduce is not Kernel.reduce]
pytestmark = pytest.mark.parametrize("kernel", REDUCE)
FACTOR = 2.0
"""A statistic has at most so many times the error of the naive computation."""
BATCH, HEADS, N, M_, WIDTH, CELLS = 2, 2, 40, 70, 24, 2


@pytest.fixture(autouse=True)
def _there(kernel: str) -> None:
    if reasons := KERNELS[kernel].why_not(Problem.of(drawn(0, torch.float32, torch.float32))):
        pytest.skip("; ".join(reasons))


def drawn(
    seed: int,
    dtype: torch.dtype,
    term_dtype: torch.dtype,
    n: int = N,
    m: int = M_,
    batch: int = BATCH,
    **arguments: Any,
) -> Call:
    """A call of heads that share keys, with a sink and a bias of the keys; the same numbers in every dtype."""
    g = torch.Generator().manual_seed(seed)
    q, k, v = (
        torch.randn(batch, heads, tokens, WIDTH, generator=g).bfloat16().to(dtype)
        for heads, tokens in ((HEADS, n), (1, m), (1, m))
    )
    bias = torch.randn(1, HEADS, m, generator=g).bfloat16().to(term_dtype)
    sink = torch.tensor([-1.0, 4.0], dtype=term_dtype)  # the second is above the largest score of most rows
    return make_call(q, k, v, terms=[T.TokenBias(None, bias)], sink=sink, **arguments)


def compared(
    kernel: str, dtype: torch.dtype, seed: int, reductions: list[R.Reduction] | None = None, **arguments: Any
) -> dict[str, Any]:
    """What is compared of each reduction: the kernel's, the naive one in the same dtype, and that in float64."""
    ours, naive, exact = (
        drawn(seed, q, term, **arguments)
        for q, term in ((dtype, torch.float32), (dtype, dtype), (torch.float64, torch.float64))
    )
    asked, counted = reductions or reductions_of(exact, seed, CELLS), counting(exact, seed)
    found = KERNELS[kernel].reduce(ours, asked, counted)
    others = naive_reductions(naive, asked, counted)[0]
    right, weights = naive_reductions(exact, asked, counted)
    results: dict[str, Any] = {}
    for number, (one, *values) in enumerate(zip(asked, found, others, right, strict=True)):
        results |= {f"{number}: {name}": three for name, three in pairs(one, *values, weights).items()}
    return results


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_promise_is_kept_of_reductions(kernel: str, dtype: torch.dtype) -> None:
    comparisons: dict[str, Comparison] = {}
    sizes = {"n": 33, "m": 40, "batch": 1}
    asked = reductions_of(drawn(0, dtype, dtype, **sizes), 5, CELLS)  # type: ignore[arg-type]
    for draw in range(DRAWS):
        found = compared(kernel, dtype, draw, asked, mask=M.Causal(), **sizes)
        for name, (ours, naive, exact) in found.items():
            if "VisibleKeys" not in name:
                comparison = comparisons.setdefault(name, Comparison(f"{name} in {dtype}", FACTOR))
                comparison.add(ours, naive.to(ours.dtype), exact)
    assert len(comparisons) > len(R.Reduction.__subclasses__()) - 2
    for comparison in comparisons.values():
        comparison.check()


def agree(kernel: str, *arguments: Any, **options: Any) -> None:
    for name, (ours, naive, exact) in compared(kernel, torch.float32, *arguments, **options).items():
        assert ours.shape == exact.shape, name
        assert ours.dtype == naive.dtype, name
        if exact.numel():
            error, usual = ((x.double() - exact.double()).abs().max() for x in (ours, naive))
            allowed = 5 * usual + 1e-6 * exact.double().abs().max()
            assert error <= allowed, f"{name} is off by {error:.1e}"


@pytest.mark.parametrize("mask", mask_examples(BATCH, N, M_))
def test_reductions_over_several_blocks(kernel: str, mask: str) -> None:
    agree(kernel, 5, mask=mask_examples(BATCH, N, M_)[mask])


def test_more_numbers_than_a_pass_has(kernel: str) -> None:
    g = torch.Generator().manual_seed(0)
    labels = [torch.randint(-1, count, (rows, M_), generator=g) for rows, count in ((1, 150), (BATCH, 64))]
    asked: list[R.Reduction] = [
        R.RowStatistics(),
        *(R.TopKeys(64), R.TopKeys(3)),
        *(R.WeightsByLabel(one, count) for one, count in zip(labels, (150, 64), strict=True)),
        *(R.WeightsByDistance(tuple(range(-90, 60))), R.WeightsByDistance(())),
        *(R.WeightsAt(torch.randint(-1, M_, (1, N, count), generator=g)) for count in (70, 0, 3)),
        R.WeightsByLabel(labels[0], 0),
        *(R.Entropy(), R.Entropy()),
    ]
    agree(kernel, 0, asked[1:])
    call = drawn(0, torch.float32, torch.float32)
    largest, sums = KERNELS[kernel].reduce(call, asked[:1])[0]
    _, lse = KERNELS["reference"].run(call._with(wants_lse=True))
    torch.testing.assert_close(largest + sums.log(), lse)


@pytest.mark.parametrize(("n", "m"), [(0, 5), (5, 0), (1, 1), (3, 65)])
def test_few_tokens(kernel: str, n: int, m: int) -> None:
    call = drawn(1, torch.float32, torch.float32, n, m)
    asked = reductions_of(call, 1, CELLS)
    found, expected = KERNELS[kernel].reduce(call, asked), reduce_blocks(call, asked)
    for one, ours, theirs in zip(asked, found, expected, strict=True):
        for a, b in zip(*(x if isinstance(x, tuple) else (x,) for x in (ours, theirs)), strict=True):
            torch.testing.assert_close(a, b, msg=lambda said, one=one: f"{one}: {said}")


def test_the_output_of_a_pass_that_reduces_is_the_same_bits(kernel: str) -> None:
    call = drawn(3, torch.float32, torch.float32, mask=M.Causal())
    assert KERNELS[kernel].reduces_as_it_runs(call)
    assert not KERNELS[kernel].reduces_as_it_runs(drawn(3, torch.float32, torch.float32, n=1))
    asked, counted = reductions_of(call, 4, CELLS), counting(call, 4)
    out, values = KERNELS[kernel].run_and_reduce(call, asked, counted)
    assert torch.equal(out, KERNELS[kernel].run(call)[0])
    for ours, alone in zip(values, KERNELS[kernel].reduce(call, asked, counted), strict=True):
        for a, b in zip(*(x if isinstance(x, tuple) else (x,) for x in (ours, alone)), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("n", [7, 80])
def test_what_nobody_sees_is_not_read(kernel: str, n: int) -> None:
    q, k, v = (torch.randn(1, 2, n, 8) for _ in range(3))
    seen = torch.rand(n, n) < 0.5
    seen[:, 3] = False
    names = ["entropy", "received", "distances", TopKeys(2), PooledMap(3, 4)]
    expected = attention_statistics(q, k, v, names, mask=seen, kernel=kernel)
    k[:, :, 3] = torch.nan
    found = attention_statistics(q, k, v, names, mask=seen, kernel=kernel)
    for name in found:
        for ours, theirs in zip(found[name], expected[name], strict=True):
            torch.testing.assert_close(ours, theirs, equal_nan=True)


def test_scores_as_far_apart_as_floats_can_be(kernel: str) -> None:
    q, k, bias = torch.zeros(1, 1, 3, 8), torch.zeros(1, 1, 300, 8), torch.full((1, 1, 3, 300), -3e38)
    bias[..., 299] = 3e38  # the difference is −∞
    names = ["visible", "entropy", "distance"]
    at = {"q_positions": torch.arange(3), "k_positions": torch.arange(300)}
    for sink, entropy in ((None, 0.0), (torch.tensor([3.4e38]), 0.0)):
        found = attention_statistics(q, k, None, names, terms=(T.DenseBias(bias),), sink=sink, kernel=kernel, **at)
        assert found.visible.eq(300).all()
        assert found.entropy.eq(entropy).all()
    low = T.DenseBias(torch.full_like(bias, -3e38))
    found = attention_statistics(q, k, None, names, terms=(low,), sink=torch.tensor([3e38]), kernel=kernel, **at)
    assert found.entropy.eq(0).all()


def test_distances_within_a_tile_of_far_indices(kernel: str) -> None:
    index = torch.cat([torch.arange(10), (1 << 40) + torch.arange(54)])[None]
    at = hw.Coordinates(index[..., None], index)
    q, k = torch.randn(1, 2, 64, 8), torch.randn(1, 2, 64, 8)
    given = {"mask": M.Window(3, 0), "q_positions": at, "k_positions": at}
    weights = hw.attention_weights(q, k, k, **given)  # type: ignore[arg-type]
    expected = (weights.double() * (index - index.mT).abs()).sum(-1)
    found = attention_statistics(q, k, None, "distance", kernel=kernel, **given)  # type: ignore[arg-type]
    torch.testing.assert_close(found.distance, expected.float())


def test_a_map_shows_what_is_not_a_number(kernel: str) -> None:
    q, k = torch.randn(1, 1, 20, 8), torch.randn(1, 1, 20, 8)
    k[0, 0, 3] = torch.nan
    found = attention_statistics(q, k, None, PooledMap(2, 2), kernel=kernel).pooled_map
    assert found.mass.isnan().all()
    assert found.largest.isnan().all()


@pytest.mark.parametrize("mask", [None, M.Window(90, 0)], ids=["all", "blocks out of their order"])
def test_of_equal_scores_the_first_key_comes_first(kernel: str, mask: M.Mask | None) -> None:
    q, k = torch.zeros(1, 1, 120, 8), torch.randn(1, 1, 120, 8)
    found = attention_statistics(q, k, None, ["largest", TopKeys(5)], mask=mask, kernel=kernel)
    first = torch.zeros(120, 1) if mask is None else (torch.arange(120) - 90).clamp(min=0)[:, None]
    keys = (first + torch.arange(5)).long()
    keys = keys if mask is None else torch.where(keys <= torch.arange(120)[:, None], keys, -1)
    assert found.largest.key[0, 0].equal(keys[:, 0])
    assert found.top_keys.keys[0, 0].equal(keys)
