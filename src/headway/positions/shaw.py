"""Learned vectors for clipped distances, added to keys and values."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ..coordinates import Coordinates
from ..errors import need_positive
from ..terms import Clip, RelativeKeys, RelativeValues, Rows
from ._base import Input, Pair, PositionEncoding, Terms


class Shaw(PositionEncoding):
    """Each distance up to a limit has a vector that joins the key and one that joins the value.

        score[i,j] = s·⟨qᵢ, kⱼ + a^K[clip(pⱼ − pᵢ)]⟩,   clip(δ) = max(−k, min(k, δ))
        out[i] = Σⱼ A[i,j]·(vⱼ + a^V[clip(pⱼ − pᵢ)])

    Shapes: keys a^K and values a^V [2k + 1, head_dim], shared by all heads; row k + δ stands for the distance δ.
    max_distance is k. Raises HeadwayError for sizes below 1.
    Cite: Shaw et al. 2018, section 3.2.
    """

    name = "shaw"
    citation = "shaw2018self"
    year = 2018
    evidence = "independent"
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
        """Relative keys and relative values."""
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
