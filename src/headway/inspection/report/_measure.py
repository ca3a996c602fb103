"""Measures each layer, in memory that grows with the tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ... import reductions
from ...kernels import KERNELS, Call, reduce, score_blocks
from ...kernels import reference as spec
from ...kernels._results import log_sum_exp
from ...tracing import without_autocast
from .._above import searched, sorted_entries
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
LISTED, FEW_LISTED = 20, 16
"""The largest weights of each query that are found first, in short and in long texts. More than 16 are slow."""


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
        lists: of each head the weights from a threshold on, among the largest of each query that were found.
        last: the least weight that was found of each query, or 0 if all were, [heads, n]; NaN for one that does not
            count.
        lse: the log-sum-exp of each query, likewise.
        links: the strongest links of each head.
        between: the strongest link of each head between two whole content words; empty where there is none.
        has_nan: whether a weight is NaN, by head.
    """

    means: dict[str, list[float]]
    distances: Tensor
    profile: Tensor
    cells: Tensor
    cell_error: float
    lists: list[Listed]
    last: Tensor
    lse: Tensor
    links: list[list[Link]]
    between: list[list[Link]]
    has_nan: list[bool]


def distances_for(n: int) -> Distances:
    """Returns ranges of distances that double on both sides of 0 as far as a text reaches."""
    powers = [1 << i for i in range(max(1, (n - 1).bit_length()))]
    return Distances((*(1 - x for x in reversed(powers[1:])), 0, *powers))


def measured(
    call: Call,
    queries: Tensor | None,
    seen: Sight,
    cells: int,
    tau: float,
    silent: Sequence[int],
    content: Sequence[int] = (),
) -> Measured:
    """Measures a layer.

    Args:
        call: the call, of one row.
        queries: the queries that are not padding; None for those that are known.
        seen: the keys in sight.
        cells: the cells of the maps on each side.
        tau: weights of at least this are listed.
        silent: keys that no link leads to.
        content: the tokens that are whole content words.
    """
    n = call.q.shape[2]
    count = min(n, LISTED if n <= BINS else FEW_LISTED)
    distances = distances_for(n)
    statistics: list[Statistic] = [STATISTICS[name]() for name in MEANS]
    statistics += [distances, TopKeys(count)]
    wanted = Wanted(call, statistics, queries)
    # the columns of the map are the bins of the profile, so that one pass over the scores gives both
    pooled = reductions.PooledMap(cells, min(n, BINS), one_pass=True)
    rows, *values, sums = reduce(
        KERNELS, call, [reductions.RowStatistics(), *wanted.reductions, pooled], wanted.queries
    )
    found = wanted.found(values)
    summary = found.summary()
    counted = found.counted[0].cpu()
    of_bins, largest_of_bins = (x[0].cpu() for x in sums)
    mass, largest = _map_of(of_bins, largest_of_bins, counted)
    top, keys = found.top_keys.weights[0].cpu(), found.top_keys.keys[0].cpu()
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
        lists=_listed(top, keys, tau),
        last=top[..., -1] * (count < n),
        lse=log_sum_exp(*rows)[0].float(),
        links=_links(top, keys, _among(n, silent, others=True), LINKS),
        between=_links(top, keys, _among(n, content), 1, _among(n, content)),
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
    """The means [heads, bins] of the numbers [heads, n] that count."""
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


def _among(n: int, tokens: Sequence[int], *, others: bool = False) -> Tensor:
    """Whether each token is among some, or among the others; the last entry is that of no token, −1."""
    among = torch.full((n + 1,), others)
    among[list(tokens)] = not others
    among[n] = False
    return among


