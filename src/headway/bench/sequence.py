"""Compares two processes that share a sequence with one that has the threads of both: attention and training steps."""

from __future__ import annotations

import gc
import json
import os
import random
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from ..attention import attention
from ..models import Decoder, TransformerConfig
from ..parallel import METHODS, Shards, context
from ..parallel import attention as shared_attention
from .cases import BATCH, SEQUENCE_MEMORY, SEQUENCE_STEP, Case, Plan
from .measure import CheckError, agree, agree_on_the_whole
from .memory import WARM_UP, in_new_process
from .rows import Row
from .sides import OURS, asked, encoded, kernel_of, shapes
from .steps import SIZES

RANKS = 2


def measure(case: Case, plan: Plan) -> Row:
    """Measures a case in new processes: forward and backward in one process and with each method.

    Times are measured in turn in the same two processes; memory is measured in two new processes for each side.

    Raises:
        CheckError: with the last lines of a process that fails; a process also fails if a method computes other
            numbers.
    """
    task = {"case": case.fields(), "seconds": plan.seconds, "rounds": plan.rounds}
    about = {"kernel": kernel_of(case), "seconds": plan.seconds, "says": {}}
    try:
        if case.kind != SEQUENCE_MEMORY:
            return _on_all_ranks(task) | about
        most = {side: _on_all_ranks({**task, "only": side}) for side in (OURS, *METHODS)}
    except RuntimeError as error:
        raise CheckError(f"{case}: {error}") from error
    return about | {"bytes": most, "extra_bytes": most[OURS]}


def _on_all_ranks(task: dict[str, Any]) -> Any:
    """Runs ``main`` in two new processes; returns what the first one prints."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(RANKS) as processes:
        given = {**task, "store": f"{folder}/store"}
        return next(processes.map(lambda rank: in_new_process("sequence", {**given, "rank": rank}), range(RANKS)))


def main(task: str) -> None:
    """Measures a case as one of the processes and prints the numbers; ``task`` is from ``measure``, as JSON."""
    given = json.loads(task)
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = dist.FileStore(given["store"], RANKS)
    dist.init_process_group("gloo", store=store, rank=given["rank"], world_size=RANKS)
    case, threads = Case(**given["case"]), given["threads"]
    if "only" in given:
        found: Any = _memory(case, threads, given["only"])
    else:
        sides = _Steps if case.kind == SEQUENCE_STEP else _Calls
        found = sides(case, threads).measured(given["seconds"], given["rounds"])
    print(json.dumps(found))
    dist.destroy_process_group()
    gc.collect()  # frees objects that hold the groups: gloo may abort a process that exits while gloo's threads live


def _memory(case: Case, threads: int, side: str) -> int:
    """Returns the peak bytes that a side takes in a process beyond q, k, v and the gradient of the output."""
    from ..study.memory import Peak

    for n in (min(WARM_UP, case.n), case.n):
        run = _Calls(replace(case, n=n), threads).runs[side]
        dist.barrier()
        peak = Peak("cpu")
        before = peak.bytes()
        results = run()
        most = torch.tensor(peak.bytes() - before)
        del results
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    return max(0, int(most))


class _Sides(ABC):
    """One process and each method, as this process runs them.

    Args:
        case: the case.
        threads: the threads of the single process; processes that share the sequence divide them.
    """

    def __init__(self, case: Case, threads: int) -> None:
        self.case, self.threads, self.first = case, threads, dist.get_rank() == 0
        self.shards = Shards.zigzag(case.n, dist.group.WORLD)
        self.runs = {OURS: self._one} | {name: partial(self._shared, name) for name in METHODS}

    def _one(self) -> list[Tensor]:
        if not self.first:
            return []
        torch.set_num_threads(self.threads)
        return self.one()

    def _shared(self, method: str) -> list[Tensor]:
        torch.set_num_threads(max(1, self.threads // RANKS))
        return self.shared(method)

    @abstractmethod
    def one(self) -> list[Tensor]:
        """Returns the results of one process."""

    @abstractmethod
    def shared(self, method: str) -> list[Tensor]:
        """Returns this process's results with a method."""

    @abstractmethod
    def check(self, what: str, found: list[Tensor], expected: list[Tensor]) -> None:
        """Checks the results ``found`` by the first process with a method against those of the single process.

        Raises:
            CheckError: if they differ; the message says ``what`` is compared.
        """

    def measured(self, seconds: float, least: int) -> dict[str, Any]:
        """Returns the medians of each side: milliseconds of wall time, and of all processors together."""
        expected = self._one()
        for name in METHODS:
            found = self.runs[name]()
            if self.first:
                self.check(f"the results of one process and of {name}", found, expected)
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

    def _timed(self, run: Any) -> tuple[float, float]:
        dist.barrier()
        began, before = time.perf_counter(), time.process_time()
        run()
        used = torch.tensor(time.process_time() - before, dtype=torch.float64)
        dist.all_reduce(used)
        return 1e3 * (time.perf_counter() - began), 1e3 * used.item()


