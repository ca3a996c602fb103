"""The family of learned vectors for places that the data tells: within a number, say, not within the stream."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..coordinates import Coordinates
from ..errors import HeadwayError, need_positive
from ._base import PositionEncoding, added, at, need_width, readable


class Places(PositionEncoding):
    """x'ᵢ = xᵢ + E[pᵢ], where the positions p are places 0 … rows − 1 that a member computes from the tokens.

    Of a place that is no whole number the whole one below counts.
    """

    ends = True

    def __init__(self, embed_dim: int, max_length: int, rows: int, std: float) -> None:
        super().__init__()
        need_positive(embed_dim=embed_dim, max_length=max_length)
        self.embed_dim, self.max_length = embed_dim, max_length
        self.table = nn.Parameter(std * torch.randn(rows, embed_dim))

    def embed(self, x: Tensor, coordinates: Coordinates | Tensor | None = None) -> Tensor:
        """x [batch, n, embed_dim] with the vector of each place added."""
        need_width(x, "embed_dim", self.embed_dim)
        place = self.coordinates_for(x, coordinates).axis().floor().long()
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
