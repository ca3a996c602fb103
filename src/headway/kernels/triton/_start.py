"""Starts programs. Importing this module imports triton."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
import triton
from torch import Tensor

from . import programs
from ._choices import Blocks


def start(program: Any, near: Tensor, grid: int, blocks: Blocks, *arguments: Any, **constants: Any) -> None:
    """Starts ``grid`` instances of a program on the device of ``near``."""
    if grid:
        with torch.cuda.device(near.device) if near.is_cuda else nullcontext():
            program[(grid,)](*arguments, **constants, num_warps=blocks.num_warps, num_stages=blocks.num_stages)


def run_sums(x: Tensor, starts: Tensor) -> Tensor:
    """Returns Σ x[h, starts[r] … starts[r + 1] − 1] of x [heads, length] or [heads, length, width], float32 by rows."""
    count, width = len(starts) - 1, x.shape[2] if x.ndim == 3 else 1
    out = torch.empty(len(x), count, *x.shape[2:], dtype=torch.float32, device=x.device)
    padded = triton.next_power_of_2(width)
    start(
        programs.run_sums, x, len(x) * count, Blocks(1, 1, 4, 1), x, starts, out, x.shape[1], count,
        width=width, padded=padded, block=max(1, 1024 // padded),
    )  # fmt: skip
    return out
