"""Progress reports of a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .._common.progress import Tell
from .._common.store import Row as Row
from .protocol import FixedProtocol


class Watch:
    """Receives the progress of a comparison; override the methods that you need.

    They are called in the order below, and do nothing by themselves. An exception that one of them raises, such as
    KeyboardInterrupt, stops the comparison, which the next call of ``compare`` resumes.
    """

    def placed(self, device: str, why: str) -> None:
        """Is called first where there is a GPU, if a ``device`` was to be chosen: it is this one, and ``why``."""

    def planned(self, protocol: FixedProtocol, encodings: Sequence[str], done: int, total: int) -> None:
        """Is called once, when the ``protocol`` is fixed: of ``total`` trainings ``done`` are in the results already.

        ``encodings`` are the names of the rows.
        """

    def expected(self, seconds: Mapping[str, float]) -> None:
        """Is called once after that, unless nothing is left to do: the ``seconds`` that each part is expected to take.

        The parts are "training", "trying learning rates", "measuring", "recall" and "the report".
        """

    def went_on(self, encoding: str, seed: int, doing: str, part: float) -> None:
        """Is called during a training of ``encoding`` with ``seed``.

        ``doing`` says what is done at the moment, and ``part``, from 0 to 1, is the share of this training's work that
        is done.
        """

    def measured(self, rows: Sequence[Row]) -> None:
        """Is called with new ``rows``, one for each length, which are on disk already."""


class Telling(Watch):
    """Tells one function of the share of all trainings that is done.

    Args:
        tell: the function.
    """

    def __init__(self, tell: Tell) -> None:
        self.tell, self.done, self.total = tell, 0, 1

    def planned(self, protocol: FixedProtocol, encodings: Sequence[str], done: int, total: int) -> None:
        self.done, self.total = done, total

    def went_on(self, encoding: str, seed: int, doing: str, part: float) -> None:
        self.tell(f"{encoding}, seed {seed}: {doing}", (self.done + part) / self.total)

    def measured(self, rows: Sequence[Row]) -> None:
        self.done += 1
        self.tell("", self.done / self.total)
