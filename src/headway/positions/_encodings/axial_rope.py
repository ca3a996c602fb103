"""Rotary positions on several axes, with separate pairs for each axis."""

from __future__ import annotations

from torch import Tensor

from ...coordinates import Coordinates
from ...errors import HeadwayError, need_positive
from .._base import Pair, PositionEncoding
from .._formulas import need_base, rates
from .._rotary import Rotary


class AxialRoPE(Rotary):
    """Divides the pairs of dimensions among the axes, and rotates those of an axis by the position on it.

        score[i,j] = s·⟨R(pᵢ)·qᵢ, R(pⱼ)·kⱼ⟩,   φ_{a,t} = p_a·θ_t
        θ_t = base^(−t/m),   m = head_dim/(2·axes) pairs for each axis, t = 0 … m − 1; on two axes base^(−4t/head_dim)

    The caller decides which axis is the first: the authors use (column, row), timm (row, column), and weights trained
    with one do not fit the other. To leave a class token unrotated, put it at position 0 on every axis.

    Args:
        head_dim: the width of each head, a multiple of 2·axes.
        base: the base of the frequencies, above 1; the authors' 100 is for images, a language model would use 10000.
        axes: the number of axes of the positions, at least 1.
        layout: which dimensions form the pair c: (2c, 2c+1) for "interleaved", (c, c + head_dim/2) for "half".

    Shape:
        x: [batch, heads, n, head_dim]
        positions: [batch, n, axes]
        Output: [batch, heads, n, head_dim]

    Raises:
        HeadwayError: if 2·axes does not divide head_dim, or base is 1 or less.

    References:
        Heo et al. 2024, section 3.2.
    """

    name = "axial-rope"
    citation = "heo2024rotary"
    year = 2024
    evidence = "authors"
    axes = 2

    def __init__(self, head_dim: int, base: float = 100.0, axes: int = 2, layout: str = "interleaved") -> None:
        super().__init__(head_dim, layout)
        need_positive(axes=axes)
        need_base(base)
        if self.pairs % axes:
            raise HeadwayError(
                f"head_dim is {head_dim} for {axes} axes: each has as many pairs, give a multiple of {2 * axes}"
            )
        self.base, self.axes = base, axes

    def phases(self, coordinates: Coordinates) -> Tensor:
        """Returns φ, [b, n, pairs] in float64, axis by axis."""
        share = self.pairs // coordinates.position.shape[-1]
        theta = rates(share, 2 * share, self.base, coordinates.position.device)
        return (coordinates.position.double()[..., None] * theta).flatten(-2)

    def oracle_angle(self, pair: Pair, c: int, token: int) -> float:
        share = self.head_dim / (2 * self.axes)
        axis, t = divmod(c, share)
        return pair.at(token, int(axis)) * self.base ** (-t / share)

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(8), cls(8, base=500.0, axes=4, layout="half")]
