"""The base class of encodings that change RoPE's frequencies: some are left out, or all are slower."""

from __future__ import annotations

import math

from torch import Tensor

from ..coordinates import Coordinates
from ..errors import HeadwayError
from ._formulas import need_base, rates
from ._rotary import Rotary


class Rescaled(Rotary):
    """Applies RoPE to the first d dimensions of each head, with frequencies θ_c = base^(−2c/d) changed by a rule.

    A subclass defines the rule twice: in ``frequencies`` for all of ``theta`` at once, and in ``oracle_frequency`` for
    one frequency, as the paper writes it.

    Args:
        head_dim: the width of each head; even unless ``rotary_dim`` is given.
        base: the base of the frequencies, above 1.
        layout: which dimensions form the pair c: (2c, 2c+1) for "interleaved", (c, c + d/2) for "half".
        rotary_dim: d, an even number; head_dim if None. The other dimensions do not change.

    Raises:
        HeadwayError: if d is odd or out of range, base is 1 or less, or layout is unknown.
    """

    kind = "scaling"

    def __init__(self, head_dim: int, base: float, layout: str, rotary_dim: int | None = None) -> None:
        super().__init__(head_dim, layout, rotary_dim)
        need_base(base)
        self.base, self.rotary_dim, self.width = base, rotary_dim, 2 * self.pairs

    def theta(self, coordinates: Coordinates) -> Tensor:
        """Returns θ_c, [pairs] in float64.

        Args:
            coordinates: any coordinates on the device wanted.
        """
        return rates(self.pairs, self.width, self.base, coordinates.position.device)

    def oracle_theta(self, c: int) -> float:
        """Returns θ_c as RoPE's paper writes it.

        Args:
            c: the pair.
        """
        return float(self.base ** (-2 * c / self.width))


def need_factor(**factors: float) -> None:
    """Raises HeadwayError unless each factor is finite and at least 1."""
    for name, value in factors.items():
        if not 1 <= value < math.inf:
            raise HeadwayError(f"{name} is {value}: give at least 1, such as 4.0 for four times the length")
