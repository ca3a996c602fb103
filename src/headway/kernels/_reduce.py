"""Computes reductions of the weights of a call, by a kernel that has them or from blocks of scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import HeadwayError
from ..reductions import (
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
from ..tracing import without_autocast
from ._autograd import ORDINARY
from ._base import Kernel
from ._blocks import ScoreBlock, score_blocks
from ._problem import Call, Problem, tensors_in


def reduce(
    kernels: Mapping[str, Kernel],
    call: Call,
    reductions: Sequence[Reduction],
    counted: Tensor | None = None,
    name: str = "auto",
) -> list[Any]:
    """Computes reductions of the weights of a call, without gradients, in memory that grows with n + m.

    Args:
        kernels: the table, in order of preference.
        call: the call.
        reductions: the reductions.
        counted: the queries that count for reductions over queries, [batch or 1, n] bool. Default: all.
        name: "auto", or a name of the table. "reference" computes from blocks of scores.

    Returns:
        The value of each reduction, in order.

    Raises:
        HeadwayError: if the requested kernel cannot compute them.
    """
    problem = Problem.of(call)
    plain = ORDINARY.issuperset(map(type, tensors_in((call.q, call.k, *call.terms))))
    for known, kernel in kernels.items():
        if known == "reference" or name not in ("auto", known):
            continue
        against = kernel.why_not(problem) or kernel.why_not_reduce(problem, reductions)
        if not against and name == "auto" and (deferral := kernel.defers(problem)) and deferral.to == "reference":
            continue
        against = against if plain else [*against, "a tensor of the call is of a class of its own"]
        if not against:
            with torch.no_grad():
                return kernel.reduce(call, reductions, counted)
        if name == known:
            raise HeadwayError(
                f"kernel {name!r} cannot compute these statistics: {'; '.join(against)}: leave kernel='auto'"
            )
    with torch.no_grad():
        return reduce_blocks(call, reductions, counted)


# ---------------------------------------------------------------- from blocks of scores


def reduce_blocks(call: Call, reductions: Sequence[Reduction], counted: Tensor | None = None) -> list[Any]:
    """Computes reductions from blocks of scores, in float64 for float64 and else in float32.

    Args:
        call: the call.
        reductions: the reductions.
        counted: the queries that count for reductions over queries, [batch or 1, n] bool. Default: all.
    """
    with without_autocast(call.q):
        sums = [SUMS[type(one)](call, one, counted) for one in reductions]
        for block in score_blocks(call):
            for one in sums:
                one.add(block)
            del block  # frees it before the next block is made
        return [one.result() for one in sums]


class Sum:
    """A reduction that is accumulated over blocks. A subclass computes one block's part, by query."""

    def __init__(self, call: Call, reduction: Any, counted: Tensor | None) -> None:
        self.call, self.reduction, self.counted = call, reduction, counted
        self.parts: tuple[Tensor, ...] = ()

    def add(self, block: ScoreBlock) -> None:
        part = self.of(block)
        parts = part if isinstance(part, tuple) else (part,)
        # one tensor for all blocks: small tensors between large freed ones would fragment the memory
        n = self.call.q.shape[2]
        self.parts = self.parts or tuple(x.new_empty(*x.shape[:2], n, *x.shape[3:]) for x in parts)
        for whole, one in zip(self.parts, parts, strict=True):
            whole[:, :, block.rows] = one

    def of(self, block: ScoreBlock) -> Any:
        raise NotImplementedError

    def result(self) -> Any:
        return self.parts if len(self.parts) > 1 else self.parts[0]

    def distance(self, block: ScoreBlock) -> Tensor:
        """[batch or 1, rows, keys]"""
        q, k = self.call.q_coordinates.index[:, block.rows], self.call.k_coordinates.index[:, block.keys]
        return k[:, None, :] - q[:, :, None]


class SumOfRowStatistics(Sum):
    def of(self, block: ScoreBlock) -> tuple[Tensor, Tensor]:
        return block.row_max, block.row_sum


class SumOfEntropy(Sum):
    def of(self, block: ScoreBlock) -> Tensor:
        return torch.special.entr(block.weights).sum(-1)


class SumOfVisibleKeys(Sum):
    def of(self, block: ScoreBlock) -> Tensor:
        return (block.scores != -torch.inf).sum(-1)


class SumOfTopKeys(Sum):
    def of(self, block: ScoreBlock) -> tuple[Tensor, Tensor]:
        count, least = min(self.reduction.count, block.scores.shape[-1]), self.reduction.least
        scores = block.scores
        if least is not None:
            scores = scores.masked_fill(scores < least[:, :, block.rows, None], -torch.inf)
        if count == 1:
            scores, keys = scores.max(-1, keepdim=True)
        else:  # stable: of equal scores the first key comes first, which topk does not guarantee
            scores, keys = (x[..., :count] for x in scores.sort(dim=-1, descending=True, stable=True))
        hidden = scores == -torch.inf
        weights = block.weights.gather(-1, keys).masked_fill(hidden, 0)
        keys = (keys + block.keys.start).masked_fill(hidden, -1)
        missing = (0, self.reduction.count - count)
        pad = torch.nn.functional.pad
        return pad(weights, missing), pad(keys, missing, value=-1)


class SumOfWeightsAt(Sum):
    def of(self, block: ScoreBlock) -> Tensor:
        keys, width = self.reduction.keys[:, None, block.rows] - block.keys.start, block.weights.shape[-1]
        inside = (keys >= 0) & (keys < width) & (self.reduction.keys[:, None, block.rows] >= 0)
        if not width:
            return block.weights.new_zeros(*block.weights.shape[:3], keys.shape[-1])
        at = keys.clamp(0, width - 1).expand(*block.weights.shape[:3], keys.shape[-1])
        return block.weights.gather(-1, at).masked_fill(~inside, 0)


