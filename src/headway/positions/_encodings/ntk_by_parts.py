"""NTK-by-parts: slow pairs are interpolated, fast ones are kept."""

from __future__ import annotations

import math

from torch import Tensor

from ...coordinates import Coordinates
from ...errors import HeadwayError, need_positive
from .._base import PositionEncoding
from .._rescaled import Rescaled, need_factor


class NTKByParts(Rescaled):
    """Slows the pairs of RoPE down by the factor if they rotate seldom within the trained length.

        ω_c = (1 − γ(r_c))·θ_c/factor + γ(r_c)·θ_c,   θ_c = base^(−2c/d)
        r_c = L·θ_c/2π, the rotations within L;   γ(r) = (r − beta_slow)/(beta_fast − beta_slow), within 0 … 1

    ``YaRN`` is this with a larger magnitude; ``Llama3`` is this with 4 in place of 32. The authors' code computes its
    ramp over the numbers c of the pairs instead (``YaRN(ramp="code")``), and their older file of this name has two
    ramps with an NTK-aware part between them: these are other functions.

    Args:
        head_dim: the width of each head; even unless ``rotary_dim`` is given.
        factor: the factor by which slow pairs are slowed down, at least 1.
        max_length: L, the length the model was trained for, at least 1.
        base: the base of the frequencies, above 1.
        layout: which dimensions form the pair c: (2c, 2c+1) for "interleaved", (c, c + d/2) for "half".
        rotary_dim: d, the number of dimensions rotated, even and at most head_dim; head_dim if None.
        beta_fast: the paper's β: pairs with more rotations within L keep their frequency, above beta_slow.
        beta_slow: the paper's α: pairs with fewer rotations within L are slowed down fully, at least 0.

    Raises:
        HeadwayError: if factor or max_length is below 1, or beta_fast is not above beta_slow ≥ 0.

    References:
        Peng et al. 2024, section 3.2.
    """

    name = "ntk-by-parts"
    citation = "peng2024yarn"
    year = 2023
    evidence = "independent"
    constant_rates = True

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
        """Returns ω_c, between θ_c/factor and θ_c, [pairs] in float64."""
        theta = self.theta(coordinates)
        kept = self.kept(theta)
        return (1 - kept) * theta / self.factor + kept * theta

    def kept(self, theta: Tensor) -> Tensor:
        """Returns γ [pairs], the fraction of each frequency that is kept.

        Args:
            theta: θ [pairs] in float64.
        """
        turns = self.max_length * theta / (2 * math.pi)
        return ((turns - self.beta_slow) / (self.beta_fast - self.beta_slow)).clamp(0, 1)

    def oracle_frequency(self, c: int, coordinates: Coordinates) -> float:
        theta, gamma = self.oracle_theta(c), self.oracle_gamma(c)
        return (1 - gamma) * theta / self.factor + gamma * theta

    def oracle_gamma(self, c: int) -> float:
        """Returns γ(r_c) as the paper writes it, from wavelengths.

        Args:
            c: the pair.
        """
        wavelength = 2 * math.pi / self.oracle_theta(c)
        r = self.max_length / wavelength
        if r < self.beta_slow:
            return 0.0
        return 1.0 if r > self.beta_fast else (r - self.beta_slow) / (self.beta_fast - self.beta_slow)

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(8, base=100.0), cls(8, 2.5, 30, base=10.0, layout="half", rotary_dim=6, beta_fast=4.0)]
