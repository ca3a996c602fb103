"""The weight that learned sinks take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ... import reductions
from ...kernels import Call
from ...reductions import Reduction
from ...terms import Sink as SinkTerm
from ._base import Statistic, left_out


@dataclass(frozen=True, eq=False)
class Sink(Statistic):
    """The weight that learned sinks take from the keys, [batch, H, n]; 0 in a call without sinks.

        Σ exp(sink) / (Σⱼ exp(score[h,i,j]) + Σ exp(sink))

    References:
        OpenAI 2025, gpt-oss-120b & gpt-oss-20b model card (a learned bias in the denominator of the softmax).
    """

    name = "sink"

    def reductions(self, call: Call) -> tuple[Reduction, ...]:
        return (reductions.RowStatistics(),)

    def result(self, call: Call, values: list[Any], counted: Tensor) -> Tensor:
        ((row_max, row_sum),) = values
        taken = torch.zeros_like(row_sum)
        for term in call.terms:
            if isinstance(term, SinkTerm):
                taken = taken + (term.by_query.detach().to(row_max.dtype) - row_max).exp() / row_sum
        return left_out(taken, counted)
