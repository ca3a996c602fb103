"""Position coupling: learned embeddings shared by tokens that a task relates."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ...coordinates import Coordinates
from .._base import PositionEncoding
from .._chance import for_each_sequence
from .._places import Places


class PositionCoupling(Places):
    """Adds the learned vector of a position id, which tokens related by the task share.

        x'ᵢ = xᵢ + E[pᵢ + s],  pᵢ ≥ 1;   x'ᵢ = xᵢ + E[0],  pᵢ = 0, for tokens without an id: padding, beginning and end
        s ~ U{0, …, max_length − max p} for each sequence in training; s = 0 in evaluation

    Positions are the ids, such as ``positions=PositionCoupling.addition(4, 4, 5)[None]``: digits of one significance
    share an id. A sequence is a row of the coordinates or a document of packed rows.

    Args:
        embed_dim: the width of the embeddings, at least 1.
        max_length: the largest id, at least 1, the authors' max_position; for addition it must exceed the number of
            digits of the answer.

    Attributes:
        table: E [max_length + 1, embed_dim], drawn from N(0, 1).

    Shape:
        x: [batch, n, embed_dim]
        Output: [batch, n, embed_dim]

    Raises:
        HeadwayError: if a size is below 1 or, in eager mode, an id is outside of the table.

    References:
        Cho et al. 2024, section 3.
    """

    name = "position-coupling"
    citation = "cho2024position"
    year = 2024
    evidence = "authors"

    def __init__(self, embed_dim: int, max_length: int = 132) -> None:
        super().__init__(embed_dim, max_length, max_length + 1, 1.0)

    @staticmethod
    def addition(
        first: int, second: int, answer: int, *, reverse_operands: bool = False, reverse_answer: bool = True
    ) -> Tensor:
        """Returns the ids of the text "first + second = answer", int64 [n].

        The last digits have id 2, '+' has 1, and '=' has 1 before a reversed answer, else one more than all digits.

        Args:
            first: the number of digits of the first operand.
            second: the number of digits of the second operand.
            answer: the number of digits of the answer.
            reverse_operands: whether the operands are written with their last digit first.
            reverse_answer: whether the answer is written with its last digit first.
        """

        def number(digits: int, reverse: bool) -> list[int]:
            ids = list(range(2, digits + 2))
            return ids if reverse else ids[::-1]

        equals = 1 if reverse_answer else answer + 2
        operands = [*number(first, reverse_operands), 1, *number(second, reverse_operands)]
        return torch.tensor([*operands, equals, *number(answer, reverse_answer)])

    def locate(self, coordinates: Coordinates) -> Coordinates:
        """Returns the coordinates with a random offset added to the ids of each sequence in training."""
        if not self.training:
            return coordinates
        p = coordinates.position
        share = for_each_sequence(
            coordinates, lambda rows, n: torch.rand((rows, n), dtype=torch.float64, device=p.device)
        )
        largest = p[..., 0].amax(1, keepdim=True) if p.shape[1] else 0
        shift = (share * (self.max_length + 1 - largest)).floor().to(p.dtype)[..., None]
        return replace(coordinates, position=torch.where(p > 0, p + shift, p))

    def oracle_locate(self, coordinates: Coordinates) -> Coordinates:
        return coordinates

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(32, max_length=256).eval(), cls(48, max_length=200).eval()]
