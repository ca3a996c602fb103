"""Computes reductions of the weights: those of each query with the output, those over queries in a separate pass.

A pass computes at most ``MOST`` numbers for each query; more take further passes. Importing this module imports triton.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
import triton
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
from .._results import ForwardResults
from ._arguments import Wanted, number
from ._choices import MOST_REDUCED as MOST
from ._forward import Forward
from ._lowered import TritonCall

R = TypeVar("R", bound=Reduction)
FAR = 1 << 60
"""A number beyond every distance."""
COUNTS = ("top_count", "at_count", "label_count", "range_count")
"""The fields of ``Wanted`` that state how many numbers a query has."""
INDEX = frozenset({"q_index", "k_index"})
Value = Callable[[], Any]
"""Returns the value of a reduction after the passes."""


def reduce_by_programs(
    call: TritonCall, reductions: Sequence[Reduction], counted: Tensor | None
) -> tuple[ForwardResults, list[Any]]:
    """Returns the results of a lowered call and the value of each reduction.

    Args:
        call: the call, with values of width 0 if the output is not wanted.
        reductions: the reductions.
        counted: the queries that count for reductions over queries, [batch or 1, n] bool; None for all.
    """
    return Reducer(call, counted).run(reductions)


class Reducer:
    """The passes that compute reductions of a call.

    Args:
        call: as for ``reduce_by_programs``.
        counted: likewise.
    """

    def __init__(self, call: TritonCall, counted: Tensor | None) -> None:
        self.call, self.launch = call, Forward(call)
        self.results = self.launch.new_results()
        self.counted = None if counted is None else self.launch.of_tokens(counted.view(torch.uint8))
        self.passes: list[dict[str, Any]] = [{}]
        """The fields of ``Wanted`` for each pass over the keys, with plain numbers."""

    def run(self, reductions: Sequence[Reduction]) -> tuple[ForwardResults, list[Any]]:
        """Returns the results, and the value of each reduction."""
        together = {kind: [one for one in reductions if type(one) is kind] for kind in TOGETHER}
        values = {id(one): value for kind in TOGETHER for one, value in TOGETHER[kind](self, together[kind])}
        for one in reductions:
            if type(one) in ALONE:
                values[id(one)] = ALONE[type(one)](self, one)
        for number_, fields in enumerate(self.passes):
            self._pass(fields, output=number_ == 0 and self.call.v.shape[3] > 0)
        return self.results, [values[id(one)]() for one in reductions]

    def _ask(self, **fields: Any) -> None:
        """Adds fields to the first pass that does not have any of them."""
        for found in self.passes:
            if not (fields.keys() - INDEX) & found.keys():
                found.update(fields)
                return
        self.passes.append(fields)

    def _pass(self, fields: dict[str, Any], output: bool) -> None:
        width = triton.next_power_of_2(max(1, *(fields.get(name, 0) for name in COUNTS))) if fields else 0
        packed: dict[str, Any] = {name: number(x) if isinstance(x, int) else x for name, x in fields.items()}
        self.launch.run_whole(self.results, output, Wanted(**packed), width)

    # ------------------------------------------------------------ reductions of each query

    def _empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(*self.call.q.shape[:3], *shape, dtype=dtype, device=self.call.q.device)

    def _index(self) -> dict[str, Any]:
        sides = self.call.q_coordinates, self.call.k_coordinates
        q, k = (self._of_tokens(side.index) for side in sides)
        return {"q_index": q, "k_index": k}

    def _of_tokens(self, x: Tensor) -> Tensor:
        return x.expand(self.call.q.shape[0], -1).contiguous()

    def row_statistics(self, one: RowStatistics) -> Value:
        return lambda: (self.results.row_max, self.results.row_sum)

    def entropy(self, one: Entropy) -> Value:
        found = self._empty()
        self._ask(entropy=found)
        return lambda: found

    def visible(self, one: VisibleKeys) -> Value:
        found = self._empty(dtype=torch.int64)
        self._ask(visible=found)
        return lambda: found

    def distance(self, one: MeanDistance) -> Value:
        found = self._empty()
        self._ask(distance=found, **self._index())
        return lambda: found

    def labels(self, one: WeightsByLabel) -> Value:
        parts = [self._empty(stop - first) for first, stop in _shares(one.count)]
        for (first, stop), found in zip(_shares(one.count), parts, strict=True):
            inside = (one.labels >= first) & (one.labels < stop)
            label = torch.where(inside, one.labels - first, -1).to(torch.int32)
            self._ask(label=self._of_tokens(label), label_count=stop - first, labels=found)
        return lambda: torch.cat([*parts, self._empty(0)], -1)

    def ranges(self, one: WeightsByDistance) -> Value:
        edges = torch.tensor([-FAR, *one.edges, FAR], device=self.call.q.device)
        shares = _shares(len(edges) - 1)
        parts = [self._empty(stop - first) for first, stop in shares]
        for (first, stop), found in zip(shares, parts, strict=True):
            self._ask(edges=edges[first : stop + 1], range_count=stop - first, ranges=found, **self._index())
        return lambda: torch.cat(parts, -1)

    def matches(self, one: WeightsOfMatches) -> Value:
        sums, counts = self._empty(), self._empty(dtype=torch.int64)
        q, k = (self._of_tokens(x) for x in (one.queries, one.keys))
        most = max(-FAR, min(one.most, FAR))
        self._ask(q_label=q, k_label=k, most=most, matched=sums, matches=counts, **self._index())
        return lambda: (sums, counts)

    def top(self, those: Sequence[TopKeys]) -> list[tuple[Reduction, Value]]:
        """Asks for the largest scores of the largest count. Every reduction takes a prefix of them."""
        if not those:
            return []
        count = max(one.count for one in those)
        scores, keys = self._empty(count), self._empty(count, dtype=torch.int64)
        self._ask(top=scores, top_keys=keys, top_count=count)

        def value(count: int) -> tuple[Tensor, Tensor]:
            slots, order = keys.sort(-1)
            largest, by_score = scores.gather(-1, order).sort(dim=-1, descending=True, stable=True)
            largest, slots = largest[..., :count], slots.gather(-1, by_score)[..., :count]
            weights = (largest - self.results.row_max[..., None]).exp() / self.results.row_sum[..., None]
            return weights.masked_fill(slots < 0, 0), slots.clamp(min=-1)

        return [(one, partial(value, one.count)) for one in those]

    def at(self, those: Sequence[WeightsAt]) -> list[tuple[Reduction, Value]]:
        """Asks for the weights at the keys of all reductions, concatenated."""
        if not those:
            return []
        rows = max(one.keys.shape[0] for one in those)
        keys = torch.cat([one.keys.expand(rows, -1, -1) for one in those], -1)
        parts = [self._empty(stop - first) for first, stop in _shares(keys.shape[-1])]
        for (first, stop), found in zip(_shares(keys.shape[-1]), parts, strict=True):
            own = keys[..., first:stop].contiguous()
            self._ask(keys=own, keys_b=own.stride(0) if rows > 1 else 0, at_count=stop - first, at=found)
        sizes = [one.keys.shape[-1] for one in those]

        def value(position: int) -> Tensor:
            return torch.cat([*parts, self._empty(0)], -1).split(sizes, -1)[position]

        return [(one, partial(value, position)) for position, one in enumerate(those)]

    # ------------------------------------------------------------ reductions over queries

    def columns(self, one: ColumnSums) -> Value:
        return lambda: self.launch.column_sums(self.results, self.counted)

    def pooled(self, one: PooledMap) -> Value:
        return lambda: self.launch.pooled(self.results, self.counted, one.rows, one.columns)


ALONE: dict[type[Reduction], Callable[[Reducer, Any], Value]] = {
    RowStatistics: Reducer.row_statistics,
    Entropy: Reducer.entropy,
    VisibleKeys: Reducer.visible,
    MeanDistance: Reducer.distance,
    WeightsByLabel: Reducer.labels,
    WeightsByDistance: Reducer.ranges,
    WeightsOfMatches: Reducer.matches,
    ColumnSums: Reducer.columns,
    PooledMap: Reducer.pooled,
}
"""The method that asks for each reduction."""
TOGETHER: dict[type[Reduction], Callable[[Reducer, Any], list[tuple[Reduction, Value]]]] = {
    TopKeys: Reducer.top,
    WeightsAt: Reducer.at,
}
"""The method that asks for all reductions of a class together."""


def _shares(count: int) -> list[tuple[int, int]]:
    """Divides a count into ranges (first, stop) of at most ``MOST``."""
    return [(first, min(first + MOST, count)) for first in range(0, count, MOST)]
