"""What a call over several processes sends and holds, for the tests of plans."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from headway import masks as M
from headway.parallel import Shards, attention
from headway.study.memory import Peak


def measured(group: dist.ProcessGroup, method: str, n: int, sizes: dict[str, int], *, causal: bool) -> dict[str, Any]:
    """The bytes that this rank sends, and the memory that it needs beyond its own q, k and v, forward and backward."""
    found: dict[str, Any] = {}
    for tokens in (64, n):  # the first call loads what is loaded once
        shards = Shards.zigzag(tokens, group)
        own = sum(stop - start for start, stop in shards.runs)
        q, k, v = (
            torch.randn(1, sizes[heads], own, sizes["head_dim"]).requires_grad_()
            for heads in ("heads", "kv_heads", "kv_heads")
        )
        up = torch.ones(()).expand(q.shape)  # of no memory

        def run(tensors: tuple[Tensor, ...] = (q, k, v), shards: Shards = shards, up: Tensor = up) -> tuple[int, int]:
            before = shards.group.sent
            out = attention(*tensors, shards=shards, method=method, mask=M.Causal() if causal else None)
            forward = shards.group.sent
            out.backward(up)
            return forward - before, shards.group.sent - forward

        dist.barrier(group)
        peak = Peak("cpu")
        resident = peak.bytes()
        forward, backward = run()
        found = {"forward": forward, "backward": backward, "memory": peak.bytes() - resident}
    return found


def call(group: dist.ProcessGroup, method: str, n: int, sizes: dict[str, int], causal: bool) -> dict[str, Any]:
    return measured(group, method, n, sizes, causal=causal)
