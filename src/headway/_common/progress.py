"""Receivers of the progress of long work: functions of the share that is done, and listeners to an experiment."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .store import Row

__all__ = ["ProgressListener", "Share", "Tell", "Telling", "nobody", "notebook_bar", "part_of"]

Share = Callable[[float], None]
"""A function that gets the share of the work that is done, 0 … 1."""
Tell = Callable[[str, float], None]
"""A function that gets what is done at the moment, and the share of all work that is done, 0 … 1."""


def nobody(*told: object) -> None:
    """Receives progress and does nothing.

    Args:
        *told: the progress.
    """


def part_of(watch: Share, start: float, size: float) -> Share:
    """Returns a function that reports a part of the work, whose own progress runs from 0 to 1.

    Args:
        watch: is told of the whole.
        start: where the part begins in the whole.
        size: its share of the whole.
    """
    return lambda part: watch(start + size * part)


class ProgressListener:
    """Receives the progress of an experiment; override the methods that you need.

    By default the methods do nothing. If one raises an exception, such as KeyboardInterrupt, the experiment stops, and
    the next call resumes it.
    """

    def noted(self, note: str) -> None:
        """Called with a ``note`` for readers of the results, such as which device was chosen."""

    def planned(self, settings: Sequence[str], done: int, total: int) -> None:
        """Called once when the ``settings`` are fixed; the results already have ``done`` of the ``total`` jobs.

        ``settings`` are sentences.
        """

    def expected(self, seconds: Mapping[str, float]) -> None:
        """Called once after that if the time is estimated, with the ``seconds`` that each part is expected to take."""

    def progressed(self, doing: str, share: float) -> None:
        """Called with the current step, ``doing``, and the ``share`` of all work that is done, 0 … 1."""

    def logged(self, job: str, numbers: Mapping[str, float]) -> None:
        """Called now and then in the training of a ``job`` with its ``numbers``: "step", "loss" and others."""

    def measured(self, job: str, rows: Sequence[Row]) -> None:
        """Called after each ``job``; its ``rows`` are on disk, and are empty if it failed."""


class Telling(ProgressListener):
    """Tells a function the current step and the share of all work that is done.

    Args:
        tell: the function.
    """

    def __init__(self, tell: Tell) -> None:
        self.tell = tell

    def progressed(self, doing: str, share: float) -> None:
        self.tell(doing, share)


@contextmanager
def notebook_bar() -> Iterator[Tell]:
    """Shows a progress bar of rich during a block, if this is a notebook and rich is installed.

    Yields:
        The function that updates the bar; elsewhere a function that does nothing.
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
