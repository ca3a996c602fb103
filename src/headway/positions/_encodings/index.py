"""The position itself as a number."""

from __future__ import annotations

from torch import Tensor

from ...coordinates import Coordinates
from .._base import PositionEncoding
from .._formulas import added, at


class IntegerIndex(PositionEncoding):
    """Adds the token's number to its embedding: 1 for the first, 2 for the second, and so on without bound.

        x'ᵢ = xᵢ + (pᵢ + 1)·𝟏

    This is a baseline for teaching: the numbers soon exceed the embeddings in size and grow beyond those of training. A
    layer norm directly after it removes them, since they are the same in every dimension; an RMS norm does not.
    Positions start at 0.

    Shape:
        x: [batch, n, embed_dim], for any embed_dim
        Output: [batch, n, embed_dim]
    """

    name = "index"
    evidence = "formula"
    citation = "% IntegerIndex is a baseline for teaching: there is no paper to cite"

    def embed(self, x: Tensor, coordinates: Coordinates | Tensor | None = None) -> Tensor:
        """Returns x [batch, n, embed_dim] with the number of each token added."""
        return added(x, self.coordinates_for(x, coordinates).axis()[..., None] + 1)

    def oracle_embed(self, x: Tensor, coordinates: Coordinates) -> Tensor:
        x = x.clone()
        for i in range(x.shape[0]):
            x[i] += at(coordinates, i) + 1
        return x
