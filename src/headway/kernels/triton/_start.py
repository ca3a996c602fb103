"""Starts programs. Importing this module imports triton."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
import triton
from torch import Tensor

from ...terms import Rotation
from . import programs
from ._arguments import Plane
from ._choices import Blocks

TOKENS = 32
"""Tokens that one program rotates."""


def start(program: Any, near: Tensor, grid: int, blocks: Blocks, *arguments: Any, **constants: Any) -> None:
    """Starts ``grid`` instances of a program on the device of ``near``."""
    if grid:
        with torch.cuda.device(near.device) if near.is_cuda else nullcontext():
            program[(grid,)](*arguments, **constants, num_warps=blocks.num_warps, num_stages=blocks.num_stages)


def rotations(x: Tensor, rotation: Rotation) -> Tensor:
    """Returns x [batch, heads, n, head_dim] rotated, in its layout if its tokens are dense."""
    x = x.resolve_neg()
    x = x if x.stride(-1) == 1 else x.contiguous()
    y = torch.empty_like(x)
    y = y if y.stride(-1) == 1 else torch.empty_like(x, memory_format=torch.contiguous_format)
    (batch, heads, n, width), pairs = x.shape, rotation.cos.shape[3]
    cos, sin = (side.detach().expand(batch, heads, n, -1) for side in (rotation.cos, rotation.sin))
    whole = width == 2 * pairs
    start(
        programs.rotations, x, batch * heads * -(-n // TOKENS), Blocks(TOKENS, 1, 4, 1),
        *(Plane.of(one, one.stride()[:3], programs.ANY) for one in (x, y, cos, sin)), n, heads, rotation.start,
        width=width, pairs=pairs, padded=triton.next_power_of_2(pairs),
        wide=0 if whole else triton.next_power_of_2(width), interleaved=rotation.layout == "interleaved", rows=TOKENS,
    )  # fmt: skip
    return y


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
