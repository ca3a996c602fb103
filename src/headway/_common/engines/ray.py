"""Tasks of Ray, on this machine or a cluster."""

from __future__ import annotations

import os
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ...errors import HeadwayError
from ..extras import need
from ..files import make_folder, write_content
from ..own_files import one_line
from ._base import Engine, Finished, J, Losses, Told, Work, now_and_then, outcome

BETWEEN_LOOKS = 0.5
"""Seconds between two looks at the tasks."""
VARIABLES = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # on any system: Ray's servers then listen only on 127.0.0.1
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else Ray warns of what it will change
}
"""The environment of a Ray on only this machine, which has to be set before ray is imported."""


class Ray(Engine):
    """Tasks of Ray, one processor each.

    Machines need no common files: Ray sends the state of a job back each time it is written, and sends it along when
    the job begins again elsewhere. If Ray already runs in this process, it is used; otherwise one is started or joined.

    Args:
        jobs: the tasks at once.
        address: the address of a cluster, such as "ray://head:10001"; None starts Ray on this machine.
        files: files that the jobs read, such as the file of an encoding; a cluster gets those with relative paths.
    """

    def __init__(self, jobs: int, address: str | None = None, files: Sequence[str] = ()) -> None:
        if address is None:
            os.environ.update({name: os.environ.get(name, value) for name, value in VARIABLES.items()})
        self._ray = need("ray", "--on ray", "ray")
        self.jobs, self.address = jobs, address
        for name in files:
            if not Path(name).is_file():
                raise HeadwayError(f"{name} is not a file: give the path of a Python file, such as mine.py:Mine")
            if ".." in Path(name).parts or (Path(name).is_absolute() and address is not None):
                raise HeadwayError(
                    f"--on {address or 'ray'} sends only files below this folder, not {name}: start it there"
                )
        self._files = {name: Path(name).read_bytes() for name in files if not Path(name).is_absolute()}

    def run(self, jobs: Mapping[J, Path], work: Work[J], *, told: Told[J], finished: Finished[J]) -> None:
        """Does each job; see ``Engine``."""
        with self.connected():
            tasks = _Tasks(self._ray, work, self._files)
            try:
                self._run(tasks, jobs, told, finished)
            except self._ray.exceptions.RayError as error:  # raised by the mailbox or the cluster itself
                raise HeadwayError(f"Ray ended ({one_line(error):.200}): the same call goes on") from None
            finally:
                tasks.end()

    def _run(self, tasks: _Tasks, jobs: Mapping[J, Path], told: Told[J], finished: Finished[J]) -> None:
        waiting, losses = deque(jobs), Losses()
        while waiting or tasks.running:
            while waiting and len(tasks.running) < self.jobs:
                job = waiting.popleft()
                tasks.begin(job, jobs[job].read_bytes() if jobs[job].exists() else None)
            done, _ = self._ray.wait(list(tasks.running), timeout=BETWEEN_LOOKS)
            for job, kind, message in tasks.messages():
                if kind == "told":
                    told(job, *message)
                else:
                    make_folder(jobs[job].parent)
                    write_content(jobs[job], message)
            for one in done:
                job = tasks.running.pop(one)
                try:
                    kind, result = self._ray.get(one)
                except self._ray.exceptions.RayTaskError as error:
                    raise HeadwayError(f"a job failed: {one_line(error)}") from None
                except self._ray.exceptions.RayError as error:
                    losses.add(job, f"by {type(error).__name__}")
                    waiting.appendleft(job)
                    continue
                if kind == "raised":
                    raise result
                finished(job, result)

    @contextmanager
    def connected(self) -> Iterator[Any]:
        """A block with Ray, which several runs may share.

        Yields:
            The module.
        """
        if self._ray.is_initialized():
            yield self._ray
            return
        local = {"num_cpus": self.jobs, "include_dashboard": False}
        how = local if self.address is None else {"address": self.address}
        try:
            self._ray.init(log_to_driver=False, **how)
        except Exception as error:
            raise HeadwayError(f"--on {self.address or 'ray'}: {one_line(error)}") from error
        try:
            yield self._ray
        finally:
            self._ray.shutdown()


class _Tasks:
    """Tasks that run, and the mailbox that receives their messages."""

    def __init__(self, ray: Any, work: Work[Any], files: Mapping[str, bytes]) -> None:
        self._ray, self._work, self._files = ray, work, files
        self._do = ray.remote(num_cpus=1, max_retries=0)(_do)
        self._mailbox = ray.remote(num_cpus=0)(_Mailbox).remote()
        self.running: dict[Any, Any] = {}
        """The jobs by the references of their tasks."""
        self._numbers: dict[int, Any] = {}
        self._begun = 0

    def begin(self, job: Any, state: bytes | None) -> None:
        """Begins a job, from its state if there is one."""
        self._begun += 1
        task = self._do.remote(self._begun, job, self._work, state, self._files, self._mailbox)
        self.running[task], self._numbers[self._begun] = job, task

    def messages(self) -> Iterator[tuple[Any, str, Any]]:
        """Takes the messages of the running tasks; those of a task that was lost or is done may be late."""
        for number, kind, message in self._ray.get(self._mailbox.take.remote()):
            if (task := self._numbers[number]) in self.running:
                yield self.running[task], kind, message

    def end(self) -> None:
        """Ends the tasks that run."""
        with suppress(self._ray.exceptions.RayError):
            for task in self.running:
                self._ray.cancel(task, force=True)
            self._ray.kill(self._mailbox)


class _Mailbox:
    """An actor that holds messages until they are taken."""

    def __init__(self) -> None:
        self.held: list[tuple[int, str, Any]] = []

    def put(self, number: int, kind: str, message: Any) -> None:
        """Receives a message."""
        self.held.append((number, kind, message))

    def take(self) -> list[tuple[int, str, Any]]:
        """Returns the messages since the last call."""
        taken, self.held = self.held, []
        return taken


def _do(
    number: int, job: Any, work: Work[Any], known: bytes | None, files: Mapping[str, bytes], mailbox: Any
) -> tuple[str, Any]:
    """Does a job in a process of Ray, in a folder of its own that has the files."""
    wait_for = need("ray", "--on ray", "ray").get
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder, "state")
        for path, content in {**{Path(folder, name): held for name, held in files.items()}, state: known}.items():
            if content is not None:
                make_folder(path.parent)
                write_content(path, content)
        sent = _written_at(state)
        report = now_and_then(lambda *message: mailbox.put.remote(number, "told", message))

        def tell(doing: str, share: float, numbers: Mapping[str, float] | None = None) -> None:
            nonlocal sent
            if (now := _written_at(state)) != sent:
                wait_for(mailbox.put.remote(number, "state", state.read_bytes()))  # no faster than they are received
                sent = now
            report(doing, share, numbers)

        os.chdir(folder)
        try:
            return outcome(work, job, tell, state)
        finally:
            os.chdir(before)


def _written_at(path: Path) -> int | None:
    return path.stat().st_mtime_ns if path.exists() else None
