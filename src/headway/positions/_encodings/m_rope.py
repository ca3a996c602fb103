"""Rotary positions of text, images and videos on three axes: time, row and column."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ...coordinates import Coordinates
from ...errors import HeadwayError
from .._base import Pair, PositionEncoding
from .._formulas import need_base, rates
from .._rotary import Rotary


class MRoPE(Rotary):
    """Rotates each pair of RoPE by one of three axes, in sections: time, then row, then column.

        score[i,j] = s·⟨R(pᵢ)·qᵢ, R(pⱼ)·kⱼ⟩,   φ_c = p_{a(c)}·ω_c,   ω_c = base^(−2c/head_dim)
        a(c) = 0 for the first sections[0] pairs, 1 for the next sections[1], 2 for the last sections[2]

    A text token has the same number on every axis, where this is RoPE; the token after an image has the largest number
    so far + 1. The released weights use the layout "half" and, for a head_dim of 128, sections (16, 24, 24).

    Args:
        head_dim: the width of each head, even.
        sections: the number of pairs of each axis, which sum to head_dim/2; in the proportions of (16, 24, 24) if None.
        base: the base of the frequencies, above 1.
        layout: which dimensions form the pair c: (2c, 2c+1) for "interleaved", (c, c + head_dim/2) for "half".

    Shape:
        x: [batch, heads, n, head_dim]
        positions: [batch, n, 3], (time, row, column)
        Output: [batch, heads, n, head_dim]

    Raises:
        HeadwayError: if sections are not three or do not sum to head_dim/2, or base is 1 or less.

    References:
        Wang et al. 2024, "Qwen2-VL", section 2.1.
    """

    name = "m-rope"
    citation = "wang2024qwen2vl"
    year = 2024
    evidence = "independent"
    axes = 3

    def __init__(
        self,
        head_dim: int = 128,
        sections: Sequence[int] | None = None,
        base: float = 1_000_000.0,
        layout: str = "half",
    ) -> None:
        super().__init__(head_dim, layout)
        need_base(base)
        if sections is None:
            sections = self.shares(self.pairs)
        if len(sections) != 3 or min(sections) < 0 or sum(sections) != self.pairs:
            raise HeadwayError(
                f"sections are {tuple(sections)}: give three numbers of pairs that add up to head_dim/2, {self.pairs}"
            )
        self.sections, self.base = tuple(sections), base

    @staticmethod
    def shares(pairs: int) -> tuple[int, int, int]:
        """Returns the default sections: a quarter of the pairs for time, and half of the rest each for row and column.

        Args:
            pairs: the number of pairs, head_dim/2.
        """
        across = 3 * pairs // 8
        return pairs - 2 * across, across, across

    @property
    def axis_of_pair(self) -> list[int]:
        """Returns a(c) for each pair."""
        return [axis for axis, count in enumerate(self.sections) for _ in range(count)]

    def phases(self, coordinates: Coordinates) -> Tensor:
        """Returns φ, [b, n, pairs] in float64."""
        p = coordinates.position.double()[..., self.axis_of_pair]
        return p * rates(self.pairs, self.head_dim, self.base, p.device)

    def oracle_angle(self, pair: Pair, c: int, token: int) -> float:
        time, row, _ = self.sections
        axis = 0 if c < time else 1 if c < time + row else 2
        return pair.at(token, axis) * self.base ** (-2 * c / self.head_dim)

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(8, (1, 1, 2), base=500.0), cls(8, (2, 1, 1), layout="interleaved")]
