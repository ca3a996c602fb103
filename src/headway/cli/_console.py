"""What the commands print with."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def console() -> Console:
    """Returns the terminal; for a file or a pipe, a console of 120 columns."""
    from rich.console import Console

    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=120)


@contextmanager
def going_on(out: str | Path) -> Iterator[None]:
    """Runs work that can be resumed from ``out``: an interruption prints that, and exits with 130."""
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


def table(titles: Sequence[str], lines: Sequence[Sequence[str]], **column: Any) -> Table:
    """Returns a table of a report: the first column is left-aligned, and cells in **asterisks** are bold and green.

    ``column`` are rich's options of every column, such as no_wrap.
    """
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    made = Table(box=SIMPLE_HEAD, pad_edge=False)
    for number, title in enumerate(titles):
        made.add_column(title, justify="right" if number else "left", **column)
    for line in lines:
        made.add_row(*(f"[bold green]{escape(c.replace('**', ''))}[/]" if c[:2] == "**" else escape(c) for c in line))
    return made


class Progress:
    """A progress bar on a terminal; elsewhere a line for each step."""

    def __init__(self, out: Console) -> None:
        self.out, self.doing = out, ""

    def __enter__(self) -> Progress:
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        columns = (BarColumn(32), TextColumn("{task.percentage:.0f} %"), TimeRemainingColumn(), "{task.description}")
        self.bar = Bar(*columns, console=self.out, transient=True, disable=not self.out.is_terminal)
        self.task = self.bar.add_task("", total=1.0)
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def tell(self, doing: str, part: float) -> None:
        """Shows what is done at the moment, and the share of the work that is done."""
        if doing != self.doing and not self.out.is_terminal:
            self.out.print(f"{100 * part:3.0f} %  {doing}")
        self.doing = doing
        self.bar.update(self.task, completed=part, description=doing)
