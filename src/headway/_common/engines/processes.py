"""Jobs in several processes of this machine: one that dies is replaced, and its job begins again."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Generic

from ._base import Engine, Finished, J, Losses, Told, Work, now_and_then, outcome

VISIBLE = "CUDA_VISIBLE_DEVICES"
"""The variable that names the GPUs that a process sees."""


def processors() -> int:
    """Returns the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Processes(Engine):
    """Processes of this machine. If this one dies, the others end at their next report.

    Args:
        jobs: the jobs at once.
        gpus: the number of NVIDIA GPUs that the processes divide: each sees only one of them, under the name cuda:0. If
            0, all processes see all GPUs.
    """

    def __init__(self, jobs: int, gpus: int = 0) -> None:
        self.jobs, self.gpus = jobs, gpus

    def run(self, jobs: Mapping[J, Path], work: Work[J], *, told: Told[J], finished: Finished[J]) -> None:
        """Does each job; see ``Engine``."""
        waiting, losses = deque(jobs), Losses()
        running: dict[Connection, _Worker[J]] = {}
        idle: list[_Worker[J]] = []
        free = list(range(self.jobs))[::-1]
        try:
            while waiting or running:
                while waiting and len(running) < self.jobs:
                    worker = idle.pop() if idle else self._started(work, free.pop())
                    worker.job = waiting.popleft()
                    running[worker.connection] = worker
                    with suppress(BrokenPipeError):  # it is dead, which recv says too
                        worker.connection.send((worker.job, jobs[worker.job]))
                for connection in wait(list(running)):
                    worker = running[connection]  # type: ignore[index]
                    job: Any = worker.job
                    try:
                        kind, *message = worker.connection.recv()
                    except (EOFError, OSError, pickle.UnpicklingError):  # before a message, or within one
                        del running[worker.connection]
                        free.append(worker.number)
                        worker.process.join()
                        worker.connection.close()
                        losses.add(job, f"with code {worker.process.exitcode}")
                        waiting.appendleft(job)
                        continue
                    if kind == "told":
                        told(job, *message)
                    elif kind == "raised":
                        raise message[0]
                    else:
                        del running[worker.connection]
                        idle.append(worker)
                        finished(job, *message)
        finally:
            for worker in (*running.values(), *idle):
                worker.process.terminate()
                worker.process.join()
                worker.connection.close()

    def _started(self, work: Callable[..., Any], number: int) -> _Worker[Any]:
        """Starts a process, by its number among those that run at once."""
        context = multiprocessing.get_context("spawn")  # after a fork, torch's threads would be in an unusable state
        ours, its = context.Pipe()
        names = _names(self.gpus)
        gpu = names[number % len(names)] if names else None
        # pickled here, with tensors as plain values: torch would put tensors in arguments into shared memory
        process = context.Process(target=_serve, args=(its, pickle.dumps(work), gpu), daemon=True)
        with _interrupts_blocked():
            process.start()
        its.close()
        return _Worker(process, ours, number)


@dataclass
class _Worker(Generic[J]):
    """A process, our end of its pipe, its number among those that run at once, and its job."""

    process: BaseProcess
    connection: Connection
    number: int
    job: J | None = None


def _names(gpus: int) -> list[str]:
    """The names of the first GPUs that this process sees."""
    seen = os.environ.get(VISIBLE)
    return (seen.split(",") if seen else [str(number) for number in range(gpus)])[:gpus]


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """A block in which new processes get no interrupts, not even before they can ignore them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(connection: Connection, pickled: bytes, gpu: str | None) -> None:
    """Does the jobs that come over a connection, in its own process; if a GPU is named, it sees only that one."""
    if gpu is not None:
        os.environ[VISIBLE] = gpu  # which CUDA reads when it is first used
    work: Work[Any] = pickle.loads(pickled)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one is stopped too, and ends it
    with suppress(EOFError, ConnectionError):  # nobody waits for a result any more
        while True:
            job, state = connection.recv()
            tell = now_and_then(lambda *message: connection.send(("told", *message)))
            connection.send(outcome(work, job, tell, state))
