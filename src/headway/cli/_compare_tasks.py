"""``headway compare --tasks`` and ``--suite``: a comparison of position encodings on tasks of symbols."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._common.engines import engine_named, processors
from .._common.experiment import RESULTS
from .._common.files import need_folder_place
from .._common.language import said
from ..errors import HeadwayError, need_positive, unknown
from ._console import Screen, consoles, going_on, points, print_json
from ._options import seeds_named, share_named, split_names

if TYPE_CHECKING:
    from rich.console import Console

    from ..study.suite import SuiteResults

JOBS_OF_A_CLUSTER = 64
"""The trainings at once on other machines, unless --jobs is given."""


def run_suite(
    tasks: str | None,
    suite: str | None,
    out: str,
    *,
    encodings: str | None,
    seeds: str | None,
    steps: int | None,
    jobs: int | None,
    on: str | None,
    share: str | None,
    log: str | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Compares encodings on tasks of symbols, and prints and writes the report."""
    from .._common.templates import need_reports
    from ..study import suite as suites
    from ..study.loggers import logging
    from ..study.store import own_files

    say, telling = consoles(as_json, quiet)
    if tasks == "help":
        _list_tasks(say, as_json)
        return
    if tasks is not None and suite is not None:
        raise HeadwayError(f"--tasks {tasks} and --suite {suite} are both given: give one of them")
    if suite is not None and suite not in suites.SUITES:
        raise unknown("suite", suite, suites.SUITES)
    chosen = suites.SUITES["quick" if suite is None else suite]
    need_folder_place(Path(out))
    need_reports()
    wanted = chosen.seeds if seeds is None else seeds_named(seeds)
    names = chosen.tasks if tasks is None else split_names(tasks, "--tasks")
    specs = chosen.encodings if encodings is None else split_names(encodings)
    if jobs is None:
        jobs = at_once(on)
    need_positive(jobs=jobs)
    engine = None if on is None else engine_named(on, jobs, Path(out), list(own_files([*specs, *names]).values()))
    with going_on(out), Screen(telling) as screen, logging(screen, log, out) as watch:
        found = suites.measure(
            names,
            specs,
            suites.SuiteProtocol(steps=chosen.steps if steps is None else steps),
            seeds=range(wanted) if isinstance(wanted, int) else wanted,
            out=out,
            jobs=jobs,
            engine=engine,
            share=share_named(share),
            watch=watch,
        )
    found.write(out)
    tell_of_tasks(say, found, out, as_json)


def at_once(on: str | None) -> int:
    """Returns how many trainings run at once on the machines of --on, unless --jobs is given."""
    return processors() if on in (None, "ray") else JOBS_OF_A_CLUSTER


def tell_of_tasks(say: Console, found: SuiteResults, out: str, as_json: bool) -> None:
    """Prints the results of a comparison on tasks."""
    files = [f"{out}/{name}" for name in (*found.files(), RESULTS)]
    if as_json:
        notes = [*found.summary(), *found.conclusions(), *found.protocol()]
        print_json("compare", suite_rows_of(found), notes=notes, files=files)
        return
    found = found.labelled()
    for task in found.tasks:
        title = said("{task}, exact match in per cent by length", task=f"[bold]{_plain(task)}[/bold]")
        say.print(f"\n{title}")
        say.print(found.table(task).rich(no_wrap=True))
    points(say, found.conclusions())
    say.print(f"\n[bold]{said('What may be concluded')}[/bold]")
    points(say, found.summary())
    say.print(f"\n{', '.join(files)}", markup=False, soft_wrap=True)


def suite_rows_of(found: SuiteResults) -> list[dict[str, Any]]:
    """Returns the scores of each task, encoding and length, as --json prints them."""
    rows = []
    for task, name, times in product(found.tasks, found.encodings, found.times):
        score = found.score(task, name, times)
        low, high = (None, None) if score is None or score.interval is None else score.interval
        counts = {"learned": len(found.learned(task, name)), "trainings": len(found.runs(task, name))}
        exact = None if score is None else score.mean
        rows.append(
            {"task": task, "encoding": name, "times": times, **counts, "exact": exact, "low": low, "high": high}
        )
    return rows


def _list_tasks(say: Console, as_json: bool) -> None:
    """Prints the table of tasks with an example of each."""
    from .._common.table import Cell, Table
    from ..study._suite_report import first_sentence, share
    from ..study.tasks import SEQUENCE_TASKS

    rows: list[dict[str, Any]] = []
    cells: list[list[str | Cell]] = []
    for name, kind in SEQUENCE_TASKS.items():
        task = kind()
        references = {"chance": task.chance(task.trained), "order_free": task.order_free(task.trained)}
        facts = {"trained": task.trained, "counts": task.counts, "scored": task.scored, "source": task.source}
        example = task.written(max(4, task.shortest))
        rows.append({"task": name, "asks": first_sentence(kind), **facts, **references, "example": example})
        trained = said("{length} {unit}", length=task.trained, unit=said(task.counts))
        cells.append([Cell(name), trained, *map(share, references.values()), example])
    if as_json:
        print_json("compare", rows)
        return
    say.print(
        Table(
            [*map(said, ("task", "trained up to", "guessing", "no order", "example → what is scored"))], cells, right=()
        ).rich()
    )
    say.print(
        said(
            "Guessing and the best rule that knows no order: examples that are right in every token, at the trained "
            "length (for sums of more than three digits a bound above it). A task of your own: path.py:Class, derived "
            "from headway.study.tasks.SequenceTask."
        ),
        soft_wrap=True,
    )


def _plain(text: str) -> str:
    """Text in which rich finds no markup."""
    from rich.markup import escape

    return escape(text)
