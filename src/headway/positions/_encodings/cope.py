"""Contextual position encoding: positions count the tokens that content selects."""

from __future__ import annotations

import math

import torch
from torch import nn

from ...coordinates import Coordinates
from ...errors import HeadwayError, need_positive
from ...terms import ContextualPositions
from .._base import Input, Pair, PositionEncoding, Terms


class CoPE(PositionEncoding):
    """Adds the product of the query with the vector of a position that counts gates between key and query.

        score[h,i,j] = z_ij + (1 − r)·⟨qᵢ, e[⌊p_ij⌋]⟩ + r·⟨qᵢ, e[⌈p_ij⌉]⟩,   r = p_ij − ⌊p_ij⌋
        z_ij = s·⟨qᵢ, kⱼ⟩,   p_ij = min( Σ_{t=j…i} σ(z_it), max_positions − 1 )

    As in the paper's listing, the gates read the scaled scores, and ⟨q, e⟩ is not scaled. Masked keys have a gate of 0.

    Args:
        head_dim: the width of each head, at least 1.
        max_positions: the number of positions, at least 2: 64 in the paper, 16 by default in x-transformers.

    Attributes:
        vectors: e [max_positions, head_dim], initially 0, shared by all heads.

    Raises:
        HeadwayError: if head_dim is below 1, max_positions is below 2, or queries have another head_dim.

    References:
        Golovneva et al. 2024, section 4 and the listing of appendix B.
    """

    name = "cope"
    citation = "golovneva2024contextual"
    year = 2024
    evidence = "independent"
    extrapolates = True
    axes = None
    causal_only = True

    def __init__(self, head_dim: int, max_positions: int = 64) -> None:
        super().__init__()
        need_positive(head_dim=head_dim)
        if max_positions < 2:
            raise HeadwayError(f"max_positions is {max_positions}: give at least 2, such as 64")
        self.head_dim, self.max_positions = head_dim, max_positions
        self.vectors = nn.Parameter(torch.zeros(max_positions, head_dim))

    def terms(self, q_at: Coordinates, k_at: Coordinates, q_input: Input = None, k_input: Input = None) -> Terms:
        """Returns the positions that each query counts."""
        return (ContextualPositions(self.vectors[None]),)

    def oracle(self, pair: Pair) -> float:
        z = [pair.scale * float(pair.query @ pair.keys[pair.h, t]) for t in range(pair.i + 1)]
        p = min(sum(1 / (1 + math.exp(-z[t])) for t in range(pair.j, pair.i + 1)), self.max_positions - 1)
        low, high = (float(pair.query @ self.vectors[t].double()) for t in (math.floor(p), math.ceil(p)))
        return z[pair.j] + (1 - p + math.floor(p)) * low + (p - math.floor(p)) * high

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(8), cls(8, max_positions=3)]
