"""The position as a share of the sequence."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..coordinates import Coordinates
from ._base import PositionEncoding, added, at, oracle_length, stream_length


class UnitIndex(PositionEncoding):
    """Each token is told where in its sequence it stands: 0 at the first token, 1 at the last.

        x'ᵢ = xᵢ + pᵢ/(T − 1)·𝟏,   T the tokens of the sequence (a single token is at 0)

    Shapes: x [batch, n, embed_dim] → the same, for any embed_dim. T is the ``length`` of the coordinates; plain
    positions end at the largest one.
    A baseline for teaching: bounded, but one step is 1/(T − 1), another distance in every length; and a layer norm
    right behind takes it out again, since it is the same in every dimension. As ``locate`` does the division, a
    composition passes the divided positions on to its other parts.
    """

    name = "unit-index"
    citation = "% UnitIndex is a baseline for teaching: there is no paper to cite"
    extrapolates = True

    def locate(self, coordinates: Coordinates) -> Coordinates:
        """Positions divided by the length − 1, in float64."""
        last = stream_length(coordinates) - 1
        steps = last.clamp(min=1)[..., None] if isinstance(last, Tensor) else torch.sym_max(last, 1)
        return replace(coordinates, position=coordinates.position.double() / steps)

    def embed(self, x: Tensor, coordinates: Coordinates | Tensor | None = None) -> Tensor:
        """x [batch, n, embed_dim] with each token's share of the way added."""
        return added(x, self.coordinates_for(x, coordinates).axis()[..., None])

    def oracle_embed(self, x: Tensor, coordinates: Coordinates) -> Tensor:
        x = x.clone()
        for i in range(x.shape[0]):
            x[i] += at(coordinates, i) / max(oracle_length(coordinates, i) - 1, 1)
        return x
