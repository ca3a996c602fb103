"""Scores that grow with the logarithm of the number of keys."""

from __future__ import annotations

import math

from torch import Tensor

from ...coordinates import Coordinates
from ...errors import HeadwayError
from .._base import Pair, PositionEncoding
from .._temperature import Scaling, log_of_seen, number_seen


class LogN(Scaling):
    """Multiplies scores by the logarithm of the number of keys, so that attention stays sharp in long sequences.

        score[i,j] = s·τᵢ·⟨qᵢ, kⱼ⟩,   τᵢ = ln(nᵢ)/ln(train_length), at least 1 with clamp
        nᵢ = pᵢ + 1, or with bidirectional the tokens of the stream

    It does not distinguish positions: compose it with an encoding that does. With clamp nothing changes up to
    train_length, as in Qwen, whose table ends at 32767 tokens. Without it short sequences are flattened too, and a
    query that attends to itself only has τ = 0: use it in training as well. Chiang and Cholak multiply by ln n, with n
    the length of the stream: train_length e, no clamp, bidirectional.

    Args:
        train_length: the number of tokens of a training sequence, above 1.
        clamp: whether τ is at least 1.
        bidirectional: whether n is the number of tokens of the stream; True for positions with several axes.

    Raises:
        HeadwayError: if train_length is 1 or less.

    References:
        Chiang and Cholak 2022, who scale scores by ln n; the quotient is common usage (Su 2021, Qwen 2023).
    """

    name = "log-n"
    citation = "chiang2022overcoming"
    year = 2021
    evidence = "formula"

    def __init__(self, train_length: float = 512, clamp: bool = True, bidirectional: bool = False) -> None:
        super().__init__()
        if not 1 < train_length < math.inf:
            raise HeadwayError(f"train_length is {train_length}: give the tokens of a training sequence, such as 512")
        self.train_length, self.clamp, self.bidirectional = train_length, clamp, bidirectional

    def temperature(self, q_at: Coordinates) -> Tensor:
        """Returns τ, [b, 1, n or 1] in float64."""
        factor = log_of_seen(q_at, self.bidirectional) / math.log(self.train_length)
        return (factor.clamp(min=1.0) if self.clamp else factor)[:, None]

    def oracle_temperature(self, pair: Pair) -> float:
        factor = math.log(number_seen(pair, self.bidirectional)) / math.log(self.train_length)
        return max(1.0, factor) if self.clamp else factor

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(3), cls(50, clamp=False, bidirectional=True)]
