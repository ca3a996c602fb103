"""A pool of processes on this machine that run functions together, started once for all tests of a folder."""

from __future__ import annotations

import os
import socket
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import forked

LONGEST = 120
"""The most seconds that a function may take."""


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


DEVICES = {"gloo": "cpu", "nccl": "cuda"}
"""The device of the processes by the backend of their groups; of several GPUs, each process takes one."""


def _work(rank: int, size: int, port: int, pipe: Any, seconds: float, backend: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    if DEVICES[backend] == "cuda":
        torch.cuda.set_device(rank)
    store = dist.TCPStore("127.0.0.1", port, size, is_master=rank == 0, timeout=timedelta(seconds=30))
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=seconds))
    groups = {count: dist.new_group(list(range(count))) for count in range(2, size + 1)}
    while True:
        try:
            task = pipe.recv()
        except EOFError:
            return
        if task is None:
            if dist.is_initialized():
                dist.destroy_process_group()
            return
        function, count, arguments = task
        try:
            pipe.send((True, function(groups[count], *arguments)))
        except BaseException as error:
            pipe.send((False, f"{type(error).__name__}: {error}\n{traceback.format_exc()}"))


class FailedError(AssertionError):
    """Raised for a function that raises on some ranks.

    ``said`` has the message of each rank, or None, and ``results`` what the others returned.
    """

    def __init__(self, said: list[str | None], results: list[Any]) -> None:
        self.said, self.results = said, results
        super().__init__("\n".join(f"rank {rank}: {one}" for rank, one in enumerate(said) if one is not None))


class Pool:
    """Processes that run functions together.

    Args:
        size: the number of processes.
        seconds: the timeout of their groups.
        backend: the backend of their groups, one of ``DEVICES``.
    """

    def __init__(self, size: int, seconds: float = 60, backend: str = "gloo") -> None:
        context = forked.context()
        port = _free_port()
        self.pipes, self.processes = [], []
        for rank in range(size):
            here, there = context.Pipe()
            process = context.Process(target=_work, args=(rank, size, port, there, seconds, backend), daemon=True)
            process.start()
            there.close()
            self.pipes.append(here)
            self.processes.append(process)

    def run(self, count: int, function: Callable[..., Any], *arguments: Any, silent: tuple[int, ...] = ()) -> list[Any]:
        """Returns what function(group, *arguments) returns on each of the first ``count`` processes.

        Raises:
            FailedError: if it raises on one of them.
        """
        for pipe in self.pipes[:count]:
            pipe.send((function, count, arguments))
        results, said = [], []
        for rank, pipe in enumerate(self.pipes[:count]):
            if rank in silent:
                results.append(None), said.append(None)
                continue
            if not pipe.poll(LONGEST):
                raise FailedError([f"no answer in {LONGEST} s"], results)
            try:
                fine, value = pipe.recv()
            except EOFError:
                fine, value = False, "the process ended"
            results.append(value)
            said.append(None if fine else value)
        if any(one is not None for one in said):
            raise FailedError(said, results)
        return results

    def close(self) -> None:
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            with suppress(OSError):
                pipe.send(None)
            process.join(5)
            if process.is_alive():
                process.kill()
