"""Learned absolute position embeddings."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...coordinates import Coordinates
from ...errors import HeadwayError, need_positive
from .._base import PositionEncoding
from .._formulas import added, at, need_width, normal, oracle_length, readable, stream_length


class Learned(PositionEncoding):
    """Adds one learned vector for each position to the embeddings.

        x'ᵢ = xᵢ + E[pᵢ],   E: [max_length, embed_dim]
        x'ᵢ = xᵢ + E[pᵢ·(max_length − 1)/(T − 1)]   for extend="interpolate" and T > max_length

    Between two rows, E is interpolated linearly. Positions are whole numbers from 0 to max_length − 1, unless extend is
    "interpolate". Compiled code does not read the values of positions, so positions outside of the table raise an error
    in eager mode only.

    Args:
        max_length: the number of positions in the table, at least 1.
        embed_dim: the width of the embeddings, at least 1.
        initial: the initial table [max_length, embed_dim]; drawn from N(0, 0.02²) if None.
        extend: None if positions beyond the table are an error; "interpolate" to stretch the table, end to end, over a
            sequence of T > max_length tokens, whose positions may lie between two rows.

    Shape:
        x: [batch, n, embed_dim]
        Output: [batch, n, embed_dim]

    Raises:
        HeadwayError: if a size is below 1, ``initial`` has another shape, ``extend`` is unknown, or, in eager mode, the
            table does not have a position.

    References:
        Gehring et al. 2017.
    """

    name = "learned"
    citation = "gehring2017convolutional"
    year = 2017
    evidence = "independent"
    ends = True

    def __init__(
        self, max_length: int, embed_dim: int, initial: Tensor | None = None, extend: str | None = None
    ) -> None:
        super().__init__()
        need_positive(max_length=max_length, embed_dim=embed_dim)
        if initial is not None and tuple(initial.shape) != (max_length, embed_dim):
            raise HeadwayError(
                f"initial has shape {tuple(initial.shape)}: give a table [max_length, embed_dim] = "
                f"[{max_length}, {embed_dim}]"
            )
        if extend not in (None, "interpolate"):
            raise HeadwayError(f"extend is {extend!r}: give None or 'interpolate'")
        self.max_length, self.embed_dim, self.extend = max_length, embed_dim, extend
        self.table = normal(max_length, embed_dim) if initial is None else nn.Parameter(initial.detach().clone())

    def embed(self, x: Tensor, coordinates: Coordinates | Tensor | None = None) -> Tensor:
        """Returns x with the vector of each position added, [batch, n, embed_dim]."""
        need_width(x, "embed_dim", self.embed_dim)
        coordinates = self.coordinates_for(x, coordinates)
        self._check(coordinates)
        if self.extend is None:
            return added(x, F.embedding(coordinates.axis().long(), self.table))
        place = self._stretched(coordinates)
        low = place.floor().long().clamp(0, self.max_length - 1)
        high = (low + 1).clamp(max=self.max_length - 1)
        first, second = F.embedding(low, self.table), F.embedding(high, self.table)
        return added(x, torch.lerp(first, second, (place - low)[..., None].to(first.dtype)))

    def _stretched(self, coordinates: Coordinates) -> Tensor:
        """The row of the table for each position, float64 [b, n]."""
        last, end = stream_length(coordinates) - 1, self.max_length - 1
        steps = last.clamp(min=end) if isinstance(last, Tensor) else torch.sym_max(last, end)
        return coordinates.axis().double() * (end / steps) if end else coordinates.axis().double() * 0

    def _check(self, coordinates: Coordinates) -> None:
        position, size = coordinates.axis(), self.max_length
        if self.extend is None and position.is_floating_point():
            raise HeadwayError(
                f"positions are {position.dtype} but a learned table has whole numbers: give integers, or "
                "build it with extend='interpolate'"
            )
        if not position.numel() or not readable(position):
            return
        low, high = (value.item() for value in position.aminmax())
        if low < 0:
            raise HeadwayError(f"position {low} is below 0: a learned table starts at position 0")
        if self.extend is None and high >= size:
            raise HeadwayError(
                f"position {high} (a length of {high + 1}) lies beyond the learned table of max_length {size}: "
                f"build it with max_length={high + 1}, or with extend='interpolate'"
            )

    def oracle_embed(self, x: Tensor, coordinates: Coordinates) -> Tensor:
        x, end = x.clone(), self.max_length - 1
        for i in range(x.shape[0]):
            place = at(coordinates, i)
            if self.extend is not None:
                place = place * end / max(oracle_length(coordinates, i) - 1, end) if end else 0
            low = min(math.floor(place), end)
            share = place - low
            x[i] += (1 - share) * self.table[low].double() + share * self.table[min(low + 1, end)].double()
        return x

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(128, 32), cls(64, 48, extend="interpolate")]
