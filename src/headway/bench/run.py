"""Runs a benchmark: from a plan to rows, tables and a picture."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from .._common.experiment import Files, measure_each, write_report
from .._common.language import retold, said
from .._common.progress import ProgressListener, Tell
from .._common.templates import need_reports
from . import picture, report, sequence
from .cases import AnyCase, Case, Plan
from .machine import Roof, busy, where
from .measure import CheckError, measure
from .rows import CaseStore, Row
from .sides import Flex, encoded, kernel_of
from .targets import TARGETS, Judged, Target, judge
from .verify import failing

C = TypeVar("C", bound=AnyCase)


@dataclass
class BenchResults:
    """The rows of a benchmark, notes for readers, and the kernels and cases that failed, each with the reason."""

    rows: list[Row]
    judged_by: Sequence[Target] = TARGETS
    notes: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def note(self, note: str, watch: ProgressListener) -> None:
        """Adds a note in English, and tells ``watch`` of it in the language of the command."""
        self.notes.append(note)
        watch.noted(retold(note))

    @property
    def targets(self) -> list[Judged]:
        """Each target for which a case was measured, and whether it is met."""
        return judge(self.rows, self.judged_by)


def bench(
    plan: Plan,
    out: str | Path,
    *,
    fresh: bool = False,
    command: str = "headway bench",
    watch: ProgressListener | None = None,
) -> BenchResults:
    """Measures the cases of a plan that are not in the folder yet, and writes rows.jsonl, bench.md and roof.png to it.

    A kernel that fails its checks gets no number, and neither does a case on which two sides differ. After an
    interruption, the folder has the rows measured so far.

    Args:
        plan: the cases.
        out: the folder.
        fresh: whether cases that are in the folder are measured again.
        command: the command that bench.md names.
        watch: receives the progress.

    Returns:
        The results, including those that were already in the folder.

    Raises:
        HeadwayError: if an encoding is unknown or does nothing in attention, the folder cannot be written to, or a
            package for the report is not installed.
    """
    need_reports()
    watch = watch or ProgressListener()
    cases = plan.cases()
    for case in dict.fromkeys(cases):
        encoded(case)
    with CaseStore(out, where(), fresh) as rows:
        results = BenchResults(rows.here)
        todo = [case for case in cases if not rows.has(case, plan.seconds)]
        watch.planned([in_words(rows.where)], len(cases) - len(todo), len(cases))
        try:
            _measure(plan, cases, todo, rows, results, watch)
        finally:
            results.rows = in_order(rows, cases)
            if results.rows or results.notes:
                watch.progressed(said("writing the report"), 1.0)
                files: Files = {
                    "bench.md": lambda: report.markdown(results.rows, rows.where, command, results.notes),
                    "roof.png": lambda: picture.draw(results.rows, title(rows.where)),
                }
                write_report(files, rows.out, rows.file.name)
    return results


def _measure(
    plan: Plan, cases: list[Case], todo: list[Case], rows: CaseStore, results: BenchResults, watch: ProgressListener
) -> None:
    roof, flex = Roof(), Flex(plan.flex_seconds)
    if roof.why_not:
        results.note(roof.why_not, watch)
    if not todo:
        return
    if other := busy():
        results.note(other, watch)
    results.failed, checked = failing(todo, lambda doing: watch.progressed(doing, 0.0))
    results.note(f"Checked before anything was measured: {checked}.", watch)
    for kernel, why in results.failed.items():
        results.note(f"No number for the kernel {kernel}, whose checks fail: {why}", watch)

    def numbers(case: Case) -> Row | None:
        if kernel_of(case) in results.failed:
            return None
        return sequence.measure(case, plan) if case.part == "sequence" else measure(case, plan, roof, flex)

    measure_cases(cases, plan.seconds, numbers, rows, results, watch)


def measure_cases(
    cases: Sequence[C],
    seconds: float,
    measure: Callable[[C], Row | None],
    rows: CaseStore,
    results: BenchResults,
    watch: ProgressListener,
) -> None:
    """Measures the cases without a row of this many ``seconds``; a case with differing sides gets a note instead."""

    def measured(case: C, tell: Tell) -> list[Row]:
        try:
            numbers = measure(case)
        except CheckError as error:
            results.note(f"No number: {error}", watch)
            results.failed.setdefault(str(case), str(error))
            return []
        return [] if numbers is None else [rows.row(case, numbers, datetime.date.today().isoformat())]

    jobs = {case: str(case) for case in cases}
    measure_each(jobs, measured, rows, watch, has=lambda case: rows.has(case, seconds))


def in_order(rows: CaseStore, cases: Sequence[AnyCase]) -> list[Row]:
    """Returns the rows of this machine in the order of cases, with those of other plans at the end."""
    place = {case: number for number, case in enumerate(cases)}
    return sorted(rows.here, key=lambda row: place.get(rows.kind(**row["case"]), len(place)))


def in_words(where: dict[str, Any]) -> str:
    """Returns a machine and its versions in words, in the language of the command."""
    return said(", ").join(f"{said(name)} {value}" for name, value in where.items())


def title(where: dict[str, Any]) -> str:
    """Returns the title of the picture."""
    threads = "one thread" if where["threads"] == 1 else f"{where['threads']} threads"
    return f"Attention on {threads} of {where['processor'].partition(' (')[0]}, without a mask"
