"""Rotary position encoding without its slow frequencies."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from ..coordinates import Coordinates
from ..errors import HeadwayError
from ._base import PositionEncoding
from ._rescaled import Rescaled, need_factor


class ProportionalRoPE(Rescaled):
    """RoPE whose slow pairs are not turned at all: they are left to meaning, which has no place.

        ω_c = base^(−2c/head_dim)/factor for c < ⌊fraction·head_dim/2⌋,   ω_c = 0 for the others

    fraction is the paper's p: 1 is RoPE, towards 0 it becomes NoPE; 0.75 did best there, Gemma 4 takes 0.25.
    The fast pairs keep the frequencies of RoPE: the denominator is head_dim. ``PartialRoPE`` with the same fraction
    spreads all frequencies over as many pairs, another encoding. In the layout "half" the pairs are
    (c, c + head_dim/2), so that two stretches of a head are turned; Hugging Face calls this "proportional".
    factor stretches positions besides, as Hugging Face's does; the paper has none.
    Raises HeadwayError for a fraction outside 0 … 1 or of no pair, a factor below 1.
    Cite: Barbero et al. 2025, section 6.
    """

    name = "p-rope"
    citation = "barbero2025round"
    year = 2024
    kind = "encoding"
    evidence = "independent"

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
        """ω_c, zeros behind the fast ones"""
        return F.pad(self.theta(coordinates)[: self.turned] / self.factor, (0, self.pairs - self.turned))

    def oracle_frequency(self, c: int, coordinates: Coordinates) -> float:
        if c + 1 > self.fraction * self.head_dim / 2:
            return 0.0
        return float(self.base ** (-2 * c / self.head_dim)) / self.factor

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(8), cls(8, fraction=0.5, base=500.0, layout="half", factor=3.0)]
