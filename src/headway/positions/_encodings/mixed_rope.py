"""Rotary positions on two axes with learned frequencies."""

from __future__ import annotations

import math

import torch
from torch import nn

from ...errors import HeadwayError
from .._base import PositionEncoding
from .._formulas import need_base
from .._rotary import AxesRotary


class MixedRoPE(AxesRotary):
    """Rotates each pair by both axes at once, with learned frequencies for each head.

        score[h,i,j] = s·⟨R_h(pᵢ)·qᵢ, R_h(pⱼ)·kⱼ⟩,   φ_{h,c}(p) = p₀·f[0,h,c] + p₁·f[1,h,c]

    Queries that share a key head share its frequencies. Each layer has an encoding of its own. Initially f[:, h, t] and
    f[:, h, head_dim/4 + t] are vectors of length base^(−4t/head_dim), the first at a random angle drawn for each head,
    the second at a right angle to it. The authors' position is (column, row).

    Args:
        num_heads: the number of query heads, at least 1.
        head_dim: the width of each head, a multiple of 4.
        num_kv_heads: the number of key and value heads, a divisor of num_heads; num_heads if None.
        base: the base of the frequencies, above 1.
        layout: which dimensions form the pair c: (2c, 2c+1) for "interleaved", (c, c + head_dim/2) for "half".

    Attributes:
        f: [2, num_kv_heads, head_dim/2].

    Shape:
        x: [batch, heads, n, head_dim]
        positions: [batch, n, 2]
        Output: [batch, heads, n, head_dim]

    Raises:
        HeadwayError: if head_dim is not a multiple of 4, base is 1 or less, or the numbers of heads do not fit.

    References:
        Heo et al. 2024, section 3.2.
    """

    name = "mixed-rope"
    citation = "heo2024rotary"
    year = 2024
    evidence = "authors"
    axes = 2

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        num_kv_heads: int | None = None,
        base: float = 10.0,
        layout: str = "interleaved",
    ) -> None:
        super().__init__(num_heads, head_dim, num_kv_heads, layout)
        need_base(base)
        if head_dim % 4:
            raise HeadwayError(
                f"head_dim is {head_dim}: frequencies come in pairs at right angles, give a multiple of 4"
            )
        self.base = base
        length = base ** (-torch.arange(0, head_dim, 4) / head_dim)
        first = 2 * math.pi * torch.rand(num_kv_heads or num_heads, 1)
        angle = torch.cat([first.expand(-1, head_dim // 4), first.expand(-1, head_dim // 4) + math.pi / 2], dim=-1)
        self.f = nn.Parameter(length.repeat(2) * torch.stack([angle.cos(), angle.sin()]))

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(4, 8), cls(6, 8, num_kv_heads=3, base=100.0, layout="half")]
