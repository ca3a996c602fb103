"""The block sizes, warps and stages of each program.

They are fixed, since CUDA graphs cannot capture programs that are tuned while they run. Some were chosen by time on an
H100 (``RULES`` says which), the others by the registers and shared memory that the compiler reports
(tests/golden/triton.json).
"""

from __future__ import annotations

import sys
from functools import cache
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


INTERPRETED = Blocks(32, 32, 4, 1)
"""Small blocks, so that short sequences have several."""
MAX_SPLIT_ROWS = 64
"""The most queries, over all heads that share keys, for which keys are split."""
SPLITS_OF_PROCESSOR = 4
"""How many programs are started for each multiprocessor, about twice the number that run there at once."""
MOST_REDUCED = 64
"""The most numbers that one pass of a reduction computes for each query."""
LEAST_BLOCKS = 2
"""The fewest blocks of keys of a split."""
SMALLEST = 32
"""The number of keys in the smallest block of a split."""


ONE, SOME = range(1, 2), range(1, sys.maxsize)


class Rule(NamedTuple):
    """Blocks, and the programs that use them.

    Attributes:
        blocks: the blocks.
        programs: the names of the programs; empty for any program.
        widest: the largest head_dim.
        float32: whether q, k and v are float32 or half precision; None for either.
        relative: the allowed numbers of terms with relative vectors.
        stretched: whether the rule needs a stretched bias.
        warpgroups: whether the rule needs warpgroups.
    """

    blocks: Blocks
    programs: tuple[str, ...] = ()
    widest: int = sys.maxsize
    float32: bool | None = None
    relative: range = range(sys.maxsize)
    stretched: bool = False
    warpgroups: bool = False

    def holds(self, program: str, width: int, float32: bool, relative: int, stretched: bool, warpgroups: bool) -> bool:
        """Returns whether the rule holds for a program. The first rule that holds decides."""
        return (
            (not self.programs or program in self.programs)
            and width <= self.widest
            and self.float32 in (None, float32)
            and relative in self.relative
            and self.stretched <= stretched
            and self.warpgroups <= warpgroups
        )


RULES = (
    # relative vectors are multiplied in blocks, which must be square
    Rule(Blocks(32, 32, 8, 1), widest=128, float32=True, relative=SOME),
    Rule(Blocks(64, 64, 4, 2), ("forward", "reductions"), 64, float32=False, relative=ONE, warpgroups=True),
    Rule(Blocks(64, 64, 8, 1), ("forward", "reductions"), 128, float32=False, relative=ONE, warpgroups=True),
    Rule(Blocks(32, 32, 4, 1), ("table", "diagonals"), 128, float32=False, relative=SOME),
    Rule(Blocks(32, 32, 4, 2), widest=128, float32=False, relative=SOME),
    Rule(Blocks(16, 16, 8, 1), relative=SOME),
    Rule(Blocks(16, 32, 8, 3), ("split",), float32=True),
    Rule(Blocks(16, 64, 4, 3), ("split",), 128),
    Rule(Blocks(16, 32, 4, 3), ("split",)),
    Rule(Blocks(MAX_SPLIT_ROWS, 32, 8, 2), ("wide split",), stretched=True),
    Rule(Blocks(MAX_SPLIT_ROWS, 32, 8, 2), ("wide split",), float32=True),
    Rule(Blocks(MAX_SPLIT_ROWS, 64, 4, 2), ("wide split",), 128),
    Rule(Blocks(MAX_SPLIT_ROWS, 32, 4, 2), ("wide split",)),
    # with a stretched bias no block is loaded ahead
    Rule(Blocks(64, 64, 8, 1), widest=128, float32=False, stretched=True, warpgroups=True),
    Rule(Blocks(32, 64, 8, 1), widest=128, float32=False, stretched=True),
    Rule(Blocks(32, 32, 8, 1), widest=128, float32=True),
    Rule(Blocks(16, 16, 8, 1), float32=True),
    # the fastest of 9 to 13 choices on an H100; the last one spills registers, but those that do not are slower
    Rule(Blocks(128, 64, 4, 3), ("forward",), 64, warpgroups=True),
    Rule(Blocks(64, 64, 4, 3), ("queries",), 64, warpgroups=True),
    Rule(Blocks(32, 128, 4, 2), ("keys",), 64, warpgroups=True),
    # with 64 keys, warpgroups would share the keys and need twice as many instructions
    Rule(Blocks(32, 128, 8, 2), ("keys",), 64),
    Rule(Blocks(32, 128, 8, 2), ("keys",), 128, warpgroups=True),
    Rule(Blocks(32, 64, 8, 2), ("keys",), 128),
    Rule(Blocks(128, 64, 8, 2), ("queries",), 64),
    Rule(Blocks(128, 64, 8, 2), ("queries",), 128, warpgroups=True),
    Rule(Blocks(64, 64, 8, 2), ("queries",), 128),
    Rule(Blocks(64, 64, 4, 1), ("diagonals",), 128),
    Rule(Blocks(64, 64, 8, 1), ("table",), 128),
    Rule(Blocks(64, 32, 8, 1), ("reductions",), 128),
    Rule(Blocks(128, 64, 8, 2), ("forward",), 128),
    Rule(Blocks(64, 32, 8, 1), ("forward", "reductions", "queries")),
    Rule(Blocks(32, 32, 4, 1)),
)
"""The first rule that holds decides."""


@cache
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
        program: "forward", "split" or, for more than 16 queries, "wide split", "queries", "keys", "diagonals", "table"
            (also for a dense bias), or "reductions" without an output.
        dtype: the dtype of q, k and v.
        width: the larger head_dim, rounded up to a power of 2.
        relative: the number of terms with relative vectors that are multiplied in blocks.
        stretched: whether there is a stretched bias.
        warpgroups: whether the GPU multiplies 64 rows at once, so that blocks of 64 fit into registers.
    """
    case = program, width, dtype == torch.float32, relative, stretched, warpgroups
    return next(rule.blocks for rule in RULES if rule.holds(*case))


def are_few(rows: int, keys: int) -> bool:
    """Returns whether queries are few and keys many enough to split the keys; see ``splits_for``."""
    return rows <= MAX_SPLIT_ROWS and keys > (2 * LEAST_BLOCKS - 1) * SMALLEST


def splits_for(rows: int, keys: int, groups: int, processors: int, block: int) -> int:
    """Returns the number of splits of the keys; 0 for too many queries or too few keys.

    Args:
        rows: the number of queries, over all heads that share keys.
        keys: the number of keys.
        groups: the number of key heads in all sequences.
        processors: the multiprocessors of the GPU.
        block: the keys of a block.
    """
    blocks = -(-keys // block)
    if not are_few(rows, keys) or blocks < 2 * LEAST_BLOCKS:
        return 0
    return max(1, min(blocks // LEAST_BLOCKS, SPLITS_OF_PROCESSOR * processors // max(1, groups)))
