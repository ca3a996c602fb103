"""KERPLE's logarithmic bias."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...coordinates import Coordinates
from ...errors import need_positive
from ...terms import DistanceBias, Log
from .._base import Input, Pair, PositionEncoding, Terms


class KERPLELog(PositionEncoding):
    """Subtracts the logarithm of the distance, with a learned weight and a learned rate for each head.

        score[h,i,j] = s·⟨qᵢ, kⱼ⟩ − r1_h·ln(1 + r2_h·|pⱼ − pᵢ|),   r1_h, r2_h > 0

    r1 and r2 are the softplus of the parameters. Both directions are treated alike; under a causal mask this is the
    paper's bias. The authors' code stores r1 and r2 themselves and overwrites values below 0.01 in each forward pass;
    ``KERPLELog.raw(r)`` converts such a value to the parameter stored here. The initial values are those of the
    authors' code: r1 ~ U(0, 2), r2 ~ U(0, 1), at least 0.01.

    Args:
        num_heads: the number of query heads, at least 1.

    Attributes:
        raw_weight: [num_heads], whose softplus is r1; meant to be shared by the layers of a stack.
        raw_rate: [num_heads], whose softplus is r2; likewise.

    Raises:
        HeadwayError: if num_heads is below 1.

    References:
        Chi et al. 2022.
    """

    name = "kerple-log"
    citation = "chi2022kerple"
    year = 2022
    evidence = "authors"
    extrapolates = True

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        need_positive(num_heads=num_heads)
        self.num_heads = num_heads
        self.raw_weight = nn.Parameter(self.raw(2 * torch.rand(num_heads)))
        self.raw_rate = nn.Parameter(self.raw(torch.rand(num_heads)))

    @staticmethod
    def raw(value: Tensor) -> Tensor:
        """Returns the parameter whose softplus is max(value, 0.01).

        Args:
            value: r1 or r2, of any shape.
        """
        return value.clamp(min=0.01).expm1().log()

    def terms(self, q_at: Coordinates, k_at: Coordinates, q_input: Input = None, k_input: Input = None) -> Terms:
        """Returns the bias by the logarithm of the distance."""
        weight, rate = (F.softplus(raw.double()) for raw in (self.raw_weight, self.raw_rate))
        return (DistanceBias(Log(weight, rate)),)

    def oracle(self, pair: Pair) -> float:
        r1, r2 = (math.log(1 + math.exp(raw[pair.h].item())) for raw in (self.raw_weight, self.raw_rate))
        return pair.scale * pair.dot - r1 * math.log(1 + r2 * abs(pair.distance))

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(4), cls(6)]
