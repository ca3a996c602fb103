"""The family of RoPE's own frequencies, changed: some left out, or all made slower to reach further."""

from __future__ import annotations

import math

from torch import Tensor

from ..coordinates import Coordinates
from ..errors import HeadwayError
from ._base import need_base, rates
from ._rotary import Rotary


class Rescaled(Rotary):
    """RoPE on the first d dimensions of each head, its frequencies θ_c = base^(−2c/d) changed to ω_c by a rule.

    A member says the rule twice: in ``frequencies`` for all of ``theta`` at once, and as the paper writes it, for one,
    in ``oracle_frequency``.

    rotary_dim  d, an even number; None for head_dim. The dimensions behind the first d stay as they are
    """

    kind = "scaling"

    def __init__(self, head_dim: int, base: float, layout: str, rotary_dim: int | None = None) -> None:
        super().__init__(head_dim, layout, rotary_dim)
        need_base(base)
        self.base, self.rotary_dim, self.width = base, rotary_dim, 2 * self.pairs

    def theta(self, coordinates: Coordinates) -> Tensor:
        """θ_c [pairs], in float64."""
        return rates(self.pairs, self.width, self.base, coordinates.position.device)

    def oracle_theta(self, c: int) -> float:
        """θ_c as RoPE's paper writes it."""
        return float(self.base ** (-2 * c / self.width))


def need_factor(**factors: float) -> None:
    """Raises unless each factor is finite and at least 1."""
    for name, value in factors.items():
        if not 1 <= value < math.inf:
            raise HeadwayError(f"{name} is {value}: give at least 1, such as 4.0 for four times the length")
