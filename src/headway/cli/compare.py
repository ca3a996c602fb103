"""``headway compare``: a comparison of position encodings on a text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .._common.engines import ENGINES, engine_named
from .._common.experiment import RESULTS
from .._common.files import need_folder_place
from .._common.language import columns_of, padded, said
from ..errors import HeadwayError, need_positive
from ..study import DEFAULT_ENCODINGS, Protocol
from ..study.comparison import QUICK_SEEDS, SEEDS
from ._compare_tasks import at_once, run_suite, tell_of_tasks
from ._console import Screen, consoles, duration, going_on, points, print_json
from ._options import (
    Device,
    Json,
    OutFolder,
    Quiet,
    completing,
    encoding_names,
    numbers,
    options_of,
    seeds_named,
    share_named,
    split_names,
)

if TYPE_CHECKING:
    from rich.console import Console

    from .._common.store import Row
    from ..study import ComparisonResults

SUITE_FOLDER = "headway-suite"
"""The folder of --tasks and --suite, unless --out is given."""


def _loggers() -> Iterable[str]:
    from ..study.loggers import LOGGERS

    return LOGGERS


def _tasks() -> Iterable[str]:
    from ..study.tasks import SEQUENCE_TASKS

    return SEQUENCE_TASKS


@options_of(Protocol, device=Device)
def run(
    context: typer.Context,
    corpus: Annotated[
        str | None, typer.Argument(help="A file of UTF-8 text. Default: the topics of Python's manual.")
    ] = None,
    encodings: Annotated[
        str | None,
        typer.Option(
            help="Encodings, separated by commas, such as alibi,'rope(base=5000)' or mine.py:Mine. "
            f"Default: {', '.join(DEFAULT_ENCODINGS)}.",
            autocompletion=completing(encoding_names),
        ),
    ] = None,
    baselines: Annotated[
        str,
        typer.Option(
            help="Recurrent baselines, separated by commas: lstm, rnn; or none.",
            autocompletion=completing(lambda: ("lstm", "rnn", "none")),
        ),
    ] = "lstm",
    seeds: Annotated[
        str | None,
        typer.Option(
            help="Number of seeds, or the seeds themselves, such as 3-5 or 0,2. Differences need several seeds to be "
            f"reliable. Default: {SEEDS}; with --quick {QUICK_SEEDS}."
        ),
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Option(
            help="In place of a text: tasks of symbols, separated by commas, such as copy,parity or mine.py:Mine; help "
            "lists them. Can be combined with --encodings, --seeds, --steps, --jobs and --out.",
            autocompletion=completing(_tasks),
        ),
    ] = None,
    suite: Annotated[
        str | None,
        typer.Option(
            help="In place of a text: a suite of tasks with its encodings and seeds: quick or paper.",
            autocompletion=completing(lambda: ("quick", "paper")),
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            help="Trainings that run at once, each in its own process. Default: one for each processor or GPU; "
            "1 if a text takes less than a minute; with --on slurm or ray://address 64."
        ),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            help="Where the trainings run: slurm, or slurm(timeout_min=30) with parameters of submitit; ray, or "
            "ray://address of a cluster. A text then needs --baselines none. Default: this machine.",
            autocompletion=completing(lambda: ENGINES),
        ),
    ] = None,
    share: Annotated[
        str | None,
        typer.Option(
            metavar="I/N",
            help="The I-th of N machines that share the trainings, each with its own --out; --merge joins them. A text "
            "then needs --baselines none. Default: all trainings.",
        ),
    ] = None,
    merge: Annotated[
        str | None,
        typer.Option(
            help="In place of a text: folders of one comparison, separated by commas, whose results are joined in "
            "--out. Nothing is trained."
        ),
    ] = None,
    log: Annotated[
        str | None,
        typer.Option(
            help="Losses and results also go to tensorboard, wandb or mlflow, through its own library. Default: none.",
            autocompletion=completing(_loggers),
        ),
    ] = None,
    settings_file: Annotated[
        Path | None,
        typer.Option(
            "--settings",
            help="The settings.json of an earlier comparison: use its settings again, except for --device. "
            "Default: none.",
        ),
    ] = None,
    out: OutFolder = "headway-compare",
    as_json: Json = False,
    quiet: Quiet = False,
    **settings: Any,
) -> None:
    """Train a small Transformer for each position encoding, and measure it at the trained length and beyond.

    Writes results.jsonl, report.html, pictures (PNG, SVG) and tables (CSV, Markdown, LaTeX) to --out. On two processor
    cores the defaults take about half an hour; with --quick it takes a few minutes.

    Examples:
        headway compare book.txt --encodings rope,alibi,mine.py:Mine --minutes 20
        headway compare --suite quick
    """
    if merge is not None:
        _refuse_others(context, OF_MERGING, "--merge")
        _merge(split_names(merge, "--merge"), out, as_json=as_json, quiet=quiet)
        return
    if tasks is not None or suite is not None:
        _refuse_others(context, OF_SUITES, "--tasks and --suite")
        folder = out if _given(context, "out") else SUITE_FOLDER
        how = {"encodings": encodings, "seeds": seeds, "steps": settings["steps"], "jobs": jobs, "share": share}
        how |= {"on": on, "log": log}
        run_suite(tasks, suite, folder, **how, as_json=as_json, quiet=quiet)
        return
    from .. import study
    from ..study.loggers import logging
    from ..study.store import own_files

    need_folder_place(Path(out))
    if settings["lengths"] is not None:
        settings["lengths"] = numbers(settings["lengths"])
    if settings["learning_rates"] is not None:
        settings["learning_rates"] = numbers(settings["learning_rates"], "learning_rates", float, "0.002,0.005")
    protocol = Protocol(**settings) if settings_file is None else _again(settings_file, settings, context)
    say, telling = consoles(as_json, quiet)
    specs = DEFAULT_ENCODINGS if encodings is None else split_names(encodings)
    if jobs is not None:
        need_positive(jobs=jobs)
    engine = None if on is None else engine_named(on, jobs or at_once(on), Path(out), [*own_files(specs).values()])
    with going_on(out), LossScreen(telling) as screen, logging(screen, log, out) as watch:
        results = study.compare(
            corpus,
            specs,
            protocol,
            baselines=[] if baselines == "none" else split_names(baselines, "--baselines"),
            seeds=None if seeds is None else seeds_named(seeds),
            out=out,
            jobs=jobs,
            engine=engine,
            share=share_named(share),
            watch=watch,
        )
    _tell(say, results, out, as_json)


def _tell(say: Console, results: ComparisonResults, out: str, as_json: bool) -> None:
    """Prints the results of a comparison on a text."""
    from ..study import report

    if as_json:
        files = [f"{out}/{name}" for name in (*report.files(results), RESULTS)]
        print_json("compare", rows_of(results), notes=results.conclusions(), files=files)
    else:
        conclude(say, results, out)


def _given(context: typer.Context, name: str) -> bool:
    """Whether an option is given, even if its value is the default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


