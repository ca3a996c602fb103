"""What programs are made of: loads, products and dropout of a block of queries and keys, in Triton.

What a program gets comes as named tuples (``_arguments.py``), whose fields are None where a call has no such part;
Triton compiles a program for each set of parts.
"""

import triton
import triton.language as tl

from .._installed import interprets

# Triton reads global variables only if they are declared constant.
PRECISION = tl.constexpr("ieee")  # of float32: products by tensor cores (tf32x3) leave out the last two bits
INTERPRETED = tl.constexpr(interprets())
LOG2E = tl.constexpr(1.4426950408889634)
APART = tl.constexpr(2.0**30)  # floats from here on are so far apart that exp of a difference is 0
ANY, ALIGNED, BESIDE, FLUSH = (tl.constexpr(layout) for layout in range(4))


# ---------------------------------------------------------------- loads and products


@triton.jit
def unpacked(x):
    """A whole number of a tuple, which is passed as 4x + 3."""
    return (x - 3) >> 2


@triton.jit
def _stride(x, layout: tl.constexpr):
    if layout == ALIGNED or layout == FLUSH:
        return tl.multiple_of((x - 3) >> 2, 16)  # what a call returns would forget it
    else:
        return unpacked(x)


@triton.jit
def last_stride(x, layout: tl.constexpr):
    if layout == BESIDE or layout == FLUSH:
        return 1
    else:
        return _stride(x, layout)


@triton.jit
def of_head(h, flipped: tl.constexpr):
    """The head of a block of pairs as it is multiplied: a number, or, if each query has its own, a block."""
    if h.type.is_block():
        return by_query(h, flipped)
    else:
        return h


@triton.jit
def place_of(x, b, h):
    """Where the rows of a head are; of each query's head, if h is one for each."""
    return x.at + b.to(tl.int64) * _stride(x.b, x.layout) + h.to(tl.int64) * _stride(x.h, x.layout)


@triton.jit
def load_matrix(x, b, h, at, inside):
    """Loads rows ``at`` of x, [rows, x.padded]; 0 outside."""
    column = tl.arange(0, x.padded)
    row = place_of(x, b, of_head(h, False)) + at.to(tl.int64)[:, None] * last_stride(x.n, x.layout)
    place = row + column[None, :]
    if x.padded == x.width:
        return tl.load(place, mask=inside[:, None], other=0.0)
    else:
        return tl.load(place, mask=inside[:, None] & (column < x.width)[None, :], other=0.0)


@triton.jit
def store_matrix(x, b, h, at, inside, value):
    column = tl.arange(0, x.padded)
    place = place_of(x, b, h) + at.to(tl.int64)[:, None] * last_stride(x.n, x.layout) + column[None, :]
    tl.store(place, value.to(x.at.dtype.element_ty), mask=inside[:, None] & (column < x.width)[None, :])


@triton.jit
def load_vector(x, b, h, at, inside, other):
    """Loads the numbers ``at`` of x, which has one for each token."""
    return tl.load(place_of(x, b, h) + at.to(tl.int64) * last_stride(x.n, x.layout), mask=inside, other=other)


@triton.jit
def place_of_pairs(x, layout: tl.constexpr, b, h, i, j, flipped: tl.constexpr):
    """Where the numbers of the pairs of queries i and keys j are in x, which has one for each."""
    first = x.at + b.to(tl.int64) * _stride(x.b, layout) + of_head(h, flipped).to(tl.int64) * _stride(x.h, layout)
    rows = by_query(i.to(tl.int64) * _stride(x.n, layout), flipped)
    return first + rows + by_key(j.to(tl.int64) * last_stride(x.m, layout), flipped)


@triton.jit
def load_statistic(x, which, at, inside, n, other):
    """Loads numbers of x, [batch·heads, n] float32, whose rows lie together."""
    return tl.load(x + which.to(tl.int64) * n + at, mask=inside, other=other)


@triton.jit
def load_exponents(statistics, head, q):
    """The rates, the offsets and the inverse sums of a block of queries."""
    rate = load_statistic(statistics.rate, head.which, q.at, q.inside, head.n, 0.0)
    offset = load_statistic(statistics.offset, head.which, q.at, q.inside, head.n, 0.0)
    return rate, offset, load_statistic(statistics.inverse, head.which, q.at, q.inside, head.n, 0.0)


@triton.jit
def store_statistic(x, which, at, inside, n, value):
    tl.store(x + which.to(tl.int64) * n + at, value, mask=inside)


