"""The position itself as a number."""

from __future__ import annotations

from torch import Tensor

from ..coordinates import Coordinates
from ._base import PositionEncoding, added, at


class IntegerIndex(PositionEncoding):
    """Each token is told its number: 1 for the first, 2 for the second, and so on without bound.

        x'ᵢ = xᵢ + (pᵢ + 1)·𝟏

    Shapes: x [batch, n, embed_dim] → the same, for any embed_dim; positions start at 0.
    A baseline for teaching: the numbers soon drown the embeddings, and grow beyond those seen in training. A layer
    norm right behind takes them out again, since they are the same in every dimension; an RMS norm leaves them.
    """

    name = "index"
    citation = "% IntegerIndex is a baseline for teaching: there is no paper to cite"

    def embed(self, x: Tensor, coordinates: Coordinates | Tensor | None = None) -> Tensor:
        """x [batch, n, embed_dim] with the number of each token added."""
        return added(x, self.coordinates_for(x, coordinates).axis()[..., None] + 1)

    def oracle_embed(self, x: Tensor, coordinates: Coordinates) -> Tensor:
        x = x.clone()
        for i in range(x.shape[0]):
            x[i] += at(coordinates, i) + 1
        return x
