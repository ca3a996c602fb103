"""The temperature of Llama 4: scores grow stepwise with the logarithm of the position."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...coordinates import Coordinates
from ...errors import HeadwayError, need_finite
from .._base import Pair, PositionEncoding
from .._temperature import Scaling


class Llama4Temperature(Scaling):
    """Multiplies scores by a factor that grows stepwise with the logarithm of the query's position.

        score[i,j] = s·τᵢ·⟨qᵢ, kⱼ⟩,   τᵢ = 1 + amount·ln(1 + ⌊(pᵢ + 1)/step⌋)

    Llama 4 applies it in its layers without positions. Up to position step − 2 nothing changes. Mistral's models use
    ⌊pᵢ/step⌋, so that each of their steps comes one token later. It does not distinguish positions: compose it with an
    encoding that does, or use it by itself if other layers have one.

    Args:
        amount: the attn_scale of the released configuration.
        step: the number of tokens of a step, above 0, the floor_scale of the released configuration.

    Raises:
        HeadwayError: if step is not above 0 or amount is not finite.

    References:
        Meta AI 2025; the formula is that of the released code.
    """

    name = "llama4-temperature"
    citation = "meta2025llama4"
    year = 2025
    evidence = "independent"

    def __init__(self, amount: float = 0.1, step: float = 8192) -> None:
        super().__init__()
        if not 0 < step < math.inf:
            raise HeadwayError(f"step is {step}: give a number of tokens above 0, such as 8192")
        need_finite(amount=amount)
        self.amount, self.step = amount, step

    def temperature(self, q_at: Coordinates) -> Tensor:
        """Returns τ, [b, 1, n] in float64."""
        steps = torch.floor((q_at.axis().double() + 1) / self.step)
        return (1 + self.amount * torch.log1p(steps.clamp(min=0.0)))[:, None]

    def oracle_temperature(self, pair: Pair) -> float:
        return 1 + self.amount * math.log(1 + math.floor((pair.at(pair.i) + 1) / self.step))

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(step=2), cls(amount=0.7, step=3)]
