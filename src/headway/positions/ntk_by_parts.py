"""Slow pairs interpolated, fast ones kept."""

from __future__ import annotations

import math

from torch import Tensor

from ..coordinates import Coordinates
from ..errors import HeadwayError, need_positive
from ._base import PositionEncoding
from ._rescaled import Rescaled, need_factor


class NTKByParts(Rescaled):
    """RoPE whose pairs are slowed down by the factor if they turn seldom within the trained length, else kept.

        ω_c = (1 − γ(r_c))·θ_c/factor + γ(r_c)·θ_c,   θ_c = base^(−2c/d)
        r_c = L·θ_c/2π, the turns within L;   γ(r) = (r − beta_slow)/(beta_fast − beta_slow), within 0 … 1

    max_length is L, the length the model was trained for; beta_slow and beta_fast are the paper's α = 1 and β = 32.
    d = rotary_dim, or head_dim where that is None. ``YaRN`` is this and a larger magnitude; ``Llama3`` is this with
    4 for 32. The authors' code draws its ramp over the numbers c of the pairs instead (``YaRN(ramp="code")``), and
    their older file of this name has two ramps with an NTK-aware part between: other functions.
    Raises HeadwayError for a factor or max_length below 1 and a beta_fast that is not above beta_slow ≥ 0.
    Cite: Peng et al. 2024, section 3.2.
    """

    name = "ntk-by-parts"
    citation = "peng2024yarn"
    year = 2023
    evidence = "independent"

    def __init__(
        self,
        head_dim: int,
        factor: float = 4.0,
        max_length: int = 4096,
        base: float = 10000.0,
        layout: str = "interleaved",
        rotary_dim: int | None = None,
        beta_fast: float = 32.0,
        beta_slow: float = 1.0,
    ) -> None:
        super().__init__(head_dim, base, layout, rotary_dim)
        need_factor(factor=factor)
        need_positive(max_length=max_length)
        if not 0 <= beta_slow < beta_fast < math.inf:
            raise HeadwayError(
                f"beta_fast is {beta_fast} and beta_slow {beta_slow}: give turns with beta_fast above beta_slow, "
                "such as 32 and 1"
            )
        self.factor, self.max_length, self.beta_fast, self.beta_slow = factor, max_length, beta_fast, beta_slow

    def frequencies(self, coordinates: Coordinates) -> Tensor:
        """ω_c between θ_c/factor and θ_c"""
        theta = self.theta(coordinates)
        kept = self.kept(theta)
        return (1 - kept) * theta / self.factor + kept * theta

    def kept(self, theta: Tensor) -> Tensor:
        """γ [pairs]: how much of each frequency stays."""
        turns = self.max_length * theta / (2 * math.pi)
        return ((turns - self.beta_slow) / (self.beta_fast - self.beta_slow)).clamp(0, 1)

    def oracle_frequency(self, c: int, coordinates: Coordinates) -> float:
        theta, gamma = self.oracle_theta(c), self.oracle_gamma(c)
        return (1 - gamma) * theta / self.factor + gamma * theta

    def oracle_gamma(self, c: int) -> float:
        """γ(r_c) as the paper writes it, by wavelengths."""
        wavelength = 2 * math.pi / self.oracle_theta(c)
        r = self.max_length / wavelength
        if r < self.beta_slow:
            return 0.0
        return 1.0 if r > self.beta_fast else (r - self.beta_slow) / (self.beta_fast - self.beta_slow)

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(8, base=100.0), cls(8, 2.5, 30, base=10.0, layout="half", rotary_dim=6, beta_fast=4.0)]
