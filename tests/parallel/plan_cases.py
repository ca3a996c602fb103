"""What a call over several processes sends and holds, for the tests of plans."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.profiler import ProfilerActivity, profile

from headway import masks as M
from headway.parallel import Shards, attention

Case = tuple[str, str, int, bool]
"""The method, the dtype, the number of key heads, and whether the mask is causal."""
TOKENS, HEADS, HEAD_DIM = 2048, 8, 64


def measured(group: dist.ProcessGroup, cases: list[Case]) -> list[dict[str, int]]:
    """The bytes that this rank sends, and the memory that it needs beyond its own q, k and v, forward and backward."""
    return [_measured(group, *case) for case in cases]


def measured_on_mesh(group: dist.ProcessGroup, cases: list[Case]) -> list[dict[str, int]]:
    """As ``measured``, where two of four processes share each of two sequences."""
    mesh = DeviceMesh("cpu", torch.arange(4).view(2, 2), mesh_dim_names=("data", "sequence"))
    return measured(mesh["sequence"].get_group(), cases)


def _measured(group: dist.ProcessGroup, method: str, dtype: str, kv_heads: int, causal: bool) -> dict[str, int]:
    shards = Shards.zigzag(TOKENS, group)
    own = sum(stop - start for start, stop in shards.runs)
    q, k, v = (
        torch.randn(1, heads, own, HEAD_DIM).to(getattr(torch, dtype)).requires_grad_()
        for heads in (HEADS, kv_heads, kv_heads)
    )
    up = torch.ones((), dtype=q.dtype).expand(q.shape)  # of no memory
    before = shards.group.sent
    with _silent(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        out = attention(q, k, v, shards=shards, method=method, mask=M.Causal() if causal else None)
        forward = shards.group.sent
        out.backward(up)
    backward = shards.group.sent
    return {"forward": forward - before, "backward": backward - forward, "memory": _peak(profiled)}


def _peak(profiled: Any) -> int:
    """The most memory that torch had allocated at once, beyond that of the beginning."""
    events = [one for one in profiled.profiler.kineto_results.events() if one.name() == "[memory]"]
    most = held = 0
    for one in sorted(events, key=lambda one: one.start_ns()):
        held += one.nbytes()
        most = max(most, held)
    return most


@contextmanager
def _silent() -> Iterator[None]:
    """The profiler says on standard error that it starts and stops."""
    kept = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
