"""The largest weight of a query, and the key that has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ... import reductions
from ...kernels import Call
from ...reductions import Reduction
from ._base import Statistic, left_out, mean
from ._results import LargestWeight


@dataclass(frozen=True, eq=False)
class Largest(Statistic):
    """The largest weight of each query and its key, a ``LargestWeight``.

        weight[h,i] = maxⱼ A[h,i,j],   key[h,i] = the lowest j that has it

    Its mean over the queries is the confidence of the head.

    References:
        Voita et al. 2019, "Analyzing Multi-Head Self-Attention", section 4 (confidence).
    """

    name = "largest"

    def reductions(self, call: Call) -> tuple[Reduction, ...]:
        return (reductions.TopKeys(1),)

    def result(self, call: Call, values: list[Any], counted: Tensor) -> LargestWeight:
        ((weights, keys),) = values
        return LargestWeight(left_out(weights[..., 0], counted), left_out(keys[..., 0], counted))

    def summary(self, value: LargestWeight, counted: Tensor) -> dict[str, Tensor]:
        return {self.name: mean(value.weight, counted)}
