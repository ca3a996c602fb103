"""xPos: rotary positions with a decay by distance."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...coordinates import Coordinates
from ...errors import HeadwayError, need_finite
from ...terms import Rotation
from .._base import Pair, PositionEncoding
from .._formulas import need_base, need_width, rates
from .._rotary import Rotary


def reach(dtype: torch.dtype) -> float:
    """Returns the largest absolute logarithm of the factor that a dtype holds with room for the vector itself."""
    return 8.0 if dtype == torch.float16 else 80.0


class XPos(Rotary):
    """Rotates as RoPE does and scales queries and keys by their position, so that scores decay with the distance.

        score[i,j] = s·Σ_c ζ_c^((pᵢ − pⱼ)/scale_base)·Re( q̄_c·k_c·e^{i(pⱼ − pᵢ)ω_c} ),   pⱼ ≤ pᵢ
        q_c ← q_c·e^{i·p·ω_c}·ζ_c^((p − centre)/scale_base),   k_c ← k_c·e^{i·p·ω_c}·ζ_c^(−(p − centre)/scale_base)
        ζ_c = (2c/head_dim + γ)/(1 + γ),   ω_c = base^(−2c/head_dim)

    It is for causal masks only: the score of a later key would grow without bound. centre cancels, since it is the same
    number for queries and keys, cached ones included; it moves the numeric range only. The authors put it in the middle
    of each call, which cancels if both sides use the same. rotary-embedding-torch uses the middle of each side,
    which does not cancel when queries are the last of cached keys.

    The factor is ζ_0^(∓1) = 3.5 for each scale_base tokens. With the defaults the formula holds up to 32,700 tokens on
    either side of the centre, in float16 up to 3,270. Beyond, a token's factor is constant: two tokens that both lie
    beyond no longer decay. For long float16 sequences, set centre to the middle of the longest. Beyond the trained
    length L, the paper uses the mask ``Causal() & Chunked(L // 2, previous=1)``.

    Args:
        head_dim: the width of each head, even.
        base: the base of the frequencies, above 1.
        scale_base: the distance over which a score decays by the factor ζ_c, above 0.
        gamma: γ, above 0.
        centre: the position at which the factor is 1.
        layout: which dimensions form the pair c: (2c, 2c+1) for "interleaved", (c, c + head_dim/2) for "half".

    Shape:
        x: [batch, heads, n, head_dim]
        Output: [batch, heads, n, head_dim]

    Raises:
        HeadwayError: if head_dim is odd, base is 1 or less, gamma or scale_base is not above 0, or centre is not
            finite.

    References:
        Sun et al. 2023, "xPos"; the defaults are those of the released code (torchscale).
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
        """Returns ω_c = base^(−2c/head_dim), [pairs] in float64."""
        return rates(self.pairs, self.head_dim, self.base, coordinates.position.device)

    def tables(self, coordinates: Coordinates) -> tuple[Tensor, ...]:
        """Returns cos φ, sin φ and (p − centre)/scale_base·ln ζ, each [b, 1, n, pairs] in float64."""
        zeta = [(2 * c / self.head_dim + self.gamma) / (1 + self.gamma) for c in range(self.pairs)]
        fading = torch.tensor([math.log(z) for z in zeta], dtype=torch.float64, device=coordinates.position.device)
        steps = (coordinates.axis().double() - self.centre) / self.scale_base
        return *self.waves(coordinates), steps[:, None, :, None] * fading

    def rotation(self, side: str, x: Tensor, coordinates: Coordinates) -> Rotation | None:
        """Returns the rotation of x [batch, heads, n, head_dim], with the decay of queries or the growth of keys."""
        need_width(x, "head_dim", self.head_dim)
        cos, sin, fading = self.place(coordinates).tables
        most = reach(x.dtype)
        factor = ((1.0 if side == "query" else -1.0) * fading).clamp(-most, most).exp()
        return Rotation(factor * cos, factor * sin, self.layout)

    def prepare_query(self, q: Tensor, coordinates: Coordinates) -> Tensor:
        """Returns q [batch, heads, n, head_dim] rotated and scaled by ζ^((p − centre)/scale_base)."""
        return self._rotated("query", q, coordinates)

    def prepare_key(self, k: Tensor, coordinates: Coordinates) -> Tensor:
        """Returns k [batch, heads, m, head_dim] rotated and scaled by ζ^(−(p − centre)/scale_base)."""
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
