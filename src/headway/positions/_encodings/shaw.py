"""Learned vectors for clipped relative positions, added to keys and values."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ...coordinates import Coordinates
from ...errors import need_positive
from ...terms import Clip, RelativeKeys, RelativeValues, Rows
from .._base import Input, Pair, PositionEncoding, Terms


class Shaw(PositionEncoding):
    """Adds learned vectors for clipped relative positions to keys and values.

        score[i,j] = s·⟨qᵢ, kⱼ + a^K[clip(pⱼ − pᵢ)]⟩,   clip(δ) = max(−k, min(k, δ))
        out[i] = Σⱼ A[i,j]·(vⱼ + a^V[clip(pⱼ − pᵢ)])

    Args:
        head_dim: the width of each head, at least 1.
        max_distance: k, the largest distance that has a vector of its own, at least 1.

    Attributes:
        keys: a^K [2k + 1, head_dim], shared by all heads; row k + δ is for the distance δ.
        values: a^V, of the same shape.

    Raises:
        HeadwayError: if a size is below 1.

    References:
        Shaw et al. 2018, section 3.2.
    """

    name = "shaw"
    citation = "shaw2018self"
    year = 2018
    evidence = "independent"
    same_terms = True
    extrapolates = True

    def __init__(self, head_dim: int, max_distance: int = 16) -> None:
        super().__init__()
        need_positive(head_dim=head_dim, max_distance=max_distance)
        self.head_dim, self.max_distance = head_dim, max_distance
        self.keys = nn.Parameter(torch.empty(2 * max_distance + 1, head_dim))
        self.values = nn.Parameter(torch.empty(2 * max_distance + 1, head_dim))
        nn.init.xavier_uniform_(self.keys)
        nn.init.xavier_uniform_(self.values)

    def terms(self, q_at: Coordinates, k_at: Coordinates, q_input: Input = None, k_input: Input = None) -> Terms:
        """Returns the terms of relative keys and relative values."""
        clip = Clip(-self.max_distance, self.max_distance)
        return RelativeKeys(Rows(self.keys[None], clip)), RelativeValues(Rows(self.values[None], clip))

    def oracle(self, pair: Pair) -> float:
        return pair.scale * (pair.query @ (pair.key + self.keys[self._row(pair)].double())).item()

    def oracle_value(self, pair: Pair, v: Tensor) -> Tensor:
        return v[pair.h, pair.j] + self.values[self._row(pair)].double()

    def _row(self, pair: Pair) -> int:
        return self.max_distance + max(-self.max_distance, min(self.max_distance, math.floor(pair.distance)))

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(8), cls(8, max_distance=3)]
