"""Results of native kernels: the output, the statistics of each row, and gradients."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

Gradients = list[tuple[Tensor, Tensor]]
"""Tensors of a lowered call with their gradients. A tensor may occur several times; its gradients are added."""


class ForwardResults(NamedTuple):
    """The output of a native kernel, and the statistics of each row, which are None if they were not wanted.

    Shapes: out [batch, heads, n, v's head_dim]; row_max, row_sum [batch, heads, n] in float32 (float64 for float64)
    """

    out: Tensor
    row_max: Tensor = None  # type: ignore[assignment]
    """The largest score of the row, including a sink that takes part; −∞ if the query sees nothing."""
    row_sum: Tensor = None  # type: ignore[assignment]
    """Σⱼ exp(scoreⱼ − row_max), likewise including a sink; 0 if the query sees nothing."""

    @property
    def log_sum_exp(self) -> Tensor:
        """row_max + ln(row_sum), [batch, heads, n]; −∞ for queries that see nothing."""
        return log_sum_exp(self.row_max, self.row_sum)


def log_sum_exp(row_max: Tensor, row_sum: Tensor) -> Tensor:
    """Returns row_max + ln(row_sum), also if both are infinite or the query sees nothing."""
    return torch.where(row_max == torch.inf, row_max, row_max + row_sum.log())


def new_out(q: Tensor, v: Tensor, dtype: torch.dtype) -> Tensor:
    """Allocates the output in the layout of torch's SDPA, with tokens before heads in memory."""
    (batch, heads, n, _), width = q.shape, v.shape[3]
    return q.new_empty_strided((batch, heads, n, width), (n * heads * width, width, heads * width, 1), dtype=dtype)


def new_results(q: Tensor, v: Tensor, dtype: torch.dtype) -> ForwardResults:
    """Allocates the results of a call."""
    statistics = torch.float64 if q.dtype == torch.float64 else torch.float32
    row_max, row_sum = (q.new_empty(q.shape[:3], dtype=statistics) for _ in range(2))
    return ForwardResults(new_out(q, v, dtype), row_max, row_sum)
