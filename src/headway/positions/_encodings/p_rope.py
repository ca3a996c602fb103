"""Rotary position embedding without its slow frequencies."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from ...coordinates import Coordinates
from ...errors import HeadwayError
from .._base import PositionEncoding
from .._rescaled import Rescaled, need_factor


class ProportionalRoPE(Rescaled):
    """Rotates the fast pairs of RoPE only; the slow pairs do not depend on positions.

        ω_c = base^(−2c/head_dim)/factor for c < ⌊fraction·head_dim/2⌋,   ω_c = 0 for the others

    The fast pairs keep the frequencies of RoPE: the denominator is head_dim. ``PartialRoPE`` with the same fraction
    spreads all frequencies over as many pairs, which is another encoding. In the layout "half" the pairs are (c, c +
    head_dim/2), so that two separate parts of a head are rotated; Hugging Face calls this "proportional".

    Args:
        head_dim: the width of each head, even.
        fraction: the paper's p, above 0 and at most 1: 1 is RoPE, and it approaches NoPE towards 0. 0.75 was best in
            the paper; Gemma 4 uses 0.25.
        base: the base of the frequencies, above 1.
        layout: which dimensions form the pair c: (2c, 2c+1) for "interleaved", (c, c + head_dim/2) for "half".
        factor: divides the frequencies, at least 1, as in Hugging Face's version; the paper has none.

    Raises:
        HeadwayError: if fraction is out of range or leaves no pair, or factor is below 1.

    References:
        Barbero et al. 2025, section 6.
    """

    name = "p-rope"
    citation = "barbero2025round"
    year = 2024
    kind = "encoding"
    evidence = "independent"
    constant_rates = True

    def __init__(
        self,
        head_dim: int,
        fraction: float = 0.75,
        base: float = 10000.0,
        layout: str = "interleaved",
        factor: float = 1.0,
    ) -> None:
        super().__init__(head_dim, base, layout)
        need_factor(factor=factor)
        if not 0 < fraction <= 1 or not int(fraction * head_dim // 2):
            raise HeadwayError(
                f"fraction is {fraction} of {self.pairs} pairs: give at least {1 / self.pairs:g} and at most 1, "
                "or take NoPE"
            )
        self.fraction, self.factor = fraction, factor
        self.turned = int(fraction * head_dim // 2)

    def frequencies(self, coordinates: Coordinates) -> Tensor:
        """Returns ω_c, [pairs] in float64; 0 for the slow pairs."""
        return F.pad(self.theta(coordinates)[: self.turned] / self.factor, (0, self.pairs - self.turned))

    def oracle_frequency(self, c: int, coordinates: Coordinates) -> float:
        if c + 1 > self.fraction * self.head_dim / 2:
            return 0.0
        return float(self.base ** (-2 * c / self.head_dim)) / self.factor

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(8), cls(8, fraction=0.5, base=500.0, layout="half", factor=3.0)]
