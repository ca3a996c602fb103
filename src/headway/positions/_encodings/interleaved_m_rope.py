"""Rotary positions of text, images and videos, with interleaved axes."""

from __future__ import annotations

from collections.abc import Sequence

from .._base import Pair, PositionEncoding
from .m_rope import MRoPE


class InterleavedMRoPE(MRoPE):
    """Interleaves the three axes of MRoPE, so that time, row and column each have fast and slow pairs.

        φ_c = p_{a(c)}·ω_c,   ω_c = base^(−2c/head_dim)
        a(c) = 1 where c mod 3 = 1 and c < 3·sections[1], 2 where c mod 3 = 2 and c < 3·sections[2], else 0

    Everything else is as in ``MRoPE``. With the released (24, 20, 20) the axes are (time, row, column) 20 times and
    then time. If 3·sections[1] or 3·sections[2] exceeds the number of pairs, that axis has fewer pairs than its section
    says, as in the released code.

    Args:
        head_dim: the width of each head, even.
        sections: the number of pairs of each axis, which sum to head_dim/2; in the proportions of (24, 20, 20) if None.
        base: the base of the frequencies, above 1.
        layout: which dimensions form the pair c: (2c, 2c+1) for "interleaved", (c, c + head_dim/2) for "half".

    References:
        Bai et al. 2025, "Qwen3-VL", section 2.
    """

    name = "interleaved-m-rope"
    citation = "bai2025qwen3vl"
    year = 2025

    def __init__(
        self,
        head_dim: int = 128,
        sections: Sequence[int] | None = None,
        base: float = 5_000_000.0,
        layout: str = "half",
    ) -> None:
        super().__init__(head_dim, sections, base, layout)

    @staticmethod
    def shares(pairs: int) -> tuple[int, int, int]:
        """Returns the default sections: three eighths of the pairs for time, half of the rest each for row and column.

        Args:
            pairs: the number of pairs, head_dim/2.
        """
        across = 5 * pairs // 16
        return pairs - 2 * across, across, across

    @property
    def axis_of_pair(self) -> list[int]:
        """Returns a(c) for each pair."""
        return [c % 3 if c < 3 * self.sections[c % 3] else 0 for c in range(self.pairs)]

    def oracle_angle(self, pair: Pair, c: int, token: int) -> float:
        rows = range(1, 3 * self.sections[1], 3)
        columns = range(2, 3 * self.sections[2], 3)
        axis = 1 if c in rows else 2 if c in columns else 0
        return pair.at(token, axis) * self.base ** (-2 * c / self.head_dim)

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(8, (2, 1, 1), base=500.0), cls(8, (2, 1, 1), layout="interleaved")]
