"""Measures one case: all sides in turn in one process, and their medians."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Mapping
from statistics import median
from typing import Any

from torch import Tensor

from . import memory
from .cases import STATISTICS_MEMORY, Case, Plan
from .machine import Roof
from .sides import OURS, Flex, Run, sides

ROOF = "roof"
MOST_ROUNDS = 1000

TOLERANCE = {"float32": 1e-3, "bfloat16": 6e-2, "float16": 1e-2}
"""The largest difference of two sides, as a share of the largest value: enough to see that they compute the same."""


JUMPS = 1e-2
"""The largest difference of gradients relative to their norm; one jump of ReLU's derivative at 512 tokens is 6e-4."""


class CheckError(Exception):
    """Raised if a result is wrong, so that its speed means nothing and the case gets no number."""


def measure(case: Case, plan: Plan, roof: Roof, flex: Flex | None) -> dict[str, Any]:
    """Measures a case: the kernel, the milliseconds of each side, and the errors of sides that failed.

    The ``roof`` is measured in turn with the sides. FlexAttention is left out if ``flex`` is None.

    Raises:
        CheckError: if headway fails, or its numbers differ from all sides that should compute the same. If only one
            other side differs, it gets no number, and the row says why.
    """
    if case.kind in ("memory", STATISTICS_MEMORY):
        try:
            return memory.measure(case)
        except RuntimeError as error:
            raise CheckError(str(error)) from error
    compared = sides(case, flex)
    runs = dict(compared.runs)
    says = dict(compared.says)
    results = run_once(runs, says, f"{compared.kernel} on {case}")  # also the first of two warm-ups
    apart: dict[str, CheckError] = {}
    beside = [name for name in compared.same if name in results]
    for name in beside:
        what = f"the results of kernel {compared.kernel} and of “{name}” on {case}"
        try:
            agree(what, case.dtype, map(compared.same[name], results[OURS][:3]), results[name][:3])
        except CheckError as error:
            apart[name] = error
    if apart and len(apart) == len(beside):
        raise next(iter(apart.values()))
    for name, why in apart.items():  # another side computes what headway does
        says[name] = f"it computes other numbers than all other sides: {why}"
        del runs[name]
    if compared.expected is not None:
        try:
            expected = compared.expected(results[OURS])
        except RuntimeError as error:  # such as too little memory for the weights
            raise CheckError(
                f"{compared.kernel} on {case} cannot be checked: {' '.join(str(error).split())[:160]}"
            ) from error
        for name, tensors in expected.items():
            if name not in results:
                raise CheckError(f"{compared.kernel} {name} on {case}: {says[name]}")
            agree(f"{compared.kernel} {name} and torch on {case}", case.dtype, results[name], tensors)
    results.clear()
    burst = (
        None if case.kind in ("decoding", "cache") else roof.burst(case.dtype, case.flop)
    )  # decoding is bound by memory
    timed: dict[str, Callable[[], object]] = {**runs, **({} if burst is None else {ROOF: burst[0]})}
    milliseconds, rounds = in_turn(timed, plan.seconds, plan.rounds)
    row: dict[str, Any] = {"kernel": compared.kernel, "rounds": rounds, "seconds": plan.seconds}
    if burst is not None:
        row["roof_gflops"] = burst[1] / milliseconds.pop(ROOF) / 1e6
    return row | {"ms": milliseconds, "says": says}


def run_once(
    runs: dict[str, Run], says: dict[str, str], ours: str, needed: Collection[str] = (OURS,)
) -> dict[str, list[Tensor]]:
    """Runs each side once; a side that fails is removed from ``runs``, and ``says`` has the reason.

    Raises:
        CheckError: if one of the sides that are ``needed`` fails; the message begins with ``ours``.
    """
    results = {}
    for name, run in list(runs.items()):
        try:
            results[name] = run()
        except Exception as error:  # any failure of another side is its result
            says[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
            del runs[name]
            if name in needed:
                raise CheckError(f"{ours}: {says[name]}") from error
    return results


def in_turn(
    runs: Mapping[str, Callable[[], object]], seconds: float, least: int, warm: float | None = None
) -> tuple[dict[str, float], int]:
    """Times all sides in turn; returns the median milliseconds of each, and the number of turns.

    Each turn has its own order, since some sides, such as the roof's loop, slow down the next one. ``warm`` has the
    milliseconds of a turn that was the warm-up; if it is None, a warm-up is run first.
    """

    draw = random.Random(0)

    def turn() -> dict[str, float]:
        took = {}
        for name in draw.sample([*runs], len(runs)):
            began = time.perf_counter()
            runs[name]()
            took[name] = 1e3 * (time.perf_counter() - began)
        return took

    warm = sum(turn().values()) if warm is None else warm
    rounds = max(least, min(MOST_ROUNDS, int(1e3 * seconds * len(runs) / warm)))
    turns = [turn() for _ in range(rounds)]
    return {name: median(taken[name] for taken in turns) for name in runs}, rounds


def agree(what: str, dtype: str, actual: Any, expected: Any, least: float = 1e-3) -> None:
    """Raises CheckError, which says ``what`` is compared, unless tensors are equal within the dtype's tolerance.

    Differences are relative to the largest value of a tensor, or to ``least`` if that is larger.
    """
    for a, b in zip(actual, expected, strict=True):
        largest = b.detach().abs().max().item()
        apart = (a.detach().float() - b.detach().float()).abs().max().item()
        if not apart <= TOLERANCE[dtype] * max(largest, least):  # also where either is NaN
            raise CheckError(f"{what} differ by {apart:.3g} where the largest value is {largest:.3g}")


def agree_on_the_whole(what: str, dtype: str, actual: list[Tensor], expected: list[Tensor]) -> None:
    """Raises CheckError, which says ``what`` is compared, if tensors differ by more than a small share of their norm.

    Single numbers of a gradient may differ by more: ReLU's derivative jumps where its input is 0 up to rounding.
    """
    share = max(JUMPS, TOLERANCE[dtype])
    for a, b in zip(actual, expected, strict=True):
        apart, size = (x.detach().float().norm().item() for x in (a - b, b))
        if not apart <= share * size:  # also where either is NaN
            raise CheckError(f"{what} differ by {apart:.3g} in norm where that is {size:.3g}")
