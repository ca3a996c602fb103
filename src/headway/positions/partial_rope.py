"""Rotary position encoding of a part of each head."""

from __future__ import annotations

from torch import Tensor

from ..coordinates import Coordinates
from ..errors import HeadwayError
from ._base import PositionEncoding
from ._rescaled import Rescaled


class PartialRoPE(Rescaled):
    """The first dimensions of each head are turned as a whole head would be; the others know nothing of positions.

        score[i,j] = s·( ⟨R(pᵢ)·qᵢ[:r], R(pⱼ)·kⱼ[:r]⟩ + ⟨qᵢ[r:], kⱼ[r:]⟩ ),   r = rotary_dim
        R(p) turns the pair c < r/2 by the angle p·ω_c,   ω_c = base^(−2c/r)

    Give rotary_dim, an even number up to head_dim (GPT-J: 64 of 256), or fraction, of which r = ⌊fraction·head_dim⌋
    (GPT-NeoX: 0.25, the default). The denominator is r, so that the frequencies go all the way from 1 to about 1/base:
    ``ProportionalRoPE``, which also says "0.25", divides by head_dim and has the fast ones alone.
    layout "half" pairs (c, c + r/2), as GPT-NeoX, "interleaved" (2c, 2c+1), as GPT-J.
    Raises HeadwayError for both sizes at once, a fraction outside 0 … 1, an r that is odd or too large.
    Cite: Wang and Komatsuzaki 2021; Black et al. 2022, section 2.1.1.
    """

    name = "partial-rope"
    citation = "wang2021gptj black2022gptneox"
    year = 2021
    kind = "encoding"
    evidence = "independent"

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
        """ω_c = base^(−2c/r)"""
        return self.theta(coordinates)

    def oracle_frequency(self, c: int, coordinates: Coordinates) -> float:
        turned = int(self.head_dim * (self.fraction or 0.25)) if self.rotary_dim is None else self.rotary_dim
        return float(self.base ** (-2 * c / turned))

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(8, fraction=0.5), cls(8, rotary_dim=6, base=500.0, layout="half")]
