"""What a call over several processes sends and holds, for the tests of plans."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.profiler import ProfilerActivity, profile

import headway as hw
from headway import masks as M
from headway.parallel import Shards, attention
from headway.positions import PositionEncoding

Case = tuple[str, str, int, bool, str | None]
"""The method, the dtype, the number of key heads, whether the mask is causal, and the encoding."""
TOKENS, HEADS, HEAD_DIM = 2048, 8, 64


def measured(group: dist.ProcessGroup, cases: list[Case]) -> list[dict[str, int]]:
    """The bytes that this rank sends, and the memory that it needs beyond its own q, k and v, forward and backward."""
    return [_measured(group, *case) for case in cases]


def measured_on_mesh(group: dist.ProcessGroup, cases: list[Case]) -> list[dict[str, int]]:
    """As ``measured``, where two of four processes share each of two sequences."""
    mesh = DeviceMesh("cpu", torch.arange(4).view(2, 2), mesh_dim_names=("data", "sequence"))
    return measured(mesh["sequence"].get_group(), cases)


def tokens_of(dtype: str) -> int:
    """The tokens of a sequence: in narrow dtypes more, beside which what every call allocates is small."""
    return TOKENS if dtype == "float32" else 2 * TOKENS


def encoding_of(name: str | None) -> PositionEncoding | None:
    return None if name is None else hw.encoding(name, num_heads=HEADS, embed_dim=HEADS * HEAD_DIM, head_dim=HEAD_DIM)


def _measured(
    group: dist.ProcessGroup, method: str, dtype: str, kv_heads: int, causal: bool, name: str | None
) -> dict[str, int]:
    encoding = encoding_of(name)
    shards = Shards.zigzag(tokens_of(dtype), group)
    own = sum(stop - start for start, stop in shards.runs)
    q, k, v = (
        torch.randn(1, heads, own, HEAD_DIM).to(getattr(torch, dtype)).requires_grad_()
        for heads in (HEADS, kv_heads, kv_heads)
    )
    up = torch.ones((), dtype=q.dtype).expand(q.shape)  # of no memory
    x = None
    if encoding is not None and encoding.reads_input:
        x = torch.randn(1, own, HEADS * HEAD_DIM, dtype=q.dtype, requires_grad=True)
    options = {"encoding": encoding, "q_input": x, "k_input": x, "mask": M.Causal() if causal else None}
    gc.collect()  # what is freed in the block would count as less
    before = shards.group.sent
    with _silent(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        out = attention(q, k, v, shards=shards, method=method, **options)
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
