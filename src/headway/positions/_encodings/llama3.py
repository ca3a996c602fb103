"""The frequency scaling of Llama 3.1."""

from __future__ import annotations

import math

from ...coordinates import Coordinates
from ...errors import HeadwayError
from .._base import PositionEncoding
from .ntk_by_parts import NTKByParts


class Llama3(NTKByParts):
    """Slows the pairs of RoPE with long wavelengths down by the factor and keeps those with short ones.

        ω_c = θ_c                              for wavelengths λ_c = 2π/θ_c below L/high_freq_factor
        ω_c = θ_c/factor                       above L/low_freq_factor
        ω_c = (1 − m)·θ_c/factor + m·θ_c       between,   m = (L/λ_c − low)/(high − low)

    The constants are those of the released code and weights; the paper says little. It is ``NTKByParts`` with
    low_freq_factor = 1 for α and high_freq_factor = 4 in place of β = 32.

    Args:
        head_dim: the width of each head; even unless ``rotary_dim`` is given.
        factor: the factor by which slow pairs are slowed down, at least 1: 8 in Llama 3.1, 32 in Llama 3.2.
        max_length: L, the length the model was first trained for, at least 1.
        base: the base of the frequencies, above 1.
        layout: which dimensions form the pair c: (2c, 2c+1) for "interleaved", (c, c + d/2) for "half".
        rotary_dim: d, the number of dimensions rotated, even and at most head_dim; head_dim if None.
        low_freq_factor: pairs with wavelengths above L/low_freq_factor are slowed down fully, at least 0.
        high_freq_factor: pairs with wavelengths below L/high_freq_factor are unchanged, above low_freq_factor.

    Raises:
        HeadwayError: if factor or max_length is below 1, or high_freq_factor is not above low_freq_factor ≥ 0.

    References:
        Grattafiori et al. 2024, section 3.4.2.
    """

    name = "llama3"
    citation = "grattafiori2024llama"
    year = 2024
    evidence = "independent"
    constant_rates = True

    def __init__(
        self,
        head_dim: int,
        factor: float = 8.0,
        max_length: int = 8192,
        base: float = 500000.0,
        layout: str = "interleaved",
        rotary_dim: int | None = None,
        low_freq_factor: float = 1.0,
        high_freq_factor: float = 4.0,
    ) -> None:
        if not 0 <= low_freq_factor < high_freq_factor < math.inf:
            raise HeadwayError(
                f"high_freq_factor is {high_freq_factor} and low_freq_factor {low_freq_factor}: give a "
                "high_freq_factor above low_freq_factor, such as 4 and 1"
            )
        super().__init__(head_dim, factor, max_length, base, layout, rotary_dim, high_freq_factor, low_freq_factor)
        self.low_freq_factor, self.high_freq_factor = low_freq_factor, high_freq_factor

    def oracle_frequency(self, c: int, coordinates: Coordinates) -> float:
        L, low, high = self.max_length, self.low_freq_factor, self.high_freq_factor
        theta = self.oracle_theta(c)
        wavelength = 2 * math.pi / theta
        if wavelength < L / high:
            return theta
        if low == 0 or wavelength <= L / low:
            smooth = (L / wavelength - low) / (high - low)
            return (1 - smooth) * theta / self.factor + smooth * theta
        return theta / self.factor

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(8), cls(8, 2.5, 30, base=10.0, layout="half", rotary_dim=6, high_freq_factor=3.0)]
