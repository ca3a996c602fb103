"""Consoles, progress and JSON: how commands print."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console


def console(**options: Any) -> Console:
    """Returns the terminal; for a file or a pipe, a console of 120 columns, or as many as COLUMNS says.

    ``options`` are rich's, such as stderr.
    """
    from rich.console import Console

    terminal = Console(highlight=False, **options)
    return (
        terminal if terminal.is_terminal or "COLUMNS" in os.environ else Console(highlight=False, width=120, **options)
    )


def consoles(as_json: bool, quiet: bool = False) -> tuple[Console, Console]:
    """Returns the consoles for results and for progress.

    With ``as_json`` results are printed by ``print_json`` alone, and progress on standard error.
    """
    return console(quiet=as_json), console(stderr=as_json, quiet=quiet)


def print_json(
    command: str,
    rows: Iterable[Mapping[str, Any]],
    *,
    notes: Sequence[str] = (),
    files: Sequence[str | Path] = (),
) -> None:
    """Prints the results of a command, such as "vectors similar", as one JSON object; NaN and ∞ become null."""
    from .. import __version__

    printed = {
        "command": command,
        "version": __version__,
        "rows": [_plain(row) for row in rows],
        "notes": list(notes),
        "files": list(map(str, files)),
    }
    unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    print(json.dumps(printed, indent=1, ensure_ascii=not unicode, allow_nan=False))


def _plain(value: Any) -> Any:
    """A value as a type of JSON."""
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


@contextmanager
def going_on(out: str | Path) -> Iterator[None]:
    """Runs work that can be resumed from ``out``. An interruption prints how, and exits with 130."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"headway: stopped; the same command resumes from {out}", file=sys.stderr)
        raise typer.Exit(130) from None


def points(out: Console, sentences: Sequence[str], style: str = "") -> None:
    """Prints a list with a bullet for each sentence, whose further lines are indented."""
    from rich.markup import escape
    from rich.table import Table

    for sentence in sentences:
        line = Table.grid(padding=(0, 1))
        line.add_row("•", escape(sentence), style=style)
        out.print(line)


class Progress:
    """A progress bar on a terminal; elsewhere a line for each step; nothing on a quiet console."""

    def __init__(self, out: Console) -> None:
        self.out, self.shown = out, ""

    def __enter__(self) -> Progress:
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        doing = TextColumn("{task.description}", style="dim", markup=False)
        columns = (BarColumn(32), TextColumn("{task.percentage:.0f} %"), TimeRemainingColumn(), doing)
        self.bar = Bar(*columns, console=self.out, transient=True, disable=not self.out.is_terminal or self.out.quiet)
        self.task = self.bar.add_task("", total=1.0)
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def tell(self, doing: str, part: float) -> None:
        """Shows the current step, and the share of the work that is done."""
        if doing != self.shown and not self.out.is_terminal:
            self.out.print(f"{100 * part:3.0f} %  {doing}")
        self.show(doing, part)

    def show(self, doing: str, part: float) -> None:
        """Shows the same, on a terminal only."""
        self.shown = doing
        self.bar.update(self.task, completed=part, description=doing)

    def say(self, said: str, style: str = "") -> None:
        """Prints a line as it is."""
        self.out.print(said, style=style, markup=False, soft_wrap=True)
