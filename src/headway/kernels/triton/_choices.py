"""How large the blocks of a program are, and how many warps and stages it has: a table, since a graph of a GPU can
only capture programs that are not tuned while they run.

Chosen by what the compiler says of registers and shared memory (tests/golden/triton.json), not by time.
"""

from __future__ import annotations

from typing import NamedTuple

import torch


class Blocks(NamedTuple):
    """Attributes:
    rows: queries of a block.
    block: keys of a block.
    num_warps: warps of 32 threads.
    num_stages: how many blocks are loaded ahead.
    """

    rows: int
    block: int
    num_warps: int
    num_stages: int


INTERPRETED = Blocks(32, 32, 4, 1)
"""Small, so that short sequences have several blocks."""


def blocks_for(program: str, dtype: torch.dtype, width: int) -> Blocks:
    """Returns the blocks of a program.

    Args:
        program: "forward", "queries", "keys" or "table", which is that of a dense bias too.
        dtype: the dtype of q, k and v.
        width: the larger head_dim, as a power of 2.
    """
    if dtype == torch.float32:
        return Blocks(32, 32, 8, 1) if width <= 128 else Blocks(16, 16, 8, 1)
    if width > 128:
        return Blocks(64, 32, 8, 1) if program in ("forward", "queries") else Blocks(32, 32, 4, 1)
    if program == "keys":
        return Blocks(32, 128, 8, 2) if width <= 64 else Blocks(32, 64, 8, 2)
    if program == "table":
        return Blocks(64, 64, 8, 1)
    return Blocks(128, 64, 8, 2)
