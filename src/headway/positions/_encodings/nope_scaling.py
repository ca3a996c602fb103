"""One factor of all scores, for models without positions beyond their trained length."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ...coordinates import Coordinates
from ...errors import HeadwayError, need_positive
from .._base import Pair, PositionEncoding
from .._temperature import Scaling


class NoPEScaling(Scaling):
    """Multiplies all scores by a factor, so that a model without positions generalizes to longer sequences.

        score[h,i,j] = s·λ_h·⟨qᵢ, kⱼ⟩

    λ is ``factor`` for all heads (UniformScale), or with num_heads a learned number for each head (HeadScale). Each
    layer has its own HeadScale. Train only these, at the new length, with the rest of the model frozen. The paper's
    factors are 1.2 for twice the trained length, about 1.5 for four and 1.8 for eight times; for HeadScale it keeps λ
    at 1 or more. It reads no positions, and a model with rotary positions does not benefit from it.

    Args:
        factor: λ, or its initial value, above 0.
        num_heads: the number of query heads, at least 1, for HeadScale; None for UniformScale.

    Raises:
        HeadwayError: if factor is not above 0, or num_heads is below 1.

    References:
        Wang et al. 2024, "Length Generalization", UniformScale and HeadScale.
    """

    name = "nope-scaling"
    citation = "wang2024length"
    year = 2024
    evidence = "formula"

    def __init__(self, factor: float = 1.2, num_heads: int | None = None) -> None:
        super().__init__()
        if not 0 < factor < math.inf:
            raise HeadwayError(f"factor is {factor}: give a number above 0, such as 1.2")
        need_positive(num_heads=1 if num_heads is None else num_heads)
        self.factor = factor
        if num_heads is not None:
            self.num_heads = num_heads
        self.learned = None if num_heads is None else nn.Parameter(torch.full((num_heads,), factor))

    def temperature(self, q_at: Coordinates) -> Tensor:
        """Returns λ, [1, num_heads or 1, 1] in float64."""
        if self.learned is None:
            return torch.full((1, 1, 1), self.factor, dtype=torch.float64, device=q_at.position.device)
        return self.learned.double()[None, :, None]

    def oracle_temperature(self, pair: Pair) -> float:
        return self.factor if self.learned is None else self.learned[pair.h].item()

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(), cls(1.5, num_heads=6), cls(1.2, num_heads=4)]
