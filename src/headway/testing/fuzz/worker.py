"""Checks cases in another process, so that a crash or a hang is a finding too."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

import torch

from .search import Outcome, outcome_of

LIMIT = 120.0
"""Seconds that a case may take."""


class Worker:
    """Another process with some threads of torch that checks cases. It is started again after a case that ends it.

    Attributes:
        threads: of torch.
        limit: the seconds that a case may take.
        function: the function that the process applies to a case, from a module.
    """

    def __init__(self, threads: int, limit: float = LIMIT, function: Callable[[Any], Outcome] = outcome_of) -> None:
        self.threads, self.limit, self.function = threads, limit, function
        self._start()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.join()

    def _start(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.connection, theirs = spawn.Pipe()
        self.process = spawn.Process(target=_serve, args=(theirs, self.threads, self.function), daemon=True)
        self.process.start()
        theirs.close()

    def __call__(self, case: Any) -> Outcome:
        """Checks a case."""
        try:
            self.connection.send(case)
            if self.connection.poll(self.limit):
                outcome: Outcome = self.connection.recv()
                return outcome
        except (EOFError, ConnectionError):
            self.process.join()
            ended = Outcome("crash", f"the process ended with {self.process.exitcode}")
        else:
            self.process.kill()
            self.process.join()
            ended = Outcome("timeout", f"it took more than {self.limit:.0f} seconds")
        self._start()
        return ended


def _serve(connection: Connection, threads: int, function: Callable[[Any], Outcome]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one ends it
    torch.set_num_threads(threads)
    while True:
        try:
            case = connection.recv()
        except EOFError:
            return
        connection.send(function(case))
