"""Runs a benchmark: from a plan to rows, tables and a picture."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from .._common.files import write_text
from .._common.store import reporting
from .._common.templates import need_reports
from . import picture, report
from .cases import AnyCase, Case, Plan
from .machine import Roof, busy, where
from .measure import CheckError, measure
from .rows import Row, Rows
from .sides import Flex, encoded, kernel_of
from .targets import Judged, judge
from .verify import failing

C = TypeVar("C", bound=AnyCase)


class Watch:
    """Receives the progress of a benchmark; override the methods that you need.

    They are called in the order below, and do nothing by themselves.
    """

    def planned(self, where: dict[str, Any], done: int, total: int) -> None:
        """Is called once: of ``total`` cases ``done`` are in the folder already, measured on the machine ``where``."""

    def doing(self, said: str) -> None:
        """Is called with what is done at the moment, ``said``."""

    def noted(self, said: str) -> None:
        """Is called with a note for readers of the results, ``said``."""

    def measured(self, case: AnyCase, row: Row | None) -> None:
        """Is called after a ``case``, whose ``row`` is on disk; None if it has no number, as was noted."""


@dataclass
class Results:
    """The results of a benchmark.

    Attributes:
        rows: the rows.
        notes: notes for readers of the results.
        failed: the kernels and cases without numbers, each with the reason.
    """

    rows: list[Row]
    notes: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def note(self, said: str, watch: Watch) -> None:
        """Adds a note, ``said``, and tells ``watch`` of it."""
        self.notes.append(said)
        watch.noted(said)

    @property
    def targets(self) -> list[Judged]:
        """Each target that a case was measured of, and whether it is met."""
        return judge(self.rows)


def bench(
    plan: Plan, out: str | Path, *, fresh: bool = False, command: str = "headway bench", watch: Watch | None = None
) -> Results:
    """Measures the cases of a plan that are not in the folder yet, and writes rows.jsonl, bench.md and roof.png to it.

    A kernel that fails its checks gets no number, nor does a case on which two sides differ. After an interruption, the
    rows measured so far are in the folder.

    Args:
        plan: the cases.
        out: the folder.
        fresh: whether cases that are in the folder are measured again.
        command: the command that bench.md names.
        watch: receives the progress.

    Returns:
        The results, with those that were in the folder.

    Raises:
        HeadwayError: if an encoding is unknown or does nothing in attention, the folder cannot be written to, or what
            the report needs is not installed.
    """
    need_reports()
    watch = watch or Watch()
    cases = plan.cases()
    for case in dict.fromkeys(cases):
        encoded(case)
    with Rows(out, where(), fresh) as rows:
        results = Results(rows.here)
        todo = [case for case in cases if not rows.has(case, plan.seconds)]
        watch.planned(rows.where, len(cases) - len(todo), len(cases))
        try:
            _measure(plan, todo, rows, results, watch)
        finally:
            results.rows = in_order(rows, cases)
            if results.rows or results.notes:
                watch.doing("writing the report")
                with reporting(rows.file):
                    write_text(rows.out / "bench.md", report.markdown(results.rows, rows.where, command, results.notes))
                    picture.draw(results.rows, title(rows.where), rows.out / "roof.png")
    return results


def _measure(plan: Plan, todo: list[Case], rows: Rows, results: Results, watch: Watch) -> None:
    roof, flex = Roof(), Flex(plan.flex_seconds)
    if roof.why_not:
        results.note(roof.why_not, watch)
    if not todo:
        return
    if other := busy():
        results.note(other, watch)
    results.failed, checked = failing(todo, watch.doing)
    results.note(f"Checked before anything was measured: {checked}.", watch)
    for kernel, why in results.failed.items():
        results.note(f"No number for the kernel {kernel}, whose checks fail: {why}", watch)

    def numbers(case: Case) -> Row | None:
        return None if kernel_of(case) in results.failed else measure(case, plan, roof, flex)

    measure_each(todo, numbers, rows, results, watch)


def measure_each(
    cases: Sequence[C], measure: Callable[[C], Row | None], rows: Rows, results: Results, watch: Watch
) -> None:
    """Writes the row of each case; a case on which two sides differ gets a note instead."""
    for case in cases:
        watch.doing(str(case))
        row = None
        try:
            if (numbers := measure(case)) is not None:
                row = rows.measured(case, numbers, datetime.date.today().isoformat())
        except CheckError as error:
            results.note(f"No number: {error}", watch)
            results.failed.setdefault(str(case), str(error))
        watch.measured(case, row)


def in_order(rows: Rows, cases: Sequence[AnyCase]) -> list[Row]:
    """Returns the rows of this machine in the order of cases, with those of other plans at the end."""
    place = {case: number for number, case in enumerate(cases)}
    return sorted(rows.here, key=lambda row: place.get(rows.kind(**row["case"]), len(place)))


def title(where: dict[str, Any]) -> str:
    """Returns the title of the picture."""
    threads = "one thread" if where["threads"] == 1 else f"{where['threads']} threads"
    return f"Attention on {threads} of {where['processor'].partition(' (')[0]}, without a mask"
