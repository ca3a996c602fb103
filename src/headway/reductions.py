"""Reductions of the weights of a call that a kernel computes without holding them: sums, largest weights, entropies.

As an encoding consists of terms, a statistic of ``headway.inspection`` consists of reductions,
kernels compute reductions, and neither knows the other. ``kernels/_reduce.py`` computes all of them from blocks of
scores. It is the specification for every kernel that computes them in a pass of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from .records import Record


class Reduction(Record):
    """The base class of reductions.

    A weight A[h,i,j] is that of the softmax before dropout; the sum of a row is 1, less what sinks take, or 0 for a
    query that sees nothing. Shapes are given with H heads, n queries, m keys.
    """

    by_query: ClassVar[bool] = True
    """Whether each query has a result of its own; else the queries that count are reduced together."""


@dataclass(frozen=True, eq=False)
class RowStatistics(Reduction):
    """The largest score of each query and Σⱼ exp(score − largest), sinks included: two of [batch, H, n].

    They are −∞ and 0 where nothing is in sight, and NaN where a term replaces the softmax.
    """


@dataclass(frozen=True, eq=False)
class Entropy(Reduction):
    """−Σⱼ A[h,i,j]·ln A[h,i,j] in nats: [batch, H, n]."""


@dataclass(frozen=True, eq=False)
class VisibleKeys(Reduction):
    """The number of keys j with score[h,i,j] > −∞: [batch, H, n] in int64."""


@dataclass(frozen=True, eq=False)
class TopKeys(Reduction):
    """The largest weights of each query and the slots of their keys, the largest first: two of [batch, H, n, count].

    Among equal scores, the key with the lowest slot comes first. If fewer keys are visible, the remaining entries are 0
    and −1.

    Attributes:
        count: weights for each query, at least 1.
        least: a score for each query, [batch, H, n] in float32: keys with a smaller one are left out. Default: none.
    """

    count: int
    least: Tensor | None = None


@dataclass(frozen=True, eq=False)
class WeightsAt(Reduction):
    """The weights of chosen keys: [batch, H, n, g].

    Attributes:
        keys: slots of keys for each query, [batch or 1, n, g] in int64; −1 for none, whose weight is 0.
    """

    keys: Tensor


@dataclass(frozen=True, eq=False)
class WeightsByLabel(Reduction):
    """The sums of the weights of keys with each label: [batch, H, n, count].

    Attributes:
        labels: labels of the keys, [batch or 1, m] in int64, from 0 to count − 1; −1 for keys that belong to no sum.
        count: the number of labels.
    """

    labels: Tensor
    count: int


@dataclass(frozen=True, eq=False)
class WeightsByDistance(Reduction):
    """The sums of the weights in each range of distances: [batch, H, n, edges + 1].

    The distance δ is the index of the key − the index of the query. Range r holds the distances δ for which exactly r
    edges are ≤ δ.

    Attributes:
        edges: rising whole numbers.
    """

    edges: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class MeanDistance(Reduction):
    """Σⱼ A[h,i,j]·|δ| with the distance δ as for ``WeightsByDistance``: [batch, H, n]."""


@dataclass(frozen=True, eq=False)
class WeightsOfMatches(Reduction):
    """The sum of the weights of the keys in sight that match a query, and their number: two of [batch, H, n].

    A key matches a query of the same label, if the distance δ, as for ``WeightsByDistance``, is at most ``most``.

    Attributes:
        queries: labels of the queries, [batch or 1, n] in int64; −1 for queries that match no key.
        keys: labels of the keys, [batch or 1, m], likewise.
        most: the largest distance.
    """

    queries: Tensor
    keys: Tensor
    most: int


@dataclass(frozen=True, eq=False)
class ColumnSums(Reduction):
    """Σᵢ A[h,i,j] over the queries that count: [batch, H, m]."""

    by_query: ClassVar[bool] = False


@dataclass(frozen=True, eq=False)
class PooledMap(Reduction):
    """The sum and the largest of the weights in each cell of a grid over queries and keys: two of [batch, H, R, C].

    Query slot i of n is in row ⌊i·R/n⌋, key slot j of m in column ⌊j·C/m⌋. Only queries that count are in them.

    Attributes:
        rows: R, from 1 to n.
        columns: C, from 1 to m.
        one_pass: whether weights may be summed before they are normalised. The scores are then computed once instead of
            twice, and the results are rounded differently.
    """

    rows: int
    columns: int
    one_pass: bool = False
    by_query: ClassVar[bool] = False
