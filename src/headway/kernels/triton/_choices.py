"""How large the blocks of a program are, and how many warps and stages it has: fixed, since a graph of a GPU can only
capture programs that are not tuned while they run.

The sizes of ``MEASURED`` were chosen by time on an H100, the others by the registers and shared memory that the
compiler reports (tests/golden/triton.json).
"""

from __future__ import annotations

from typing import NamedTuple

import torch

DTYPES = frozenset({torch.float16, torch.bfloat16, torch.float32})


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


MEASURED = {"forward": Blocks(128, 64, 4, 3), "queries": Blocks(64, 64, 4, 3), "keys": Blocks(32, 128, 4, 2)}
"""The fastest of 9 to 13 for heads of up to 64 in half precision, with warpgroups. The last one spills registers, yet
those that do not are slower."""
INTERPRETED = Blocks(32, 32, 4, 1)
"""Small, so that short sequences have several blocks."""
MAX_SPLIT_ROWS = 64
"""The most queries, of all heads that share keys, whose keys are split."""
SPLITS_OF_PROCESSOR = 4
"""How many programs each multiprocessor is given: about twice what runs there at once."""
MOST_REDUCED = 64
"""The most numbers that a reduction has for each query in one pass."""
LEAST_BLOCKS = 2
"""The fewest blocks of keys of a split."""
SMALLEST = 32
"""Keys of the smallest block of a split."""


def blocks_for(
    program: str,
    dtype: torch.dtype,
    width: int,
    relative: int = 0,
    stretched: bool = False,
    warpgroups: bool = False,
) -> Blocks:
    """Returns the blocks of a program.

    Args:
        program: "forward", "split", or "wide split" of more than 16 queries, "queries", "keys", "diagonals", "table",
            which is that of a dense bias too, or "reductions" without an output.
        dtype: the dtype of q, k and v.
        width: the larger head_dim, as a power of 2.
        relative: how many terms have relative vectors that are multiplied in blocks, which must be square then.
        stretched: whether there is a stretched bias, with which nothing is loaded ahead.
        warpgroups: whether the GPU multiplies 64 rows at once, so that blocks of 64 fit registers.
    """
    if relative:
        if dtype == torch.float32 or width > 128:
            return Blocks(32, 32, 8, 1) if width <= 128 else Blocks(16, 16, 8, 1)
        if warpgroups and relative == 1 and program in ("forward", "reductions"):
            return Blocks(64, 64, 4, 2) if width <= 64 else Blocks(64, 64, 8, 1)
        return Blocks(32, 32, 4, 1 if program in ("table", "diagonals") else 2)
    if stretched and dtype != torch.float32 and width <= 128 and "split" not in program:
        return Blocks(64 if warpgroups else 32, 64, 8, 1)
    if program == "split":
        return Blocks(16, 32, 8, 3) if dtype == torch.float32 else Blocks(16, 64 if width <= 128 else 32, 4, 3)
    if program == "wide split":
        found = blocks_for("split", dtype, width)._replace(rows=MAX_SPLIT_ROWS, num_stages=2)
        return found._replace(block=32, num_warps=8) if stretched else found
    if dtype == torch.float32:
        return Blocks(32, 32, 8, 1) if width <= 128 else Blocks(16, 16, 8, 1)
    if width <= 64 and warpgroups and program in MEASURED:
        return MEASURED[program]
    if width > 128:
        return Blocks(64, 32, 8, 1) if program in ("forward", "reductions", "queries") else Blocks(32, 32, 4, 1)
    if program == "keys":  # with 64 keys the warpgroups would share these, and take twice as many instructions
        return Blocks(32, 128, 8, 2) if width <= 64 or warpgroups else Blocks(32, 64, 8, 2)
    if program == "diagonals":
        return Blocks(64, 64, 4, 1)
    if program == "table":
        return Blocks(64, 64, 8, 1)
    if program == "reductions":
        return Blocks(64, 32, 8, 1)
    if program == "queries" and width > 64 and not warpgroups:
        return Blocks(64, 64, 8, 2)
    return Blocks(128, 64, 8, 2)


def are_few(rows: int, keys: int) -> bool:
    """Returns whether so few queries have so many keys that these may be computed in splits; see ``splits_for``."""
    return rows <= MAX_SPLIT_ROWS and keys > (2 * LEAST_BLOCKS - 1) * SMALLEST


def splits_for(rows: int, keys: int, groups: int, processors: int, block: int) -> int:
    """Returns in how many splits the keys of few queries are computed; 0 if the queries are too many, or the keys few.

    Args:
        rows: the queries of all heads that share keys.
        keys: how many keys there are.
        groups: the heads of keys in all sequences.
        processors: the multiprocessors of the GPU.
        block: keys of a block.
    """
    blocks = -(-keys // block)
    if not are_few(rows, keys) or blocks < 2 * LEAST_BLOCKS:
        return 0
    return max(1, min(blocks // LEAST_BLOCKS, SPLITS_OF_PROCESSOR * processors // max(1, groups)))