@triton.jit
def dot(a, b):
    """a @ b in float32. The interpreter would multiply the bits of bfloat16 (triton#11584)."""
    if INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision=PRECISION)
    else:
        return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def _rate(largest):
    return tl.where(tl.abs(largest) < APART, LOG2E, 1.0)


@triton.jit
def offset_of(largest):
    """The offset of rows with this largest score, see ``exponents``; +∞ for rows without scores."""
    return -largest * _rate(largest)


@triton.jit
def exponents(largest):
    """A rate and an offset for each row of scores, with which exp(score − largest) is 2^(score·rate + offset).

    That takes one operation for each score, and is rounded once. The offset is rounded too, which multiplies all powers
    of a row by the same number; ``excess`` is that number. It would be too large where the largest score is beyond
    2³⁰, but there floats are so far apart that all powers are 0 or 1, with a rate of 1 as well, and offsets are exact.
    """
    offset = offset_of(largest)
    return _rate(largest), tl.where(offset == float("inf"), 0.0, offset)


@triton.jit
def powers(score, rate, offset):
    """2^(score·rate + offset), see ``exponents``."""
    return tl.exp2(tl.fma(score, rate, offset))


@triton.jit
def excess(largest):
    """How many times exp(score − largest) the powers of a row are, see ``exponents``."""
    rate, offset = exponents(largest)
    return tl.where(largest == float("-inf"), 1.0, powers(largest, rate, offset))


@triton.jit
def look_up(table, at):
    """table[at] for a block of pairs.

    On a GPU by assembly: of ``tl.load`` in a loop the compiler makes copies to shared memory, 64 of 4 bytes each, or
    gives the products another layout.
    """
    if INTERPRETED:
        return tl.load(table + at)
    else:
        return tl.inline_asm_elementwise(
            "ld.global.nc.f32 $0, [$1];", "=f,l", [(table + at).to(tl.uint64, bitcast=True)], tl.float32, True, 1
        )


@triton.jit
def read_pairs(place):
    """The numbers of pairs in float32; on a GPU by assembly, as those of a table."""
    if INTERPRETED:
        return tl.load(place).to(tl.float32)
    elif place.dtype.element_ty == tl.float32:
        return look_up(place, 0)
    else:
        bits = tl.inline_asm_elementwise(
            "ld.global.nc.b16 $0, [$1];", "=h,l", [place.to(tl.uint64, bitcast=True)], tl.int16, True, 1
        )
        return bits.to(place.dtype.element_ty, bitcast=True).to(tl.float32)


# ---------------------------------------------------------------- dropout


@triton.jit
def _scrambled(x):
    """A 32-bit hash with good avalanche, the same as in ``reference``."""
    x = (x ^ (x >> 16)) * tl.full([1], 0x21F0AAAD, tl.uint32)
    x = (x ^ (x >> 15)) * tl.full([1], 0x735A2D97, tl.uint32)
    return x ^ (x >> 15)


@triton.jit
def by_query(x, flipped: tl.constexpr):
    """A number for each query as a block [queries, 1], or [1, queries]."""
    if flipped:
        return x[None, :]
    else:
        return x[:, None]


@triton.jit
def by_key(x, flipped: tl.constexpr):
    if flipped:
        return x[:, None]
    else:
        return x[None, :]


@triton.jit
def slots(x):
    """Slots as int64, such that the compiler sees which part of them all threads share, and which is constant."""
    step = tl.arange(0, x.shape[0])
    return (x - step).to(tl.int64) + step


@triton.jit
def dropout_factors(drop, tile, flipped: tl.constexpr):
    """What dropout multiplies the weights of a block with: 0, or 1/(1 − dropout)."""
    seed = tl.load(drop.seed)
    one = tl.zeros([1], tl.int64)
    b = tile.head.b
    row, head = one + b + unpacked(drop.first_row), one + tile.head.h + unpacked(drop.first_head)
    head = _scrambled(_scrambled(row.to(tl.uint32)) + head.to(tl.uint32))
    head = _scrambled((one + seed).to(tl.uint32) + _scrambled((one + (seed >> 32)).to(tl.uint32) + head))
    row = _scrambled(head + load_vector(drop.queries, b, b, tile.q.at, tile.q.inside, 0).to(tl.uint32))
    column = load_vector(drop.keys, b, b, tile.k.at, tile.k.inside, 0).to(tl.uint32)
    drawn = _scrambled(by_query(row, flipped) + by_key(column, flipped))
    return tl.where(drawn.to(tl.int64) >= unpacked(drop.below), drop.factor, 0.0)
