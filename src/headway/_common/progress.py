"""Functions by which long work reports its progress: they receive the share that is done."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Share", "Tell", "nobody", "notebook_bar", "part_of"]

Share = Callable[[float], None]
"""A function that gets the share of the work that is done, 0 … 1."""
Tell = Callable[[str, float], None]
"""A function that gets what is done at the moment, and the share of all work that is done, 0 … 1."""


def nobody(*told: object) -> None:
    """Receives progress and does nothing.

    Args:
        *told: what is told.
    """


def part_of(watch: Share, start: float, size: float) -> Share:
    """Returns a function that reports a part of the work, whose own progress runs from 0 to 1.

    Args:
        watch: is told of the whole.
        start: where the part begins in the whole.
        size: its share of the whole.
    """
    return lambda part: watch(start + size * part)


@contextmanager
def notebook_bar() -> Iterator[Tell]:
    """A progress bar of rich for the duration of a block, if this is a notebook and rich is installed.

    Yields:
        The function that the bar is told of progress by; elsewhere one that does nothing.
    """
    if "IPython" not in sys.modules or importlib.util.find_spec("rich") is None:
        yield nobody
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console()
    if not console.is_jupyter:
        yield nobody
        return
    columns = (BarColumn(), TextColumn("{task.percentage:.0f} %"), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.description}", markup=False), console=console, transient=True) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda doing, part: bar.update(task, completed=part, description=doing)
