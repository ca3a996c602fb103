"""Which keys travel how far in a ring: to the last rank whose queries may attend to them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..constants import writes
from ..kernels._ops import flatten
from ..masks import is_python
from ._call import SharedCall
from ._sight import sight


@dataclass(frozen=True)
class Schedule:
    """What a mask leaves of a ring, the same on every rank.

    Attributes:
        visible: for each pair of a run of this rank's queries, and a run of keys of each rank, whether any query may
            attend to any key: visible[query run][rank][key run].
        hops: how many ranks each run of keys of each rank passes after its own: hops[rank][key run].
        steps: the largest of the hops.
    """

    visible: tuple[tuple[tuple[bool, ...], ...], ...]
    hops: tuple[tuple[int, ...], ...]

    @property
    def steps(self) -> int:
        return max((max(runs, default=0) for runs in self.hops), default=0)

    def held(self, rank: int, step: int, size: int) -> tuple[int, tuple[int, ...]]:
        """Returns whose keys a rank has after some steps, and the numbers of their runs that have come so far.

        Args:
            rank: the rank.
            step: the steps.
            size: the number of ranks.
        """
        owner = (rank - step) % size
        return owner, tuple(j for j, hops in enumerate(self.hops[owner]) if hops >= step)


def schedule_of(call: SharedCall) -> Schedule:
    """Returns the schedule of a call, which is computed once for a mask and the coordinates until these are written to.

    Args:
        call: the call.
    """
    mask, tensors = call.mask, list[Tensor]()
    if mask is not None and is_python(mask):  # what a user's mask depends on is not known
        return _schedule(call)
    flatten((mask, call.q_at.facts(), call.k_at.facts()), tensors)
    if any(x.is_inference() for x in tensors):  # writing into them leaves no trace
        return _schedule(call)
    key = None if mask is None else mask.plan_key()
    about = (call.given_mask, call.q_at, call.k_at, call.q_shards)
    key = key if key is not None or mask is None else id(call.given_mask)
    return call.k_shards.fact(("ring", key, *map(id, about[1:]), writes(tensors)), about, lambda: _schedule(call))


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
    own = tuple(tuple(map(tuple, row)) for i, row in enumerate(everything) if owner[i] == rank)
    return Schedule(own, hops)


def _sees(call: SharedCall, queries: tuple[int, int], keys: tuple[int, int]) -> bool:
    low, high = sight(call.part_of_mask(queries, keys), call.q_at.rows(*queries), call.k_at.rows(*keys))
    return low < high
