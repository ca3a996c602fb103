"""One case measured: all sides in turn in one process, medians; nothing where the sides do not agree."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

from torch import Tensor

from . import memory
from .cases import Case, Plan
from .machine import Roof
from .sides import OURS, Flex, sides

ROOF = "roof"
MOST_ROUNDS = 1000

TOLERANCE = {"float32": 1e-3, "bfloat16": 6e-2, "float16": 1e-2}
"""How far two sides may be apart, of the largest value: enough to see that they compute the same."""


class Red(Exception):  # noqa: N818  a finding about the kernel, which costs the case its number
    """What was computed is not right, so that its speed means nothing."""


def measure(case: Case, plan: Plan, roof: Roof, flex: Flex | None) -> dict[str, Any]:
    """The row of a case. Raises Red where headway fails, or is not what another side computes."""
    if case.kind == "memory":
        try:
            return memory.measure(case)
        except RuntimeError as error:
            raise Red(str(error)) from error
    found = sides(case, flex)
    runs: dict[str, Callable[[], object]] = dict(found.runs)
    says = dict(found.says)
    results: dict[str, list[Tensor]] = {}
    for name, run in found.runs.items():  # also the first of two warm-ups
        try:
            results[name] = run()
        except Exception as error:  # another's failure is its result; ours is a finding
            says[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
            del runs[name]
            if name == OURS:
                raise Red(f"{found.kernel} on {case}: {says[name]}") from error
    for name, shaped in found.same.items():
        if name in results:
            agree(f"{found.kernel} and {name} on {case}", case.dtype, map(shaped, results[OURS][:3]), results[name][:3])
    results.clear()
    burst = None if case.kind == "decoding" else roof.burst(case.dtype, case.flop)  # there, memory is the bound
    if burst is not None:
        runs[ROOF] = burst[0]
    milliseconds, rounds = in_turn(runs, plan.seconds, plan.rounds)
    row: dict[str, Any] = {"kernel": found.kernel, "rounds": rounds, "seconds": plan.seconds}
    if burst is not None:
        row["roof_gflops"] = burst[1] / milliseconds.pop(ROOF) / 1e6
    return row | {"ms": milliseconds, "says": says}


def in_turn(
    runs: Mapping[str, Callable[[], object]], seconds: float, least: int, warm: float | None = None
) -> tuple[dict[str, float], int]:
    """The median milliseconds of each side, and the turns taken: for ``seconds`` a side, but ``least`` turns.

    Each turn draws its own order: some sides, such as the roof's burst, slow down whoever comes next.

    warm   the milliseconds of a turn that was taken as warm-up; one is taken here if None
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


def agree(what: str, dtype: str, found: Any, expected: Any) -> None:
    """Raises Red unless the tensors are the same, as far as the dtype allows."""
    for a, b in zip(found, expected, strict=True):
        largest = b.detach().abs().max().item()
        apart = (a.detach().float() - b.detach().float()).abs().max().item()
        if not apart <= TOLERANCE[dtype] * max(largest, 1e-3):  # also where either is NaN
            raise Red(f"{what} differ by {apart:.3g} where the largest value is {largest:.3g}")