class _Calls(_Sides):
    """Forward and backward of attention: the output and the gradients of q, k, v and learned parameters."""

    def __init__(self, case: Case, threads: int) -> None:
        super().__init__(case, threads)
        torch.manual_seed(0)
        self.whole = [torch.randn(shape) for shape in shapes(case)]
        self.arguments, self.learned = asked(case)
        *self.own, self.at = self.shards.take(*self.whole, dim=2)
        given = {name: self.shards.take(x)[0] for name, x in self.arguments.items() if name.endswith("_input")}
        self.own_arguments = self.arguments | given

    def one(self) -> list[Tensor]:
        return self._gradients(self.whole, partial(attention, **self.arguments))

    def shared(self, method: str) -> list[Tensor]:
        call = partial(shared_attention, shards=self.shards, method=method, q_positions=self.at, **self.own_arguments)
        return self._gradients(self.own, call)

    def _gradients(self, given: list[Tensor], call: Any) -> list[Tensor]:
        *qkv, upstream = given
        leaves = [x.detach().requires_grad_() for x in qkv]
        out = call(*leaves)
        return [out.detach(), *torch.autograd.grad(out, [*leaves, *self.learned], upstream)]

    def check(self, what: str, found: list[Tensor], expected: list[Tensor]) -> None:
        agree(what, "float32", found[:4], self.shards.take(*expected[:4], dim=2)[:4])


class _Steps(_Sides):
    """A training step of a decoder of four layers on random tokens: forward, backward and AdamW."""

    def __init__(self, case: Case, threads: int) -> None:
        super().__init__(case, threads)
        torch.manual_seed(0)
        self.model = Decoder(TransformerConfig(**SIZES), encoded(case)[0].get("encoding"))
        # with a learning rate of 0 all steps compute the same, also in the process that takes part in fewer of them
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.0)
        ids = torch.randint(SIZES["vocab_size"], (BATCH, case.n + 1), generator=torch.Generator().manual_seed(0))
        self.ids, self.labels = ids[:, :-1], ids[:, 1:]

    def one(self) -> list[Tensor]:
        return self._step(self.ids, self.labels, nullcontext(), {})

    def shared(self, method: str) -> list[Tensor]:
        ids, labels, at = self.shards.take(self.ids, self.labels)
        return self._step(ids, labels, context(self.model, self.shards, method=method), {"positions": at})

    def _step(
        self, ids: Tensor, labels: Tensor, within: AbstractContextManager[Any], arguments: dict[str, Any]
    ) -> list[Tensor]:
        """Returns the gradients of all parameters, as one tensor."""
        self.optimizer.zero_grad()
        with within:
            logits = self.model(ids, **arguments)
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / self.labels.numel()
            loss.backward()
        gradients = [x.grad for x in self.model.parameters() if x.grad is not None]
        whole = parameters_to_vector(gradients)
        if ids.shape[1] < self.case.n:
            dist.all_reduce(whole)
            vector_to_parameters(whole, gradients)
        self.optimizer.step()
        return [whole]

    def check(self, what: str, found: list[Tensor], expected: list[Tensor]) -> None:
        agree_on_the_whole(what, "float32", found, expected)
