from typing import Any

import pytest
import torch

from headway.bench import Case, Plan, measure
from headway.bench.machine import Roof
from headway.bench.measure import CheckError, agree
from headway.bench.sides import OURS, kernel_of, sides
from headway.bench.statistics import (
    ALL,
    ALONE,
    COMPUTED,
    MATERIALIZED,
    ONE_PASS,
    POOLED,
    RECEIVED,
    RECEIVED_ALONE,
    TOP,
    Materialized,
    all_statistics,
    attend,
    beside,
    numbers,
)
from headway.call import make_call
from headway.inspection import statistics_of
from headway.inspection.statistics import STATISTICS
from headway.kernels import KERNELS, CpuKernel
from headway.kernels._base import Deferral
from headway.kernels.cpu import _library
from headway.masks import Causal

NATIVE = pytest.mark.skipif(_library.why_not() is not None, reason="the library is not here")
IN_THE_PASS = {ALL, *map(beside, (*ONE_PASS, RECEIVED, TOP, POOLED))}


def case(**changes: Any) -> Case:
    return Case(**{"kind": "statistics", "mask": "causal", "n": 40, "head_dim": 8, **changes})


def test_every_statistic_is_measured() -> None:
    """But the log-sum-exp and the largest score, which are known on the way to each of the others."""
    assert {*ONE_PASS, RECEIVED, TOP, POOLED} == set(STATISTICS) - {"lse", "largest_score"} == set(COMPUTED)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("encoding", ["none", "rope", "t5"])
def test_every_side_computes_what_torch_does(encoding: str, dtype: str) -> None:
    of = case(encoding=encoding, dtype=dtype, n=100)  # cells of the pooled map are of different sizes
    found = sides(of)
    results = {name: run() for name, run in found.runs.items()}
    assert found.expected is not None
    expected = found.expected(results[OURS])
    assert set(results) - {OURS, MATERIALIZED} == set(expected) >= {ALONE, RECEIVED_ALONE}
    for name, tensors in expected.items():
        agree(name, dtype, results[name], tensors)
    agree(MATERIALIZED, dtype, results[MATERIALIZED], results[ALONE])
    for name in IN_THE_PASS & set(results):
        assert torch.equal(results[name][0], results[OURS][0]), name


def test_torch_computes_statistics_as_they_are_defined() -> None:
    """Of two queries whose weights are known: 1 and 0, then ¼ and ¾."""
    q = torch.tensor([[0.0], [1.0]])[None, None]
    k = torch.tensor([[0.0], [torch.tensor(3.0).log()]])[None, None]
    given = Materialized(make_call(q, k, k, mask=Causal(), scale=1.0), None)
    weights = given.weights()
    torch.testing.assert_close(weights[0, 0], torch.tensor([[1.0, 0.0], [0.25, 0.75]]))
    found = {name: given.of(name, weights)[0][0, 0] for name in COMPUTED}
    expected = {
        "entropy": [0.0, 0.5623351446],
        "visible": [1, 2],
        "largest": [1.0, 0.75],
        "previous": [0.0, 0.25],
        "current": [1.0, 0.75],
        "next": [0.0, 0.0],
        "first": [1.0, 0.25],
        "sink": [0.0, 0.0],
        "distance": [0.0, 0.25],
        RECEIVED: [1.25, 0.75],
        TOP: [[1.0, 0.0], [0.75, 0.25]],
        POOLED: [[1.0, 0.0], [0.25, 0.75]],
    }
    for name, value in expected.items():
        torch.testing.assert_close(found[name], torch.tensor(value), msg=lambda said, name=name: f"{name}: {said}")
    ranges = [name.removeprefix("distance ") for name in all_statistics(2)["distances"].names]  # type: ignore[attr-defined]
    assert found["distances"][1, ranges.index("-1")] == pytest.approx(0.25)
    assert found["distances"][1, ranges.index("0")] == pytest.approx(0.75)
    torch.testing.assert_close(found["distances"].sum(-1), torch.ones(2))
    labels = all_statistics(2)["classes"].labels.tolist()  # type: ignore[attr-defined]
    assert found["classes"][0, labels[0]] == 1


@NATIVE
def test_attention_with_statistics_gives_those_of_attention_statistics() -> None:
    q = torch.randn(2, 4, 19, 8)
    call, asked = make_call(q, q, q, mask=Causal()), list(all_statistics(19).values())
    _, found = attend(call, asked, KERNELS["cpu"])
    expected = statistics_of(call, asked, kernel="cpu")
    assert found.names == expected.names
    assert torch.equal(found.counted, expected.counted)
    for a, b in zip(numbers(found), numbers(expected), strict=True):
        torch.testing.assert_close(a, b)


@NATIVE
def test_statistics_stay_on_their_kernel_where_attention_would_leave_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuKernel, "defers", lambda *_: Deferral("sdpa", "for the test"))
    assert (kernel_of(Case(n=16, mask="causal")), kernel_of(case(n=16))) == ("sdpa", "cpu")
    assert set(sides(case()).runs) == {OURS, ALONE, RECEIVED_ALONE, MATERIALIZED} | IN_THE_PASS


def test_without_the_library_statistics_are_measured_alone(monkeypatch: pytest.MonkeyPatch, tiny: Plan) -> None:
    monkeypatch.setattr(CpuKernel, "why_not", lambda *_: ["no compiler was there"])
    row = measure.measure(case(), tiny, Roof(), None)
    assert row["kernel"] == "reference"
    assert set(row["ms"]) == {OURS, ALONE, RECEIVED_ALONE, MATERIALIZED}
    assert row["says"] == {ALL: "the kernel reference computes no statistics in the pass of attention"}


@NATIVE
@pytest.mark.parametrize("door", ["reduce", "run_and_reduce"])
def test_wrong_statistics_have_no_number(monkeypatch: pytest.MonkeyPatch, tiny: Plan, door: str) -> None:
    computed = getattr(CpuKernel, door)

    def wrong(self: CpuKernel, call: Any, reductions: Any, counted: Any = None) -> Any:
        found = computed(self, call, reductions, counted)
        out, values = (None, found) if door == "reduce" else found
        values = [1.1 * x if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in values]
        return values if out is None else (out, values)

    monkeypatch.setattr(CpuKernel, door, wrong)
    with pytest.raises(CheckError, match=r"cpu .* and torch on statistics: none, .* differ by"):
        measure.measure(case(), tiny, Roof(), None)
