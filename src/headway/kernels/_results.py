"""What native kernels give: results with the statistics of each row, and gradients."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

Gradients = list[tuple[Tensor, Tensor]]
"""Tensors of a lowered call, each with its gradient; one may occur several times, and its gradients are added."""


class Results(NamedTuple):
    """What a native kernel computes. The statistics are None where they were not asked for.

    Shapes: out [batch, heads, n, v's head_dim]; row_max, row_sum [batch, heads, n] in float32 (float64 for float64)
    """

    out: Tensor
    row_max: Tensor = None  # type: ignore[assignment]
    """The largest score that the query sees, a sink's included where it takes part; −∞ where nothing is in sight."""
    row_sum: Tensor = None  # type: ignore[assignment]
    """Σⱼ exp(scoreⱼ − row_max), a sink included likewise; 0 where nothing is in sight."""

    @property
    def log_sum_exp(self) -> Tensor:
        """row_max + ln(row_sum), [batch, heads, n]; −∞ where nothing is in sight."""
        return log_sum_exp(self.row_max, self.row_sum)


def log_sum_exp(row_max: Tensor, row_sum: Tensor) -> Tensor:
    """row_max + ln(row_sum), also where both are infinite or nothing is in sight."""
    return torch.where(row_max == torch.inf, row_max, row_max + row_sum.log())


def new_out(q: Tensor, v: Tensor, dtype: torch.dtype) -> Tensor:
    """Memory for out: tokens lie before heads, as torch's SDPA has it."""
    (batch, heads, n, _), width = q.shape, v.shape[3]
    return q.new_empty_strided((batch, heads, n, width), (n * heads * width, width, heads * width, 1), dtype=dtype)


def new_results(q: Tensor, v: Tensor, dtype: torch.dtype) -> Results:
    """Memory for the results of a call."""
    statistics = torch.float64 if q.dtype == torch.float64 else torch.float32
    row_max, row_sum = (q.new_empty(q.shape[:3], dtype=statistics) for _ in range(2))
    return Results(new_out(q, v, dtype), row_max, row_sum)
