"""Plans a ring: how far keys travel (to the last rank whose queries may attend to them), and what one call computes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..constants import writes
from ..kernels._ops import flatten
from ..masks import Mask, is_python
from ._call import SharedCall
from ._sight import as_one_interval, sees_all, sight

Span = tuple[int, int]
"""Runs of a shard that follow one another: the number of the first one, and that after the last one."""


@dataclass(frozen=True, eq=False)
class Part:
    """What one call computes: runs of this rank's queries, and runs of keys of one rank.

    Attributes:
        queries: the runs of queries.
        owner: the rank whose keys they are.
        keys: the runs of keys.
        mask: the mask of these queries and keys; None if each query sees each key.
    """

    queries: Span
    owner: int
    keys: Span
    mask: Mask | None


@dataclass(frozen=True, eq=False)
class Schedule:
    """The steps of a ring that a mask leaves.

    Attributes:
        parts: for each rank the calls with this rank's queries and that rank's keys.
        hops: how many ranks each run of keys passes after its own, hops[rank][key run], the same on every rank.
        steps: the largest of the hops.
    """

    parts: tuple[tuple[Part, ...], ...]
    hops: tuple[tuple[int, ...], ...]

    @property
    def steps(self) -> int:
        return max((max(runs, default=0) for runs in self.hops), default=0)

    def held(self, rank: int, step: int, size: int) -> tuple[int, tuple[int, ...]]:
        """Returns whose keys a rank has after some steps, and the numbers of the runs that have come so far.

        Args:
            rank: the rank.
            step: the steps.
            size: the number of ranks.
        """
        owner = (rank - step) % size
        return owner, tuple(j for j, hops in enumerate(self.hops[owner]) if hops >= step)


def schedule_of(call: SharedCall) -> Schedule:
    """Returns the schedule of a call, computed once for a mask and coordinates until these are written to.

    Args:
        call: the call.
    """
    mask, tensors = call.mask, list[Tensor]()
    if mask is not None and is_python(mask):  # a user's mask may depend on anything
        return _schedule(call)
    flatten((mask, call.q_at.facts(), call.k_at.facts()), tensors)
    if any(x.is_inference() for x in tensors):  # writing into them leaves no trace
        return _schedule(call)
    key = None if mask is None else mask.plan_key()
    about = (call.given_mask, call.q_at, call.k_at, call.q_shards)
    key = key if key is not None or mask is None else id(call.given_mask)
    return call.k_shards.fact(("ring", key, *map(id, about[1:]), writes(tensors)), about, lambda: _schedule(call))


@torch.inference_mode(False)  # inference tensors could not serve in a backward pass later
def _schedule(call: SharedCall) -> Schedule:
    size, rank = call.group.size, call.group.rank
    everything = [
        [[_sees(call, queries, keys) for keys in runs] for runs in call.k_shards.layout]
        for at in range(size)
        for queries in call.q_shards.layout[at]
    ]
    owner = [at for at in range(size) for _ in call.q_shards.layout[at]]
    hops = tuple(
        tuple(
            max(((owner[i] - of) % size for i, row in enumerate(everything) if row[of][j]), default=0)
            for j in range(len(runs))
        )
        for of, runs in enumerate(call.k_shards.layout)
    )
    own = [row for i, row in enumerate(everything) if owner[i] == rank]
    parts = [_parts(call, of, [row[of] for row in own]) for of in range(size)]
    return Schedule(tuple(map(tuple, parts)), hops)


def _sees(call: SharedCall, queries: tuple[int, int], keys: tuple[int, int]) -> bool:
    low, high = sight(call.part_of_mask(queries, keys), call.q_at.rows(*queries), call.k_at.rows(*keys))
    return low < high


def _parts(call: SharedCall, owner: int, visible: list[list[bool]]) -> list[Part]:
    """The calls with this rank's queries and one rank's keys, as few as the mask allows.

    Args:
        call: the call.
        owner: the rank whose keys they are.
        visible: for each pair of a run of queries and a run of keys whether any query may attend to any key.
    """
    count = len(call.k_shards.layout[owner])
    spans = [(j, j + 1) for j in range(count)]
    if owner == call.group.rank and count > 1:  # own keys are in one tensor, those of others in one per run
        whole = _part(call, (0, len(visible)), owner, (0, count)) if any(map(any, visible)) else None
        if whole is not None:
            return [whole]
    found: list[Part] = []
    for keys in spans:
        seeing = [i for i, row in enumerate(visible) if row[keys[0]]]
        together = _part(call, (seeing[0], seeing[-1] + 1), owner, keys) if len(seeing) > 1 else None
        found += [together] if together else [_of_one_run(call, i, owner, keys[0]) for i in seeing]
    return found


def _of_one_run(call: SharedCall, i: int, owner: int, j: int) -> Part:
    queries, keys = call.q_shards.runs[i], call.k_shards.layout[owner][j]
    mask = call.part_of_mask(queries, keys)
    all_seen = sees_all(mask, call.q_at.rows(*queries), call.k_at.rows(*keys))
    return Part((i, i + 1), owner, (j, j + 1), None if all_seen else mask)


def _part(call: SharedCall, queries: Span, owner: int, keys: Span) -> Part | None:
    """The call of several runs; None unless each query sees one interval of the keys in their order."""
    q_runs, k_runs = call.q_shards.runs[slice(*queries)], call.k_shards.layout[owner][slice(*keys)]
    masks = [[call.part_of_mask(q_run, k_run) for k_run in k_runs] for q_run in q_runs]
    q_at, k_at = ([at.rows(*run) for run in runs] for at, runs in ((call.q_at, q_runs), (call.k_at, k_runs)))
    found = as_one_interval(masks, q_at, k_at)
    if found is None:
        return None
    return Part(queries, owner, keys, None if found.start is None and found.stop is None else found)
