"""Rotary positions whose pairs fade with the distance."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..coordinates import Coordinates
from ..errors import HeadwayError, need_finite
from ..terms import Rotation
from ._base import Pair, PositionEncoding, need_base, need_width, rates
from ._rotary import Rotary

REACH = {torch.float16: 8.0}
"""How far the logarithm of the factor may go on either side of 0; 80 in the wider formats."""


class XPos(Rotary):
    """RoPE in which queries and keys also shrink and grow, so that far pairs of dimensions count for less.

        score[i,j] = s·Σ_c ζ_c^((pᵢ − pⱼ)/scale_base)·Re( q̄_c·k_c·e^{i(pⱼ − pᵢ)ω_c} ),   pⱼ ≤ pᵢ
        q_c ← q_c·e^{i·p·ω_c}·ζ_c^((p − centre)/scale_base),   k_c ← k_c·e^{i·p·ω_c}·ζ_c^(−(p − centre)/scale_base)
        ζ_c = (2c/head_dim + γ)/(1 + γ),   ω_c = base^(−2c/head_dim)

    Shapes: x [batch, heads, n, head_dim] → the same. gamma is γ; layout is that of RoPE. Under a causal mask alone:
    a later key would grow without bound.
    centre is one number for queries and keys, cached ones included, so that it cancels; it moves the range only. The
    authors put it in the middle of each call, which cancels as long as both sides take the same. rotary-embedding-torch
    takes the middle of each side, which does not cancel when queries are the last of cached keys.
    The factor is ζ_0^(∓1) = 3.5 for each scale_base tokens, so with the defaults the formula holds up to 32,700 tokens
    on either side of the centre, in float16 up to 3,270. Beyond, a token's factor stays where it is: two tokens that
    are both beyond no longer fade. For long float16 streams set centre to the middle of the longest.
    The paper reads beyond the trained length L with the mask Causal() & Chunked(L // 2, previous=1).
    Raises HeadwayError for an odd head_dim, a base of 1 or less, gamma or scale_base not above 0, a centre
    that is not finite.
    Cite: Sun et al. 2023, "xPos"; defaults are those of the released code (torchscale).
    """

    name = "xpos"
    citation = "sun2023length"
    year = 2022
    evidence = "authors"
    causal_only = True

    def __init__(
        self,
        head_dim: int,
        base: float = 10000.0,
        scale_base: float = 512.0,
        gamma: float = 0.4,
        centre: float = 0.0,
        layout: str = "interleaved",
    ) -> None:
        super().__init__(head_dim, layout)
        need_base(base)
        for name, value in (("scale_base", scale_base), ("gamma", gamma)):
            if not 0 < value < math.inf:
                raise HeadwayError(f"{name} is {value}: give a number above 0")
        need_finite(centre=centre)
        self.base, self.scale_base, self.gamma, self.centre = base, scale_base, gamma, centre

    def frequencies(self, coordinates: Coordinates) -> Tensor:
        """ω_c = base^(−2c/head_dim)"""
        return rates(self.pairs, self.head_dim, self.base, coordinates.position.device)

    def tables(self, coordinates: Coordinates) -> tuple[Tensor, ...]:
        """cos φ, sin φ and (p − centre)/scale_base·ln ζ, [b, 1, n, pairs] in float64."""
        zeta = [(2 * c / self.head_dim + self.gamma) / (1 + self.gamma) for c in range(self.pairs)]
        fading = torch.tensor([math.log(z) for z in zeta], dtype=torch.float64, device=coordinates.position.device)
        steps = (coordinates.axis().double() - self.centre) / self.scale_base
        return *self.waves(coordinates), steps[:, None, :, None] * fading

    def rotation(self, side: str, x: Tensor, coordinates: Coordinates) -> Rotation | None:
        """The turn of x [batch, heads, n, head_dim]; queries shrink with their position, keys grow."""
        need_width(x, "head_dim", self.head_dim)
        cos, sin, fading = self.place(coordinates).tables
        reach = REACH.get(x.dtype, 80.0)
        factor = ((1.0 if side == "query" else -1.0) * fading).clamp(-reach, reach).exp()
        return Rotation(factor * cos, factor * sin, self.layout)

    def prepare_query(self, q: Tensor, coordinates: Coordinates) -> Tensor:
        """q [batch, heads, n, head_dim] turned, and shrunk with its position."""
        return self._rotated("query", q, coordinates)

    def prepare_key(self, k: Tensor, coordinates: Coordinates) -> Tensor:
        """k [batch, heads, m, head_dim] turned, and grown with its position."""
        return self._rotated("key", k, coordinates)

    def oracle(self, pair: Pair) -> float:
        total = 0.0
        for c, (a, b) in enumerate(self.dimensions()):
            q, k = complex(pair.query[a], pair.query[b]), complex(pair.key[a], pair.key[b])
            zeta = (2 * c / self.head_dim + self.gamma) / (1 + self.gamma)
            angle = pair.distance * self.base ** (-2 * c / self.head_dim)
            turn = complex(math.cos(angle), math.sin(angle))
            total += zeta ** (-pair.distance / self.scale_base) * (q.conjugate() * k * turn).real
        return pair.scale * total

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(8), cls(8, base=500.0, scale_base=64.0, gamma=0.8, centre=20.0, layout="half")]
