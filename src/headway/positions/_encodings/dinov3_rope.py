"""Rotary positions on the two axes of an image of any size."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...coordinates import Coordinates
from ...errors import HeadwayError, need_finite
from .._base import Input, Pair, PositionEncoding
from .._formulas import need_base
from .._rotary import Rotary

NORMALISE = ("separate", "max", "min")


class DINOv3RoPE(Rotary):
    """Normalizes rows and columns to −1 … 1 over the image and rotates half of the pairs by each.

        score[i,j] = s·⟨R(pᵢ)·qᵢ, R(pⱼ)·kⱼ⟩,   φ_{a,t} = 2π·x_a/T_t,   m = head_dim/4, t = 0 … m − 1
        x_a = 2·(p_a + ½)/size_a − 1,   T_t = base^(t/m), or min·(max/min)^(t/(m − 1)) for periods=(min, max)

    In training, each layer draws one change of x for both sides and all rows of the batch: first x + U(−shift, shift)
    on each axis, then x·e^U(−ln jitter, ln jitter) on each axis, then the same with rescale, one factor for both axes.
    To leave a class token unrotated, put it at x = 0, the centre: row (rows − 1)/2, column (columns − 1)/2.

    Args:
        head_dim: the width of each head, a multiple of 4.
        grid: (rows, columns) of the image, above 0; if None, positions are x_a, so that each call can have an image of
            another size.
        base: the base of the frequencies, above 1.
        periods: the smallest and the largest period T, above 0; from base if None.
        normalise: size is the grid itself for "separate", or its larger ("max") or smaller ("min") side on both axes.
        shift: the largest shift of x in training; none if None.
        jitter: the largest factor of each axis in training, at least 1; none if None.
        rescale: the largest factor of both axes in training, at least 1; none if None.
        layout: which dimensions form the pair c: (2c, 2c+1) for "interleaved", (c, c + head_dim/2) for "half".

    Shape:
        x: [batch, heads, n, head_dim]
        positions: [batch, n, 2], (row, column)
        Output: [batch, heads, n, head_dim]

    Raises:
        HeadwayError: if head_dim is not a multiple of 4, a size or period is not above 0, jitter or rescale is below 1,
            shift, jitter or rescale is not finite, or normalise is unknown.

    References:
        Siméoni et al. 2025; the formula is that of the released code.
    """

    name = "dinov3-rope"
    citation = "simeoni2025dinov3"
    year = 2025
    evidence = "authors"
    across_shards = True
    axes = 2

    def __init__(
        self,
        head_dim: int,
        grid: tuple[float, float] | None = None,
        base: float = 100.0,
        periods: tuple[float, float] | None = None,
        normalise: str = "separate",
        shift: float | None = None,
        jitter: float | None = None,
        rescale: float | None = None,
        layout: str = "half",
    ) -> None:
        super().__init__(head_dim, layout)
        need_base(base)
        if head_dim % 4:
            raise HeadwayError(f"head_dim is {head_dim}: both axes have as many pairs, give a multiple of 4")
        for name, pair in (("grid", grid), ("periods", periods)):
            if pair is not None and (len(pair) != 2 or min(pair) <= 0):
                raise HeadwayError(f"{name} is {pair}: give two numbers above 0")
        for name, most in (("jitter", jitter), ("rescale", rescale)):
            if most is not None and most < 1:
                raise HeadwayError(f"{name} is {most}: give the largest factor, at least 1")
        if normalise not in NORMALISE:
            raise HeadwayError(f"normalise is {normalise!r}: give {', '.join(map(repr, NORMALISE))}")
        self.grid, self.base, self.periods, self.normalise = grid, base, periods, normalise
        need_finite(shift=shift, jitter=jitter, rescale=rescale)
        self.shift, self.jitter, self.rescale = shift, jitter, rescale
        self.cache_prepared = shift is jitter is rescale is None

    def frequencies(self, coordinates: Coordinates) -> Tensor:
        """Returns 2π/T, [head_dim/4] in float64."""
        m = self.head_dim // 4
        low, high = self.periods or (1.0, self.base ** ((m - 1) / m))
        steps = torch.arange(m, dtype=torch.float64, device=coordinates.position.device) / max(m - 1, 1)
        return 2 * math.pi / (low * (high / low) ** steps)

    def phases(self, coordinates: Coordinates) -> Tensor:
        """Returns φ, [b, n, pairs] in float64, those of the rows first."""
        return self._phases(self._normalised(coordinates), coordinates)

    def _phases(self, x: Tensor, coordinates: Coordinates) -> Tensor:
        return (x[..., None] * self.frequencies(coordinates)).flatten(-2)

    def _normalised(self, coordinates: Coordinates) -> Tensor:
        p = coordinates.position.double()
        return p if self.grid is None else torch.stack([2 * (p[..., a] + 0.5) / self._size(a) - 1 for a in (0, 1)], -1)

    def _size(self, axis: int) -> float:
        assert self.grid is not None
        return {"separate": self.grid[axis], "max": max(self.grid), "min": min(self.grid)}[self.normalise]

    def relocate(
        self, q_at: Coordinates, k_at: Coordinates, q_input: Input = None, k_input: Input = None
    ) -> tuple[Coordinates, Coordinates]:
        """Returns both sides, in training after one random change of the image's coordinates."""
        if not self.training or self.cache_prepared:
            return q_at, k_at
        device = q_at.position.device
        drawn = 2 * torch.rand(5, dtype=torch.float64, device=device) - 1
        factor = (drawn[2:4] * math.log(self.jitter or 1.0) + drawn[4] * math.log(self.rescale or 1.0)).exp()

        def changed(at: Coordinates) -> Coordinates:
            x = (self._normalised(at) + drawn[:2] * (self.shift or 0.0)) * factor
            phases = self._phases(x, at)[:, None]
            return at.placed_by(self, (phases.cos(), phases.sin()))

        return changed(q_at), changed(k_at)

    def oracle_angle(self, pair: Pair, c: int, token: int) -> float:
        m = self.head_dim // 4
        axis, t = divmod(c, m)
        x = pair.at(token, axis)
        if self.grid is not None:
            sizes = {"separate": self.grid, "max": [max(self.grid)] * 2, "min": [min(self.grid)] * 2}
            x = 2 * (x + 0.5) / sizes[self.normalise][axis] - 1
        period = self.base ** (t / m)
        if self.periods is not None:
            period = self.periods[0] * (self.periods[1] / self.periods[0]) ** (t / max(m - 1, 1))
        return 2 * math.pi * x / period

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(8, grid=(16, 8)), cls(8, grid=(16, 8), periods=(0.5, 40.0), normalise="max", layout="interleaved")]
