"""Learned vectors for the place of a digit in its number."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from ..coordinates import Coordinates
from ..errors import HeadwayError
from ._base import PositionEncoding
from ._places import Places


class Abacus(Places):
    """Digits of the same place in their numbers share a vector, which is added to the embeddings.

        x'ᵢ = xᵢ + E[pᵢ + k],  pᵢ = 1, 2, 3 … along each run of digits;   x'ᵢ = xᵢ + E[0],  pᵢ = 0, for other tokens
        k ~ U{0, …, max_offset} in training, one number for the whole batch; k = 0 outside of it

    Shapes: x [batch, n, embed_dim] → the same; table E [max_length + max_offset + 1, embed_dim], drawn from
    N(0, 1/embed_dim). Positions are the places: ``positions=Abacus.places(ids, digit_ids)``. Numbers have to be written
    with their last digit first, or equal places would not be of equal significance.
    max_length is the longest number, and with the defaults the table has the authors' 1024 rows.
    Raises HeadwayError for sizes below 1, a negative max_offset, and, in eager mode, places beyond the table.
    Cite: McLeish et al. 2024, section 3.
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
        """The place of each token in its run of digits, from 1; 0 for others. ids [batch, n] → int64 [batch, n].

        digit_ids are the ids of the ten digits; a run ends where a document of packed rows does.
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
        """In training, the places of all digits further on by one number."""
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
