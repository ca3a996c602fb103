"""Polar coordinates: what a token is sets a length, where it is an angle."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..coordinates import Coordinates
from ..errors import need_positive
from ._base import Pair, PositionEncoding, angles, need_base, need_width, rates


class PoPE(PositionEncoding):
    """Each dimension of a query or key becomes a complex number: content its length, position its angle.

        score[h,i,j] = s·Σ_c softplus(q_c)·softplus(k_c)·cos((pⱼ − pᵢ)·θ_c + δ_hc),   c = 0 … head_dim − 1
        θ_c = base^(−c/head_dim),   δ learned and held within [−2π, 0]

    Shapes: q and k [batch, heads, n, head_dim] → [batch, heads, n, 2·head_dim], values stay as they are; s is of
    head_dim; phase δ [num_heads, head_dim]. At first δ is 0, which the paper finds best beyond the trained length, or
    U(−2π, 0) with uniform, best within. Beyond its bounds δ has no gradient.
    δ is taken off the query's angle, so that each query head has its own also where it shares its keys, and a cache
    holds no learned number. PoPE-pytorch adds it to the key's angle, for which it deals out the keys to the heads in
    turn (0 1 0 1) where others repeat each (0 0 1 1): with shared keys its weights need another order of heads.
    Raises HeadwayError for sizes below 1, a base of 1 or less, q of other heads.
    Cite: Gopalakrishnan et al. 2025, whose printed θ has lost the minus of its exponent.
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
        """p·θ [b, 1, n, head_dim] in float64."""
        # base^(−c/head_dim) are the rates of twice the width
        theta = rates(self.head_dim, 2 * self.head_dim, self.base, coordinates.position.device)
        return angles(coordinates, theta)[:, None]

    def prepare_query(self, q: Tensor, coordinates: Coordinates) -> Tensor:
        """q [batch, num_heads, n, head_dim] → [batch, num_heads, n, 2·head_dim]"""
        need_width(q, "head_dim", self.head_dim)
        need_width(q.transpose(1, -1), "num_heads", self.num_heads)
        delta = self.phase.double().clamp(-2 * math.pi, 0.0)[:, None]
        return _polar(q, self.place(coordinates).tables - delta)

    def prepare_key(self, k: Tensor, coordinates: Coordinates) -> Tensor:
        """k [batch, heads, m, head_dim] → [batch, heads, m, 2·head_dim]"""
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
