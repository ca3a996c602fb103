"""The results of statistics that have several tensors."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class LargestWeight(NamedTuple):
    """The largest weight of each query.

    Attributes:
        weight: [batch, H, n].
        key: the slot of its key, [batch, H, n] in int64; the lowest one if several keys have that score.
    """

    weight: Tensor
    key: Tensor


class TopWeights(NamedTuple):
    """The largest weights of each query, the largest first.

    Attributes:
        weights: [batch, H, n, count]; 0 where the query sees fewer keys.
        keys: the slots of their keys, likewise, in int64; −1 where the query sees fewer keys.
        bound: the smallest of the weights, [batch, H, n]. The list is complete above it: no other key weighs more.
    """

    weights: Tensor
    keys: Tensor
    bound: Tensor


class WeightMap(NamedTuple):
    """The weights of each head on a grid of R × C cells of queries and keys.

    Attributes:
        mass: the mean, over the queries of a row of cells that count, of their weight in each cell, [batch, H, R, C].
            A row sums to 1, less what sinks take; it is NaN where no query counts.
        largest: the largest weight in each cell, likewise: one strong weight is not lost among many small ones.
    """

    mass: Tensor
    largest: Tensor
