"""Forgetting attention: a gate for each token and head that fades what came before."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..coordinates import Coordinates
from ..errors import need_positive
from ..terms import TokenBias
from ._base import Input, Pair, PositionEncoding, Terms, normal
from ._content import Contextual, projected, summed


class ForgettingGate(Contextual):
    """Each token fades all that lies before it, by a gate that its content sets (Forgetting Transformer, FoX).

        score[h,i,j] = s·⟨qᵢ, kⱼ⟩ + Σ_{t=j+1…i} ln f_h(t)
        f_h(t) = σ(⟨w_h, x_t⟩ + b_h),   x the layer's input

    Shapes: weight w [num_heads, embed_dim] from N(0, 0.02²), bias b [num_heads] of 0, as in the authors' code, which
    uses no other position encoding by default. x-transformers starts with b = 5, where little is forgotten.
    A score is the difference of two sums over the stream, taken in float64; kernels then read them in the dtype they
    compute in, so that for sums as large as C the bias carries an error of C·2⁻²⁴ in float32.
    Raises HeadwayError for sizes below 1 and for inputs of another embed_dim.
    Cite: Lin et al. 2025, section 3.
    """

    name = "forgetting"
    citation = "lin2025forgetting"
    year = 2025
    evidence = "independent"
    extrapolates = True

    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__()
        need_positive(embed_dim=embed_dim, num_heads=num_heads)
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.weight = normal(num_heads, embed_dim)
        self.bias = nn.Parameter(torch.zeros(num_heads))

    def sums(self, q_at: Coordinates, k_at: Coordinates, k_input: Input) -> tuple[Tensor, Tensor]:
        """Σ ln f up to and with each query (the last of the keys) and each key: [batch, num_heads, tokens]."""
        gates = F.logsigmoid(projected(self.read(k_input), self.weight, self.bias))
        sums = summed(gates, k_at).transpose(1, 2)
        return sums[..., sums.shape[-1] - q_at.index.shape[1] :], sums

    def terms(self, q_at: Coordinates, k_at: Coordinates, q_input: Input = None, k_input: Input = None) -> Terms:
        """The sum up to the query less the sum up to the key."""
        queries, keys = self.sums(q_at, k_at, k_input)
        return (TokenBias(queries=queries, keys=-keys),)

    def oracle(self, pair: Pair) -> float:
        return pair.scale * pair.dot + self.oracle_bias(pair)

    def oracle_bias(self, pair: Pair) -> float:
        """The sum of logarithms as the paper writes it."""
        assert pair.x is not None
        w, total = self.weight[pair.h].double(), 0.0
        for t in range(pair.j + 1, pair.i + 1):
            total += math.log(1 / (1 + math.exp(-float(w @ pair.x[t]) - self.bias[pair.h].item())))
        return total

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(32, 4), cls(48, 6)]
