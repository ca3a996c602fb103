"""The interface of an engine, and what engines share."""

from __future__ import annotations

import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol, TypeVar

from ...errors import HeadwayError
from ..own_files import one_line

J = TypeVar("J")
LOSSES = 3
"""The losses of its process after which a job is given up."""
BETWEEN_REPORTS = 0.5
"""Seconds between two reports of a process."""


class Report(Protocol):
    """A function that receives the progress of a job."""

    def __call__(self, doing: str, share: float, numbers: Mapping[str, float] | None = None) -> None:
        """Receives what is done at the moment, the share of the job that is done, and numbers of a training."""


Work = Callable[[J, Report, Path], Any]
"""Does a job and returns its result.

It gets the job, a function to report to, and the file of the job's state. If there is such a file, the job goes on from
it. It is sent to other processes by pickle, and so is a function of a module, or a partial one.
"""


Told = Callable[[J, str, float, "Mapping[str, float] | None"], None]
"""Receives a job and its reports."""
Finished = Callable[[J, Any], None]
"""Receives a job and its result."""


class Engine(ABC):
    """Does jobs in other processes, perhaps on other machines.

    If the process of a job is lost, the job begins again from its last saved state. Results and reports come only to
    this process.
    """

    @abstractmethod
    def run(self, jobs: Mapping[J, Path], work: Work[J], *, told: Told[J], finished: Finished[J]) -> None:
        """Does each job.

        Args:
            jobs: the jobs, in the order in which they begin, with the file of the state of each.
            work: does a job.
            told: receives the reports, here.
            finished: receives the result of each job, here, as soon as it is known.

        Raises:
            HeadwayError: if a job raises one, or its process is lost three times.
        """

    def connected(self) -> AbstractContextManager[Any]:
        """Returns a block in which several calls of ``run`` share what the engine starts; nothing in this class."""
        return nullcontext()


class Losses:
    """Counts how many times the process of each job was lost."""

    def __init__(self) -> None:
        self._of: dict[Any, int] = {}

    def add(self, job: Any, how: str) -> None:
        """Counts another loss.

        Raises:
            HeadwayError: if it is the third.
        """
        self._of[job] = self._of.get(job, 0) + 1
        if self._of[job] == LOSSES:
            raise HeadwayError(
                f"the process of a job ended {LOSSES} times, last {how}: give fewer jobs at once, if there is too "
                "little memory"
            )


def outcome(work: Work[J], job: J, tell: Report, state: Path) -> tuple[str, Any]:
    """Does a job; returns "finished" with its result, or "raised" with an error that can be pickled."""
    try:
        return "finished", work(job, tell, state)
    except HeadwayError as error:
        return "raised", HeadwayError(str(error))
    except Exception as error:
        traceback.print_exc()
        return "raised", HeadwayError(f"a job failed: {one_line(error)}")


def now_and_then(tell: Report) -> Report:
    """Returns a function that passes on a report every half second."""
    last = 0.0

    def sometimes(doing: str, share: float, numbers: Mapping[str, float] | None = None) -> None:
        nonlocal last
        if time.monotonic() - last >= BETWEEN_REPORTS:
            tell(doing, share, numbers)
            last = time.monotonic()

    return sometimes
