"""Dynamic position interpolation: positions are divided as far as the sequence length requires."""

from __future__ import annotations

from torch import Tensor

from ...coordinates import Coordinates
from ...errors import need_positive
from .._base import PositionEncoding
from .._formulas import oracle_length, total_length
from .._rescaled import Rescaled


class DynamicInterpolation(Rescaled):
    """Applies RoPE up to the trained length and scales the positions of longer sequences down to that length.

        ω_c = θ_c/max(1, T/L),   θ_c = base^(−2c/d)

    T is the ``length`` of the coordinates. All keys are rotated again when T grows, so keys are cached unrotated.

    Args:
        head_dim: the width of each head; even unless ``rotary_dim`` is given.
        max_length: L, the length the model was trained for, at least 1.
        base: the base of the frequencies, above 1.
        layout: which dimensions form the pair c: (2c, 2c+1) for "interleaved", (c, c + d/2) for "half".
        rotary_dim: d, the number of dimensions rotated, even and at most head_dim; head_dim if None.

    Raises:
        HeadwayError: if max_length is below 1.

    References:
        emozilla 2023; Peng et al. 2024, section 3.3.
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
        """Returns ω_c for this length, [b, 1 or n, pairs] in float64."""
        return self.theta(coordinates) / (total_length(coordinates) / self.max_length).clamp(min=1)[..., None]

    def oracle_frequency(self, c: int, coordinates: Coordinates) -> float:
        T, L = oracle_length(coordinates), self.max_length
        return self.oracle_theta(c) * L / T if T > L else self.oracle_theta(c)

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(8, max_length=7), cls(8, 7, base=500.0, layout="half", rotary_dim=6)]
