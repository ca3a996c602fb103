"""Rotary position embedding of a part of each head."""

from __future__ import annotations

from torch import Tensor

from ...coordinates import Coordinates
from ...errors import HeadwayError
from .._base import PositionEncoding
from .._rescaled import Rescaled


class PartialRoPE(Rescaled):
    """Rotates only the first dimensions of each head; the others do not depend on positions.

        score[i,j] = s·( ⟨R(pᵢ)·qᵢ[:r], R(pⱼ)·kⱼ[:r]⟩ + ⟨qᵢ[r:], kⱼ[r:]⟩ ),   r = rotary_dim
        R(p) rotates the pair c < r/2 by the angle p·ω_c,   ω_c = base^(−2c/r)

    The denominator is r, so that the frequencies span the whole range from 1 to about 1/base. ``ProportionalRoPE`` with
    the same fraction divides by head_dim and has the fast frequencies only. The layout "half" is that of GPT-NeoX,
    "interleaved" that of GPT-J.

    Args:
        head_dim: the width of each head, at least 1.
        rotary_dim: r, an even number up to head_dim, such as GPT-J's 64 of 256; ⌊fraction·head_dim⌋ if None.
        fraction: the fraction of each head that is rotated, above 0 and at most 1; 0.25, as in GPT-NeoX, if both are
            None.
        base: the base of the frequencies, above 1.
        layout: which dimensions form the pair c: (2c, 2c+1) for "interleaved", (c, c + r/2) for "half".

    Raises:
        HeadwayError: if both rotary_dim and fraction are given, fraction is out of range, or r is odd or too large.

    References:
        Wang and Komatsuzaki 2021; Black et al. 2022, section 2.1.1.
    """

    name = "partial-rope"
    citation = "wang2021gptj black2022gptneox"
    year = 2021
    kind = "encoding"
    evidence = "independent"
    constant_rates = True

    def __init__(
        self,
        head_dim: int,
        rotary_dim: int | None = None,
        fraction: float | None = None,
        base: float = 10000.0,
        layout: str = "interleaved",
    ) -> None:
        if rotary_dim is not None and fraction is not None:
            raise HeadwayError(f"rotary_dim is {rotary_dim} and fraction is {fraction}: give one of the two")
        if fraction is not None and not 0 < fraction <= 1:
            raise HeadwayError(f"fraction is {fraction}: give the part of each head to turn, above 0 and up to 1")
        part = 0.25 if fraction is None else fraction
        super().__init__(head_dim, base, layout, int(part * head_dim) if rotary_dim is None else rotary_dim)
        self.rotary_dim, self.fraction = rotary_dim, fraction

    def frequencies(self, coordinates: Coordinates) -> Tensor:
        """Returns ω_c = base^(−2c/r), [pairs] in float64."""
        return self.theta(coordinates)

    def oracle_frequency(self, c: int, coordinates: Coordinates) -> float:
        turned = int(self.head_dim * (self.fraction or 0.25)) if self.rotary_dim is None else self.rotary_dim
        return float(self.base ** (-2 * c / turned))

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(8, fraction=0.5), cls(8, rotary_dim=6, base=500.0, layout="half")]
