"""Rotary positions of values, undone on the output."""

from __future__ import annotations

import cmath

from torch import Tensor

from ..coordinates import Coordinates
from ..errors import HeadwayError, need_positive
from ..terms import Rotation
from ._base import Pair, PositionEncoding, need_width
from ._rotary import Rotary
from .partial_rope import PartialRoPE
from .rope import RoPE


class RotaryValues(PositionEncoding):
    """Values are turned by their position and the output back by the query's, so that a value knows its distance.

        out[i] = R(pᵢ)⁻¹·Σ_j A[i,j]·R(pⱼ)·vⱼ = Σ_j A[i,j]·R(pⱼ − pᵢ)·vⱼ

    Queries and keys stay as they are: composed with what turns them, as in "rope + rotary-values", it is RoVE
    (VO-RoPE alone), and what DeepSeek-V4 does to the one tensor that is keys and values.

    Shapes: v [batch, kv_heads, m, head_dim] → the same; head_dim is that of the values.
    rotary says R: a rotary encoding whose angles positions decide, ``RoPE(head_dim)`` if None. One of fewer dimensions
    than head_dim turns the last of each head (DeepSeek-V4: ``RoPE(64)`` of 512); to turn the first, give
    ``PartialRoPE(head_dim, …)``. Its magnitude, as YaRN has one, plays no part: turning back would divide by it.
    Raises HeadwayError for a rotary that is none of these or wider than head_dim, and for values of another head_dim.
    Cite: Su 2025; García-Castellanos et al. 2026; DeepSeek-AI 2026.
    """

    name = "rotary-values"
    citation = "su2025vorope garciacastellanos2026rove deepseekai2026v4"
    year = 2025
    evidence = "independent"

    def __init__(self, head_dim: int, rotary: Rotary | None = None) -> None:
        super().__init__()
        need_positive(head_dim=head_dim)
        rotary = RoPE(head_dim) if rotary is None else rotary
        if not _turns_by_position(rotary):
            raise HeadwayError(
                f"rotary is {rotary!r}: give a rotary encoding whose angles positions alone decide, such as "
                f"RoPE({head_dim})"
            )
        if rotary.head_dim > head_dim:
            raise HeadwayError(
                f"rotary turns heads of {rotary.head_dim} but head_dim is {head_dim}: give one of at most {head_dim}"
            )
        self.head_dim, self.rotary = head_dim, rotary
        self.axes, self.cache_prepared = rotary.axes, rotary.cache_prepared
        self.watched = self.watched or rotary.watched

    def __repr__(self) -> str:
        return f"RotaryValues({self.head_dim}, {self.rotary!r})"

    def tables(self, coordinates: Coordinates) -> tuple[Tensor, ...]:
        """cos φ, sin φ and −sin φ, [b, heads or 1, n, pairs] in float64."""
        found, magnitude = self.rotary.tables(coordinates), self.rotary.magnitude
        assert found is not None
        cos, sin = found if magnitude == 1 else (x / magnitude for x in found)
        return cos, sin, -sin

    def rotation(self, side: str, x: Tensor, coordinates: Coordinates) -> Rotation | None:
        """The turn of values by their positions, and of the output back by those of the queries."""
        if side not in ("value", "output"):
            return None
        need_width(x, "head_dim", self.head_dim)
        cos, sin, minus_sin = self.place(coordinates).tables
        start = self.head_dim - self.rotary.head_dim
        return Rotation(cos, sin if side == "value" else minus_sin, self.rotary.layout, start)

    def prepare_value(self, v: Tensor, coordinates: Coordinates) -> Tensor:
        """v [batch, kv_heads, m, head_dim] turned by its position, in float32 or wider."""
        return self._rotated("value", v, coordinates)

    def restore_output(self, out: Tensor, coordinates: Coordinates) -> Tensor:
        """out [batch, heads, n, head_dim] turned back by the query's position, in float32 or wider."""
        return self._rotated("output", out, coordinates)

    def _rotated(self, side: str, x: Tensor, coordinates: Coordinates) -> Tensor:
        rotation = self.rotation(side, x, coordinates)
        assert rotation is not None
        return rotation.of(x)

    def oracle_value(self, pair: Pair, v: Tensor) -> Tensor:
        value, first = v[pair.h, pair.j].clone(), self.head_dim - self.rotary.head_dim
        for c, (a, b) in enumerate(self.rotary.dimensions()):
            angle = self.rotary.oracle_angle(pair, c, pair.j) - self.rotary.oracle_angle(pair, c, pair.i)
            turned = complex(value[first + a], value[first + b]) * cmath.exp(1j * angle)
            value[first + a], value[first + b] = turned.real, turned.imag
        return value

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(8), cls(8, RoPE(4, base=500.0, layout="half")), cls(8, PartialRoPE(8, rotary_dim=6, layout="half"))]


def _turns_by_position(rotary: object) -> bool:
    """Whether it does nothing but turn pairs by angles of coordinates that it leaves where they are."""
    if not isinstance(rotary, Rotary) or rotary.acts != {"prepare"}:
        return False
    hooks = ("prepare", "prepare_query", "prepare_key", "rotation", "waves")
    return all(getattr(type(rotary), name) is getattr(Rotary, name) for name in hooks)
