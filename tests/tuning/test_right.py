"""What is wrong with a kernel is found, and named with the call that shows it; a crash is a result like any other."""

from __future__ import annotations

import os
import signal
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from headway import HeadwayError, masks, terms
from headway.kernels import KERNELS, Call, _tuned
from headway.kernels.cpu import _library
from headway.testing.fuzz import Case
from headway.testing.fuzz.search import Outcome, outcome_of
from headway.tuning import _fast, _processes
from headway.tuning._fast import Cell
from headway.tuning._right import Check, Verified, checks, kinds, verify

from .conftest import short


def found(kernel: str, *parts: str, seconds: float = 300.0) -> Verified:
    """The result of the checks of some parts; of a kernel that is mocked with a few tokens."""
    chosen = [check for check in checks(kernel, "cpu") if check.part.startswith(parts)]
    assert chosen
    if kernel == "triton":
        chosen = [replace(check, case=short(check.case)) for check in chosen]
    return verify(chosen, seconds=seconds, watch=lambda share: None, compute=outcome_of)


def test_every_class_of_terms_and_masks_has_a_check() -> None:
    named = {name: vars(room)[name] for room in (terms, masks) for name in room.__all__}
    speak = {
        name for name, kind in named.items() if isinstance(kind, type) and issubclass(kind, (terms.Term, masks.Mask))
    }
    bases = {"Term", "Mask", "And", "Or", "Bias"}
    unverified = speak - bases - _tuned.EVALUATED - set(kinds())
    assert not unverified, "kernels would never be chosen for these, since nothing verifies them"


@pytest.mark.slow
@pytest.mark.skipif(_library.why_not() is not None, reason=str(_library.why_not()))
def test_the_cpu_kernel_is_right() -> None:
    result = found("cpu", "plain, ", "Padding, ", "DistanceBias, bfloat16", "dropout, float32", "Product, float32")
    assert result.wrong == {}
    assert _tuned.part("plain", "float16", "backward") in result.right
    assert _tuned.part("Padding", "float32", "forward") in result.right
    assert _tuned.part("Product", "float32", "forward") not in result.right, "it is refused"
    assert result.refused == 2
    assert result.left == 0


