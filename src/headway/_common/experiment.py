"""The skeleton of an experiment: jobs that are measured one by one, and the files of a report.

An experiment has settings, a function that measures a job and returns its rows, and a report of all rows. Its rows are
kept in a ``ResultStore``, from which the next call resumes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ..errors import HeadwayError
from .engines import Engine, Here
from .files import make_folder, write_text
from .language import said, speaking
from .pictures import save
from .progress import ProgressListener
from .store import ResultStore, Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["RESULTS", "Files", "Report", "measure_each", "need_share", "write_report"]

J = TypeVar("J")
RESULTS = "results.jsonl"
"""The file of rows in the folder of an experiment."""
Files = Mapping[str, Callable[[], "str | Figure | None"]]
"""The files of a report by name, with a function that makes the text or the picture; None leaves the file out."""


def measure_each(
    jobs: Mapping[J, str],
    measure: Callable[..., Sequence[Row]],
    store: ResultStore,
    listener: ProgressListener,
    *,
    has: Callable[[J], bool],
    work: Callable[[J], float] = lambda job: 1.0,
    engine: Engine | None = None,
    states: Mapping[J, Path] | None = None,
) -> None:
    """Measures the jobs that have no rows yet, and writes the rows of each to the disk as soon as they are known.

    Args:
        jobs: the jobs in order, with the name of each for the listener.
        measure: returns the rows of a job. Its arguments are the job, a function to report progress, and, if ``states``
            are given, the file of the job's state. The function is called with the current step, which may be "", and
            the share of the job that is done.
        store: receives the rows.
        listener: receives the progress.
        has: whether the store has the rows of a job.
        work: the work of a job, in any unit.
        engine: does the jobs; they and ``measure`` are sent to it by pickle, and the store and the listener stay in
            this process. If None, jobs are measured here, one after the other.
        states: the files of the states from which jobs go on, which an engine needs.
    """
    total = sum(map(work, jobs))
    done = sum(work(job) for job in jobs if has(job))
    running: dict[J, float] = {}

    def told(job: J, doing: str, share: float, numbers: Mapping[str, float] | None = None) -> None:
        running[job] = share * work(job)
        name = jobs[job] + said(": ") + doing if doing else jobs[job]
        if numbers:
            listener.logged(jobs[job], numbers)
        listener.progressed(name, (done + sum(running.values())) / total)

    def finished(job: J, rows: Sequence[Row]) -> None:
        nonlocal done
        if rows:
            store.add(rows)
        told(job, "", 1.0)
        done += running.pop(job)
        listener.measured(jobs[job], rows)

    missing = [job for job in jobs if not has(job)]
    if missing and states is not None:
        (engine or Here()).run({job: states[job] for job in missing}, measure, told=told, finished=finished)
        return
    for job in missing:
        told(job, "", 0.0)
        finished(job, measure(job, partial(told, job)))


def need_share(share: tuple[int, int], jobs: int | None = None) -> None:
    """Checks the share of a machine, (i, n): every n-th job, from the i-th on.

    Args:
        share: the share.
        jobs: the number of jobs, if it is known.

    Raises:
        HeadwayError: if there is no such share, or it has no job.
    """
    number, of = share
    if not 1 <= number <= of:
        raise HeadwayError(f"share is {number} of {of}: give a number from 1 to {max(of, 1)}, and how many there are")
    if jobs is not None and number > jobs:
        raise HeadwayError(f"share {number} of {of} is empty, since there are {jobs} trainings: leave it out")


def write_report(files: Files, out: str | Path, rows: str = RESULTS) -> None:
    """Writes the files of a report to the folder ``out``; its file ``rows`` has the rows.

    They are always in English, for papers and programs, whatever the language of commands.

    Raises:
        HeadwayError: if a file cannot be made; the message says where the rows are.
    """
    out = Path(out)
    try:
        for name, make in files.items():
            make_folder((out / name).parent)
            with speaking("en"):
                made = make()
            if isinstance(made, str):
                write_text(out / name, made)
            elif made is not None:
                save(made, out / name)
    except Exception as error:
        cause = str(error) if isinstance(error, HeadwayError) else f"{type(error).__name__}: {error}"
        raise HeadwayError(
            f"the report was not written ({cause}); the results are in {out / rows}: the same call writes it, without "
            "measuring again"
        ) from error


class Report(ABC):
    """The results of an experiment that compares methods, in their order, and what they show."""

    def __init__(self, rows: Sequence[Row], settings: Row, methods: Sequence[str]) -> None:
        self.rows, self.settings = list(rows), settings
        self.methods = [name for name in methods if any(row["method"] == name for row in rows)]

    @abstractmethod
    def protocol(self) -> list[str]:
        """Returns the settings in sentences."""

    @abstractmethod
    def conclusions(self) -> list[str]:
        """Returns the conclusions that the results support, in sentences."""

    @abstractmethod
    def files(self) -> Files:
        """Returns the files of the report by name, with the function that makes each."""

    def write(self, out: str | Path) -> None:
        """Writes the report to the folder ``out``, which has the rows.

        Raises:
            HeadwayError: if a file cannot be made; the message says where the rows are.
        """
        write_report(self.files(), out)
