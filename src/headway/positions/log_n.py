"""Scores that grow with the logarithm of what a query sees."""

from __future__ import annotations

import math

from torch import Tensor

from ..coordinates import Coordinates
from ..errors import HeadwayError
from ._base import Pair, PositionEncoding
from ._temperature import Scaling, log_of_seen, number_seen


class LogN(Scaling):
    """The more keys a query sees, the sharper it looks, so that its attention does not thin out.

        score[i,j] = s·τᵢ·⟨qᵢ, kⱼ⟩,   τᵢ = ln(nᵢ)/ln(train_length), at least 1 with clamp
        nᵢ = pᵢ + 1, or with bidirectional the tokens of the stream

    It tells no positions apart: compose it with an encoding that does. On several axes take bidirectional.
    With clamp nothing changes up to train_length, as in Qwen, whose table ends at 32767 tokens. Without it short
    sequences are flattened too, and a query that sees itself alone has τ = 0: that is for training with it. Chiang and
    Cholak multiply by ln n, with n the length of the stream: train_length e, no clamp, bidirectional.
    Raises HeadwayError for a train_length of 1 or less.
    Cite: Chiang and Cholak 2022, who scale scores by ln n; the quotient is common usage (Su 2021, Qwen 2023).
    """

    name = "log-n"
    citation = "chiang2022overcoming"
    year = 2021

    def __init__(self, train_length: float = 512, clamp: bool = True, bidirectional: bool = False) -> None:
        super().__init__()
        if not 1 < train_length < math.inf:
            raise HeadwayError(f"train_length is {train_length}: give the tokens of a training sequence, such as 512")
        self.train_length, self.clamp, self.bidirectional = train_length, clamp, bidirectional

    def temperature(self, q_at: Coordinates) -> Tensor:
        """τ [b, 1, n or 1], in float64."""
        factor = log_of_seen(q_at, self.bidirectional) / math.log(self.train_length)
        return (factor.clamp(min=1.0) if self.clamp else factor)[:, None]

    def oracle_temperature(self, pair: Pair) -> float:
        factor = math.log(number_seen(pair, self.bidirectional)) / math.log(self.train_length)
        return max(1.0, factor) if self.clamp else factor

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(3), cls(50, clamp=False, bidirectional=True)]
