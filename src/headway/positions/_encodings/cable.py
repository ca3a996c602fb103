"""Biases that tokens accumulate from their content (Cable)."""

from __future__ import annotations

import math

from torch import Tensor
from torch.nn import functional as F

from .._base import Pair, PositionEncoding
from .forgetting import ForgettingGate


class Cable(ForgettingGate):
    """Subtracts a positive number for each token between key and query, which that token computes for every head.

        score[h,i,j] = s·⟨qᵢ, kⱼ⟩ − Σ_{t=j+1…i} softplus(⟨w_h, x_t⟩ + b_h),   x the layer's input

    It is the forgetting gate (``ForgettingGate``) with −w and −b, since softplus(z) = −ln σ(−z), found independently.
    In the authors' first code the factor s is 1: give ``scale=1`` for its numbers.

    Args:
        embed_dim: the width of the layer's input, at least 1.
        num_heads: the number of query heads, at least 1.

    Attributes:
        weight: w [num_heads, embed_dim], initially N(0, 0.02²), as in the authors' code.
        bias: b [num_heads], initially 0, as in the authors' code.

    Raises:
        HeadwayError: if a size is below 1, or inputs have another embed_dim.

    References:
        Veisi et al. 2025, section 3.
    """

    name = "cable"
    citation = "veisi2025cable"
    evidence = "authors"
    same_function_as = "forgetting"
    across_shards = True

    def logs(self, z: Tensor) -> Tensor:
        """Returns −softplus(z) = ln σ(−z), [batch, m, num_heads]."""
        return F.logsigmoid(-z)

    def oracle_bias(self, pair: Pair) -> float:
        assert pair.x is not None
        w, total = self.weight[pair.h].double(), 0.0
        for t in range(pair.j + 1, pair.i + 1):
            total -= math.log(1 + math.exp(float(w @ pair.x[t]) + self.bias[pair.h].item()))
        return total

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(32, 4), cls(48, 6)]
