"""Jobs of Slurm, through submitit."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic

from ...errors import HeadwayError
from ..extras import need
from ..files import make_folder
from ..own_files import one_line
from ._base import Engine, Finished, J, Losses, Told, Work, outcome

BETWEEN_LOOKS = 1.0
"""Seconds between two looks at the jobs."""
REQUEUES = 1000
"""How often a job may reach its time limit, after which Slurm puts it into the queue again."""


class Slurm(Engine):
    """An array of jobs of Slurm, on machines that share the file system.

    A job that reaches its time limit or is preempted goes back into the queue and later continues from its state.

    Args:
        jobs: the jobs at once.
        folder: the folder of submitit's files and logs.
        cluster: "slurm", or "local" for processes of this machine, to try it out. If None, submitit decides.
        **parameters: parameters of submitit, such as slurm_partition, or timeout_min, which is an hour by default.
    """

    def __init__(self, jobs: int, folder: Path, cluster: str | None = None, **parameters: Any) -> None:
        submitit = need("submitit", "--on slurm", "slurm")
        make_folder(folder)
        try:
            self._executor = submitit.AutoExecutor(folder, cluster, slurm_max_num_timeout=REQUEUES)
            usual = {"name": "headway", "cpus_per_task": 1, "timeout_min": 60, "slurm_array_parallelism": jobs}
            self._executor.update_parameters(**usual | parameters)
        except Exception as error:  # such as a cluster or a parameter that submitit does not know
            raise HeadwayError(f"--on slurm: {one_line(error)}") from error
        if cluster is None and self._executor.cluster == "local":
            raise HeadwayError("--on slurm: there is no srun here: start it on a machine of the cluster")
        self._lost = submitit.core.utils.UncompletedJobError

    def run(self, jobs: Mapping[J, Path], work: Work[J], *, told: Told[J], finished: Finished[J]) -> None:
        """Does each job; see ``Engine``. If this process ends in order, jobs that are still under way are cancelled."""
        task, losses = _Task(work), Losses()
        waiting = dict(zip(self._executor.map_array(task, jobs, jobs.values()), jobs, strict=True))
        try:
            while waiting:
                for submitted in [one for one in waiting if one.done()]:
                    job = waiting.pop(submitted)
                    try:
                        kind, result = submitted.result()
                    except self._lost as error:
                        losses.add(job, f"of Slurm's job {submitted.job_id} ({one_line(error):.200})")
                        waiting[self._executor.submit(task, job, jobs[job])] = job
                        continue
                    except Exception as error:
                        raise HeadwayError(f"a job failed: {one_line(error)}") from error
                    if kind == "raised":
                        raise result
                    finished(job, result)
                for submitted, job in waiting.items():
                    told(job, submitted.state.lower(), 0.0, None)
                time.sleep(BETWEEN_LOOKS if waiting else 0.0)
        finally:
            for submitted in waiting:
                submitted.cancel(check=False)


class _Task(Generic[J]):
    """What a job of Slurm does."""

    def __init__(self, work: Work[J]) -> None:
        self.work = work

    def __call__(self, job: J, state: Path) -> tuple[str, Any]:
        return outcome(self.work, job, _nobody, state)

    def checkpoint(self, job: J, state: Path) -> Any:
        """Called by submitit before the time limit; returns the same job, which goes on from its state."""
        return need("submitit", "--on slurm", "slurm").helpers.DelayedSubmission(self, job, state)


def _nobody(doing: str, share: float, numbers: Mapping[str, float] | None = None) -> None:
    """Receives progress and does nothing."""
