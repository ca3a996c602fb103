"""Scalable softmax: scores that grow with the logarithm of the number of keys, by a learned factor."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ...coordinates import Coordinates
from ...errors import need_finite, need_positive
from .._base import Pair, PositionEncoding
from .._temperature import Scaling, log_of_seen, number_seen


class SSMax(Scaling):
    """Multiplies scores by the logarithm of the number of keys and a learned factor of the head.

        A[h,i,j] = n_i^(s_h·z_ij)/Σⱼ n_i^(s_h·z_ij), so score[h,i,j] = s·τ[h,i]·⟨qᵢ, kⱼ⟩ with τ[h,i] = s_h·ln(nᵢ) + b_h
        nᵢ = pᵢ + 1, or with bidirectional the tokens of the stream; z = s·⟨q, k⟩

    Each layer has an encoding of its own. It does not distinguish positions: compose it with an encoding that does.
    Without a bias a query with a single key has τ = 0, which changes no weight.

    Args:
        num_heads: the number of query heads, at least 1.
        initial: the initial s; the default, 0.168, is one over the mean of ln n for n up to 1024.
        bias: whether b is learned; the paper finds that it trains as well and extrapolates less far.
        bidirectional: whether n is the number of tokens of the stream; True for positions with several axes.

    Attributes:
        s: [num_heads].
        b: [num_heads], initially 0, or None.

    Raises:
        HeadwayError: if num_heads is below 1 or initial is not finite.

    References:
        Nakanishi 2025, with only s or with s and b.
    """

    name = "ssmax"
    citation = "nakanishi2025scalable"
    year = 2025
    evidence = "independent"

    def __init__(self, num_heads: int, initial: float = 0.168, bias: bool = False, bidirectional: bool = False) -> None:
        super().__init__()
        need_positive(num_heads=num_heads)
        need_finite(initial=initial)
        self.num_heads, self.initial, self.bias, self.bidirectional = num_heads, initial, bias, bidirectional
        self.s = nn.Parameter(torch.full((num_heads,), initial))
        self.b = nn.Parameter(torch.zeros(num_heads)) if bias else None

    def temperature(self, q_at: Coordinates) -> Tensor:
        """Returns τ, [b, num_heads, n or 1] in float64."""
        factor = self.s.double()[:, None] * log_of_seen(q_at, self.bidirectional)[:, None]
        return factor if self.b is None else factor + self.b.double()[:, None]

    def oracle_temperature(self, pair: Pair) -> float:
        bias = 0.0 if self.b is None else self.b[pair.h].item()
        return self.s[pair.h].item() * math.log(number_seen(pair, self.bidirectional)) + bias

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(4), cls(6, bias=True, bidirectional=True)]
