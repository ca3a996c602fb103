"""``headway bench``: the speed and memory of attention on this machine."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .._common.files import need_folder_place
from .._common.language import retold, said
from .._common.table import Cell, Table
from ..bench.cases import FULL, MODEL_PARTS, MODELS, PARTS, QUICK, QUICK_MODELS, TABLE
from ..errors import HeadwayError
from ._console import Screen, consoles, going_on, print_json
from ._options import Json, OutFolder, Quiet, completing, encoding_names, numbers, split_names

if TYPE_CHECKING:
    from rich.console import Console

    from ..bench.rows import Row
    from ..bench.run import BenchResults
    from ..bench.targets import Judged


def run(
    context: typer.Context,
    models: Annotated[
        Path | None,
        typer.Option(
            help="Measure whole models against transformers instead. DIR has the weights in minilm/ and smollm2/; "
            "`make weights` in a checkout downloads them. Default: attention is measured, not models.",
            metavar="DIR",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Measure fewer cases for less time: a few minutes in all.")
    ] = False,
    table: Annotated[
        bool,
        typer.Option(
            "--table",
            help="Measure headway's CPU kernel for BENCHMARKS.md, where `auto` leaves calls to SDPA too, and print "
            "Markdown: a few minutes in all.",
        ),
    ] = False,
    lengths: Annotated[
        str | None, typer.Option(help=f"Tokens, separated by commas. Default: {', '.join(map(str, FULL.lengths))}.")
    ] = None,
    dims: Annotated[str | None, typer.Option(help="Values of head_dim, separated by commas. Default: 64, 128.")] = None,
    dtypes: Annotated[
        str | None, typer.Option(help="float32, bfloat16 or float16, separated by commas. Default: the first two.")
    ] = None,
    masks: Annotated[
        str | None,
        typer.Option(
            help=f"Masks, separated by commas. Default: {', '.join(FULL.masks)}.",
            autocompletion=completing(lambda: FULL.masks),
        ),
    ] = None,
    encodings: Annotated[
        str | None,
        typer.Option(
            help="Encodings, separated by commas, such as alibi,'rope(base=5000)' or mine.py:Mine. "
            f"Default: {', '.join(FULL.encodings)}.",
            autocompletion=completing(encoding_names),
        ),
    ] = None,
    parts: Annotated[
        str | None,
        typer.Option(
            help=f"Kinds of cases, separated by commas. Default: {', '.join(PARTS)}; "
            f"with --models: {', '.join(MODEL_PARTS)}.",
            autocompletion=completing(lambda: (*PARTS, *MODEL_PARTS)),
        ),
    ] = None,
    only: Annotated[
        str | None, typer.Option(help="Measure only one direction: forward or backward. Default: both.")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Seconds for each side of a case. Default: 1; with --quick 0.2.")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(help="Minimum number of runs of each side. Default: 5; with --models 3.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure cases again that --out already has.")] = False,
    out: OutFolder = "headway-bench",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure the speed and memory of attention against torch and against the processor's limit (the roof).

    Writes rows.jsonl, bench.md and roof.png to --out. A kernel that fails its checks gets no number. All cases take an
    hour or two; with --quick it takes a few minutes.

    With --models, it measures published models and a training step of T5 against transformers, and training steps of
    small language models against torch and x-transformers. It then writes models.jsonl and models.md to --out, and
    takes ten minutes or more.

    Examples:
        headway bench --quick
        headway bench --parts attention --encodings rope,alibi --lengths 1024
    """
    from ..bench import bench
    from ..bench.brief import brief
    from ..bench.machine import where
    from ..bench.models import bench_models

    given: dict[str, Any] = {
        "lengths": None if lengths is None else tuple(numbers(lengths)),
        "dims": None if dims is None else tuple(numbers(dims, "dims")),
        "dtypes": _names(dtypes),
        "masks": _names(masks),
        "encodings": None if encodings is None else tuple(split_names(encodings)),
        "parts": _names(parts),
        "directions": None if only is None else (only,),
        "seconds": seconds,
        "rounds": rounds,
    }
    given = {name: value for name, value in given.items() if value is not None}
    if table and (quick or as_json or models is not None):
        other = "--quick" if quick else "--json" if as_json else "--models"
        raise HeadwayError(f"--table measures cases of its own and prints Markdown: leave out {other}")
    need_folder_place(Path(out))
    say, telling = consoles(as_json or table, quiet)
    screen = CaseScreen(telling)
    to: Any = {"fresh": fresh, "command": _typed(context), "watch": screen}
    results: BenchResults
    with going_on(out), screen:
        if models is None:
            results = bench(replace(TABLE if table else QUICK if quick else FULL, **given), out, **to)
        else:
            _only_of_models(given)
            results = bench_models(replace(QUICK_MODELS if quick else MODELS, **given), models, out, **to)
    written = ("bench.md", "roof.png", "rows.jsonl") if models is None else ("models.md", "models.jsonl")
    files = [f"{out}/{name}" for name in written]
    if table:
        print(brief(results.rows, where(), to["command"], results.notes), end="")
    elif as_json:
        print_json("bench", map(_target, results.targets), notes=results.notes, files=files)
    else:
        conclude(say, results, files)
    if results.failed:
        raise typer.Exit(1)


