"""Exchanges by gloo under the rules of nccl, which needs GPUs: what its stream, its tensors and its groups ask for.

- The messages of a batch are one operation. Batches of a group run one after the other, in the order in which they
  are posted: a rank whose order differs from that of another one would wait for ever.
- A batch may run as late as its end is waited for, so that what is sent must not be written to before, and what is
  received must not be read.
- Tensors are contiguous, lie on the device of the group, and have dtypes that nccl sends. There are no tags.
- All ranks take part in the first operation of a group.
- Reading an exchanged number would wait for the GPU: ranks compare the first call of each kind alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import cases
import context_cases
import torch
import torch.distributed as dist

from headway import HeadwayError, parallel
from headway.parallel import Shards
from headway.parallel._group import Group

DTYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool),
)
"""What ncclDataType_t has, without formats of eight bits."""


class _Stream:
    """The batches of a group that were posted and have not run yet."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group, self.first, self.waiting = group, True, list["_Batch"]()

    def run_up_to(self, batch: _Batch) -> None:
        while batch in self.waiting:
            self.waiting.pop(0).run()


class _Batch:
    """What torch returns for all messages of a batch."""

    def __init__(self, stream: _Stream, operations: list[Any]) -> None:
        self.stream, self.operations = stream, operations

    def run(self) -> None:
        works = []
        for one in self.operations:
            peer = {"group_dst" if one.op is dist.isend else "group_src": one.group_peer}
            works.append(one.op(one.tensor, group=one.group, **peer))
        for work in works:
            work.wait()

    def wait(self) -> None:
        self.stream.run_up_to(self)


@contextmanager
def as_nccl() -> Iterator[list[int]]:
    """A block in which groups exchange as by nccl; gives the number of messages of each batch."""
    streams, counts = dict[int, _Stream](), list[int]()

    def batch_isend_irecv(operations: list[Any]) -> list[Any]:
        group = operations[0].group
        stream = streams.setdefault(id(group), _Stream(group))
        for one in operations:
            assert one.group is group
            assert one.tensor.is_contiguous()
            assert one.tensor.dtype in DTYPES, one.tensor.dtype
            assert one.tensor.device == Group.device.fget(None)  # type: ignore[attr-defined]
        peers = {one.group_peer for one in operations}
        assert not stream.first or len(peers) == group.size() - 1, "not all ranks take part in the first operation"
        stream.first = False
        batch = _Batch(stream, operations)
        stream.waiting.append(batch)
        counts.append(len(operations))
        return [batch]

    kept = dist.batch_isend_irecv, Group.device
    dist.batch_isend_irecv = batch_isend_irecv
    Group.device = property(lambda _: torch.device("cpu"))  # type: ignore[method-assign, assignment]
    try:
        yield counts
        assert not any(stream.waiting for stream in streams.values()), "an exchange was never waited for"
    finally:
        dist.batch_isend_irecv, Group.device = kept  # type: ignore[method-assign]


ENCODINGS = ["rope", "t5", "fire", "forgetting", "selective-rope", "repo", "rotary-values"]
"""One of each kind of what travels: nothing but keys, tables, pieces, biases of tokens, convolutions, positions."""
MASKS = ["no mask", "window", "packed documents", "padded gates", "grouped heads", "sink by query", "first keys"]


def calls(group: Any, method: str, shape: str) -> dict[str, Any]:
    """The differences of calls of attention."""
    with as_nccl():
        found = cases.sweep(group, method, shape, ENCODINGS) | cases.sweep_cases(group, method, shape, MASKS)
        if method == "ring":
            found |= cases.in_groups(group, ["dropout", "padded gates"], ["t5", "forgetting"])
    return found


MODELS = (
    *("forgetting, ring", "t5, heads", "fire, auto", "packed, ring", "parts, ring", "sharded context, ring"),
    *("whole context", "checkpointed", "checkpointed, backward later", "drawn positions"),
)


def models(group: Any) -> dict[str, Any]:
    """The differences of models, of decoding and of statistics."""
    with as_nccl():
        found: dict[str, Any] = context_cases.every(group, list(MODELS))
        found |= context_cases.every_decoded(group, ["rope, parts", "t5, gather"])
        found |= {name: max(one.values()) for name, one in context_cases.every_inspected(group).items()}
        return found | context_cases.measured(group)


def agreements(group: Any) -> tuple[list[int], str]:
    """The batches of three equal calls, of which ranks compare the first; what is said of another kind that differs."""
    (q, k, v), _ = cases.arguments_of(None)
    own = Shards.contiguous(cases.N, group)
    q, k, v = own.take(q, k, v, dim=2)[:3]
    with as_nccl() as counts:
        own.group.agreed.clear()
        batches = []
        for _ in range(3):
            parallel.attention(q, k, v, shards=own, method="gather")
            batches.append(len(counts) - sum(batches))
        try:
            parallel.attention(q, k, v, shards=own, method="gather", scale=float(1 + dist.get_rank(group)))
        except HeadwayError as error:
            return batches, str(error)
    return batches, "nothing"
