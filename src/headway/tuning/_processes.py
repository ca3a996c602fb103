"""Does work in separate processes, so that a program that crashes or hangs is a result like any other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from time import monotonic
from typing import Any

from .._common.engines import processors
from .._common.progress import Share
from ..testing.fuzz.search import Outcome
from ..testing.fuzz.worker import Worker

MOST = 16
"""Processes at once."""
LIMIT = 90.0
"""Seconds that one item may take, with the compilation of its programs."""


@contextmanager
def processes(function: Callable[[Any], Outcome], count: int) -> Iterator[list[Callable[[Any], Outcome]]]:
    """Starts processes that compute a function of a module: at most ``count``, and one for each core."""
    cores = processors()
    count = max(1, min(MOST, cores, count))
    workers = [Worker(max(1, cores // count), LIMIT, function) for _ in range(count)]
    try:
        yield list(workers)
    finally:
        for worker in workers:
            worker.__exit__(None, None, None)


def outcomes(
    workers: Sequence[Callable[[Any], Outcome]], items: Sequence[Any], seconds: float, watch: Share
) -> list[Outcome | None]:
    """Returns the outcome of each item; None for those that there was no time for.

    Args:
        workers: the workers. Each computes one item after another.
        items: the items, in the order in which they are begun.
        seconds: the time for all of them. Items that still run at its end are stopped, and count as not begun.
        watch: is told of progress.
    """
    end = monotonic() + seconds
    idle: SimpleQueue[Callable[[Any], Outcome]] = SimpleQueue()
    for one in workers:
        idle.put(one)

    def outcome(item: Any) -> Outcome | None:
        worker = idle.get()
        try:
            rest = end - monotonic()
            if rest <= 0:
                return None
            if isinstance(worker, Worker):
                worker.limit = min(LIMIT, rest)
            came = worker(item)
            return None if came.kind == "timeout" and rest < LIMIT else came
        finally:
            idle.put(worker)

    came: list[Outcome | None] = []
    pool = ThreadPoolExecutor(len(workers))
    try:
        for result in pool.map(outcome, items):
            came.append(result)
            watch(len(came) / len(items))
    finally:
        end = 0.0  # an interrupted run begins no more
        pool.shutdown(wait=False, cancel_futures=True)
    return came