def _links(top: Tensor, keys: Tensor, to: Tensor, most: int, of: Tensor | None = None) -> list[list[Link]]:
    """The strongest links of each head, from the largest weights of its queries [heads, n, count].

    `to` says which keys count, and `of` which queries.
    """
    _, n, count = top.shape
    out = ~to[keys] | (keys == torch.arange(n)[:, None]) | ~(top > 0)
    if of is not None:
        out |= ~of[:n, None]
    weights, at = top.masked_fill(out, -1).flatten(1).topk(min(most, n * count))
    keys = keys.flatten(1).gather(1, at)
    return [
        [Link(place // count, key, weight) for place, key, weight in zip(*of_head, strict=True) if weight > 0]
        for of_head in zip(at.tolist(), keys.tolist(), weights.tolist(), strict=True)
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


# ---------------------------------------------------------------- lists


def completed(call: Call, of: Measured, tau: float) -> list[Listed]:
    """Returns all weights of each head of at least ``tau``, which must not be below the threshold of the measurement.

    If a query's last weight that was found is that large, there may be more: those of its head are found again.
    """
    lists = [one.above(tau) for one in of.lists]
    unknown = (of.last >= tau).any(-1)
    if not bool(unknown.any()):
        return lists
    counted, (heads, n), m = ~of.last.isnan(), of.last.shape, call.k.shape[2]
    parts = [[x.cpu() for x in part] for part in searched(call, tau, of.lse[None], unknown.to(call.q.device))]
    columns = sorted_entries([torch.cat(column) for column in zip(*parts, strict=True)], heads, n, m)
    kept = counted[columns[1], columns[2]]
    _, head, query, key, weight = (x[kept] for x in columns)
    counts = torch.bincount(head * n + query, minlength=heads * n).view(heads, n)
    sizes = counts.sum(1).tolist()
    again = zip(counts, key.int().split(sizes), weight.split(sizes), strict=True)
    return [Listed(*found) if bool(unknown[number]) else lists[number] for number, found in enumerate(again)]


def _listed(top: Tensor, keys: Tensor, tau: float) -> list[Listed]:
    """The weights of each head of at least ``tau`` among the largest of each query, [heads, n, count]."""
    heads, n, _ = top.shape
    head, query, place = ((top >= tau) & (keys >= 0)).nonzero().unbind(1)
    row, key = head * n + query, keys[head, query, place]
    order = (row * n + key).argsort()
    counts = torch.bincount(row, minlength=heads * n).view(heads, n)
    sizes = counts.sum(1).tolist()
    split = zip(counts, key[order].int().split(sizes), top[head, query, place][order].split(sizes), strict=True)
    return [Listed(*of_head) for of_head in split]


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


def strongest(call: Call, head: int, queries: range, step: int) -> Tensor:
    """Returns the largest weight of each square cell of ``step`` tokens, [rows, columns] in float32.

    NaN is larger than any. A cell that the mask hides is −1.

    Args:
        call: the call, of one row.
        head: the head.
        queries: the queries; the first begins a cell.
        step: tokens of a cell on each side.
    """
    n = call.k.shape[2]
    found = torch.full((-(-len(queries) // step), -(-n // step)), -1.0)
    with torch.no_grad(), without_autocast(call.q):
        call = spec.computed(call)
        most = max(spec.block_rows(call) // step, 1) * step
        for start in range(queries.start, queries.stop, most):
            block = spec.QueryBlock(call, start, min(start + most, queries.stop))
            scores = spec.masked(block, spec.scores(block))
            weights, *_ = spec.softmax(block, scores)
            weights = weights[0, head].masked_fill(scores[0, head] == -torch.inf, -1).float().cpu()
            whole = torch.full((-(-len(weights) // step) * step, found.shape[1] * step), -1.0)
            whole[: len(weights), block.keys] = weights
            cells = whole.view(-1, step, found.shape[1], step).amax((1, 3))
            first = (start - queries.start) // step
            found[first : first + len(cells)] = cells
    return found


def sampled(n: int, count: int, seed: int = 0) -> list[int]:
    """Returns the numbers of some queries, in order: the first, the last and others by chance."""
    chosen = torch.randperm(n, generator=torch.Generator().manual_seed(seed))[: max(count - 2, 0)]
    return sorted({0, n - 1, *chosen.tolist()})


def rows_of(call: Call, heads: Sequence[int] | None, rows: Sequence[int]) -> Tensor:
    """Returns the weights of some queries of a call of one row, [heads, rows, n] in float32."""
    with torch.no_grad(), without_autocast(call.q):
        call = spec.computed(call)  # weights in half precision would be rounded more than codes are
    return dense_weights(call, heads, rows)[0].float().cpu()
