"""The base class of biases by the distance on each axis, for tokens of one window."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..coordinates import Coordinates
from ..errors import HeadwayError, need_positive
from ..terms import Clip, DistanceBias, Grid, Rows
from ._base import Input, Pair, PositionEncoding, Terms


class Windowed(PositionEncoding):
    """Adds a scalar for each head and each distance that occurs within a window.

        score[h,i,j] = s·⟨qᵢ, kⱼ⟩ + rows[row(Δ), h],   Δ = pᵢ − pⱼ on each axis, within 1 − W … W − 1
        row(Δ) = (Δ₁ + W₁ − 1)·(2W₂ − 1) + Δ₂ + W₂ − 1,   the last axis changes fastest

    A subclass defines ``rows`` [∏(2W − 1), num_heads] for the sides W of its window. Larger distances, which no window
    contains, use the outermost row; a distance that is not a whole number is rounded up.

    Args:
        num_heads: the number of query heads, at least 1.
        window: the window as the caller gave it.
        sides: W of each axis, at least 1.

    Raises:
        HeadwayError: if a size is below 1.
    """

    extrapolates = True

    def __init__(self, num_heads: int, window: int | Sequence[int] | None, sides: tuple[int, ...]) -> None:
        super().__init__()
        need_positive(num_heads=num_heads, window=min(sides))
        self.num_heads, self.window, self.sides, self.axes = num_heads, window, sides, len(sides)

    def rows(self) -> Tensor:
        """Returns the bias of each row, [∏(2W − 1), num_heads].

        Raises:
            NotImplementedError: if the subclass does not define it.
        """
        raise NotImplementedError

    def offsets(self, device: torch.device) -> Tensor:
        """Returns Δ of each row, [∏(2W − 1), axes] in float64.

        Args:
            device: the device of the result.
        """
        steps = [torch.arange(1 - w, w, dtype=torch.float64, device=device) for w in self.sides]
        return torch.stack(torch.meshgrid(*steps, indexing="ij"), dim=-1).flatten(0, -2)

    def terms(self, q_at: Coordinates, k_at: Coordinates, q_input: Input = None, k_input: Input = None) -> Terms:
        """Returns the bias; its table is indexed by key − query, so the rows are in reverse order."""
        clips = tuple(Clip(1 - w, w - 1, axis) for axis, w in enumerate(self.sides))
        return (DistanceBias(Rows(self.rows().flip(0).T, clips[0] if len(clips) == 1 else Grid(clips))),)

    def oracle_offset(self, pair: Pair) -> list[int]:
        """Returns Δ of ``pair`` on each axis, limited to the window."""
        apart = [-math.floor(pair.at(pair.j, axis) - pair.at(pair.i, axis)) for axis in range(len(self.sides))]
        return [max(1 - w, min(w - 1, delta)) for delta, w in zip(apart, self.sides, strict=True)]


def two(window: int | Sequence[int]) -> tuple[int, int]:
    """A window as height and width; raises HeadwayError for any other number of sizes."""
    sizes = (window, window) if isinstance(window, int) else tuple(window)
    if len(sizes) != 2:
        raise HeadwayError(f"window is {window!r}: give one size, or a height and a width")
    return sizes
