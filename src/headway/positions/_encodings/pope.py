"""Polar coordinate position embedding: content determines the magnitude, position the angle."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...coordinates import Coordinates
from ...errors import need_positive
from .._base import Pair, PositionEncoding
from .._formulas import angles, need_base, need_width, rates


class PoPE(PositionEncoding):
    """Replaces each dimension of a query or key by a complex number: magnitude by content, angle by position.

        score[h,i,j] = s·Σ_c softplus(q_c)·softplus(k_c)·cos((pⱼ − pᵢ)·θ_c + δ_hc),   c = 0 … head_dim − 1
        θ_c = base^(−c/head_dim),   δ learned and clamped to [−2π, 0]

    Values are unchanged, and s is computed from head_dim. Outside its bounds δ has no gradient. δ is subtracted from
    the query's angle. Each query head therefore has its own δ even if it shares its keys, and caches do not depend on
    learned numbers. PoPE-pytorch adds δ to the key's angle. It assigns shared keys to the heads in turn (0 1 0 1),
    whereas others repeat each key (0 0 1 1), so with shared keys its weights need another order of heads.

    Args:
        num_heads: the number of query heads, at least 1.
        head_dim: the width of each head, at least 1.
        base: the base of the frequencies, above 1.
        uniform: whether δ is initialized from U(−2π, 0), which the paper finds best within the trained length, instead
            of 0, which it finds best beyond.

    Attributes:
        phase: δ [num_heads, head_dim].

    Shape:
        q, k: [batch, heads, n, head_dim]
        Output: [batch, heads, n, 2·head_dim]

    Raises:
        HeadwayError: if a size is below 1, base is 1 or less, or q has another number of heads.

    References:
        Gopalakrishnan et al. 2025, whose printed θ lacks the minus sign of its exponent.
    """

    name = "pope"
    citation = "gopalakrishnan2025decoupling"
    year = 2025
    evidence = "independent"

    def __init__(self, num_heads: int, head_dim: int, base: float = 10000.0, uniform: bool = False) -> None:
        super().__init__()
        need_positive(num_heads=num_heads, head_dim=head_dim)
        need_base(base)
        self.num_heads, self.head_dim, self.base, self.uniform = num_heads, head_dim, base, uniform
        self.phase = nn.Parameter(-2 * math.pi * torch.rand(num_heads, head_dim) * uniform)

    def tables(self, coordinates: Coordinates) -> Tensor:
        """Returns p·θ, [b, 1, n, head_dim] in float64."""
        # base^(−c/head_dim) are the rates of a head twice as wide
        theta = rates(self.head_dim, 2 * self.head_dim, self.base, coordinates.position.device)
        return angles(coordinates, theta)[:, None]

    def prepare_query(self, q: Tensor, coordinates: Coordinates) -> Tensor:
        """Returns q [batch, num_heads, n, head_dim] as complex numbers, [batch, num_heads, n, 2·head_dim]."""
        need_width(q, "head_dim", self.head_dim)
        need_width(q.transpose(1, -1), "num_heads", self.num_heads)
        delta = self.phase.double()
        # as clamp, with a gradient at the bounds: phases begin at 0, and from torch 2.15 on clamp has none there
        delta = torch.where(delta > 0, 0.0, torch.where(delta < -2 * math.pi, -2 * math.pi, delta))
        return _polar(q, self.place(coordinates).tables - delta[:, None])

    def prepare_key(self, k: Tensor, coordinates: Coordinates) -> Tensor:
        """Returns k [batch, heads, m, head_dim] as complex numbers, [batch, heads, m, 2·head_dim]."""
        need_width(k, "head_dim", self.head_dim)
        return _polar(k, self.place(coordinates).tables)

    def oracle(self, pair: Pair) -> float:
        total = 0.0
        for c in range(self.head_dim):
            lengths = math.log(1 + math.exp(pair.query[c])) * math.log(1 + math.exp(pair.key[c]))
            delta = max(-2 * math.pi, min(0.0, self.phase[pair.h, c].item()))
            total += lengths * math.cos(pair.distance * self.base ** (-c / self.head_dim) + delta)
        return pair.scale * total

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(4, 8), cls(6, 8, base=500.0, uniform=True)]


def _polar(x: Tensor, phases: Tensor) -> Tensor:
    """softplus(x)·[cos φ | sin φ], in float32 or wider."""
    wide = torch.promote_types(x.dtype, torch.float32)
    length = F.softplus(x.to(wide))
    return torch.cat([length * phases.cos().to(wide), length * phases.sin().to(wide)], dim=-1).to(x.dtype)