def _only_of_models(given: dict[str, Any]) -> None:
    options = {"directions": "only"}
    for name in given:
        if not hasattr(MODELS, name):
            raise HeadwayError(f"--{options.get(name, name)} chooses cases of attention: leave it out with --models")


def _names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(name.strip() for name in text.split(",") if name.strip())


def _typed(context: typer.Context) -> str:
    """The command with its given options."""
    words = ["headway", "bench"]
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if source is not None and source.name == "COMMANDLINE":
            value = context.params[option.name or ""]
            words += [option.opts[0]] if value is True else [option.opts[0], str(value)]
    return shlex.join(words)


class CaseScreen(Screen):
    """Prints a line for each case, with a progress bar below."""

    def planned(self, settings: Sequence[str], done: int, total: int) -> None:
        self.say(*settings)
        count = "{total} cases, {done} of them measured before" if done else "{total} cases"
        self.say(said(count, total=total, done=done))
        self.first_share = done / max(1, total)

    def progressed(self, doing: str, share: float) -> None:
        self.show(retold(doing), share)

    def measured(self, job: str, rows: Sequence[Row]) -> None:
        self.say(retold(job) + said(": ") + (_line(rows[0]) if rows else said("no number")))


def conclude(say: Console, results: BenchResults, files: Sequence[str]) -> None:
    """Prints the targets and the files."""
    if results.targets:
        _print_targets(say, results)
    say.print(", ".join(files), markup=False, soft_wrap=True)


def _target(judged: Judged) -> dict[str, Any]:
    """A target as --json prints it."""
    return {
        "target": judged.target.what,
        "dtype": judged.dtype,
        "wanted": judged.wanted,
        "measured": judged.measured,
        "verdict": judged.verdict,
    }


def _print_targets(say: Console, results: BenchResults) -> None:
    styles = {"met": "green", "missed": "bold red"}
    rows: list[list[str | Cell]] = [
        [
            *(said(judged.target.what), judged.dtype, judged.wanted, judged.measured),
            Cell(said(judged.verdict), style=styles.get(judged.verdict, "dim")),
        ]
        for judged in results.targets
    ]
    title = said("[bold]Targets[/bold], the worst case of each, for a processor with AVX-512 and BF16")
    say.print(f"\n{title}")
    what, wanted, measured = map(said, ("target", "wanted", "measured"))
    say.print(Table([what, "dtype", wanted, measured, ""], rows).rich(overflow="fold"))


def _line(row: Row) -> str:
    """The results of a case on one line."""
    from ..bench.sides import OURS
    from ..bench.targets import share_of_roof

    if "extra_bytes" in row:
        size = said("{size:,.1f} MiB beyond inputs and outputs", size=row["extra_bytes"] / 2**20)
        return size + said(", kernel {kernel}", kernel=row["kernel"])
    if "bytes" in row:
        return " · ".join(f"{size / 2**20:,.0f} MiB {retold(side)}" for side, size in row["bytes"].items())
    ours = row["ms"][OURS]
    share = share_of_roof(row) if "roof_gflops" in row else None
    words = [f"{ours:.3f} ms", *([] if share is None else [said("{share:.0f} % of the roof", share=100 * share)])]
    words += [
        said("{times:.2f}× {side}", times=taken / ours, side=retold(side))
        for side, taken in row["ms"].items()
        if side != OURS
    ]
    return " · ".join(words) + (said(", kernel {kernel}", kernel=row["kernel"]) if "kernel" in row else "")