def test_a_kernel_that_is_wrong_for_one_dtype(mocked: object, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(call: Call, out: Tensor) -> Tensor:
        return out * 1.5 if out.dtype == torch.bfloat16 else out

    monkeypatch.setattr(KERNELS["triton"], "spoil", spoil)
    result = found("triton", "plain, ")
    assert sorted(result.right) == [f"plain, {dtype}, {way}" for dtype in ("float16", "float32") for way in WAYS]
    assert sorted(result.wrong) == [f"plain, bfloat16, {way}" for way in WAYS]
    said = result.wrong["plain, bfloat16, forward"]
    assert "mean error" in said
    assert "Case(" in said
    assert "kernel='triton'" in said


WAYS = ("backward", "forward")


def test_a_kernel_that_reads_what_a_mask_hides(mocked: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """0 · NaN is NaN: only hidden NaN shows it."""
    monkeypatch.setattr(
        KERNELS["triton"], "spoil", lambda call, out: out + 0 * call.v.sum(2).repeat_interleave(2, 1)[:, :, None]
    )
    result = found("triton", "plain, float32, forward", "Padding, float32, forward")
    assert [*result.wrong] == ["Padding, float32, forward"]
    assert "not finite" in result.wrong["Padding, float32, forward"]


def test_a_kernel_that_is_not_the_same_again(mocked: object, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = iter(range(10_000))
    monkeypatch.setattr(KERNELS["triton"], "spoil", lambda call, out: out * (1 + 1e-6 * next(turns)))
    assert "not the same again" in found("triton", "plain, float32, forward").wrong["plain, float32, forward"]


def test_a_kernel_that_raises(mocked: object, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(call: Call, out: Tensor) -> Tensor:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(KERNELS["triton"], "spoil", spoil)
    result = found("triton", "plain, float32, forward")
    assert "RuntimeError: an illegal memory access" in result.wrong["plain, float32, forward"]
    assert result.right == set()


def test_what_there_is_no_time_for_is_not_verified(mocked: object) -> None:
    result = found("triton", "plain, ", seconds=-1.0)
    assert result.right == set()
    assert result.wrong == {}
    assert result.left == 6 * len(kinds()["plain"])


def test_a_part_that_was_checked_in_part_is_not_right(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter((0, 0, 2))
    monkeypatch.setattr(_processes, "monotonic", lambda: next(times))
    result = verify(
        [Check("a part", Case())] * 2, seconds=1, watch=lambda share: None, compute=lambda _: Outcome("taken")
    )
    assert result.right == set()
    assert result.left == 1


def test_a_part_is_right_if_all_of_its_cases_are() -> None:
    outcomes = {1: Outcome("taken"), 2: Outcome("refused", "no"), 3: Outcome("AssertionError", "off")}
    for seeds, expected in (((1, 2), True), ((2, 2), False), ((1, 3), False), ((1, 1), True)):
        chosen = [Check("a part", Case(seed=seed)) for seed in seeds]
        result = verify(chosen, seconds=9, watch=lambda share: None, compute=lambda case: outcomes[case.seed])
        assert ("a part" in result.right) == expected
        assert ("a part" in result.wrong) == (3 in seeds)


def test_a_check_that_the_end_of_the_time_ends_is_left() -> None:
    (came,) = _processes.outcomes([lambda _: Outcome("timeout")], [Case()], 60, lambda share: None)
    assert came is None
    (came,) = _processes.outcomes([lambda _: Outcome("timeout")], [Case()], 100, lambda share: None)
    assert came == Outcome("timeout")


@pytest.mark.slow
def test_processes_that_do_not_run_count_against_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a script without a guard, which each process would run again."""
    monkeypatch.setattr(_processes, "Worker", Dead)
    with pytest.raises(HeadwayError, match=r"does not run \(crash: .* call tune\(\) below `if __name__"):
        verify([Check("a part", Case(seed=2))], seconds=60, watch=lambda share: None)


class Dead(_processes.Worker):
    """A worker whose process is killed at once."""

    def __call__(self, case: Case) -> Outcome:
        os.kill(self.process.pid or 0, signal.SIGKILL)
        self.process.join()
        return super().__call__(case)


@pytest.mark.slow
def test_a_check_that_ends_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others go on in a new process."""
    chosen = [Check("dies", Case(seed=1)), Check("lives", Case(seed=2)), Check("lives too", Case(seed=3))]
    monkeypatch.setattr(_processes, "Worker", Mortal)
    result = verify(chosen, seconds=120, watch=lambda share: None)
    assert result.right == {"lives", "lives too"}
    assert "crash: the process ended with -9" in result.wrong["dies"]


class Mortal(_processes.Worker):
    """A worker whose process is killed by one case."""

    def __call__(self, case: Case) -> Outcome:
        if case.seed == 1:
            os.kill(self.process.pid or 0, signal.SIGKILL)
            self.process.join()
        return super().__call__(replace(case, n=4, m=4))


@pytest.mark.slow
def test_cells_are_run_in_processes_before_they_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that ends its process is not measured; one that fails is, which says why."""
    monkeypatch.setattr(_processes, "Worker", Narrow)
    cells = [Cell("none", "causal", "float32", "inference", 9, 9, width) for width in (8, 16, 24)]
    chosen, left = _fast.compile_all(cells, "cpu", ("reference",), 60, lambda share: None)
    assert chosen == [cells[0], cells[2]]
    assert left == 0
    assert _fast.compile_all(cells, "cpu", ("reference",), -1.0, lambda share: None) == ([], 3)


class Narrow(_processes.Worker):
    """A worker whose process is killed by cells of a head_dim of 16."""

    def __call__(self, job: tuple[Cell, str, tuple[str, ...]]) -> Outcome:
        if job[0].head_dim == 16:
            os.kill(self.process.pid or 0, signal.SIGKILL)
            self.process.join()
        return super().__call__(job)
