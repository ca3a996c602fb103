"""Positions pressed together into the trained range."""

from __future__ import annotations

from torch import Tensor

from ..coordinates import Coordinates
from ._base import PositionEncoding
from ._rescaled import Rescaled, need_factor


class PositionInterpolation(Rescaled):
    """RoPE that reads each position divided by a factor: a model of L tokens then sees s·L within known angles.

        score[i,j] = s·⟨R(pᵢ/factor)·qᵢ, R(pⱼ/factor)·kⱼ⟩, which is RoPE with   ω_c = θ_c/factor,   θ_c = base^(−2c/d)

    Shapes: those of RoPE; d = rotary_dim, or head_dim where that is None. The paper trained a little further with it.
    Frequencies are divided instead of positions; ``Interpolated`` divides positions, for any other encoding.
    Hugging Face calls this "linear".
    Raises HeadwayError for a factor below 1.
    Cite: Chen et al. 2023, section 2.3.
    """

    name = "position-interpolation"
    citation = "chen2023extending"
    year = 2023
    evidence = "independent"

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
        self.factor = factor

    def frequencies(self, coordinates: Coordinates) -> Tensor:
        """ω_c = θ_c/factor"""
        return self.theta(coordinates) / self.factor

    def oracle_frequency(self, c: int, coordinates: Coordinates) -> float:
        return 1 / self.factor * self.oracle_theta(c)

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(8), cls(8, factor=2.5, base=500.0, layout="half", rotary_dim=4)]
