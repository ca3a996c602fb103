"""The scaling of Llama 3.1."""

from __future__ import annotations

import math

from ..coordinates import Coordinates
from ..errors import HeadwayError
from ._base import PositionEncoding
from .ntk_by_parts import NTKByParts


class Llama3(NTKByParts):
    """RoPE whose pairs of long wavelength are slowed down by the factor and those of short wavelength kept.

        ω_c = θ_c                              for wavelengths λ_c = 2π/θ_c below L/high_freq_factor
        ω_c = θ_c/factor                       above L/low_freq_factor
        ω_c = (1 − m)·θ_c/factor + m·θ_c       between,   m = (L/λ_c − low)/(high − low)

    max_length is L, the length the model was trained for at first (8192); factor is 8 in Llama 3.1 and 32 in 3.2, the
    base 500000. The numbers are in the released code and weights, the paper says little. It is ``NTKByParts``, whose
    α = 1 and β = 32 are here low_freq_factor = 1 and high_freq_factor = 4.
    Raises HeadwayError for a factor or max_length below 1 and a high_freq_factor that is not above low_freq_factor ≥ 0.
    Cite: Grattafiori et al. 2024, section 3.4.2.
    """

    name = "llama3"
    citation = "grattafiori2024llama"
    year = 2024
    evidence = "independent"

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
