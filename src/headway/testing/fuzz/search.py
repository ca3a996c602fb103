"""Draws cases until time is up, and makes those that fail smaller."""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from random import Random
from typing import NamedTuple

from .cases import Case, draw
from .check import check

SHRINKING = 60.0
"""Seconds that are spent on making a case smaller, at most."""


class Outcome(NamedTuple):
    """What came of a case.

    Attributes:
        kind: "taken", "refused", or the type of the error.
        said: the reasons, or the error's message.
    """

    kind: str
    said: str = ""

    @property
    def failed(self) -> bool:
        """Whether it is neither taken nor refused."""
        return self.kind not in ("taken", "refused")


@dataclass(frozen=True)
class Finding:
    """A case that fails.

    Attributes:
        case: the case, as small as it became.
        outcome: how it fails.
        drawn: the case as it was drawn.
    """

    case: Case
    outcome: Outcome
    drawn: Case

    def __str__(self) -> str:
        return (
            f"{self.outcome.kind}: {self.outcome.said}\n"
            "    from headway.testing.fuzz import Case, check\n"
            f"    check({self.case})"
        )


@dataclass
class Summary:
    """What has been found so far.

    Attributes:
        kinds: how many cases were taken, were refused, and failed.
        reasons: the reasons of refusals, and how often each was given.
        findings: the cases that fail, one of each way of failing.
    """

    kinds: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)


def outcome_of(case: Case) -> Outcome:
    """Checks a case in this process."""
    try:
        said = check(case)
    except Exception as error:
        return Outcome(type(error).__name__, f"{error}{_place(error)}")
    return Outcome("taken") if said == "taken" else Outcome("refused", said)


def _place(error: Exception) -> str:
    """Where an error was raised, unless a check raised it."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return "" if isinstance(error, AssertionError) else f" ({Path(last.filename).name}, line {last.lineno})"


def fuzz(
    seed: int,
    seconds: float,
    *,
    cases: int | None = None,
    compute: Callable[[Case], Outcome] = outcome_of,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Summary]:
    """Draws cases and checks them.

    Args:
        cases: no more than so many. Default: no limit.

    Yields:
        What has been found so far, after each case: the same object each time.
    """
    random, summary, begun = Random(seed), Summary(), clock()
    while clock() - begun < seconds and (cases is None or summary.kinds.total() < cases):
        case = draw(random)
        outcome = compute(case)
        summary.kinds[outcome.kind] += 1
        if outcome.kind == "refused":
            summary.reasons[outcome.said] += 1
        if outcome.failed:
            small, said = shrink(case, outcome, compute, clock=clock)
            if all((small, said.kind) != (other.case, other.outcome.kind) for other in summary.findings):
                summary.findings.append(Finding(small, said, case))
        yield summary


def shrink(
    case: Case,
    outcome: Outcome,
    compute: Callable[[Case], Outcome] = outcome_of,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Case, Outcome]:
    """Shrinks a failing case while it still raises the same error type.

    Returns:
        The case and how it fails. Either no field of it can be made simpler, or it is the simplest found in a minute.
    """
    begun, names = clock(), [field.name for field in fields(case)]
    before = None
    while case != before:
        before = case
        for name in names:
            tries = case.simpler(name)
            while clock() - begun < SHRINKING and (other := next(tries, None)) is not None:
                tried = compute(other)
                if tried.kind == outcome.kind:
                    case, outcome, tries = other, tried, other.simpler(name)
    return case, outcome
