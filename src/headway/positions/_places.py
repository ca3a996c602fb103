"""The base class of learned embeddings of places that the data defines, such as the place of a digit in a number."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..coordinates import Coordinates
from ..errors import HeadwayError, need_positive
from ._base import PositionEncoding
from ._formulas import added, at, need_width, readable, whole


class Places(PositionEncoding):
    """Adds learned vectors of places: x'ᵢ = xᵢ + E[pᵢ], where a subclass computes the places p from the tokens.

    A place that is not a whole number is rounded down.

    Args:
        embed_dim: the width of the embeddings, at least 1.
        max_length: the largest place that the data may have, at least 1.
        rows: the number of rows of the table E.
        std: the standard deviation of the initial table.

    Raises:
        HeadwayError: if a size is below 1.
    """

    ends = True

    def __init__(self, embed_dim: int, max_length: int, rows: int, std: float) -> None:
        super().__init__()
        need_positive(embed_dim=embed_dim, max_length=max_length)
        self.embed_dim, self.max_length = embed_dim, max_length
        self.table = nn.Parameter(std * torch.randn(rows, embed_dim))

    def embed(self, x: Tensor, coordinates: Coordinates | Tensor | None = None) -> Tensor:
        """Returns x [batch, n, embed_dim] with the vector of each place added.

        Raises:
            HeadwayError: if, in eager mode, a place is outside of the table, or x has another embed_dim.
        """
        need_width(x, "embed_dim", self.embed_dim)
        place = whole(self.coordinates_for(x, coordinates).axis())
        if place.numel() and readable(place):
            low, high = (int(value) for value in place.aminmax())
            if low < 0 or high >= self.table.shape[0]:
                raise HeadwayError(
                    f"place {low if low < 0 else high} is not in the table, which has 0 to {self.table.shape[0] - 1}: "
                    f"give places of 0 to max_length, or build it with a larger max_length than {self.max_length}"
                )
        return added(x, F.embedding(place, self.table))

    def oracle_embed(self, x: Tensor, coordinates: Coordinates) -> Tensor:
        rows = [self.table[math.floor(at(coordinates, i))].double() for i in range(x.shape[0])]
        return x + torch.stack(rows)
