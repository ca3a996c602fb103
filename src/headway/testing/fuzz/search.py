"""Draws cases until time is up, and shrinks those that fail."""

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
"""The most seconds for shrinking a case."""


class Outcome(NamedTuple):
    """The result of a case."""

    kind: str
    """"taken", "refused", or the type of the error."""
    said: str = ""
    """The reasons, or the error's message."""

    @property
    def failed(self) -> bool:
        """Whether it is neither taken nor refused."""
        return self.kind not in ("taken", "refused")


@dataclass(frozen=True)
class Finding:
    """A failing case."""

    case: Case
    """The case after shrinking."""
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
    """The results so far."""

    kinds: Counter[str] = field(default_factory=Counter)
    """The number of cases of each kind of outcome."""
    reasons: Counter[str] = field(default_factory=Counter)
    """The reasons of refusals, and how often each was given."""
    findings: list[Finding] = field(default_factory=list)
    """The failing cases, one for each shrunk case and type of error."""


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
    """Draws cases, at most ``cases``, and checks them. Yields the summary, one object, after each case."""
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
    """Shrinks a failing case while it still raises the same error type, for at most a minute."""
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
