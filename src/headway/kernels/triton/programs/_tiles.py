"""Where a program is: the head, and the blocks of queries and keys. These records are made inside programs.

Their fields are tensors alone: triton makes a tensor of a constant in a record that is given a name.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl


class Head(NamedTuple):
    """A head of a sequence.

    Attributes:
        b: the sequence.
        h: the head; or one for each query of a block.
        kv: the head of its keys and values.
        which: the number of the head among those of all sequences.
        n: queries of the call.
        m: keys of the call.
    """

    b: Any
    h: Any
    kv: Any
    which: Any
    n: Any
    m: Any


class Tokens(NamedTuple):
    """A block of queries or of keys.

    Attributes:
        at: their slots.
        inside: which of them the call has.
        start: the first slot.
    """

    at: Any
    inside: Any
    start: Any


class Tile(NamedTuple):
    """A block of queries and keys of a head."""

    head: Head
    q: Tokens
    k: Tokens


@triton.jit
def tokens_at(number, size: tl.constexpr, count):
    """The block of a number among blocks of ``size`` of so many tokens."""
    start = number * size
    at = start + tl.arange(0, size)
    return Tokens(at, at < count, start)


@triton.jit
def tile_of(head, i_tile, j_tile, rows: tl.constexpr, block: tl.constexpr):
    """The tile of a block of queries and a block of keys."""
    return Tile(head, tokens_at(i_tile, rows, head.n), tokens_at(j_tile, block, head.m))
