"""Position interpolation: positions are divided into the trained range."""

from __future__ import annotations

from torch import Tensor

from ...coordinates import Coordinates
from .._base import PositionEncoding
from .._rescaled import Rescaled, need_factor


class PositionInterpolation(Rescaled):
    """Divides the positions of RoPE by a factor, so that longer sequences have angles of the trained range.

        score[i,j] = s·⟨R(pᵢ/factor)·qᵢ, R(pⱼ/factor)·kⱼ⟩, which is RoPE with   ω_c = θ_c/factor,   θ_c = base^(−2c/d)

    The paper fine-tunes models with it. Frequencies are divided instead of positions; ``Interpolated`` divides
    positions, for any other encoding. Hugging Face calls this "linear". Shapes are those of ``RoPE``.

    Args:
        head_dim: the width of each head; even unless ``rotary_dim`` is given.
        factor: the longer length over the trained one, at least 1.
        base: the base of the frequencies, above 1.
        layout: which dimensions form the pair c: (2c, 2c+1) for "interleaved", (c, c + d/2) for "half".
        rotary_dim: d, the number of dimensions rotated, even and at most head_dim; head_dim if None.

    Raises:
        HeadwayError: if factor is below 1.

    References:
        Chen et al. 2023, section 2.3.
    """

    name = "position-interpolation"
    citation = "chen2023extending"
    year = 2023
    evidence = "independent"
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
        self.factor = factor

    def frequencies(self, coordinates: Coordinates) -> Tensor:
        """Returns ω_c = θ_c/factor, [pairs] in float64."""
        return self.theta(coordinates) / self.factor

    def oracle_frequency(self, c: int, coordinates: Coordinates) -> float:
        return 1 / self.factor * self.oracle_theta(c)

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(8), cls(8, factor=2.5, base=500.0, layout="half", rotary_dim=4)]