OF_MERGING = ("merge", "out", "as_json", "quiet")
"""The options that go with --merge."""
OF_SUITES = ("tasks", "suite", "encodings", "seeds", "steps", "jobs", "on", "share", "log", "out", "as_json", "quiet")
"""The options that go with --tasks and --suite."""


def _refuse_others(context: typer.Context, fitting: Sequence[str], flags: str) -> None:
    """Raises HeadwayError if an option is given that cannot be combined with some others."""
    for one in context.command.params:
        name = one.name or ""
        if name not in fitting and _given(context, name):
            what = one.opts[0] if one.opts[0].startswith("-") else f"a {name}"
            raise HeadwayError(f"{what} does not go with {flags}: leave it out, or {flags}")


def _merge(folders: Sequence[str], out: str, *, as_json: bool, quiet: bool) -> None:
    """Joins the results in some folders, and prints and writes the report."""
    from .._common.templates import need_reports
    from ..study import ComparisonResults
    from ..study.merging import merge

    need_reports()
    say, _ = consoles(as_json, quiet)
    found = merge(folders, out)
    if isinstance(found, ComparisonResults):
        _tell(say, found, out, as_json)
    else:
        tell_of_tasks(say, found, out, as_json)


def _again(path: Path, given: Mapping[str, Any], context: typer.Context) -> Protocol:
    """The settings of an earlier comparison; raises HeadwayError if one of them is also given as an option."""
    for one in fields(Protocol):
        if one.name != "device" and _given(context, one.name):
            flag = one.metadata.get("option", f"--{one.name.replace('_', '-')}")
            raise HeadwayError(f"--settings {path} and {flag} are both given: give one of them")
    return Protocol.read(path, device=given["device"])


