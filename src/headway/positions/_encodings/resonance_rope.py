"""Rotary position embedding whose wavelengths are whole numbers of tokens."""

from __future__ import annotations

import math

from torch import Tensor

from ...coordinates import Coordinates
from .._base import PositionEncoding
from .._rescaled import Rescaled


class ResonanceRoPE(Rescaled):
    """Rounds the wavelengths of RoPE to whole numbers of tokens, so that each pair repeats its angles exactly.

        ω_c = 2π/round(2π/θ_c),   θ_c = base^(−2c/d)

    A pair whose wavelength is below the trained length has, at any position, an angle that occurred in training. With
    RoPE's own wavelengths, which are not integers, longer inputs have angles between those of training. Slow pairs
    need a method of their own beyond the trained length, such as YaRN's.

    Args:
        head_dim: the width of each head; even unless ``rotary_dim`` is given.
        base: the base of the frequencies, above 1.
        layout: which dimensions form the pair c: (2c, 2c+1) for "interleaved", (c, c + d/2) for "half".
        rotary_dim: d, the number of dimensions rotated, even and at most head_dim; head_dim if None.

    References:
        Wang et al. 2024, section 4.
    """

    name = "resonance-rope"
    citation = "wang2024resonance"
    year = 2024
    kind = "encoding"
    evidence = "authors"
    constant_rates = True

    def __init__(
        self, head_dim: int, base: float = 10000.0, layout: str = "interleaved", rotary_dim: int | None = None
    ) -> None:
        super().__init__(head_dim, base, layout, rotary_dim)

    def frequencies(self, coordinates: Coordinates) -> Tensor:
        """Returns ω_c, [pairs] in float64."""
        return 2 * math.pi / (2 * math.pi / self.theta(coordinates)).round()

    def oracle_frequency(self, c: int, coordinates: Coordinates) -> float:
        return 2 * math.pi / round(2 * math.pi / self.oracle_theta(c))

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(8), cls(8, base=500.0, layout="half", rotary_dim=6)]
