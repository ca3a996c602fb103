"""The attention that keys receive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ... import reductions
from ...kernels import Call
from ...reductions import Reduction
from ._base import Statistic


@dataclass(frozen=True, eq=False)
class Received(Statistic):
    """The attention that each key receives from all queries that count, [batch, H, m].

        R[h,j] = Σᵢ A[h,i,j]

    Keys with large sums are the heavy hitters that caches keep. In a call of causal attention early keys are seen by
    more queries; divide by the number of queries that see a key to compare keys.

    References:
        Zhang et al. 2023, "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language Models".
    """

    name = "received"
    sums_queries = True

    def reductions(self, call: Call) -> tuple[Reduction, ...]:
        return (reductions.ColumnSums(),)

    def result(self, call: Call, values: list[Any], counted: Tensor) -> Tensor:
        (value,) = values
        return value

    def summary(self, value: Tensor, counted: Tensor) -> dict[str, Tensor]:
        return {f"largest {self.name}": value.amax(-1) if value.shape[-1] else value.new_zeros(value.shape[:-1])}
