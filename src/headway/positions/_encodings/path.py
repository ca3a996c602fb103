"""PaTH: positions by the path between two tokens, a product of reflections that the tokens in between determine."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...coordinates import Coordinates
from ...errors import need_positive
from ...terms import HouseholderPath
from .._base import Input, Pair, PositionEncoding, Terms
from .._content import Contextual, convolved, heads_of_keys, projected
from .._formulas import normal

EPSILON = 1e-6


class PaTH(Contextual):
    """Multiplies query and key by the (generalized) Householder matrices of the tokens between them.

        score[h,i,j] = s·qᵢᵀ·Hᵢ·Hᵢ₋₁ ⋯ Hⱼ₊₁·kⱼ,   H_t = I − β_t·w_t·w_tᵀ
        w_t = u/√(‖u‖² + 10⁻⁶),  u = silu(conv(V·U·x))_t for each head,   β_t = 2·σ(⟨a, x_t⟩ + b)

    A query head uses the path of its key head. β < 2, so that H keeps or reduces the norm. Neither the product nor the
    convolution extends over documents or over padding in front. A block of queries processes the keys in chunks, with
    one triangular system each (the WY form): memory O(rows·m).

    Args:
        embed_dim: the width of the layer's input, at least 1.
        num_heads: the number of query heads, at least 1.
        head_dim: the width of each head, at least 1; embed_dim / num_heads if None.
        num_kv_heads: the number of key and value heads, a divisor of num_heads; num_heads if None.
        rank: the width between U and V, at least 1; 32 in the authors' code.
        width: the number of tokens that the convolution reads, at least 1; 3 in the authors' code.

    Attributes:
        down: U [rank, embed_dim], initially N(0, 0.02²), as are the other weights.
        up: V [kv_heads·head_dim, rank].
        taps: [kv_heads·head_dim, width], the causal convolution of each channel; tap s is for the token s before.
        beta_weight: a [kv_heads, embed_dim].
        beta_bias: b [kv_heads], initially 0.

    Raises:
        HeadwayError: if a size is below 1, num_kv_heads does not divide num_heads, or x or q has another width.

    References:
        Yang et al. 2025, sections 3.1 and 3.3.
    """

    name = "path"
    citation = "yang2025path"
    year = 2025
    evidence = "authors"
    extrapolates = False

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        head_dim: int | None = None,
        num_kv_heads: int | None = None,
        rank: int = 32,
        width: int = 3,
    ) -> None:
        super().__init__()
        need_positive(embed_dim=embed_dim, num_heads=num_heads, rank=rank, width=width)
        head_dim = embed_dim // num_heads if head_dim is None else head_dim
        kv_heads = heads_of_keys(num_heads, num_kv_heads)
        need_positive(head_dim=head_dim)
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, head_dim
        self.num_kv_heads, self.rank, self.width = kv_heads, rank, width

        self.down, self.up = normal(rank, embed_dim), normal(kv_heads * head_dim, rank)
        self.taps = normal(kv_heads * head_dim, width)
        self.beta_weight, self.beta_bias = normal(kv_heads, embed_dim), nn.Parameter(torch.zeros(kv_heads))

    def path(self, k_at: Coordinates, k_input: Input) -> tuple[Tensor, Tensor]:
        """Returns w [batch, kv_heads, m, head_dim] and β [batch, kv_heads, m] of every token, 0 for padding in front.

        Args:
            k_at: the coordinates of the keys.
            k_input: the input of the layer's keys, [batch, m, embed_dim].
        """
        x = self.read(k_input)
        u = F.silu(convolved(projected(projected(x, self.down), self.up), k_at, self.taps))
        u = u.unflatten(-1, (self.num_kv_heads, self.head_dim))
        w = u * torch.rsqrt(u.square().sum(-1, keepdim=True) + EPSILON)
        beta = 2 * projected(x, self.beta_weight, self.beta_bias).sigmoid()
        padding = (k_at.index < 0)[..., None]
        w, beta = w.masked_fill(padding[..., None], 0), beta.masked_fill(padding, 0)
        return w.transpose(1, 2), beta.transpose(1, 2)

    def terms(self, q_at: Coordinates, k_at: Coordinates, q_input: Input = None, k_input: Input = None) -> Terms:
        """Returns the product along the path, which replaces ⟨q, k⟩."""
        return (HouseholderPath(*self.path(k_at, k_input)),)

    def oracle(self, pair: Pair) -> float:
        row = pair.query
        for t in range(pair.i, pair.j, -1):
            w, beta = self.oracle_step(pair, t)
            row = row @ (torch.eye(self.head_dim, dtype=row.dtype) - beta * torch.outer(w, w))
        return pair.scale * float(row @ pair.key)

    def oracle_step(self, pair: Pair, t: int) -> tuple[Tensor, float]:
        """Returns w and β of a token as the paper writes them.

        Args:
            pair: the query and the key.
            t: the token.
        """
        assert pair.x is not None
        g = pair.h * self.num_kv_heads // self.num_heads
        down, up, taps = (part.double() for part in (self.down, self.up, self.taps))
        u = torch.zeros(self.head_dim, dtype=torch.float64)
        for c in range(self.head_dim):
            channel = g * self.head_dim + c
            for s in range(min(self.width, t + 1)):
                u[c] += taps[channel, s] * (up[channel] @ (down @ pair.x[t - s]))
            u[c] *= 1 / (1 + math.exp(-float(u[c])))
        logit = float(self.beta_weight[g].double() @ pair.x[t]) + self.beta_bias[g].item()
        return u / math.sqrt(float(u @ u) + EPSILON), 2 / (1 + math.exp(-logit))

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(32, 4), cls(48, 6, rank=5, width=2)]