def rows_of(results: ComparisonResults) -> list[dict[str, Any]]:
    """Returns the means over the seeds at each length, as --json prints them.

    Encodings, baselines and counted n-gram models have the same fields; fields that do not apply to a model are None.
    """
    means = ("bits_per_byte", "recall", "steps", "tokens_per_second", "peak_memory_bytes")
    facts = ("parameters", "kernel")
    rows = []
    for kind, names in {"encoding": results.encodings, "baseline": results.baselines}.items():
        for name, length in product(names, results.lengths):
            row = {field: results.mean(name, length, field) for field in means}
            row |= {fact: results.any_row(name)[fact] for fact in facts}
            rows.append({"encoding": name, "kind": kind, "length": length, "seeds": len(results.seeds), **row})
    for (name, bits), length in product(results.counted.items(), results.lengths):
        row = dict.fromkeys((*means, *facts)) | {"bits_per_byte": bits}
        rows.append({"encoding": name, "kind": "counted", "length": length, "seeds": None, **row})
    return rows


class LossScreen(Screen):
    """Prints the losses of each training, with a progress bar and the time left below."""

    header_printed = False

    def planned(self, settings: Sequence[str], done: int, total: int) -> None:
        super().planned(settings, done, total)
        known = said(", {done} of them done before", done=done) if done else ""
        sentence = "{total} trainings{known}, {left} to go; held-out bits per byte at each length."
        self.out.print("\n" + said(sentence, total=total, known=known, left=total - done))

    def expected(self, seconds: Mapping[str, float]) -> None:
        super().expected(seconds)
        parts = said(", ").join(f"{said(part)} {duration(value)}" for part, value in seconds.items())
        expected = "Expected, by the speed of a few steps: {time} ({parts})."
        self.out.print(said(expected, time=duration(self.seconds), parts=parts))

    def progressed(self, doing: str, share: float) -> None:
        self.show(doing, share)

    def measured(self, job: str, rows: Sequence[Row]) -> None:
        if not self.header_printed:
            lengths = dict.fromkeys(f"{row['length']:,}" for row in rows)
            self.say(_line(said("encoding"), [*lengths], said("seed")))
            self.header_printed = True
        for name in dict.fromkeys(row["encoding"] for row in rows):
            losses = [_loss(row["bits_per_byte"]) for row in rows if row["encoding"] == name]
            self.say(_line(name, losses, str(rows[0]["seed"])))
        if not self.out.is_terminal:
            self.say(f"  {self.left()}", "dim")


def conclude(say: Console, results: ComparisonResults, out: str) -> None:
    """Prints the tables, the conclusions and the files that were written."""
    from ..study import tables

    results = results.labelled()
    over = said("one seed") if len(results.seeds) == 1 else said("mean of {count} seeds", count=len(results.seeds))
    unit = said("bytes" if results.unit == "bytes" else "tokens")
    losses = said("[bold]Held-out bits per byte[/bold], {over}, by length in {unit}", over=over, unit=unit)
    say.print(f"\n{losses}")
    say.print(tables.losses(results, spread=False).rich(no_wrap=True))
    if (recall := tables.recall(results, spread=False)).rows:
        say.print(said("[bold]Recall[/bold], right answers in per cent"))
        say.print(recall.rich(no_wrap=True))
    if (rates := tables.learning_rates(results)).rows:
        say.print(said("[bold]Learning rates[/bold], bits per byte of a part for validation"))
        say.print(rates.rich(no_wrap=True))
    say.print(f"[bold]{said('What it took')}[/bold]")
    say.print(tables.costs(results, brief=True).rich(overflow="fold"))
    say.print(said("[bold]What may be concluded[/bold]; report.html has all of it, with intervals"))
    points(say, [*results.warnings(), *results.summary()])
    say.print(f"\n{_written(results, out)}", markup=False, soft_wrap=True)


def _written(results: ComparisonResults, out: str) -> str:
    """All files that were written; files that differ only in their endings are joined, as in loss.{png,svg}."""
    from ..study import report

    kinds: dict[str, list[str]] = {}
    for file in (*report.files(results), "results.jsonl"):
        name, _, kind = file.rpartition(".")
        kinds.setdefault(name, []).append(kind)
    names = [f"{name}.{its[0] if len(its) == 1 else '{' + ','.join(its) + '}'}" for name, its in kinds.items()]
    return ", ".join(f"{out}/{name}" for name in names)


def _line(name: str, cells: Sequence[str], last: str) -> str:
    end = " " * max(0, 6 - columns_of(last)) + last
    return padded(name, 36) + "".join(f"{cell:>9}" for cell in cells) + end


def _loss(value: float | None) -> str:
    return "—" if value is None else f"{value:.3f}"
