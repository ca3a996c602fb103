"""The position as a fraction of the sequence."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ...coordinates import Coordinates
from .._base import PositionEncoding
from .._formulas import added, at, oracle_length, stream_length


class UnitIndex(PositionEncoding):
    """Adds the token's position as a fraction of the sequence: 0 for the first token, 1 for the last.

        x'ᵢ = xᵢ + pᵢ/(T − 1)·𝟏,   T the number of tokens of the sequence (a single token has 0)

    T is the ``length`` of the coordinates; positions given as a tensor end at their maximum. This is a baseline for
    teaching: it is bounded, but one step is 1/(T − 1), which differs between lengths. A layer norm directly after it
    removes it, since it is the same in every dimension. As ``locate`` computes the division, a composition passes the
    divided positions to its other parts.

    Shape:
        x: [batch, n, embed_dim], for any embed_dim
        Output: [batch, n, embed_dim]
    """

    name = "unit-index"
    evidence = "formula"
    citation = "% UnitIndex is a baseline for teaching: there is no paper to cite"
    extrapolates = True

    def locate(self, coordinates: Coordinates) -> Coordinates:
        """Returns the positions divided by the length − 1, in float64."""
        last = stream_length(coordinates) - 1
        steps = last.clamp(min=1)[..., None] if isinstance(last, Tensor) else torch.sym_max(last, 1)
        return replace(coordinates, position=coordinates.position.double() / steps)

    def embed(self, x: Tensor, coordinates: Coordinates | Tensor | None = None) -> Tensor:
        """Returns x [batch, n, embed_dim] with the fraction of each token added."""
        return added(x, self.coordinates_for(x, coordinates).axis()[..., None])

    def oracle_embed(self, x: Tensor, coordinates: Coordinates) -> Tensor:
        x = x.clone()
        for i in range(x.shape[0]):
            x[i] += at(coordinates, i) / max(oracle_length(coordinates, i) - 1, 1)
        return x
