"""Positions pressed together as far as the sequence needs it."""

from __future__ import annotations

from torch import Tensor

from ..coordinates import Coordinates
from ..errors import need_positive
from ._base import PositionEncoding, oracle_length, total_length
from ._rescaled import Rescaled


class DynamicInterpolation(Rescaled):
    """RoPE up to the trained length L; a sequence of T > L tokens is pressed together to the positions up to L.

        ω_c = θ_c/max(1, T/L),   θ_c = base^(−2c/d)

    max_length is L; d = rotary_dim, or head_dim where that is None. T is the ``length`` of the coordinates. As it
    grows, all keys are turned anew: none is cached turned.
    Raises HeadwayError for a max_length below 1.
    Cite: emozilla 2023; Peng et al. 2024, section 3.3.
    """

    name = "dynamic-interpolation"
    citation = "emozilla2023dynamic peng2024yarn"
    year = 2023
    evidence = "authors"
    cache_prepared = False

    def __init__(
        self,
        head_dim: int,
        max_length: int = 2048,
        base: float = 10000.0,
        layout: str = "interleaved",
        rotary_dim: int | None = None,
    ) -> None:
        super().__init__(head_dim, base, layout, rotary_dim)
        need_positive(max_length=max_length)
        self.max_length = max_length

    def frequencies(self, coordinates: Coordinates) -> Tensor:
        """ω_c [b, 1 or n, pairs] for this length"""
        return self.theta(coordinates) / (total_length(coordinates) / self.max_length).clamp(min=1)[..., None]

    def oracle_frequency(self, c: int, coordinates: Coordinates) -> float:
        T, L = oracle_length(coordinates), self.max_length
        return self.oracle_theta(c) * L / T if T > L else self.oracle_theta(c)

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(8, max_length=7), cls(8, 7, base=500.0, layout="half", rotary_dim=6)]
