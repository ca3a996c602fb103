"""Consoles, progress and JSON: how commands print."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from .._common.language import columns_of, said, wrapped
from .._common.progress import ProgressListener

if TYPE_CHECKING:
    from rich.console import Console
    from typing_extensions import Self


def console(**options: Any) -> Console:
    """Returns the terminal; for a file or a pipe, a console with 120 columns or the number in COLUMNS.

    ``options`` are rich's, such as stderr.
    """
    from rich.console import Console

    terminal = Console(highlight=False, **options)
    return (
        terminal if terminal.is_terminal or "COLUMNS" in os.environ else Console(highlight=False, width=120, **options)
    )


def consoles(as_json: bool, quiet: bool = False) -> tuple[Console, Console]:
    """Returns the consoles for results and for progress.

    With ``as_json`` only ``print_json`` prints results, and progress goes to standard error.
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
    """Runs work that can be resumed from ``out``; an interruption prints how, and exits with 130."""
    try:
        yield
    except KeyboardInterrupt:
        stopped = said("stopped; the same command resumes from {out}", out=out)
        print(f"headway: {stopped}", file=sys.stderr)
        raise typer.Exit(130) from None


def heading(out: Console, title: str, sentences: Sequence[str]) -> None:
    """Prints a title in bold, and a list with a bullet for each sentence."""
    out.print(f"[bold]{title}[/bold]")
    points(out, sentences, style="dim")


def points(out: Console, sentences: Sequence[str], style: str = "") -> None:
    """Prints a list with a bullet for each sentence; further lines of a sentence are indented."""
    from rich.markup import escape
    from rich.table import Table

    for sentence in sentences:
        # rich breaks lines only at blanks, and Chinese has none
        text = wrapped(sentence, out.width - 3) if columns_of(sentence) > len(sentence) else sentence
        line = Table.grid(padding=(0, 1))
        line.add_column()
        line.add_column(overflow="fold")
        line.add_row("•", escape(text), style=style)
        out.print(line)


EARLY = 0.1
"""The share of the work up to which the time left is the one expected, and not estimated from the time so far."""


class Screen(ProgressListener):
    """Shows progress: a bar on a terminal, and lines elsewhere; nothing on a quiet console."""

    def __init__(self, out: Console) -> None:
        self.out, self.doing = out, ""
        self.share = self.first_share = self.seconds = 0.0
        self.began = time.monotonic()

    def __enter__(self) -> Self:
        from rich.progress import BarColumn, Progress, TextColumn

        columns = (BarColumn(32), TextColumn("{task.percentage:.0f} %"), TextColumn("{task.fields[left]}"))
        self.bar = Progress(
            *columns,
            TextColumn("{task.description}", style="dim", markup=False),
            console=self.out,
            transient=True,
            disable=not self.out.is_terminal or self.out.quiet,
        )
        self.task = self.bar.add_task("", total=1.0, left="")
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def noted(self, note: str) -> None:
        self.say(note, "yellow")

    def planned(self, settings: Sequence[str], done: int, total: int) -> None:
        heading(self.out, said("The protocol, fixed before any result is seen"), settings)
        self.first_share, self.began = done / max(1, total), time.monotonic()

    def expected(self, seconds: Mapping[str, float]) -> None:
        self.seconds, self.began = sum(seconds.values()), time.monotonic()

    def progressed(self, doing: str, share: float) -> None:
        if doing != self.doing and not self.out.is_terminal:
            self.out.print(f"{100 * share:3.0f} %  {doing}", markup=False)
        self.show(doing, share)

    def show(self, doing: str, share: float) -> None:
        """Shows the current step and the ``share`` of all work that is done, only on a terminal."""
        self.doing, self.share = doing, share
        self.bar.update(self.task, completed=share, description=doing, left=self.left())

    def left(self) -> str:
        """Returns the time left, as expected or estimated from the time so far."""
        gone = time.monotonic() - self.began
        share = (self.share - self.first_share) / max(1e-9, 1 - self.first_share)
        if self.share >= 1:
            return said("writing the report")
        if share < EARLY and self.seconds:
            seconds = max(self.seconds - gone, 0.0)
        elif share > 0:
            seconds = gone * (1 - share) / share
        else:
            return ""
        return said("time left: about {time}", time=duration(seconds))

    def say(self, text: str, style: str = "") -> None:
        """Prints a line as it is."""
        self.out.print(text, style=style, markup=False, soft_wrap=True)


def duration(seconds: float) -> str:
    """Returns seconds, minutes or hours in words."""
    minutes, seconds = divmod(round(seconds), 60)
    if not minutes:
        return said("{seconds} s", seconds=seconds)
    if minutes < 60:
        return said("{minutes} min {seconds:02d} s", minutes=minutes, seconds=seconds)
    return said("{hours} h {minutes:02d} min", hours=minutes // 60, minutes=minutes % 60)
