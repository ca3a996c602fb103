"""Threshold relative attention: keys below a threshold are dropped, and distances count the others."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...coordinates import Coordinates
from ...errors import need_positive
from ...terms import ScoreMap, sums_from_last
from .._base import Input, Pair, PositionEncoding, Terms
from .._content import Contextual, projected


class TRA(Contextual):
    """Drops the keys whose score is not above 0, and subtracts a penalty by the number of kept keys from there on.

        score[h,i,j] = z_ij + n_ij·ln σ(⟨w_h, xᵢ⟩ + b_h) if z_ij > 0, else −∞,   z_ij = s·⟨qᵢ, kⱼ⟩
        n_ij = the number of keys t with j ≤ t ≤ i and z_it > 0,   x the layer's input

    A query that keeps no key has an output of 0. The authors normalize queries and keys without learned factors:
    ``MultiHeadAttention(…, qk_norm="rms")`` has a learned one. Scores are held for one block of queries at a time.

    Args:
        embed_dim: the width of the layer's input, at least 1.
        num_heads: the number of query heads, at least 1.

    Attributes:
        weight: w [num_heads, embed_dim]; w and b are initially uniform within ±1/√embed_dim, as those of
            ``torch.nn.Linear``, which the authors' code uses.
        bias: b [num_heads].

    Raises:
        HeadwayError: if a size is below 1, or inputs have another embed_dim.

    References:
        Opper et al. 2025, section 3.
    """

    name = "tra"
    citation = "opper2025tra"
    year = 2025
    evidence = "authors"
    across_shards = True

    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__()
        need_positive(embed_dim=embed_dim, num_heads=num_heads)
        self.embed_dim, self.num_heads = embed_dim, num_heads
        bound = embed_dim**-0.5
        self.weight = nn.Parameter(torch.empty(num_heads, embed_dim).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(num_heads).uniform_(-bound, bound))

    def terms(self, q_at: Coordinates, k_at: Coordinates, q_input: Input = None, k_input: Input = None) -> Terms:
        """Returns the map that drops keys and adds the penalty of the others."""
        decay = F.logsigmoid(projected(self.read(q_input), self.weight, self.bias)).transpose(1, 2)
        return (ScoreMap(_kept, (decay,)),)

    def oracle(self, pair: Pair) -> float:
        assert pair.x is not None
        z = [pair.scale * float(pair.query @ pair.keys[pair.h, t]) for t in range(pair.i + 1)]
        if z[pair.j] <= 0:
            return -math.inf
        logit = float(self.weight[pair.h].double() @ pair.x[pair.i]) + self.bias[pair.h].item()
        return z[pair.j] - sum(z[t] > 0 for t in range(pair.j, pair.i + 1)) * math.log(1 + math.exp(-logit))

    def oracle_weights(self, h: int, i: int, scores: list[float]) -> list[float]:
        """Returns the softmax over the kept keys, or 0 for a query that keeps none."""
        return super().oracle_weights(h, i, scores) if max(scores) > -math.inf else [0.0] * len(scores)

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(32, 4), cls(48, 6)]


def _kept(scores: Tensor, allowed: Tensor, q: Tensor, rows: Tensor, decay: Tensor) -> Tensor:
    """The scores of kept keys with their penalties; decay is [batch, heads, queries]."""
    kept = allowed & (scores > 0)
    count = sums_from_last(kept.to(scores.dtype))
    return (scores + count * decay[:, :, rows, None]).masked_fill(~kept, -math.inf)
