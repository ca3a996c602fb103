"""Rotary position embedding of the pairs that complete a rotation within the trained length."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...coordinates import Coordinates
from ...errors import HeadwayError
from .._base import PositionEncoding
from .._rescaled import Rescaled


class HoPE(Rescaled):
    """Rotates only the pairs of RoPE that complete a rotation within the trained length.

        ω_c = θ_c where 2π/θ_c ≤ L, else 0,   θ_c = base^(−2c/head_dim)

    Training includes every angle of every rotated pair, and the other pairs do not depend on positions. It is
    ``ProportionalRoPE`` with a cut that follows from L. Three encodings have this name: this is the high-frequency one,
    not the hybrid for video of 2505.20444 and not the hyperbolic one of 2509.05218.

    Args:
        head_dim: the width of each head, even.
        max_length: L, the length of training sequences, at least 7.
        base: the base of the frequencies, above 1.
        layout: which dimensions form the pair c: (2c, 2c+1) for "interleaved", (c, c + head_dim/2) for "half".

    Raises:
        HeadwayError: if max_length is below 7, within which not even the first pair completes a rotation.

    References:
        Chen et al. 2025.
    """

    name = "hope"
    citation = "chen2025hope"
    year = 2024
    kind = "encoding"
    evidence = "independent"
    extrapolates = True

    def __init__(
        self, head_dim: int, max_length: int = 512, base: float = 10000.0, layout: str = "interleaved"
    ) -> None:
        super().__init__(head_dim, base, layout)
        if max_length < 2 * math.pi:
            raise HeadwayError(f"max_length is {max_length}: no pair completes a rotation within it, give at least 7")
        self.max_length = max_length

    def frequencies(self, coordinates: Coordinates) -> Tensor:
        """Returns ω_c, [pairs] in float64; 0 where a rotation takes more than L tokens."""
        theta = self.theta(coordinates)
        return torch.where(theta * self.max_length >= 2 * math.pi, theta, 0.0)

    def oracle_frequency(self, c: int, coordinates: Coordinates) -> float:
        period = 2 * math.pi * self.base ** (2 * c / self.head_dim)
        return 2 * math.pi / period if period <= self.max_length else 0.0

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(8, max_length=1000), cls(8, max_length=40, base=500.0, layout="half")]
