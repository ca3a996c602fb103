"""Attention of a sequence that two processes share, against one process with the threads of both."""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..attention import attention
from ..parallel import METHODS, Shards
from ..parallel import attention as shared_attention
from .cases import Case, Plan
from .measure import CheckError, agree
from .memory import in_new_process
from .rows import Row
from .sides import OURS, Run, asked, kernel_of, shapes

RANKS = 2


def measure(case: Case, plan: Plan) -> Row:
    """Measures a case in two new processes: forward and backward of one process and of each method, in turn.

    Raises:
        CheckError: if a process fails, with its last line, as it does if a method computes other numbers.
    """
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(RANKS) as processes:
        task = {"case": case.fields(), "seconds": plan.seconds, "rounds": plan.rounds, "store": f"{folder}/store"}
        rows = processes.map(lambda rank: in_new_process("sequence", {**task, "rank": rank}), range(RANKS))
        try:
            return next(rows) | {"kernel": kernel_of(case), "seconds": plan.seconds, "says": {}}
        except RuntimeError as error:
            raise CheckError(f"{case}: {error}") from error


def main(task: str) -> None:
    """Measures a case as one of the processes, and prints the numbers; ``task`` has what ``measure`` gives, as JSON."""
    given = json.loads(task)
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = dist.FileStore(given["store"], RANKS)
    dist.init_process_group("gloo", store=store, rank=given["rank"], world_size=RANKS)
    print(json.dumps(_Sides(Case(**given["case"]), given["threads"]).measured(given["seconds"], given["rounds"])))
    dist.destroy_process_group()


class _Sides:
    """One process and each method, as this process runs them.

    Args:
        case: the case.
        threads: the threads of one process; each of those that share the sequence has its part of them.
    """

    def __init__(self, case: Case, threads: int) -> None:
        self.threads, self.first = threads, dist.get_rank() == 0
        torch.manual_seed(0)
        self.whole = [torch.randn(shape) for shape in shapes(case)]
        self.arguments, self.learned = asked(case)
        self.shards = Shards.zigzag(case.n, dist.group.WORLD)
        *self.own, self.at = self.shards.take(*self.whole, dim=2)
        self.runs: dict[str, Run] = {OURS: self._one} | {name: partial(self._shared, name) for name in METHODS}

    def _one(self) -> list[Tensor]:
        if not self.first:
            return []
        torch.set_num_threads(self.threads)
        return self._gradients(self.whole, partial(attention, **self.arguments))

    def _shared(self, method: str) -> list[Tensor]:
        torch.set_num_threads(max(1, self.threads // RANKS))
        call = partial(shared_attention, shards=self.shards, method=method, q_positions=self.at, **self.arguments)
        return self._gradients(self.own, call)

    def _gradients(self, given: list[Tensor], call: Any) -> list[Tensor]:
        *qkv, upstream = given
        leaves = [x.detach().requires_grad_() for x in qkv]
        out = call(*leaves)
        return [out.detach(), *torch.autograd.grad(out, [*leaves, *self.learned], upstream)]

    def _check(self) -> None:
        """Checks the output and the gradients of q, k and v of the first process."""
        *expected, _ = self.shards.take(*self._one()[:4], dim=2) if self.first else [None]
        for name in METHODS:
            found = self.runs[name]()[:4]
            if self.first:
                agree(f"the results of one process and of {name}", "float32", found, expected)

    def measured(self, seconds: float, least: int) -> dict[str, Any]:
        """Returns the medians of each side, in milliseconds of time and of all processors together."""
        self._check()
        draw, turns = random.Random(0), list[dict[str, tuple[float, float]]]()
        began = time.perf_counter()
        while self._goes_on(len(turns) < max(least, 1) or time.perf_counter() - began < seconds * len(self.runs)):
            turns.append({name: self._timed(self.runs[name]) for name in draw.sample([*self.runs], len(self.runs))})
        wall, processors = (
            {name: median(turn[name][kind] for turn in turns) for name in self.runs} for kind in range(2)
        )
        return {"ms": wall, "processor_ms": processors, "rounds": len(turns)}

    def _goes_on(self, wanted: bool) -> bool:
        """Whether the first process wants another turn."""
        said = [wanted]
        dist.broadcast_object_list(said, src=0)
        return said[0]

    def _timed(self, run: Run) -> tuple[float, float]:
        dist.barrier()
        began, before = time.perf_counter(), time.process_time()
        run()
        used = torch.tensor(time.process_time() - before, dtype=torch.float64)
        dist.all_reduce(used)
        return 1e3 * (time.perf_counter() - began), 1e3 * used.item()