class SumOfWeightsByLabel(Sum):
    def of(self, block: ScoreBlock) -> Tensor:
        labels, count = self.reduction.labels[:, block.keys], self.reduction.count
        one_hot = labels[..., None] == torch.arange(count, device=labels.device)
        return block.weights @ one_hot.to(block.weights.dtype)[:, None]


class SumOfWeightsByDistance(Sum):
    def of(self, block: ScoreBlock) -> Tensor:
        distance = self.distance(block)
        edges = torch.tensor(self.reduction.edges, device=distance.device, dtype=distance.dtype)
        ranges = torch.bucketize(distance, edges, right=True)[:, None].expand(block.weights.shape)
        sums = block.weights.new_zeros(*block.weights.shape[:3], len(edges) + 1)
        return sums.scatter_add(-1, ranges, block.weights)


class SumOfMeanDistance(Sum):
    def of(self, block: ScoreBlock) -> Tensor:
        return (block.weights * self.distance(block).abs()[:, None]).sum(-1)


class SumOfWeightsOfMatches(Sum):
    def __init__(self, call: Call, reduction: Any, counted: Tensor | None) -> None:
        super().__init__(call, reduction, counted)
        batch, heads, n, _ = call.q.shape
        self.sums = call.q.new_zeros(batch, n, heads, dtype=torch.float64)
        self.counts = call.q.new_zeros(batch, n, heads, dtype=torch.int64)

    def add(self, block: ScoreBlock) -> None:
        queries, keys = self.reduction.queries[:, block.rows, None], self.reduction.keys[:, None, block.keys]
        furthest = self.call.q_coordinates.index[:, block.rows, None] + self.reduction.most
        match = (queries == keys) & (queries >= 0) & (self.call.k_coordinates.index[:, None, block.keys] <= furthest)
        # pairs that match are few, and the same for all heads
        b, i, j = match.expand(len(block.weights), -1, -1).nonzero(as_tuple=True)
        in_sight = block.scores[b, :, i, j] != -torch.inf
        weights = block.weights[b, :, i, j].double().masked_fill(~in_sight, 0)
        self.sums.index_put_((b, i + block.rows.start), weights, accumulate=True)
        self.counts.index_put_((b, i + block.rows.start), in_sight.long(), accumulate=True)

    def result(self) -> tuple[Tensor, Tensor]:
        return self.sums.transpose(1, 2).to(_dtype(self.call)), self.counts.transpose(1, 2).contiguous()


class SumOverQueries(Sum):
    """A reduction over the queries; queries that do not count have weights of 0."""

    def counting(self, block: ScoreBlock) -> Tensor:
        if self.counted is None:
            return block.weights
        return block.weights.masked_fill(~self.counted[:, None, block.rows, None], 0)


class SumOfColumns(SumOverQueries):
    def __init__(self, call: Call, reduction: Any, counted: Tensor | None) -> None:
        super().__init__(call, reduction, counted)
        self.sums = call.q.new_zeros(*call.q.shape[:2], call.k.shape[2], dtype=torch.float64)

    def add(self, block: ScoreBlock) -> None:
        self.sums[:, :, block.keys] += self.counting(block).sum(2)

    def result(self) -> Tensor:
        return self.sums.to(_dtype(self.call))


class SumOfPooledMap(SumOverQueries):
    def __init__(self, call: Call, reduction: Any, counted: Tensor | None) -> None:
        super().__init__(call, reduction, counted)
        shape = (*call.q.shape[:2], reduction.rows, reduction.columns)
        self.mass = call.q.new_zeros(shape, dtype=torch.float64)
        self.largest = call.q.new_zeros(shape, dtype=_dtype(call))

    def add(self, block: ScoreBlock) -> None:
        weights, (n, m) = self.counting(block), (self.call.q.shape[2], self.call.k.shape[2])
        across = _cells(block.keys, self.reduction.columns, m, weights.device)
        down = _cells(block.rows, self.reduction.rows, n, weights.device)
        wide = (*weights.shape[:3], self.reduction.columns)
        columns = across.expand(weights.shape)
        summed = weights.new_zeros(wide, dtype=torch.float64).scatter_add(-1, columns, weights.double())
        largest = weights.new_zeros(wide).scatter_reduce(-1, columns, weights, "amax")
        self.mass.index_add_(2, down, summed)
        self.largest.scatter_reduce_(2, down[:, None].expand(largest.shape), largest, "amax")

    def result(self) -> tuple[Tensor, Tensor]:
        return self.mass.to(_dtype(self.call)), self.largest


def _cells(slots: slice, cells: int, tokens: int, device: torch.device) -> Tensor:
    return torch.arange(slots.start, slots.stop, device=device) * cells // max(tokens, 1)


def _dtype(call: Call) -> torch.dtype:
    return torch.float64 if call.q.dtype == torch.float64 else torch.float32


SUMS: dict[type[Reduction], type[Sum]] = {
    RowStatistics: SumOfRowStatistics,
    Entropy: SumOfEntropy,
    VisibleKeys: SumOfVisibleKeys,
    TopKeys: SumOfTopKeys,
    WeightsAt: SumOfWeightsAt,
    WeightsByLabel: SumOfWeightsByLabel,
    WeightsByDistance: SumOfWeightsByDistance,
    MeanDistance: SumOfMeanDistance,
    WeightsOfMatches: SumOfWeightsOfMatches,
    ColumnSums: SumOfColumns,
    PooledMap: SumOfPooledMap,
}
"""Every reduction, and how it is computed from blocks."""
