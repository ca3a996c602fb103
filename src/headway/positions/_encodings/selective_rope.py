"""Selective RoPE: rotary phases that a short convolution over the tokens determines."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ...coordinates import Coordinates
from ...errors import HeadwayError, need_positive
from .._base import Pair, PositionEncoding
from .._content import convolved, projected, summed
from .._content_rotary import ContentRotary
from .._formulas import need_base, normal, rates

EPSILON = 1e-6


class SelectiveRoPE(ContentRotary):
    """Rotates queries and keys by cumulative angles that each token determines for every head and pair.

        φ_c(t) = ω_c·Σ_{u≤t} γ_h(u)·conv(V·U·x̂)_{h,c}(u),   ω_c = base^(−2c/head_dim)
        γ = 1, or σ(⟨a_h, x̂_u⟩ + b_h) with gate;  x̂ = x with each head's share of it over √(‖·‖² + 10⁻⁶)

    The pairs are (c, c + head_dim/2). rank 32, width 4, base 500000 and no gate are the authors' settings, whose code
    has a default rank of 16; the figure of the paper has the gate. Their other options (learned ω, a bias of the phase,
    differences in place of the convolution) are not implemented. The convolution does not extend over documents or over
    padding in front.

    Args:
        embed_dim: the width of the layer's input, a multiple of num_heads.
        num_heads: the number of query heads, at least 1.
        head_dim: the width of each head, even; embed_dim / num_heads if None.
        num_kv_heads: the number of key and value heads, a divisor of num_heads; num_heads if None.
        rank: the width between U and V, at least 1.
        width: the number of tokens that the convolution reads, at least 1.
        base: the base of the frequencies, above 1.
        gate: whether γ is learned.

    Attributes:
        down: U [rank, embed_dim], initially N(0, 0.02²) as in the authors' models, as are the other weights.
        up: V [kv_heads·head_dim/2, rank].
        taps: [kv_heads·head_dim/2, width], the causal convolution of each channel; tap s is for the token s before.
        gate_weight: a [kv_heads, embed_dim], or None.
        gate_bias: b [kv_heads], initially 0, or None.

    Raises:
        HeadwayError: if a size is below 1, head_dim is odd, the numbers of heads do not divide, or base is 1 or less.

    References:
        Movahedi et al. 2026, section 4 and the authors' code.
    """

    name = "selective-rope"
    citation = "movahedi2026selective"
    year = 2025
    evidence = "authors"
    across_shards = True
    gate_weight: nn.Parameter | None
    gate_bias: nn.Parameter | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        head_dim: int | None = None,
        num_kv_heads: int | None = None,
        rank: int = 32,
        width: int = 4,
        base: float = 500000.0,
        gate: bool = False,
    ) -> None:
        super().__init__(embed_dim, num_heads, head_dim, num_kv_heads, "half")
        need_positive(rank=rank, width=width)
        need_base(base)
        if embed_dim % num_heads:
            raise HeadwayError(
                f"embed_dim is {embed_dim}: give a multiple of the {num_heads} heads, each norms its share"
            )
        self.rank, self.width, self.base, self.gate = rank, width, base, gate
        channels = self.num_kv_heads * self.pairs

        self.down, self.up, self.taps = normal(rank, embed_dim), normal(channels, rank), normal(channels, width)
        self.register_parameter("gate_weight", normal(self.num_kv_heads, embed_dim) if gate else None)
        self.register_parameter("gate_bias", nn.Parameter(torch.zeros(self.num_kv_heads)) if gate else None)

    def turns(self, x: Tensor, k_at: Coordinates) -> Tensor:
        """Returns φ, [batch, kv_heads, m, pairs] in float64."""
        shares = x.unflatten(-1, (self.num_heads, -1))
        x = (shares * torch.rsqrt(shares.square().sum(-1, keepdim=True) + EPSILON)).flatten(-2)
        step = convolved(projected(projected(x, self.down), self.up), k_at, self.taps)
        step = step.unflatten(-1, (self.num_kv_heads, self.pairs))
        if self.gate_weight is not None and self.gate_bias is not None:
            step = step * projected(x, self.gate_weight, self.gate_bias).sigmoid()[..., None]
        return summed(step, k_at).transpose(1, 2) * rates(self.pairs, self.head_dim, self.base, x.device)

    def oracle_angle(self, pair: Pair, c: int, token: int) -> float:
        assert pair.x is not None
        head, share = self.oracle_head(pair.h), self.embed_dim // self.num_heads
        channel = head * self.pairs + c
        normed = [
            torch.cat([part / math.sqrt(float(part @ part) + EPSILON) for part in row.split(share)]) for row in pair.x
        ]
        total = 0.0
        for t in range(token + 1):
            step = 0.0
            for s in range(min(self.width, t + 1)):
                low = self.down.double() @ normed[t - s]
                step += self.taps[channel, s].item() * float(self.up[channel].double() @ low)
            if self.gate_weight is not None and self.gate_bias is not None:
                logit = float(self.gate_weight[head].double() @ normed[t]) + self.gate_bias[head].item()
                step /= 1 + math.exp(-logit)
            total += step
        return total / float(self.base) ** (2 * c / self.head_dim)

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(32, 4), cls(48, 6, rank=5, width=2, gate=True)]
