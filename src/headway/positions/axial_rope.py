"""Rotary positions on several axes, each with pairs of its own."""

from __future__ import annotations

from torch import Tensor

from ..coordinates import Coordinates
from ..errors import HeadwayError, need_positive
from ._base import Pair, PositionEncoding, need_base, rates
from ._rotary import Rotary


class AxialRoPE(Rotary):
    """The pairs of dimensions are shared out among the axes: the first share turns with the first axis, and so on.

        score[i,j] = s·⟨R(pᵢ)·qᵢ, R(pⱼ)·kⱼ⟩,   φ_{a,t} = p_a·θ_t
        θ_t = base^(−t/m),   m = head_dim/(2·axes) pairs for each axis, t = 0 … m − 1; on two axes base^(−4t/head_dim)

    Shapes: x [batch, heads, n, head_dim] → the same; positions [batch, n, axes].
    Which axis is the first is the caller's: the authors give (column, row), timm (row, column), and weights trained
    with one do not fit the other. base is the authors' 100 for images; a language model's would be 10000. A class token
    that is not to be turned stands at position 0 on every axis.
    Raises HeadwayError for a head_dim that 2·axes does not divide, and a base of 1 or less.
    Cite: Heo et al. 2024, section 3.2.
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
                f"head_dim is {head_dim} for {axes} axes: each takes as many pairs, give a multiple of {2 * axes}"
            )
        self.base, self.axes = base, axes

    def phases(self, coordinates: Coordinates) -> Tensor:
        """φ [b, n, pairs], axis after axis."""
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
