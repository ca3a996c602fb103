"""Jobs in several processes: one that dies is replaced, and its job begins again."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar

from ..errors import HeadwayError
from .own_files import one_line

__all__ = ["processors", "run_in_processes"]

J = TypeVar("J")
DEATHS = 3
"""The deaths of its process after which a job is given up."""
BETWEEN_REPORTS = 0.5
"""Seconds between two reports of a process."""


def processors() -> int:
    """Returns the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_in_processes(
    jobs: Iterable[J],
    work: Callable[[J, Callable[[str, float], None]], Any],
    processes: int,
    *,
    told: Callable[[J, str, float], None],
    finished: Callable[[J, Any], None],
) -> None:
    """Does each job in one of several processes.

    A process that dies, as one that is killed, is replaced, and its job begins again; a job that keeps its state in a
    file so loses what it did since. If this process dies, the others end at their next report.

    Args:
        jobs: the jobs, in the order in which they begin; they are sent to the processes by pickle.
        work: does a job and returns its result. It gets the job, and a function to report what it does and the share
            that is done. It is sent to the processes too, and so is a function of a module, or a partial one.
        processes: the number of processes.
        told: receives the reports, here.
        finished: receives the result of each job, here, as soon as it is known.

    Raises:
        HeadwayError: if a job raises one, or its process dies three times.
    """
    waiting, deaths = deque(jobs), dict[Any, int]()
    running: dict[Connection, _Worker[J]] = {}
    idle: list[_Worker[J]] = []
    try:
        while waiting or running:
            while waiting and len(running) < processes:
                worker = idle.pop() if idle else _started(work)
                worker.job = waiting.popleft()
                running[worker.connection] = worker
                with suppress(BrokenPipeError):  # it is dead, which recv says too
                    worker.connection.send(worker.job)
            for connection in wait(list(running)):
                worker = running[connection]  # type: ignore[index]
                job: Any = worker.job
                try:
                    kind, *message = worker.connection.recv()
                except (EOFError, ConnectionError, pickle.UnpicklingError):
                    del running[worker.connection]
                    worker.process.join()
                    deaths[job] = deaths.get(job, 0) + 1
                    if deaths[job] == DEATHS:
                        raise HeadwayError(
                            f"the process of a job ended {DEATHS} times, last with code {worker.process.exitcode}: "
                            "give fewer jobs at once, if there is too little memory"
                        ) from None
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


@dataclass
class _Worker(Generic[J]):
    """A process, its end of a pipe that is ours, and its job."""

    process: BaseProcess
    connection: Connection
    job: J | None = None


def _started(work: Callable[..., Any]) -> _Worker[Any]:
    context = multiprocessing.get_context("spawn")  # a fork copies the threads of torch in no usable state
    ours, its = context.Pipe()
    process = context.Process(target=_serve, args=(its, work), daemon=True)
    with _interrupts_blocked():
        process.start()
    its.close()
    return _Worker(process, ours)


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """A block whose processes get no interrupts, not even before they could ignore them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(connection: Connection, work: Callable[..., Any]) -> None:
    """Does the jobs that come over a connection, in a process of its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one is stopped too, and ends it
    last = 0.0

    def tell(doing: str, share: float) -> None:
        nonlocal last
        if time.monotonic() - last >= BETWEEN_REPORTS:
            connection.send(("told", doing, share))
            last = time.monotonic()

    with suppress(EOFError, ConnectionError):  # nobody waits for a result any more
        while True:
            job = connection.recv()
            try:
                result = work(job, tell)
            except HeadwayError as error:
                connection.send(("raised", HeadwayError(str(error))))
            except Exception as error:
                traceback.print_exc()
                connection.send(("raised", HeadwayError(f"a job failed: {one_line(error)}")))
            else:
                connection.send(("finished", result))
