"""The relative positions of Music Transformer: learned vectors for distances to earlier keys."""

from __future__ import annotations

import math

import torch
from torch import nn

from ...coordinates import Coordinates
from ...errors import need_positive
from ...terms import Clip, RelativeKeys, Rows
from .._base import Input, Pair, PositionEncoding, Terms


class MusicTransformer(PositionEncoding):
    """Adds to each earlier key a learned vector of its distance for each head, up to a limit.

        score[h,i,j] = s·⟨qᵢ, kⱼ + E_h[pᵢ − pⱼ]⟩,   E_h[t] = 0 for t ≥ max_length

    The authors' code counts the rows backwards (its last one is the distance 0) and also adds nothing beyond the table;
    other code rejects longer sequences. It is for causal masks only: the paper's skewing leaves other rows' numbers at
    later keys. A later key that is not masked has distance 0. A distance that is not a whole number is rounded up.

    Args:
        num_heads: the number of query heads, at least 1.
        head_dim: the width of each head, at least 1.
        max_length: the number of distances that have a vector, at least 1.
        shared: whether the heads share the vectors.

    Attributes:
        E: [num_heads, max_length, head_dim], or [1, max_length, head_dim] with ``shared``; row t is for the distance t;
            drawn from N(0, 1/head_dim).

    Raises:
        HeadwayError: if a size is below 1.

    References:
        Huang et al. 2019.
    """

    name = "music-transformer"
    citation = "huang2019music"
    year = 2018
    evidence = "independent"
    same_terms = True
    causal_only = True

    def __init__(self, num_heads: int, head_dim: int, max_length: int = 1024, shared: bool = False) -> None:
        super().__init__()
        need_positive(num_heads=num_heads, head_dim=head_dim, max_length=max_length)
        self.num_heads, self.head_dim, self.max_length, self.shared = num_heads, head_dim, max_length, shared
        self.E = nn.Parameter(torch.randn(1 if shared else num_heads, max_length, head_dim) * head_dim**-0.5)

    def terms(self, q_at: Coordinates, k_at: Coordinates, q_input: Input = None, k_input: Input = None) -> Terms:
        """Returns the term of relative keys, from zeros beyond the table to the distance 0."""
        table = torch.cat([self.E, self.E.new_zeros(len(self.E), 1, self.head_dim)], dim=1).flip(1)
        return (RelativeKeys(Rows(table, Clip(-self.max_length, 0))),)

    def oracle(self, pair: Pair) -> float:
        back = max(0, -math.floor(pair.distance))
        score = pair.scale * pair.dot
        if back < self.max_length:
            score += pair.scale * float(pair.query @ self.E[0 if self.shared else pair.h, back].double())
        return score

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(4, 8, max_length=128), cls(6, 8, max_length=64, shared=True)]
