"""Abacus: learned embeddings of the place of a digit in its number."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from ...coordinates import Coordinates
from ...errors import HeadwayError
from .._base import PositionEncoding
from .._places import Places


class Abacus(Places):
    """Adds to each digit a learned vector of its place in its number.

        x'ᵢ = xᵢ + E[pᵢ + k],  pᵢ = 1, 2, 3 … along each run of digits;   x'ᵢ = xᵢ + E[0],  pᵢ = 0, for other tokens
        k ~ U{0, …, max_offset} in training, one number for the whole batch; k = 0 in evaluation

    Positions are the places: ``positions=Abacus.places(ids, digit_ids)``. Numbers have to be written with their last
    digit first, so that the same place has the same significance. With the defaults the table has the authors' 1024
    rows.

    Args:
        embed_dim: the width of the embeddings, at least 1.
        max_length: the number of digits of the longest number, at least 1.
        max_offset: the largest k, at least 0; 0 for none.

    Attributes:
        table: E [max_length + max_offset + 1, embed_dim], drawn from N(0, 1/embed_dim).

    Shape:
        x: [batch, n, embed_dim]
        Output: [batch, n, embed_dim]

    Raises:
        HeadwayError: if a size is below 1, max_offset is negative, or, in eager mode, a place is outside of the table.

    References:
        McLeish et al. 2024, section 3.
    """

    name = "abacus"
    citation = "mcleish2024transformers"
    year = 2024
    evidence = "authors"

    def __init__(self, embed_dim: int, max_length: int = 924, max_offset: int = 99) -> None:
        if max_offset < 0:
            raise HeadwayError(f"max_offset is {max_offset}: give at least 0, which draws none")
        super().__init__(embed_dim, max_length, max_length + max_offset + 1, max(embed_dim, 1) ** -0.5)
        self.max_offset = max_offset

    @staticmethod
    def places(ids: Tensor, digit_ids: Iterable[int], document: Tensor | None = None) -> Tensor:
        """Returns the place of each token in its run of digits, from 1, and 0 for other tokens: int64 [batch, n].

        Args:
            ids: token ids [batch, n].
            digit_ids: the ids of the ten digits.
            document: the document of each token of packed rows, [batch, n]; a run ends where its document ends.
        """
        digit = torch.isin(ids, torch.tensor(list(digit_ids), dtype=ids.dtype, device=ids.device))
        slot = torch.ones_like(ids, dtype=torch.long).cumsum(1)
        before = torch.where(digit, 0, slot)
        if document is not None:
            first = torch.ones_like(digit)
            first[:, 1:] = document[:, 1:] != document[:, :-1]
            before = torch.where(first, slot - digit.long(), before)
        return slot - before.cummax(1).values

    def locate(self, coordinates: Coordinates) -> Coordinates:
        """Returns the coordinates with the random offset k added to the places of digits in training."""
        if not self.training:
            return coordinates
        p = coordinates.position
        offset = torch.randint(0, self.max_offset + 1, (1, 1, 1), device=p.device)
        return replace(coordinates, position=torch.where(p > 0, p + offset, p))

    def oracle_locate(self, coordinates: Coordinates) -> Coordinates:
        return coordinates

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(32, max_length=300).eval(), cls(48, max_length=250, max_offset=7).eval()]
