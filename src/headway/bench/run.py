"""From a plan to rows, tables and a picture."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import picture, report
from .cases import AnyCase, Case, Plan
from .machine import Roof, where
from .measure import Red, measure
from .rows import Row, Rows
from .sides import Flex, encoded, kernel_of
from .targets import Judged, judge
from .verify import red


class Watch:
    """Told what happens, in this order; does nothing by itself. Override what you want to see."""

    def planned(self, where: dict[str, Any], done: int, total: int) -> None:
        """The plan is fixed; of ``total`` cases ``done`` are there already."""

    def doing(self, said: str) -> None:
        """What is done at the moment."""

    def noted(self, said: str) -> None:
        """Something that a reader of the figures must know."""

    def measured(self, case: AnyCase, row: Row | None) -> None:
        """A case is on disk; without a row it has no number, as noted."""


@dataclass
class Results:
    """What a benchmark found: rows, what was noted, and the reasons why kernels have no number."""

    rows: list[Row]
    notes: list[str] = field(default_factory=list)
    red: dict[str, str] = field(default_factory=dict)

    @property
    def targets(self) -> list[Judged]:
        """Each target, and whether it is met."""
        return judge(self.rows)


def bench(
    plan: Plan, out: str | Path, *, fresh: bool = False, command: str = "headway bench", watch: Watch | None = None
) -> Results:
    """Measures the cases of a plan that are not in ``out`` yet, and writes rows.jsonl, bench.md and roof.png there.

    fresh      measures again what is there
    command    stands in bench.md

    A kernel whose checks are red gets no number, and neither does a case on which two sides disagree. What was
    measured stays where this is interrupted. Raises HeadwayError for an encoding that is not known or does nothing
    in attention, and for a folder that cannot be written to.
    """
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
            results.rows = in_order(rows.here, cases)
            if results.rows or results.notes:
                watch.doing("writing the report")
                report.save(rows.out / "bench.md", report.markdown(results.rows, rows.where, command, results.notes))
                picture.draw(results.rows, title(rows.where), rows.out / "roof.png")
    return results


def _measure(plan: Plan, todo: list[Case], rows: Rows, results: Results, watch: Watch) -> None:
    def note(said: str) -> None:
        results.notes.append(said)
        watch.noted(said)

    roof, flex = Roof(), Flex(plan.flex_seconds)
    if roof.why_not:
        note(roof.why_not)
    if not todo:
        return
    results.red, checked = red(todo, watch.doing)
    note(f"Checked before anything was measured: {checked}.")
    for kernel, why in results.red.items():
        note(f"No number for the kernel {kernel}, whose checks are red: {why}")
    for case in todo:
        watch.doing(str(case))
        found = None
        if kernel_of(case) not in results.red:
            try:
                found = rows.add(case, measure(case, plan, roof, flex), datetime.date.today().isoformat())
            except Red as error:
                note(f"No number: {error}")
                results.red.setdefault(str(case), str(error))
        watch.measured(case, found)


def in_order(rows: list[Row], cases: list[Case]) -> list[Row]:
    """The rows in the order of the cases; behind them those of other plans."""
    place = {case: number for number, case in enumerate(cases)}
    return sorted(rows, key=lambda row: place.get(Case(**row["case"]), len(place)))


def title(where: dict[str, Any]) -> str:
    """What stands above the picture."""
    threads = "one thread" if where["threads"] == 1 else f"{where['threads']} threads"
    return f"Attention on {threads} of {where['processor'].partition(' (')[0]}, without a mask"
