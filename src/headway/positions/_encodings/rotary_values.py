"""Rotary positions of values, with the inverse rotation of the output."""

from __future__ import annotations

import cmath

from torch import Tensor

from ...coordinates import Coordinates
from ...errors import HeadwayError, need_positive
from ...terms import Rotation
from .._base import Pair, PositionEncoding
from .._formulas import need_width
from .._rotary import Rotary
from .partial_rope import PartialRoPE
from .rope import RoPE


class RotaryValues(PositionEncoding):
    """Rotates each value by its position and the output back by the query's, so that values carry relative positions.

        out[i] = R(pᵢ)⁻¹·Σ_j A[i,j]·R(pⱼ)·vⱼ = Σ_j A[i,j]·R(pⱼ − pᵢ)·vⱼ

    Queries and keys do not change. Composed with an encoding that rotates them, as in "rope + rotary-values", it is
    RoVE (VO-RoPE without RoPE), and what DeepSeek-V4 does to the one tensor that serves as keys and values.

    Args:
        head_dim: the width of each head of the values, at least 1.
        rotary: the rotary encoding R, whose angles are determined by positions only; ``RoPE(head_dim)`` if None. If it
            has fewer dimensions than head_dim, it rotates the last ones of each head (DeepSeek-V4: ``RoPE(64)`` of
            512); to rotate the first ones, give ``PartialRoPE(head_dim, …)``. Its magnitude, such as YaRN's, is not
            applied, since the inverse rotation would divide by it.

    Shape:
        v: [batch, kv_heads, m, head_dim]
        Output: [batch, kv_heads, m, head_dim]

    Raises:
        HeadwayError: if rotary is another encoding or wider than head_dim, or values have another head_dim.

    References:
        Su 2025; García-Castellanos et al. 2026; DeepSeek-AI 2026.
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
                f"rotary is {rotary!r}: give a rotary encoding whose angles depend only on positions, such as "
                f"RoPE({head_dim})"
            )
        if rotary.head_dim > head_dim:
            raise HeadwayError(
                f"rotary turns heads of {rotary.head_dim} but head_dim is {head_dim}: give one of at most {head_dim}"
            )
        self.head_dim, self.rotary = head_dim, rotary
        self.axes, self.cache_prepared = rotary.axes, rotary.cache_prepared
        self.foreign = self.foreign or rotary.foreign

    def __repr__(self) -> str:
        return f"RotaryValues({self.head_dim}, {self.rotary!r})"

    def tables(self, coordinates: Coordinates) -> tuple[Tensor, ...]:
        """Returns cos φ, sin φ and −sin φ, each [b, heads or 1, n, pairs] in float64."""
        tables, magnitude = self.rotary.tables_of(coordinates), self.rotary.magnitude
        assert tables is not None
        cos, sin = tables if magnitude == 1 else (x / magnitude for x in tables)
        return cos, sin, -sin

    def rotation(self, side: str, x: Tensor, coordinates: Coordinates) -> Rotation | None:
        """Returns the rotation of values by their positions, or of the output back by those of the queries."""
        if side not in ("value", "output"):
            return None
        need_width(x, "head_dim", self.head_dim)
        cos, sin, minus_sin = self.place(coordinates).tables
        start = self.head_dim - self.rotary.head_dim
        rotation = Rotation(cos, sin if side == "value" else minus_sin, self.rotary.layout, start)
        if self.rotary.foreign:  # its angles may have any shape
            rotation.check(x)
        return rotation

    def prepare_value(self, v: Tensor, coordinates: Coordinates) -> Tensor:
        """Returns v [batch, kv_heads, m, head_dim] rotated by its position, in float32 or wider."""
        return self._rotated("value", v, coordinates)

    def restore_output(self, out: Tensor, coordinates: Coordinates) -> Tensor:
        """Returns out [batch, heads, n, head_dim] rotated back by the query's position, in float32 or wider."""
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
    """Whether it only rotates pairs by angles of coordinates, which it does not relocate."""
    if not isinstance(rotary, Rotary) or rotary.acts != {"prepare"}:
        return False
    hooks = ("prepare", "prepare_query", "prepare_key", "rotation", "waves")
    return all(getattr(type(rotary), name) is getattr(Rotary, name) for name in hooks)
