"""What is measured of each layer, in memory that grows with the tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ... import reductions
from ...kernels import KERNELS, Call, cut, reduce, score_blocks, why_not_in_parts
from ...kernels import reference as spec
from ...kernels._base import without_autocast
from .._run import Wanted
from .._weights import dense_weights
from ..statistics import STATISTICS, Distances, Statistic, TopKeys
from ._codes import (
    cell_codes,
    cells_of,
    entropy_codes,
    octets_of,
    planes,
    received_codes,
    weight_codes,
    weights_of,
)
from ._first import Link
from ._scores import Sight

MEANS = ("entropy", "largest", "previous", "current", "next", "first", "distance")
"""The statistics whose means a report has of each head."""
THUMBS, BINS, LINKS = 32, 512, 20
"""The most cells of a thumbnail, bins along the text, and links of a head."""
LISTED, FEW_LISTED = 20, 8
"""The fewest weights of each query that links are chosen from, in short and in long texts."""
RUNS, RUN = 5, 16
"""Runs of queries, and queries of each, by which the weights of lists are counted in advance."""


@dataclass(frozen=True, eq=False)
class Listed:
    """All weights of a head from a threshold on, sorted by query, then key.

    Attributes:
        counts: of each query, [n].
        keys: the keys, int32 [entries].
        weights: likewise.
    """

    counts: Tensor
    keys: Tensor
    weights: Tensor

    @staticmethod
    def of(top: Tensor, keys: Tensor, tau: float) -> Listed:
        """Returns the weights of at least ``tau`` among the largest of each query, [n, count]."""
        order = keys.masked_fill((top < tau) | (keys < 0) | top.isnan(), len(top)).sort(-1)
        kept = order.values < len(top)
        return Listed(kept.sum(-1), order.values[kept], top.gather(1, order.indices)[kept])

    def above(self, tau: float) -> Listed:
        """Returns the weights of at least ``tau``."""
        kept = self.weights >= tau
        counts = torch.zeros_like(self.counts).index_add_(0, self.queries, kept.to(self.counts.dtype))
        return Listed(counts, self.keys[kept], self.weights[kept])

    @property
    def queries(self) -> Tensor:
        """The query of each weight."""
        return torch.arange(len(self.counts)).repeat_interleave(self.counts)

    def encoded(self, step: int) -> tuple[list[bytes], int, float]:
        """Returns the parts of a chunk, the bytes of a count, and the largest error of a weight."""
        n = len(self.counts)
        codes = weight_codes(self.weights, step=step)
        error = (weights_of(codes) - self.weights.double()).abs()
        width = 1 if int(self.counts.max()) < 256 else 2
        parts = [planes(self.counts, 1) if width == 1 else octets_of(self.counts.to(torch.int16))]
        parts += [planes(self.queries - self.keys, 2 if n <= 1 << 16 else 4), planes(codes)]
        return parts, width, float(error.max()) if error.numel() else 0.0


@dataclass(frozen=True, eq=False)
class Measured:
    """What was measured of a layer.

    Attributes:
        means: of each statistic, by head; NaN where no query counts.
        distances: the mean weight in each range of distances, [heads, ranges].
        profile: codes of entropy, largest weight and received attention in bins along the text, [heads, 3, bins].
        cells: codes of mass and largest weight, uint8 [heads, 2, c, c].
        cell_error: the largest relative error of a cell above 1e-7.
        lists: the weights of each head from a threshold on.
        links: the strongest links of each head.
        has_nan: whether a weight is NaN, by head.
    """

    means: dict[str, list[float]]
    distances: Tensor
    profile: Tensor
    cells: Tensor
    cell_error: float
    lists: list[Listed]
    links: list[list[Link]]
    has_nan: list[bool]


def distances_for(n: int) -> Distances:
    """Returns ranges of distances that double on both sides of 0 as far as a text reaches."""
    powers = [1 << i for i in range(max(1, (n - 1).bit_length()))]
    return Distances((*(1 - x for x in reversed(powers[1:])), 0, *powers))


def measured(
    call: Call, queries: Tensor | None, seen: Sight, cells: int, tau: float, silent: Sequence[int]
) -> Measured:
    """Measures a layer.

    Args:
        call: the call, of one row.
        queries: the queries that are not padding; None for those that are known.
        seen: the keys in sight.
        cells: the cells of the maps on each side.
        tau: weights of at least this are listed.
        silent: keys that no link leads to.
    """
    n = call.q.shape[2]
    count = min(n, max(math.ceil(1 / tau), LISTED if n <= BINS else FEW_LISTED))
    distances = distances_for(n)
    statistics: list[Statistic] = [STATISTICS[name]() for name in MEANS]
    statistics += [distances, TopKeys(count)]
    wanted = Wanted(call, statistics, queries)
    # the columns of the map are the bins of the profile, so that one pass over the scores gives both
    pooled = reductions.PooledMap(cells, min(n, BINS), one_pass=True)
    *values, sums = reduce(KERNELS, call, [*wanted.reductions, pooled], wanted.queries)
    found = wanted.found(values)
    summary = found.summary()
    counted = found.counted[0].cpu()
    of_bins, largest_of_bins = (x[0].cpu() for x in sums)
    mass, largest = _map_of(of_bins, largest_of_bins, counted)
    top, keys = found.top_keys.weights[0].cpu(), found.top_keys.keys[0].cpu().int()
    entropy = found.entropy[0].cpu()
    codes, error = _coded_cells(mass, largest, seen.cells(cells))
    profile = torch.stack(
        [
            entropy_codes(_binned(entropy, counted)),
            weight_codes(_binned(found.largest.weight[0].cpu(), counted)),
            received_codes(of_bins.double().sum(1) / _bins(n).bincount()),
        ],
        dim=1,
    )
    return Measured(
        means={name: summary[name][0].tolist() for name in MEANS},
        distances=torch.stack([summary[name][0] for name in distances.names], dim=-1).cpu(),
        profile=profile,
        cells=codes,
        cell_error=error,
        lists=[Listed.of(top[head], keys[head], tau) for head in range(len(top))],
        links=[_links(top[head], keys[head], silent) for head in range(len(top))],
        has_nan=(entropy.isnan() & counted).any(-1).tolist(),
    )


def _map_of(sums: Tensor, largest: Tensor, counted: Tensor) -> tuple[Tensor, Tensor]:
    """Mass and largest weight in cells, from sums and largest weights [heads, cells, bins]."""
    heads, cells, bins = sums.shape
    n = counted.shape[-1]
    at = torch.arange(bins) * cells // bins
    mass = sums.new_zeros(heads, cells, cells, dtype=torch.float64).index_add_(2, at, sums.double())
    queries = torch.zeros(heads, cells, dtype=torch.float64)
    queries.index_add_(1, torch.arange(n) * cells // n, counted.expand(heads, n).double())
    most = largest.new_zeros(heads, cells, cells).scatter_reduce_(2, at.expand(largest.shape), largest, "amax")
    return mass / queries[..., None], most


def _coded_cells(mass: Tensor, largest: Tensor, seen: Tensor) -> tuple[Tensor, float]:
    both = torch.stack([mass, largest], dim=1)
    hidden = both.isnan() & (mass.isnan().all(-1, keepdim=True) & ~largest.isnan().any(-1, keepdim=True))[:, None]
    both = both.masked_fill(hidden, 0)  # no query of the row of cells counts
    codes = cell_codes(both, seen & ~hidden)
    large = both > 1e-7
    error = ((cells_of(codes) - both).abs() / both)[large]
    return codes.to(torch.uint8), float(error.max()) if error.numel() else 0.0


def _binned(values: Tensor, counted: Tensor) -> Tensor:
    """The means [heads, bins] of numbers [heads, n] over what counts."""
    n = values.shape[1]
    bins, at = min(n, BINS), _bins(n)
    counted = counted.expand(values.shape)
    sums = torch.zeros(len(values), bins, dtype=torch.float64).index_add_(
        1, at, values.double().masked_fill(~counted, 0)
    )
    return sums / torch.zeros(len(values), bins, dtype=torch.float64).index_add_(1, at, counted.double())


def _bins(n: int) -> Tensor:
    """The bin along the text of each token."""
    return torch.arange(n) * min(n, BINS) // n


def _links(top: Tensor, keys: Tensor, silent: Sequence[int]) -> list[Link]:
    """The strongest links of a head, from its largest weights [n, count]."""
    out = (keys < 0) | (keys == torch.arange(len(keys))[:, None]) | ~(top > 0)
    if len(silent):
        quiet = torch.zeros(int(keys.max().clamp(min=0)) + 1 + max(silent), dtype=torch.bool)
        quiet[list(silent)] = True
        out |= quiet[keys.clamp(min=0).long()]
    weights = top.masked_fill(out, -1).flatten()
    best, at = weights.topk(min(LINKS, len(weights)))
    return [
        Link(int(place) // top.shape[1], int(keys.flatten()[place]), weight)
        for weight, place in zip(best.tolist(), at.tolist(), strict=True)
        if weight > 0
    ]


def thumbnails(cells: Tensor, n: int) -> Tensor:
    """Returns the largest weights in fewer cells, uint8 [heads, t, t], from codes of maps [heads, 2, c, c].

    Codes rise with the numbers, so their maximum is that of the numbers.
    """
    largest, count = cells[:, 1], cells.shape[-1]
    side = min(n, THUMBS)
    at = torch.arange(count) * side // count
    small = torch.zeros(len(cells), side, side, dtype=torch.uint8)
    rows = torch.zeros(len(cells), side, count, dtype=torch.uint8)
    rows.scatter_reduce_(1, at[None, :, None].expand_as(largest), largest, "amax")
    return small.scatter_reduce_(2, at[None, None, :].expand_as(rows), rows, "amax")


# ---------------------------------------------------------------- weights


@dataclass(frozen=True, eq=False)
class Dense:
    """All weights of a layer.

    Attributes:
        weights: [heads, n, n] in float64.
        seen: where the mask hides nothing, likewise.
    """

    weights: Tensor
    seen: Tensor


def dense(call: Call) -> Dense:
    """Returns all weights of a call of one row."""
    _, heads, n, _ = call.q.shape
    weights = torch.zeros(heads, n, n, dtype=torch.float64)
    seen = torch.zeros(heads, n, n, dtype=torch.bool)
    for block in score_blocks(call):
        weights[:, block.rows, block.keys] = block.weights[0].double().cpu()
        seen[:, block.rows, block.keys] = (block.scores[0] != -torch.inf).cpu()
    return Dense(weights, seen)


def sampled(n: int, count: int, seed: int = 0) -> list[int]:
    """Returns the numbers of some queries, in order: the first, the last and others by chance."""
    chosen = torch.randperm(n, generator=torch.Generator().manual_seed(seed))[: max(count - 2, 0)]
    return sorted({0, n - 1, *chosen.tolist()})


def rows_of(call: Call, heads: Sequence[int] | None, rows: Sequence[int]) -> Tensor:
    """Returns the weights of some queries of a call of one row, [heads, rows, n] in float32."""
    with torch.no_grad(), without_autocast(call.q):
        call = spec.computed(call)  # weights in half precision would be rounded more than codes are
    return dense_weights(call, heads, rows)[0].float().cpu()


def above(call: Call, thresholds: Sequence[float]) -> Tensor:
    """Returns about how many weights a query has at or above each threshold, summed over the heads.

    It is the mean over some runs of queries.
    """
    n = call.q.shape[2]
    count = min(n, RUN)
    starts = sorted({int(start) for start in torch.linspace(0, n - count, RUNS)})
    if why_not_in_parts(call) is not None:
        weights = dense_weights(call, None, starts)[0]
    else:
        top = reductions.TopKeys(min(n, math.ceil(1 / min(thresholds))))
        parts = [reduce(KERNELS, cut(call, "queries", start, start + count), [top])[0][0] for start in starts]
        weights = torch.cat(parts, dim=2)[0]
    return torch.stack([(weights >= one).sum((0, 2)).double().mean() for one in thresholds])
