"""Writes reductions as the words that csrc/call.h reads, and reads their results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from ...reductions import (
    ColumnSums,
    Entropy,
    MeanDistance,
    PooledMap,
    Reduction,
    RowStatistics,
    TopKeys,
    VisibleKeys,
    WeightsAt,
    WeightsByDistance,
    WeightsByLabel,
    WeightsOfMatches,
)
from .._problem import Call
from .._results import ForwardResults
from ._descriptor import ABSENT, CallDescriptor

R = TypeVar("R", bound=Reduction)

SHARED = (RowStatistics, Entropy, VisibleKeys, MeanDistance, ColumnSums, TopKeys, WeightsAt)
"""Reductions of which one pass computes any number."""
SINGLE = (WeightsByLabel, WeightsByDistance, WeightsOfMatches, PooledMap)
"""Reductions of which one pass computes only one of each class."""
NAMES: dict[type[Reduction], str] = {
    Entropy: "entropy",
    VisibleKeys: "visible",
    MeanDistance: "distance",
}
"""Reductions whose result is the tensor that the kernel wrote."""
FAR = 1 << 62
"""An edge beyond every distance, for calls without edges."""
REDUCTIONS = frozenset((*SHARED, *SINGLE))


class ReductionWords:
    """The reductions of one call of the kernel, and the memory for their results.

    Args:
        call: the call.
        counted: the queries that count, [batch or 1, n] bool; None for all.
    """

    def __init__(self, call: Call, counted: Tensor | None) -> None:
        self.call, self.counted = call, counted
        self.taken: list[Reduction] = []
        self.results: ForwardResults
        self._memory: dict[str, Tensor] = {}

    def takes(self, one: Reduction) -> bool:
        """Whether this call can take one more reduction."""
        if isinstance(one, TopKeys) and any(of.least is not one.least for of in self._of(TopKeys)):
            return False
        return type(one) in SHARED or not self._of(type(one))

    def _of(self, kind: type[R]) -> list[R]:
        return [one for one in self.taken if isinstance(one, kind)]

    def add_to(self, descriptor: CallDescriptor) -> None:
        """Allocates the results and adds the words of csrc/call.h's ReduceCall."""
        q, k = self.call.q, self.call.k
        (batch, heads, n), m = q.shape[:3], k.shape[2]
        words = descriptor.words

        def place(name: str, *shape: int, dtype: torch.dtype = torch.float32) -> None:
            self._memory[name] = q.new_empty(batch, heads, *shape, dtype=dtype)
            descriptor.fresh(self._memory[name])

        def place_if(kind: type[Reduction], name: str, *shape: int, dtype: torch.dtype = torch.float32) -> None:
            if self._of(kind):
                place(name, *shape, dtype=dtype)
            else:
                words.extend(ABSENT)

        words.append(1)
        if self.counted is None:
            words.extend(ABSENT)
        else:
            descriptor.broadcast(self.counted)
        place_if(Entropy, "entropy", n)
        place_if(VisibleKeys, "visible", n, dtype=torch.int64)
        place_if(MeanDistance, "distance", n)
        top = max((one.count for one in self._of(TopKeys)), default=0)
        words.append(top)
        if top:
            place("top weights", n, top)
            place("top keys", n, top, dtype=torch.int64)
            least = self._of(TopKeys)[0].least
            if least is None:
                words.extend(ABSENT)
            else:
                descriptor.broadcast(least)
        keys = [one.keys for one in self._of(WeightsAt)]
        at = sum(x.shape[-1] for x in keys)
        words.append(at)
        if at:
            rows = max(x.shape[0] for x in keys)
            descriptor.broadcast(torch.cat([x.expand(rows, -1, -1) for x in keys], -1))
            place("at", n, at)
        count = sum(one.count for one in self._of(WeightsByLabel))
        words.append(count)
        if count:
            descriptor.broadcast(self._of(WeightsByLabel)[0].labels)
            place("labels", n, count)
        edges = [edge for one in self._of(WeightsByDistance) for edge in one.edges or (FAR,)]
        words.append(len(edges))
        if edges:
            descriptor.tensor(torch.tensor(edges))
            place("ranges", n, len(edges) + 1)
        matches = self._of(WeightsOfMatches)
        words.append(len(matches))
        if matches:
            words.append(matches[0].most)
            descriptor.broadcast(matches[0].queries)
            descriptor.broadcast(matches[0].keys)
            place("match sums", n)
            place("match counts", n, dtype=torch.int64)
        place_if(ColumnSums, "columns", m, dtype=torch.float64)
        maps = self._of(PooledMap)
        words.extend((maps[0].rows, maps[0].columns) if maps else (0, 0))
        if maps:
            place("mass", maps[0].rows, maps[0].columns, dtype=torch.float64)
            place("largest", maps[0].rows, maps[0].columns)
        words.append(int(bool(maps) and maps[0].one_pass))

    def values(self) -> list[Any]:
        """The value of each of ``taken``, in order."""
        memory, at, values = self._memory, 0, list[Any]()
        for one in self.taken:
            if isinstance(one, RowStatistics):
                values.append((self.results.row_max, self.results.row_sum))
            elif isinstance(one, TopKeys):
                values.append((memory["top weights"][..., : one.count], memory["top keys"][..., : one.count]))
            elif isinstance(one, WeightsAt):
                at += (width := one.keys.shape[-1])
                values.append(memory["at"][..., at - width : at])
            elif isinstance(one, WeightsByLabel):
                values.append(memory["labels"] if one.count else self.call.q.new_empty(*self.call.q.shape[:3], 0))
            elif isinstance(one, WeightsByDistance):
                values.append(memory["ranges"][..., : len(one.edges) + 1])
            elif isinstance(one, WeightsOfMatches):
                values.append((memory["match sums"], memory["match counts"]))
            elif isinstance(one, ColumnSums):
                values.append(memory["columns"].float())
            elif isinstance(one, PooledMap):
                mass = memory["mass"].float()  # maxima lose NaN, sums keep it
                values.append((mass, memory["largest"].masked_fill(mass.isnan(), torch.nan)))
            else:
                values.append(memory[NAMES[type(one)]])
        return values


def calls_for(
    reductions: Sequence[Reduction], call: Call, counted: Tensor | None
) -> tuple[list[ReductionWords], list[int]]:
    """Divides reductions among as few calls of the kernel as possible; also returns the call of each reduction."""
    calls, numbers = [ReductionWords(call, counted)], []
    for one in reductions:
        number = next((i for i, words in enumerate(calls) if words.takes(one)), len(calls))
        if number == len(calls):
            calls.append(ReductionWords(call, counted))
        calls[number].taken.append(one)
        numbers.append(number)
    return calls, numbers
