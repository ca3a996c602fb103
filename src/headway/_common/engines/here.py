"""Jobs in this process, one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from ._base import Engine, Finished, J, Told, Work


class Here(Engine):
    """Does one job after the other in this process; errors and interrupts of the jobs are its own."""

    def run(self, jobs: Mapping[J, Path], work: Work[J], *, told: Told[J], finished: Finished[J]) -> None:
        """Does each job; see ``Engine``."""
        for job, state in jobs.items():
            told(job, "", 0.0, None)
            finished(job, work(job, partial(told, job), state))
