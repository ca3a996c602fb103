"""A softmax with 1 added to its denominator."""

from __future__ import annotations

import math

import torch

from ...coordinates import Coordinates
from ...errors import need_positive
from ...terms import Sink
from .._base import Input, PositionEncoding, Terms


class SoftmaxOne(PositionEncoding):
    """Adds 1 to the denominator of the softmax, so that a head may attend to nothing.

        A[h,i,j] = exp(score[h,i,j]) / (1 + Σ_m exp(score[h,i,m]))

    This is a sink whose logit is 0, or an additional key and value of zeros. Nothing is learned. It does not
    distinguish tokens: compose it with an encoding that does.

    Args:
        num_heads: the number of query heads, at least 1.

    Raises:
        HeadwayError: if num_heads is below 1.

    References:
        Miller 2023.
    """

    name = "softmax-one"
    citation = "miller2023attention"
    year = 2023
    evidence = "independent"
    same_terms = True
    extrapolates = True
    axes = None

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        need_positive(num_heads=num_heads)
        self.num_heads = num_heads

    def terms(self, q_at: Coordinates, k_at: Coordinates, q_input: Input = None, k_input: Input = None) -> Terms:
        """Returns a sink of 0."""
        return (Sink(torch.zeros(self.num_heads, dtype=torch.float64, device=q_at.position.device)),)

    def oracle_weights(self, h: int, i: int, scores: list[float]) -> list[float]:
        total = 1 + sum(math.exp(score) for score in scores)
        return [math.exp(score) / total for score in scores]

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(4), cls(6)]
