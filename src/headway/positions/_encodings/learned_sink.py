"""A learned sink: a logit that takes part in the softmax."""

from __future__ import annotations

import math

from ...coordinates import Coordinates
from ...errors import need_positive
from ...terms import Sink
from .._base import Input, PositionEncoding, Terms
from .._formulas import normal


class LearnedSink(PositionEncoding):
    """Adds a learned logit without a value to each head's softmax, so that a head may attend to nothing.

        A[h,i,j] = exp(score[h,i,j]) / (exp(z_h) + Σ_m exp(score[h,i,m]))

    It does not distinguish tokens: compose it with an encoding that does.

    Args:
        num_heads: the number of query heads, at least 1.

    Attributes:
        logits: z [num_heads], drawn from N(0, 0.02²).

    Raises:
        HeadwayError: if num_heads is below 1.

    References:
        OpenAI 2025.
    """

    name = "sink"
    citation = "openai2025gptoss"
    year = 2025
    evidence = "authors"
    same_terms = True
    extrapolates = True
    axes = None

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        need_positive(num_heads=num_heads)
        self.num_heads = num_heads
        self.logits = normal(num_heads)

    def terms(self, q_at: Coordinates, k_at: Coordinates, q_input: Input = None, k_input: Input = None) -> Terms:
        """Returns the sink."""
        return (Sink(self.logits),)

    def oracle_weights(self, h: int, i: int, scores: list[float]) -> list[float]:
        total = math.exp(self.logits[h].item()) + sum(math.exp(score) for score in scores)
        return [math.exp(score) / total for score in scores]

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(4), cls(6)]
