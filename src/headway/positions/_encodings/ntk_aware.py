"""NTK-aware scaling: a larger base for rotary encodings."""

from __future__ import annotations

from torch import Tensor

from ...coordinates import Coordinates
from ...errors import HeadwayError
from .._base import PositionEncoding
from .._formulas import rates
from .._rescaled import Rescaled, need_factor


class NTKAware(Rescaled):
    """Enlarges the base of RoPE so that the fastest pair is unchanged and the slowest slows down by the factor.

        ω_c = base'^(−2c/d),   base' = base·factor^(d/(d − 2))

    ω_0 = 1 as in RoPE, and ω_{d/2−1} is that of ``PositionInterpolation``: short distances keep their resolution, and
    long ones have angles of the trained range. The slow pairs except the last still exceed the trained angles slightly:
    set factor somewhat above the ratio of the lengths.

    Args:
        head_dim: the width of each head; even and above 2 unless ``rotary_dim`` is given.
        factor: α of the authors' code, at least 1.
        base: the base of the frequencies, above 1.
        layout: which dimensions form the pair c: (2c, 2c+1) for "interleaved", (c, c + d/2) for "half".
        rotary_dim: d, the number of dimensions rotated, even, above 2 and at most head_dim; head_dim if None.

    Raises:
        HeadwayError: if factor is below 1 or d is 2.

    References:
        bloc97 2023; Peng et al. 2024, section 3.1.
    """

    name = "ntk-aware"
    citation = "bloc972023ntk peng2024yarn"
    year = 2023
    evidence = "authors"
    constant_rates = True

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
        """Returns ω_c of the larger base, [pairs] in float64."""
        base = self.base * self.factor ** (self.width / (self.width - 2))
        return rates(self.pairs, self.width, base, coordinates.position.device)

    def oracle_frequency(self, c: int, coordinates: Coordinates) -> float:
        return self.oracle_theta(c) * self.factor ** (-c / (self.width / 2 - 1))

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(8), cls(8, factor=2.5, base=500.0, layout="half", rotary_dim=6)]


def need_slow_pairs(width: int) -> None:
    """Raises HeadwayError if only one pair is rotated: the exponent d/(d − 2) would divide by zero."""
    if width < 4:
        raise HeadwayError(f"{width} dimensions are turned: the base is changed for slower pairs, give at least 4")
