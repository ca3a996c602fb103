"""A larger base for rotary encodings, in one go."""

from __future__ import annotations

from torch import Tensor

from ..coordinates import Coordinates
from ..errors import HeadwayError
from ._base import PositionEncoding, rates
from ._rescaled import Rescaled, need_factor


class NTKAware(Rescaled):
    """RoPE with a base that leaves the fastest pair as it is and slows the slowest down by the factor.

        ω_c = base'^(−2c/d),   base' = base·factor^(d/(d − 2))

    so that ω_0 = 1 as before and ω_{d/2−1} is that of ``PositionInterpolation``: near distances stay sharp, far ones
    come within known angles. d = rotary_dim, or head_dim where that is None; it must be above 2.
    factor is α of the authors' code. Slow pairs but the last still pass the trained angles a little: set it somewhat
    above the stretch of the length.
    Raises HeadwayError for a factor below 1 and a d of 2.
    Cite: bloc97 2023; Peng et al. 2024, section 3.1.
    """

    name = "ntk-aware"
    citation = "bloc972023ntk peng2024yarn"
    year = 2023
    evidence = "authors"

    def __init__(
        self,
        head_dim: int,
        factor: float = 4.0,
        base: float = 10000.0,
        layout: str = "interleaved",
        rotary_dim: int | None = None,
    ) -> None:
        super().__init__(head_dim, base, layout, rotary_dim)
        need_factor(factor=factor)
        need_slow_pairs(self.width)
        self.factor = factor

    def frequencies(self, coordinates: Coordinates) -> Tensor:
        """ω_c of the larger base"""
        base = self.base * self.factor ** (self.width / (self.width - 2))
        return rates(self.pairs, self.width, base, coordinates.position.device)

    def oracle_frequency(self, c: int, coordinates: Coordinates) -> float:
        return self.oracle_theta(c) * self.factor ** (-c / (self.width / 2 - 1))

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(8), cls(8, factor=2.5, base=500.0, layout="half", rotary_dim=6)]


def need_slow_pairs(width: int) -> None:
    """Raises where one pair alone is turned: the exponent d/(d − 2) divides by zero."""
    if width < 4:
        raise HeadwayError(f"{width} dimensions are turned: the base is changed for slower pairs, give at least 4")
