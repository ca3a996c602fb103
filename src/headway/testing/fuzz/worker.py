"""A process that checks cases, so that a crash or a hang is a finding too."""

from __future__ import annotations

import multiprocessing
import signal
from multiprocessing.connection import Connection
from types import TracebackType

import torch

from .cases import Case
from .search import Outcome, outcome_of

LIMIT = 120.0
"""Seconds that a case may take."""


class Worker:
    """Checks cases in another process, with some threads of torch. It is started again after a case that ends it."""

    def __init__(self, threads: int, limit: float = LIMIT) -> None:
        self.threads, self.limit = threads, limit
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
        self.process = spawn.Process(target=_serve, args=(theirs, self.threads), daemon=True)
        self.process.start()
        theirs.close()

    def __call__(self, case: Case) -> Outcome:
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


def _serve(connection: Connection, threads: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one ends it
    torch.set_num_threads(threads)
    while True:
        try:
            case = connection.recv()
        except EOFError:
            return
        connection.send(outcome_of(case))
