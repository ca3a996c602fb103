"""CARoPE: rotary phases whose frequencies depend on the tokens."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from ...coordinates import Coordinates
from .._base import Pair, PositionEncoding
from .._content import projected, summed
from .._content_rotary import ContentRotary
from .._formulas import normal


class CARoPE(ContentRotary):
    """Applies RoPE with a geometric series of frequencies whose ratio depends on head and token.

        φ_c(t) = Σ_{u≤t} f_h(x_u)^c,  c = 0 … head_dim/2 − 1,   f_h(x) = 1/(1 + softplus(⟨w_h, x⟩))
        score[h,i,j] = s·⟨R(φ(i))·qᵢ, R(φ(j))·kⱼ⟩

    A constant f of base^(−2/head_dim) would be RoPE. The paper says that it starts there, which a w without a constant
    cannot reach: near 0, f is 0.59. As in RoPE the first pair (c = 0) rotates by 1 for each token, whatever the token
    is.

    Args:
        embed_dim: the width of the layer's input, at least 1.
        num_heads: the number of query heads, at least 1.
        head_dim: the width of each head, even; embed_dim / num_heads if None.
        num_kv_heads: the number of key and value heads, a divisor of num_heads; num_heads if None.
        layout: as in ``RoPE``; the paper names none.

    Attributes:
        weight: w [kv_heads, embed_dim], initially N(0, 0.02²).

    Raises:
        HeadwayError: if a size is below 1, head_dim is odd, num_kv_heads does not divide num_heads, or layout is
            unknown.

    References:
        Veisi et al. 2025, section 2.
    """

    name = "carope"
    citation = "veisi2025context"
    year = 2025
    evidence = "formula"
    across_shards = True

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        head_dim: int | None = None,
        num_kv_heads: int | None = None,
        layout: str = "interleaved",
    ) -> None:
        super().__init__(embed_dim, num_heads, head_dim, num_kv_heads, layout)
        self.weight = normal(self.num_kv_heads, embed_dim)

    def turns(self, x: Tensor, k_at: Coordinates) -> Tensor:
        """Returns φ, [batch, kv_heads, m, pairs] in float64."""
        ratio = 1 / (1 - F.logsigmoid(-projected(x, self.weight)))  # softplus, which onnxruntime has only in float32
        power = torch.arange(self.pairs, dtype=torch.float64, device=x.device)
        return summed(ratio[..., None] ** power, k_at).transpose(1, 2)

    def oracle_angle(self, pair: Pair, c: int, token: int) -> float:
        assert pair.x is not None
        w = self.weight[self.oracle_head(pair.h)].double()
        softplus = [math.log1p(math.exp(float(w @ pair.x[t]))) for t in range(token + 1)]
        return math.fsum((1 / (part + 1)) ** c for part in softplus)

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(32, 4), cls(48, 6, layout="half")]
