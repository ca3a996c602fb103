"""Contextual positions: how many of the tokens in between count is for content to say."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ..coordinates import Coordinates
from ..errors import HeadwayError, need_positive
from ..terms import ScoreMap
from ._base import Input, Pair, PositionEncoding, Terms


class CoPE(PositionEncoding):
    """A key's position is the sum of gates from it to the query, and has a vector that the query is set against.

        score[h,i,j] = z_ij + (1 − r)·⟨qᵢ, e[⌊p_ij⌋]⟩ + r·⟨qᵢ, e[⌈p_ij⌉]⟩,   r = p_ij − ⌊p_ij⌋
        z_ij = s·⟨qᵢ, kⱼ⟩,   p_ij = min( Σ_{t=j…i} σ(z_it), max_positions − 1 )

    Shapes: e [max_positions, head_dim], 0 at first and shared by all heads. As in the paper's listing the gates read
    the scaled scores and ⟨q, e⟩ is not scaled; the paper takes 64 positions, x-transformers 16 by default.
    What a query may not see counts nothing. Scores are held for a block of queries at a time.
    Raises HeadwayError for head_dim below 1, fewer than 2 positions and queries of another head_dim.
    Cite: Golovneva et al. 2024, section 4 and the listing of appendix B.
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
        """The vectors between which a counted position lies, set against the query."""
        return (ScoreMap(_counted, (self.vectors,)),)

    def oracle(self, pair: Pair) -> float:
        z = [pair.scale * float(pair.query @ pair.k[pair.h, t]) for t in range(pair.i + 1)]
        p = min(sum(1 / (1 + math.exp(-z[t])) for t in range(pair.j, pair.i + 1)), self.max_positions - 1)
        low, high = (float(pair.query @ self.vectors[t].double()) for t in (math.floor(p), math.ceil(p)))
        return z[pair.j] + (1 - p + math.floor(p)) * low + (p - math.floor(p)) * high

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(8), cls(8, max_positions=3)]


def _counted(scores: Tensor, allowed: Tensor, q: Tensor, rows: Tensor, vectors: Tensor) -> Tensor:
    if q.shape[-1] != vectors.shape[-1]:
        raise HeadwayError(f"q is {q.shape[-1]} wide: build CoPE with head_dim={q.shape[-1]}")
    gates = scores.sigmoid().masked_fill(~allowed, 0)
    position = gates.flip(-1).cumsum(-1).flip(-1).clamp(max=vectors.shape[0] - 1)
    by_position = q @ vectors.t()
    low, high = (by_position.gather(-1, whole.detach().long()) for whole in (position.floor(), position.ceil()))
    return scores + torch.lerp(low, high, position - position.detach().floor())
