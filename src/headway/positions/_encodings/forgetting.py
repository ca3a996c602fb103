"""Forgetting attention: a learned gate for each token and head reduces the scores of earlier keys."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...coordinates import Coordinates
from ...errors import need_positive
from ...terms import TokenBias
from .._base import Input, Pair, PositionEncoding, Terms
from .._content import Contextual, numbers_of, projected, summed
from .._formulas import normal


class ForgettingGate(Contextual):
    """Adds the logarithms of gates that each token computes from its content (Forgetting Transformer, FoX).

        score[h,i,j] = s·⟨qᵢ, kⱼ⟩ + Σ_{t=j+1…i} ln f_h(t)
        f_h(t) = σ(⟨w_h, x_t⟩ + b_h),   x the layer's input

    The authors' code uses no other position encoding by default. x-transformers starts with b = 5, with which little is
    forgotten. The sum is the difference of two sums over the stream, computed in float64. Kernels read these in the
    dtype they compute in: for sums as large as C the bias has an error of C·2⁻²⁴ in float32.

    Args:
        embed_dim: the width of the layer's input, at least 1.
        num_heads: the number of query heads, at least 1.

    Attributes:
        weight: w [num_heads, embed_dim], initially N(0, 0.02²), as in the authors' code.
        bias: b [num_heads], initially 0, as in the authors' code.

    Raises:
        HeadwayError: if a size is below 1, or inputs have another embed_dim.

    References:
        Lin et al. 2025, section 3.
    """

    name = "forgetting"
    citation = "lin2025forgetting"
    year = 2025
    evidence = "independent"
    across_shards = True
    extrapolates = True

    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__()
        need_positive(embed_dim=embed_dim, num_heads=num_heads)
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.weight = normal(num_heads, embed_dim)
        self.bias = nn.Parameter(torch.zeros(num_heads))

    def logs(self, z: Tensor) -> Tensor:
        """Returns ln f of each token and head for z = ⟨w_h, x_t⟩ + b_h.

        Args:
            z: [batch, m, num_heads].
        """
        return F.logsigmoid(z)

    def sums(self, q_at: Coordinates, k_at: Coordinates, k_input: Input) -> tuple[Tensor, Tensor]:
        """Returns Σ ln f up to and including each query and each key, [batch, num_heads, n] and [batch, num_heads, m].

        Args:
            q_at: the coordinates of the queries, which are the last of the keys.
            k_at: the coordinates of the keys.
            k_input: the input of the layer's keys, [batch, m, embed_dim].

        Raises:
            HeadwayError: if there are more queries than keys.
        """
        n, m = numbers_of(self, q_at, k_at)
        gates = self.logs(projected(self.read(k_input), self.weight, self.bias))
        sums = summed(gates, k_at).transpose(1, 2)
        return sums[..., m - n :], sums

    def terms(self, q_at: Coordinates, k_at: Coordinates, q_input: Input = None, k_input: Input = None) -> Terms:
        """Returns the bias: the sum up to the query minus the sum up to the key."""
        queries, keys = self.sums(q_at, k_at, k_input)
        return (TokenBias(queries=queries, keys=-keys),)

    def oracle(self, pair: Pair) -> float:
        return pair.scale * pair.dot + self.oracle_bias(pair)

    def oracle_bias(self, pair: Pair) -> float:
        """Returns the sum of logarithms of ``pair`` as the paper writes it."""
        assert pair.x is not None
        w, total = self.weight[pair.h].double(), 0.0
        for t in range(pair.j + 1, pair.i + 1):
            total += math.log(1 / (1 + math.exp(-float(w @ pair.x[t]) - self.bias[pair.h].item())))
        return total

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(32, 4), cls(48, 6)]
