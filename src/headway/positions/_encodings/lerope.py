"""Rotary position embedding with learned frequencies, the same in all heads and layers."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ...coordinates import Coordinates
from .._base import PositionEncoding
from .._formulas import need_base, rates
from .._rotary import LearnedRotary


class LeRoPE(LearnedRotary):
    """Applies RoPE with frequencies that are learned, each as a factor of RoPE's own.

        ω_c = θ_c·exp(α_c),   θ_c = base^(−2c/head_dim)

    One encoding serves all layers of a stack and all of their heads, as in Mistral Large 4, which also multiplies each
    query by s_h·ln(p + 1) + b_h: "lerope + ssmax(bias=True)" has both. The frequencies stay above 0.

    Args:
        head_dim: the width of each head, even.
        base: the base of θ, above 1.
        layout: which dimensions form the pair c: (2c, 2c+1) for "interleaved", (c, c + head_dim/2) for "half".

    Attributes:
        alpha: α [head_dim/2], initially 0, where this is RoPE.

    Shape:
        x: [batch, heads, n, head_dim]
        Output: [batch, heads, n, head_dim]

    Raises:
        HeadwayError: if head_dim is odd, base is 1 or less, or layout is unknown.

    References:
        Mistral AI 2026, the implementation in transformers.
    """

    name = "lerope"
    citation = "mistral2026large4"
    year = 2026
    evidence = "independent"

    def __init__(self, head_dim: int, base: float = 10000.0, layout: str = "interleaved") -> None:
        super().__init__(head_dim, layout)
        need_base(base)
        self.base = base
        self.alpha = nn.Parameter(torch.zeros(self.pairs))

    def frequencies(self, coordinates: Coordinates) -> Tensor:
        """Returns ω, [pairs] in float64."""
        return rates(self.pairs, self.head_dim, self.base, coordinates.position.device) * self.alpha.double().exp()

    def oracle_frequency(self, c: int, coordinates: Coordinates) -> float:
        return float(self.base ** (-2 * c / self.head_dim)) * math.exp(self.alpha[c].item())

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(8), cls(8, base=500.0, layout="half")]
