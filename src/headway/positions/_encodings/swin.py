"""Swin's learned scalar for each distance in a window of an image."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._base import Pair, PositionEncoding
from .._window import Windowed, two


class Swin(Windowed):
    """Adds a learned scalar for each head and each distance in height and width within a window.

        score[h,i,j] = s·⟨qᵢ, kⱼ⟩ + table[(Δy + H − 1)·(2W − 1) + Δx + W − 1, h],   Δ = pᵢ − pⱼ

    Distances beyond the window, which do not occur in Swin, count as its largest. ``resized`` gives the encoding for
    another window, its table resized by bicubic interpolation.

    Args:
        num_heads: the number of query heads, at least 1.
        window: one size, or (height, width), H × W, at least 1 each.

    Attributes:
        table: [(2H − 1)·(2W − 1), num_heads] in the order of the authors' relative_position_bias_table, whose
            checkpoints fit; drawn from N(0, 0.02²), truncated at ±2 as there.

    Shape:
        positions: [batch, n, 2] as (y, x)

    Raises:
        HeadwayError: if a size is below 1, or window has other than one or two sizes.

    References:
        Liu et al. 2021, section 3.2.
    """

    name = "swin"
    citation = "liu2021swin"
    year = 2021
    evidence = "authors"

    def __init__(self, num_heads: int, window: int | Sequence[int] = 7) -> None:
        super().__init__(num_heads, window, two(window))
        height, width = self.sides
        self.table = nn.Parameter(torch.empty((2 * height - 1) * (2 * width - 1), num_heads))
        nn.init.trunc_normal_(self.table, std=0.02)

    def rows(self) -> Tensor:
        """Returns the table."""
        return self.table

    def resized(self, window: int | Sequence[int]) -> Swin:
        """Returns the encoding for another window, with this table resized.

        Args:
            window: one size, or (height, width).
        """
        other = Swin(self.num_heads, window).to(self.table)
        (old, new) = ([2 * size - 1 for size in each.sides] for each in (self, other))
        with torch.no_grad():
            image = self.table.T.unflatten(1, old)[None]
            other.table.copy_(F.interpolate(image, size=new, mode="bicubic")[0].flatten(1).T)
        return other

    def oracle(self, pair: Pair) -> float:
        (y, x), (height, width) = self.oracle_offset(pair), self.sides
        row = (y + height - 1) * (2 * width - 1) + x + width - 1
        return pair.scale * pair.dot + self.table[row, pair.h].item()

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(4), cls(6, window=(3, 2))]
