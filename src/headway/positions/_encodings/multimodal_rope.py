"""Rotary positions of text, images and videos, with any assignment of axes to pairs and heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor
from torch.nn import functional as F

from ...coordinates import Coordinates
from ...errors import HeadwayError, need_positive, unknown
from ...terms import Rotation
from .._base import Pair, PositionEncoding
from .._formulas import need_base, need_width, rates
from .._lie import for_heads, need_divisor
from .._rotary import Rotary

TIME, ROW, COLUMN, NONE = 0, 1, 2, -1


def _spatial_first(slow: int) -> Callable[[int, int], list[list[int]]]:
    """Returns the order with rows and columns in turn on the fast pairs, and ``slow`` on the rest."""

    def order(pairs: int, heads: int) -> list[list[int]]:
        across = 3 * pairs // 8
        return [[ROW, COLUMN] * across + [slow] * (pairs - 2 * across)]

    return order


def _repeated(*axes: int) -> Callable[[int, int], list[list[int]]]:
    """Returns the order that repeats these axes from the fastest pair on."""
    return lambda pairs, heads: [[axes[c % len(axes)] for c in range(pairs)]]


def _by_heads(pairs: int, heads: int) -> list[list[int]]:
    """The order of MHRoPE: an axis for each head of the keys."""
    across = 3 * heads // 8
    axes = [TIME] * (heads - 2 * across) + [ROW] * across + [COLUMN] * across
    return [[axis] * pairs for axis in axes]


ORDERS = {
    "videorope": _spatial_first(TIME),
    "vlm-hope": _spatial_first(NONE),
    "mm-rope": _repeated(TIME, TIME, ROW, COLUMN, ROW, COLUMN, ROW, COLUMN),
    "vrope": _repeated(0, 1, 2, 3),
    "mhrope": _by_heads,
}
"""The orders by name: the axis of each pair, for one head or for each head of the keys."""


class MultimodalRoPE(Rotary):
    """Rotates each pair of RoPE by one axis of the position, in the order of a paper or in one of your own.

        score[h,i,j] = s·⟨R_h(pᵢ)·qᵢ, R_h(pⱼ)·kⱼ⟩,   φ_{h,c} = p_{a(h,c)}·ω_c,   ω_c = base^(−2c/head_dim)

    The axes are (time, row, column). With m pairs, the fastest at c = 0, the orders a(h,c) are:

    - "videorope": row and column in turn on the first 2·⌊3m/8⌋ pairs, time on the others, which are the slowest.
    - "vlm-hope": the same, but the slowest pairs do not rotate, so that time has no effect.
    - "mm-rope": time, time, row, column, row, column, row, column, and again from the first.
    - "vrope": 0, 1, 2, 3 in turn, on the four axes of VRoPE: the sums of row and column, from each corner.
    - "mhrope": all pairs of a head by one axis. Of H heads of the keys, the last ⌊3H/8⌋ have the column, as many before
      them the row, and the others time.

    Papers also differ in the positions that they give to images and videos: ``multimodal_positions`` has those. Text
    has one number on all axes, where this is RoPE, except for pairs that do not rotate. ``MRoPE`` and
    ``InterleavedMRoPE`` have the orders of Qwen2-VL and Qwen3-VL.

    Args:
        head_dim: the width of each head, even.
        order: one of the names above, or the axis of each pair, −1 for one that does not rotate.
        num_heads: the number of query heads; needed with "mhrope" only.
        num_kv_heads: the number of key and value heads, a divisor of num_heads; num_heads if None.
        base: the base of the frequencies, above 1.
        layout: which dimensions form the pair c: (2c, 2c+1) for "interleaved", (c, c + head_dim/2) for "half".

    Shape:
        x: [batch, heads, n, head_dim]
        positions: [batch, n, axes], 4 for "vrope" and 3 for the other names; for an order of your own, those it reads
        Output: [batch, heads, n, head_dim]

    Raises:
        HeadwayError: if order is unknown, has another length than head_dim/2 or an axis below −1, "mhrope" is given
            without num_heads, or num_kv_heads does not divide num_heads.

    References:
        Wei et al. 2025 (VideoRoPE), section 4; Li et al. 2025 (HoPE of vision-language models); Yuan et al. 2025
        (MM-RoPE of Lumos-1); Liu et al. 2025 (VRoPE); Huang et al. 2025 (MHRoPE). For positions: Ge et al. 2024
        (V2PE); Wang et al. 2025 (Circle-RoPE).
    """

    name = "multimodal-rope"
    citation = "wei2025videorope li2025vlmhope yuan2025lumos liu2025vrope huang2025revisiting ge2024v2pe wang2025circle"
    year = 2025
    evidence = "authors"
    axes = 3

    def __init__(
        self,
        head_dim: int = 128,
        order: str | Sequence[int] = "videorope",
        num_heads: int | None = None,
        num_kv_heads: int | None = None,
        base: float = 1_000_000.0,
        layout: str = "half",
    ) -> None:
        super().__init__(head_dim, layout)
        need_base(base)
        if isinstance(order, str):
            if order not in ORDERS:
                raise unknown("order", order, ORDERS)
            if order == "mhrope" and num_heads is None:
                raise HeadwayError("num_heads is None with order='mhrope', whose heads differ: give at least 1")
        else:
            order = tuple(order)
        if num_heads is not None:
            need_positive(num_heads=num_heads)
            need_divisor(num_heads, num_kv_heads)
        self.order, self.num_heads, self.num_kv_heads, self.base = order, num_heads, num_kv_heads, base
        by_head = self.axis_of_pair
        if len(by_head[0]) != self.pairs:
            raise HeadwayError(f"order has {len(by_head[0])} axes: give one for each of the {self.pairs} pairs")
        if min(min(row) for row in by_head) < NONE:
            raise HeadwayError(f"order is {order}: give axes from 0 on, or −1 for a pair that does not rotate")
        self.axes = 3 if isinstance(order, str) and order != "vrope" else max(0, *map(max, by_head)) + 1

    @property
    def axis_of_pair(self) -> list[list[int]]:
        """Returns a(h,c), a row for each head of the keys, or one for all of them."""
        if isinstance(self.order, str):
            return ORDERS[self.order](self.pairs, self.num_kv_heads or self.num_heads or 1)
        return [list(self.order)]

    def phases(self, coordinates: Coordinates) -> Tensor:
        """Returns φ, [b, num_kv_heads or 1, n, pairs] in float64."""
        by_head = self.axis_of_pair
        # a last axis of zeros, for pairs that do not rotate
        position = F.pad(coordinates.position.double(), (0, 1))
        none = position.shape[-1] - 1
        columns = [none if axis == NONE else axis for row in by_head for axis in row]
        p = position[..., columns].unflatten(-1, (len(by_head), self.pairs)).transpose(1, 2)
        return p * rates(self.pairs, self.head_dim, self.base, p.device)

    def rotation(self, side: str, x: Tensor, coordinates: Coordinates) -> Rotation | None:
        """Returns the rotation of x [batch, num_heads or num_kv_heads, n, head_dim]."""
        need_width(x, "head_dim", self.head_dim)
        cos, sin = self.place(coordinates).tables
        if cos.shape[1] > 1:
            assert self.num_heads is not None
            cos, sin = for_heads(x, self.num_heads, cos, sin)
        return Rotation(cos, sin, self.layout)

    def oracle_angle(self, pair: Pair, c: int, token: int) -> float:
        axis = self._oracle_axis(pair.h, c)
        return 0.0 if axis is None else pair.at(token, axis) * self.base ** (-2 * c / self.head_dim)

    def _oracle_axis(self, h: int, c: int) -> int | None:
        if not isinstance(self.order, str):
            return None if self.order[c] < 0 else self.order[c]
        if self.order == "vrope":
            return c % 4
        if self.order == "mm-rope":
            return 0 if c % 8 < 2 else 1 + c % 2
        if self.order == "mhrope":
            assert self.num_heads is not None
            heads = self.num_kv_heads or self.num_heads
            from_last = heads - 1 - h * heads // self.num_heads
            return {0: 2, 1: 1}.get(from_last // max(3 * heads // 8, 1), 0) if heads > 2 else 0
        if c >= 2 * (3 * self.pairs // 8):
            return 0 if self.order == "videorope" else None
        return 1 + c % 2

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [
            cls(8, base=500.0),
            cls(8, "vlm-hope", layout="interleaved"),
            cls(8, "vrope"),
            cls(8, "mhrope", 6, 3),
            cls(8, (1, -1, 0, 1)),
        ]
