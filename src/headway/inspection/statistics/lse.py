"""The log-sum-exp of scores; with it, each weight follows from its own score."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ... import reductions
from ...kernels import Call
from ...kernels._results import log_sum_exp
from ...reductions import Reduction
from ._base import Statistic, left_out


@dataclass(frozen=True, eq=False)
class Lse(Statistic):
    """The log-sum-exp of each query's scores, sinks included, [batch, H, n].

        L[h,i] = ln(Σⱼ exp(score[h,i,j]) + Σ exp(sink)),   A[h,i,j] = exp(score[h,i,j] − L[h,i])

    It is NaN for an encoding that replaces the softmax.

    References:
        Dao 2023, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning", section 3.1.
    """

    name = "lse"

    def reductions(self, call: Call) -> tuple[Reduction, ...]:
        return (reductions.RowStatistics(),)

    def result(self, call: Call, values: list[Any], counted: Tensor) -> Tensor:
        ((row_max, row_sum),) = values
        return left_out(log_sum_exp(row_max, row_sum), counted)
