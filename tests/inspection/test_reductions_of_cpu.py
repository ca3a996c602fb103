"""Reductions of the weights by the CPU kernel: as right as the naive computation, however its work is split."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from cpu_calls import SCANS, SHARING, Case, heads_shared_out
from reduced_calls import counting, naive_reductions, pairs, reductions_of
from torch import Tensor

import headway as hw
from headway import masks as M
from headway import terms as T
from headway.call import make_call
from headway.inspection import PooledMap, TopKeys, attention_statistics
from headway.kernels import KERNELS, Problem
from headway.kernels._reduce import reduce_blocks
from headway.kernels.cpu import _library
from headway.reductions import (
    ColumnSums,
    Entropy,
    RowStatistics,
)
from headway.reductions import (
    PooledMap as Pooled,
)
from headway.reductions import (
    TopKeys as Top,
)
from headway.testing.tolerances import DRAWS, Comparison

MISSING = _library.why_not()
pytestmark = pytest.mark.skipif(bool(MISSING), reason=str(MISSING))

FACTOR = 2.0
"""A statistic has at most so many times the error of the naive computation."""


def compared(case: Case, dtype: torch.dtype, scale: float | None = None) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
    """Every reduction of a call by the CPU kernel, naively in its dtype, and in float64."""
    made = {
        "cpu": case.make(dtype, torch.float32).call,
        "naive": case.make(dtype, dtype).call,
        "exact": case.make(torch.float64, torch.float64).call,
    }
    calls = made if scale is None else {name: replace(call, scale=scale) for name, call in made.items()}
    reductions = reductions_of(calls["exact"], case.seed)
    counted = counting(calls["exact"], case.seed)
    found = KERNELS["cpu"].reduce(calls["cpu"], reductions, counted)
    naive, _ = naive_reductions(calls["naive"], reductions, counted)
    exact, weights = naive_reductions(calls["exact"], reductions, counted)
    results: dict[str, tuple[Tensor, Tensor, Tensor]] = {}
    for one, *values in zip(reductions, found, naive, exact, strict=True):
        results |= pairs(one, *values, weights)
    return results


def fails(case: Case, dtype: torch.dtype) -> str:
    """What is wrong by more than five times the naive error and 32 units in the last place."""
    wrong = []
    for name, (ours, naive, exact) in compared(case, dtype).items():
        assert ours.shape == exact.shape, name
        if name == "VisibleKeys":
            wrong += [] if torch.equal(ours, exact) else [name]
            continue
        there = exact.isfinite()
        error = (ours.double() - exact.double())[there].abs()
        usual = (naive.double() - exact.double())[there].abs().nan_to_num(0)
        if not error.numel():
            continue
        size = max(exact[there].abs().max().item(), 1e-3)
        allowed = 5 * usual.max().item() + 32 * torch.finfo(dtype).eps * size
        if not error.max().item() <= allowed:
            wrong.append(f"{name} off by {error.max().item():.3g}, allowed {allowed:.3g}")
    return "; ".join(wrong)


EACH = {torch.float32: 30, torch.bfloat16: 15, torch.float16: 8}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("dtype", EACH, ids=str)
def test_drawn_calls(dtype: torch.dtype, part: int) -> None:
    first = 10_000 * list(EACH).index(dtype) + EACH[dtype] * part + 300_000
    with heads_shared_out() if part % 2 else nullcontext():
        for seed in range(first, first + EACH[dtype]):
            case = Case.drawn(seed, 1 << 15)
            assert not fails(case, dtype), case


@pytest.mark.parametrize("name", SCANS)
def test_drawn_calls_that_scan_the_keys(name: str) -> None:
    for seed in range(340_000, 340_020):
        case = Case.drawn(seed, 1 << 15, terms=(name,))
        assert not fails(case, torch.bfloat16 if seed % 3 else torch.float32), case


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", _library.ISAS)
def test_every_instruction_set(name: str) -> None:
    if name not in _library.isas():
        pytest.skip(f"{name} is not on this machine")
    with _library.using(name):
        for seed in range(350_000, 350_012):
            case = Case.drawn(seed, 1 << 14)
            assert not fails(case, torch.float32 if seed % 2 else torch.bfloat16), case


PLAIN = {
    "sink": False, "cap": None, "lse": False, "include_sink": True, "dropout": 0.0, "upstream": "dense", "batch": 1,
    "heads": 2, "kv_heads": 1, "n": 63, "m": 111, "head_dim": 40, "v_dim": 24, "wanted": 1.0, "positions": "plain",
    "mask": "none", "terms": (), "layouts": ("contiguous",) * 3,
}  # fmt: skip
PROMISED: dict[str, dict[str, Any]] = {
    "nothing": {},
    "causal, T5": {"n": 193, "m": 193, "mask": "causal", "terms": ("steps",)},
    "longer than a block of keys": {"n": 49, "m": 513, "terms": ("clip",)},
    "window and sink": {"mask": "window", "sink": True, "terms": ("linear",)},
    "packed documents": {"positions": "packed", "mask": "causal documents", "terms": ("clip",)},
    "scores of 2500": {"scale": 128.0, "mask": "causal"},
    "one query": {"n": 1, "terms": ("keys with u",)},
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", PROMISED)
def test_the_promise_is_kept(name: str, dtype: torch.dtype) -> None:
    given = {**PLAIN, **PROMISED[name]}
    scale = given.pop("scale", None)
    comparisons: dict[str, Comparison] = {}
    for draw in range(DRAWS):
        for what, (ours, naive, exact) in compared(Case.drawn(draw, 1 << 20, **given), dtype, scale).items():
            if what != "VisibleKeys":
                comparison = comparisons.setdefault(what, Comparison(f"{what} of {name} in {dtype}", FACTOR))
                comparison.add(ours, naive.to(ours.dtype), exact)
    for comparison in comparisons.values():
        comparison.check()


# ---------------------------------------------------------------- keys with small scores left out


@pytest.mark.parametrize("name", _library.ISAS)
def test_keys_with_smaller_scores_are_left_out(name: str) -> None:
    if name not in _library.isas():
        pytest.skip(f"{name} is not on this machine")
    g = torch.Generator().manual_seed(4)
    q, k = (torch.randn(2, heads, n, 8, generator=g) for heads, n in ((4, 67), (2, 450)))
    call = make_call(q, k, k, mask=M.Window(300, 200))
    ((largest, _),) = reduce_blocks(call, [RowStatistics()])
    least = largest - 3 * torch.rand(largest.shape, generator=g)
    least[:, 0], least[:, 1, 5] = -torch.inf, torch.inf
    asked = [Top(3, least), Top(90, least), Top(5), Top(1, largest - 1e-3)]
    with _library.using(name):
        found = KERNELS["cpu"].reduce(call, asked)
    for one, ours, theirs in zip(asked, found, reduce_blocks(call, asked), strict=True):
        torch.testing.assert_close(ours[0], theirs[0], rtol=1e-4, atol=1e-7)
        assert (ours[1] != theirs[1]).sum() <= 2, one  # two scores may be equal up to rounding
    assert (found[1][1][:, 1:] == -1).any()
    assert (found[1][1][:, 0] >= 0).sum() == (found[2][1][:, 0] >= 0).sum() / 5 * 90


def test_a_key_of_just_the_least_score_counts() -> None:
    q = torch.zeros(1, 1, 40, 8)
    call = make_call(q, q, q, mask=M.Causal())
    least = torch.zeros(1, 1, 40)
    least[..., 20:] = torch.nextafter(torch.zeros(()), torch.ones(()))
    for weights, keys in (KERNELS["cpu"].reduce(call, [Top(50, least)])[0], reduce_blocks(call, [Top(50, least)])[0]):
        assert (keys[0, 0] >= 0).sum(-1).tolist() == [*range(1, 21), *[0] * 20]
        torch.testing.assert_close(weights[0, 0, 19, :20], torch.full((20,), 0.05), rtol=1e-5, atol=0)
        assert not weights[0, 0, 20:].any()


@pytest.mark.parametrize("name", _library.ISAS)
def test_it_counts_where_subnormal_numbers_are_flushed(name: str) -> None:
    if name not in _library.isas():
        pytest.skip(f"{name} is not on this machine")
    q = torch.zeros(1, 1, 40, 8)
    call = make_call(q, q, q, mask=M.Causal())
    smallest = torch.finfo(torch.float32).smallest_normal
    # 0, and numbers that count as 0; then the normal number above
    least = torch.tensor([0.0, -0.0, 1e-45, -1e-45, smallest / 2, smallest]).repeat(7)[None, None, :40]
    kept = torch.where(least == smallest, 0, torch.arange(1, 41))
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor does not flush them")
    try:
        for count in (1, 50, 3):
            with _library.using(name):
                ((_, keys),) = KERNELS["cpu"].reduce(call, [Top(count, least)])
            ((_, expected),) = reduce_blocks(call, [Top(count, least)])
            assert (keys[0, 0] >= 0).sum(-1).tolist() == kept[0, 0].clamp(max=count).tolist()
            assert torch.equal(keys, expected)
    finally:
        torch.set_flush_denormal(False)


# ---------------------------------------------------------------- however work is split


def everything(n: int, **arguments: Any) -> list[Tensor]:
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, heads, n, 24, generator=g) for heads in (4, 2, 2))
    call = make_call(q, k, v, **arguments)
    found = KERNELS["cpu"].reduce(call, reductions_of(call), counting(call, 1))
    return [x for value in found for x in (value if isinstance(value, tuple) else (value,))]


@pytest.mark.parametrize("sharing", SHARING)
def test_results_are_the_same_bits_for_any_number_of_threads(sharing: Any) -> None:
    before = torch.get_num_threads()
    arguments = {"mask": M.Causal(), "terms": (T.DistanceBias(T.Linear(torch.rand(4), torch.rand(4))),)}
    with sharing():
        expected = everything(500, **arguments)
        try:
            for threads in (1, 2, 3):
                torch.set_num_threads(threads)
                for ours, theirs in zip(everything(500, **arguments), expected, strict=True):
                    assert torch.equal(ours, theirs)
        finally:
            torch.set_num_threads(before)


def test_more_keys_than_are_numbered() -> None:
    problem = Problem.of(make_call(*(torch.empty(1, 1, 3, 8) for _ in range(3))))
    assert not KERNELS["cpu"].why_not_reduce(problem, [Top(1)])
    problem.m = (1 << 31) - 1
    assert KERNELS["cpu"].why_not_reduce(problem, [Entropy(), Top(1)]) == [
        "it finds the largest weights among at most 2,147,483,646 keys"
    ]
    assert not KERNELS["cpu"].why_not_reduce(problem, [Entropy()])


def test_auto_takes_the_cpu_kernel_and_another_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []
    reduce = type(KERNELS["cpu"]).reduce

    def watched(self: Any, *arguments: Any) -> list[Any]:
        taken.append(self.name)
        return reduce(self, *arguments)

    monkeypatch.setattr(type(KERNELS["cpu"]), "reduce", watched)
    q = torch.randn(1, 2, 5, 8)
    attention_statistics(q, q)
    assert taken == ["cpu"]
    attention_statistics(q, q, kernel="reference")
    attention_statistics(q.double(), q.double())
    assert taken == ["cpu"]
    with pytest.raises(hw.HeadwayError, match="it computes in float32, and float64 would be rounded"):
        attention_statistics(q.double(), q.double(), kernel="cpu")


ALONE = {"dropout": 0.0, "lse": False, "include_sink": True, "wanted": 0.0}
LONGER = [case for seed in range(400_000, 400_020) if (case := Case.drawn(seed, 1 << 15, **ALONE)).n > 4]


@pytest.mark.parametrize("case", LONGER, ids=lambda case: str(case.seed))
@pytest.mark.parametrize("dtype", EACH, ids=str)
def test_the_output_is_the_same_bits_in_a_pass_that_reduces(dtype: torch.dtype, case: Case) -> None:
    kernel, seed = KERNELS["cpu"], case.seed
    call = case.make(dtype, torch.float32, wants=lambda leaf: False).call
    assert kernel.reduces_as_it_runs(call)
    reductions = reductions_of(call, seed)
    out, values = kernel.run_and_reduce(call, reductions, counting(call, seed))
    assert torch.equal(out.nan_to_num(7), kernel.run(call)[0].nan_to_num(7))
    for found, alone in zip(values, kernel.reduce(call, reductions, counting(call, seed)), strict=True):
        pair = (found, alone) if isinstance(found, tuple) else ((found,), (alone,))
        assert all(torch.equal(*both) for both in zip(*pair, strict=True))


def test_a_pass_that_reduces_is_not_for_gradients_dropout_and_single_queries() -> None:
    q = torch.randn(1, 2, 9, 8)
    kernel = KERNELS["cpu"]
    assert kernel.reduces_as_it_runs(make_call(q, q, q))
    assert not kernel.reduces_as_it_runs(make_call(q, q, q, dropout=0.1))
    assert not kernel.reduces_as_it_runs(make_call(q[:, :, -1:], q, q))
    assert not kernel.reduces_as_it_runs(make_call(q, q, q.clone().requires_grad_()))
    assert not KERNELS["sdpa"].reduces_as_it_runs(make_call(q, q, q))


SIZES = {
    "a slot for each key": (513, 64, 512),
    "cells of many keys": (700, 64, 13),
    "cells that end within vectors": (1000, 30, 37),
    "one cell": (300, 1, 1),
    "cells of one pair": (50, 50, 50),
}
"""Tokens, rows and columns of maps."""


@pytest.mark.parametrize("mask", [None, M.Causal(), M.Causal() & M.Window(70, 0)], ids=["none", "causal", "window"])
@pytest.mark.parametrize("name", SIZES)
def test_a_map_in_one_pass_is_that_of_two(name: str, mask: M.Mask | None) -> None:
    n, rows, columns = SIZES[name]
    g = torch.Generator().manual_seed(n)
    q, k = (3 * torch.randn(2, heads, n, 16, generator=g) for heads in (4, 2))
    call, counted = make_call(q, k, k, mask=mask, sink=torch.randn(4, generator=g)), torch.rand(2, n, generator=g) < 0.8
    maps = [Pooled(rows, columns), Pooled(rows, columns, one_pass=True)]
    two, one = (KERNELS["cpu"].reduce(call, [x, ColumnSums(), Entropy()], counted) for x in maps)
    torch.testing.assert_close(one[0], two[0], rtol=1e-5, atol=1e-7)
    assert torch.equal(one[2], two[2])
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        alone = KERNELS["cpu"].reduce(call, maps[1:], counted)[0]
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(*both) for both in zip(one[0], alone, strict=True))
    q[0, 0, n // 2] = torch.nan
    spoilt, other = (KERNELS["cpu"].reduce(make_call(q, k, k, mask=mask), [x])[0] for x in maps)
    line = torch.zeros_like(other[0], dtype=torch.bool)
    line[0, 0, n // 2 * rows // n] = True  # kernels differ in whether its hidden weights are NaN
    for found, expected in zip(spoilt, other, strict=True):
        torch.testing.assert_close(found[~line], expected[~line], rtol=1e-5, atol=1e-7)
        assert found[0, 0, n // 2 * rows // n, n // 2 * columns // n].isnan()  # the query sees its own key


def test_memory_grows_with_tokens() -> None:
    """Statistics of 8,192 tokens, whose weights would take 256 MiB, allocate less than 16 MiB of tensors."""
    q = torch.randn(1, 1, 8192, 16)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as seen:
        attention_statistics(
            q, q, None, ["entropy", "received", TopKeys(4), PooledMap()], mask=M.Causal(), kernel="cpu"
        )
    allocated = sum(max(event.self_cpu_memory_usage, 0) for event in seen.events())
    assert 0 < allocated < 16 << 20
