"""The fuzzer finds what is broken, makes it small, and prints what reproduces it."""

import sys
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from torch import Tensor

import forked
import headway.testing.fuzz.check  # noqa: F401 (the function of this name hides the module)
from headway.kernels import KERNELS, Call
from headway.testing.fuzz import Case, check, draw, fuzz, worker
from headway.testing.fuzz.cases import encodings, term_names
from headway.testing.fuzz.search import Outcome, outcome_of

module = sys.modules["headway.testing.fuzz.check"]
PLAIN = Case(kv_heads=2, group=2, n=9, m=12, mask="causal & holes", gradients="all", kernel="cpu")


@pytest.fixture
def breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that is wrong by a thousandth from the fifth query on."""
    run = KERNELS["cpu"].run

    def wrong(call: Call) -> tuple[Tensor, Tensor | None]:
        out, lse = run(call)
        return (out if out.shape[2] < 5 else out * 1.001), lse

    monkeypatch.setattr(KERNELS["cpu"], "run", wrong)


def test_a_right_call_is_taken() -> None:
    assert check(PLAIN) == "taken"
    assert check(replace(PLAIN, encoding="rope 0", mask="none", dtype="bfloat16")) == "taken"
    assert check(replace(PLAIN, term="distance bias, clipped rows", sink="heads", lse="with the sink")) == "taken"


def test_a_wrong_kernel_is_found_and_the_call_made_small(breaks: None) -> None:
    only = iter([Case(n=9, m=12, layout="tokens first", spread=4.0, dropout=0.1, kernel="cpu")])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headway.testing.fuzz.search.draw", lambda random: next(only))
        found = list(fuzz(0, 1.0, cases=1, clock=lambda: 0.0))[-1]
    (finding,) = found.findings
    assert finding.outcome.kind == "AssertionError"
    assert finding.case.n == 5
    assert (finding.case.layout, finding.case.spread) == ("contiguous", 1.0)
    with pytest.raises(AssertionError, match="output in float32"):
        eval(str(finding).splitlines()[-1])


def test_a_gradient_whose_summands_cancel_is_right_to_their_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """The farthest keys share a position, so that 20,000 times the rounding of each row is left of the gradients."""
    terms = "distance bias, power + distance bias, power"
    case = Case(term=terms, m=220, n=220, head_dim=16, v_dim=16, places="gaps", gradients="all", kernel="cpu", seed=1)
    assert check(case) == "taken"
    right = module.results

    def wrong(case: Case, *computed: Any, **how: Any) -> dict[str, Tensor]:
        found = right(case, *computed, **how)
        return found if computed or how else {x: 1.5 * g if "tensor 0" in x else g for x, g in found.items()}

    monkeypatch.setattr(module, "results", wrong)
    with pytest.raises(AssertionError, match="gradient of tensor 0"):
        check(replace(case, seed=2))


def test_terms_are_joined_and_taken_apart() -> None:
    case = Case(term="token bias + relative keys + token bias")
    assert [other.term for other in case.simpler("term")] == ["none", "token bias", "relative keys", "token bias"]
    drawn = [draw(Random(seed)).term for seed in range(300)]
    assert {name for term in drawn for name in term.split(" + ")} == {*term_names()}
    assert not any("none" in term for term in drawn if "+" in term)


def test_an_error_that_is_no_refusal_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(call: Call) -> None:
        raise IndexError("out of range")

    monkeypatch.setattr(KERNELS["cpu"], "run", crash)
    assert outcome_of(PLAIN).kind == "IndexError"


def test_a_result_that_changes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    run, calls = KERNELS["cpu"].run, []

    def restless(call: Call) -> tuple[Tensor, Tensor | None]:
        calls.append(call)
        out, lse = run(call)
        return out * (1 + 1e-7 * len(calls)), lse

    monkeypatch.setattr(KERNELS["cpu"], "run", restless)
    assert "not the same again" in outcome_of(PLAIN).said


def test_what_no_kernel_promises_is_a_refusal() -> None:
    assert outcome_of(replace(PLAIN, kernel="sdpa", sink="heads")).kind == "refused"


@pytest.mark.parametrize("encoding", encodings())
@pytest.mark.parametrize("sizes", [(2, 6, 3), (0, 3, 6), (2, 0, 4), (2, 3, 0)], ids=str)
def test_any_numbers_of_sequences_queries_and_keys(encoding: str, sizes: tuple[int, int, int]) -> None:
    """More queries than keys, or nothing of something, give a result or an error of headway's own."""
    batch, n, m = sizes
    case = Case(encoding=encoding, batch=batch, n=n, m=m, mask="causal", gradients="all")
    assert not outcome_of(case).failed, outcome_of(case).said


@pytest.mark.parametrize("mask", ["causal", "padding"])
@pytest.mark.parametrize("term", term_names())
def test_terms_of_nothing(term: str, mask: str) -> None:
    for batch, n, m in ((0, 3, 6), (2, 0, 4), (2, 3, 0)):
        outcome = outcome_of(Case(term=term, kv_heads=2, batch=batch, n=n, m=m, mask=mask, gradients="all"))
        assert not outcome.failed, outcome.said


def test_what_xpos_does_not_promise_is_a_refusal() -> None:
    near = Case(encoding="xpos 1", m=340, dtype="bfloat16", places="gaps")
    assert outcome_of(near).kind == "taken"
    assert "xPos holds up to" in outcome_of(replace(near, dtype="float16")).said


def test_a_case_prints_as_what_makes_it_and_is_drawn_by_its_seed() -> None:
    random, again = Random(7), Random(7)
    for _ in range(200):
        case = draw(random)
        assert eval(repr(case)) == case == draw(again)


def test_a_process_that_ends_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    forked.instead_of_new(worker, monkeypatch)
    with worker.Worker(1, limit=60.0) as one:
        assert one(Case(n=2, m=3)) == Outcome("taken")
        one.process.kill()
        assert one(Case(n=2, m=3)).kind == "crash"
        assert one(Case(n=2, m=3)) == Outcome("taken")
