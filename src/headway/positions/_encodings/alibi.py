"""A linear bias by distance."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...constants import constant
from ...coordinates import Coordinates
from ...errors import need_positive
from ...terms import DistanceBias, Linear
from .._base import Input, Pair, PositionEncoding, Terms
from .._formulas import numbers


class ALiBi(PositionEncoding):
    """Subtracts from each score the distance times the slope of the head.

        score[h,i,j] = s·⟨qᵢ, kⱼ⟩ − m_h·|pⱼ − pᵢ|
        m_h = 2^(−8h/H), h = 1 … H, for H a power of two; otherwise the slopes of the next smaller power of two,
        then the first, third, fifth … of twice that power

    H is num_heads, and the slopes are not learned. Both directions are treated alike; under a causal mask this is the
    paper's bias. The slopes are those of the authors' code; some libraries use 2^(−8h/H) for every H, which gives other
    slopes.

    Args:
        num_heads: the number of query heads, at least 1.

    Raises:
        HeadwayError: if num_heads is below 1.

    References:
        Press et al. 2022, section 3.
    """

    name = "alibi"
    citation = "press2022train"
    year = 2021
    evidence = "independent"
    same_terms = True
    extrapolates = True

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        need_positive(num_heads=num_heads)
        self.num_heads = num_heads
        power = 2 ** (num_heads.bit_length() - 1)
        exponents = [8 * (h + 1) / power if h < power else 4 * (2 * (h - power) + 1) / power for h in range(num_heads)]
        self._slopes = tuple(2**-exponent for exponent in exponents)

    def slopes(self, device: torch.device | str | None = None) -> Tensor:
        """Returns the slopes m [num_heads] in float64.

        Args:
            device: the device of the result.
        """
        return constant(numbers, self._slopes, device=device).clone()

    def terms(self, q_at: Coordinates, k_at: Coordinates, q_input: Input = None, k_input: Input = None) -> Terms:
        """Returns the linear bias."""
        slopes = self.slopes(q_at.position.device)
        return (DistanceBias(Linear(past=slopes, future=slopes)),)

    def oracle(self, pair: Pair) -> float:
        power = 2 ** math.floor(math.log2(self.num_heads))
        every = [2 ** (-8 * (n + 1) / power) for n in range(power)]
        twice = [2 ** (-8 * (n + 1) / (2 * power)) for n in range(2 * power)]
        slope = (every + twice[::2])[pair.h]
        return pair.scale * pair.dot - slope * abs(pair.distance)

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(4), cls(6)]
