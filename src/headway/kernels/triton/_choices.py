"""How large the blocks of a program are, and how many warps and stages it has: fixed, since a graph of a GPU can only
capture programs that are not tuned while they run.

Some were chosen by time on an H100 (``RULES`` says which), the others by the registers and shared memory that the
compiler reports (tests/golden/triton.json).
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


ONE, SOME = range(1, 2), range(1, sys.maxsize)


class Rule(NamedTuple):
    """Blocks, and the programs that have them.

    Attributes:
        blocks: the blocks.
        programs: their names; any program if there are none.
        widest: the largest head_dim.
        float32: whether q, k and v are of float32, or of half precision; either if None.
        relative: the numbers of terms with relative vectors.
        stretched: only with a stretched bias.
        warpgroups: only with warpgroups.
    """

    blocks: Blocks
    programs: tuple[str, ...] = ()
    widest: int = sys.maxsize
    float32: bool | None = None
    relative: range = range(sys.maxsize)
    stretched: bool = False
    warpgroups: bool = False

    def holds(self, program: str, width: int, float32: bool, relative: int, stretched: bool, warpgroups: bool) -> bool:
        """Returns whether a program has these blocks, if no rule before holds."""
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
    # with a stretched bias nothing is loaded ahead
    Rule(Blocks(64, 64, 8, 1), widest=128, float32=False, stretched=True, warpgroups=True),
    Rule(Blocks(32, 64, 8, 1), widest=128, float32=False, stretched=True),
    Rule(Blocks(32, 32, 8, 1), widest=128, float32=True),
    Rule(Blocks(16, 16, 8, 1), float32=True),
    # the fastest of 9 to 13 on an H100; the last one spills registers, yet those that do not are slower
    Rule(Blocks(128, 64, 4, 3), ("forward",), 64, warpgroups=True),
    Rule(Blocks(64, 64, 4, 3), ("queries",), 64, warpgroups=True),
    Rule(Blocks(32, 128, 4, 2), ("keys",), 64, warpgroups=True),
    # with 64 keys warpgroups would share these, and take twice as many instructions
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
"""The first one that holds is taken."""


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
        program: "forward", "split", or "wide split" of more than 16 queries, "queries", "keys", "diagonals", "table",
            which is that of a dense bias too, or "reductions" without an output.
        dtype: the dtype of q, k and v.
        width: the larger head_dim, as a power of 2.
        relative: how many terms have relative vectors that are multiplied in blocks.
        stretched: whether there is a stretched bias.
        warpgroups: whether the GPU multiplies 64 rows at once, so that blocks of 64 fit registers.
    """
    case = program, width, dtype == torch.float32, relative, stretched, warpgroups
    return next(rule.blocks for rule in RULES if rule.holds(*case))


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
