"""The largest score of a query, before the softmax."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ... import reductions
from ...kernels import Call
from ...kernels._results import log_sum_exp
from ...reductions import Reduction
from ...terms import Sink
from ._base import Statistic, left_out


@dataclass(frozen=True, eq=False)
class LargestScore(Statistic):
    """The largest score of each query, with biases and after a soft cap, before the softmax, [batch, H, n].

        S[h,i] = maxⱼ score[h,i,j]

    Sinks do not count. With a sink it is the logarithm of the largest weight plus the log-sum-exp, and −∞ where that
    weight is 0 in its dtype. It is −∞ where nothing is in sight, and NaN for an encoding that replaces the softmax. The
    summary of a head is the largest value, not the mean.

    References:
        Kimi Team 2025, "Kimi K2: Open Agentic Intelligence", section 2.1 (QK-Clip).
    """

    name = "largest_score"

    def reductions(self, call: Call) -> tuple[Reduction, ...]:
        rows = reductions.RowStatistics()
        return (rows, reductions.TopKeys(1)) if _has_sink(call) else (rows,)

    def result(self, call: Call, values: list[Any], counted: Tensor) -> Tensor:
        row_max, row_sum = values[0]
        if not _has_sink(call):
            return left_out(row_max, counted)
        weights, _ = values[1]
        return left_out(weights[..., 0].log() + log_sum_exp(row_max, row_sum), counted)

    def summary(self, value: Tensor, counted: Tensor) -> dict[str, Tensor]:
        if not value.shape[-1]:
            return {self.name: value.new_full(value.shape[:2], torch.nan)}
        largest = value.masked_fill(~counted, -torch.inf).amax(-1)
        return {self.name: largest.masked_fill(~counted.any(-1), torch.nan)}


def _has_sink(call: Call) -> bool:
    return any(isinstance(term, Sink) for term in call.terms)
