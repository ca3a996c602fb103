"""What programs are made of: loads, products, dropout and the masks of a block of queries and keys, in Triton.

What a program gets comes as named tuples (``_arguments.py``), whose fields are None where a call has no such part;
Triton compiles a program for each set of parts.
"""

import triton
import triton.language as tl

# Triton reads global variables only if they are declared constant.
PRECISION = tl.constexpr("ieee")  # of float32: products by tensor cores (tf32x3) leave out the last two bits
LOG2E = tl.constexpr(1.4426950408889634)
NONE, NUMBER, SLOT, EACH = (tl.constexpr(kind) for kind in range(4))
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
def load_matrix(x, b, h, at, inside, width: tl.constexpr, padded: tl.constexpr):
    """Loads rows ``at`` of x, [rows, padded]; 0 outside."""
    column = tl.arange(0, padded)
    row = place_of(x, b, of_head(h, False)) + at.to(tl.int64)[:, None] * last_stride(x.n, x.layout)
    place = row + column[None, :]
    if padded == width:
        return tl.load(place, mask=inside[:, None], other=0.0)
    else:
        return tl.load(place, mask=inside[:, None] & (column < width)[None, :], other=0.0)


@triton.jit
def store_matrix(x, b, h, at, inside, value, width: tl.constexpr, padded: tl.constexpr):
    column = tl.arange(0, padded)
    place = place_of(x, b, h) + at.to(tl.int64)[:, None] * last_stride(x.n, x.layout) + column[None, :]
    tl.store(place, value.to(x.at.dtype.element_ty), mask=inside[:, None] & (column < width)[None, :])


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
def store_statistic(x, which, at, inside, n, value):
    tl.store(x + which.to(tl.int64) * n + at, value, mask=inside)


@triton.jit
def dot(a, b, interpreted: tl.constexpr):
    """a @ b in float32. The interpreter would multiply the bits of bfloat16 (triton#11584)."""
    if interpreted:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision=PRECISION)
    else:
        return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def look_up(table, at, interpreted: tl.constexpr):
    """table[at] for a block of pairs.

    On a GPU by assembly: of ``tl.load`` in a loop the compiler makes copies to shared memory, 64 of 4 bytes each, or
    gives the products another layout.
    """
    if interpreted:
        return tl.load(table + at)
    else:
        return tl.inline_asm_elementwise(
            "ld.global.nc.f32 $0, [$1];", "=f,l", [(table + at).to(tl.uint64, bitcast=True)], tl.float32, True, 1
        )


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
def dropout_factors(drop, b, h, i, j, i_inside, j_inside, flipped: tl.constexpr):
    """What dropout multiplies the weights of a block with: 0, or 1/(1 − dropout)."""
    seed = tl.load(drop.seed)
    one = tl.zeros([1], tl.int64)
    row, head = one + b + unpacked(drop.first_row), one + h + unpacked(drop.first_head)
    head = _scrambled(_scrambled(row.to(tl.uint32)) + head.to(tl.uint32))
    head = _scrambled((one + seed).to(tl.uint32) + _scrambled((one + (seed >> 32)).to(tl.uint32) + head))
    row = _scrambled(head + load_vector(drop.queries, b, b, i, i_inside, 0).to(tl.uint32))
    column = load_vector(drop.keys, b, b, j, j_inside, 0).to(tl.uint32)
    drawn = _scrambled(by_query(row, flipped) + by_key(column, flipped))
    return tl.where(drawn.to(tl.int64) >= unpacked(drop.below), drop.factor, 0.0)


# ---------------------------------------------------------------- which keys a query sees


@triton.jit
def _bound(x, b, i, inside, default):
    """A bound of an interval for the queries i, int32."""
    if x.kind == NONE:
        return i * 0 + default
    elif x.kind == NUMBER:
        return i * 0 + unpacked(x.value)
    elif x.kind == SLOT:
        return i + unpacked(x.value)
    else:
        return load_vector(x.value, b, b, i, inside, 0)


@triton.jit
def _interval(span, b, i, inside, m):
    start = tl.maximum(_bound(span.start, b, i, inside, 0), 0)
    stop = tl.minimum(_bound(span.stop, b, i, inside, m), m)
    return start, tl.where(inside, stop, 0)


@triton.jit
def in_sight(sight, b, h, i, j, i_inside, m, flipped: tl.constexpr):
    """Which keys j the queries i see."""
    start, stop = _interval(sight.first, b, i, i_inside, m)
    column = by_key(j, flipped)
    seen = (column >= by_query(start, flipped)) & (column < by_query(stop, flipped))
    if sight.second is not None:
        start, stop = _interval(sight.second, b, i, i_inside, m)
        seen |= (column >= by_query(start, flipped)) & (column < by_query(stop, flipped))
    if sight.q_document is not None:
        q = load_vector(sight.q_document, b, b, i, i_inside, 0)
        k = load_vector(sight.k_document, b, b, j, j < m, 0)
        seen &= by_query(q, flipped) == by_key(k, flipped)
    if sight.rest is not None:
        seen &= tl.load(place_of_pairs(sight.rest, sight.rest_layout, b, h, i, j, flipped), mask=seen, other=0) != 0
    return seen


@triton.jit
def _tiles_of(span, b, i, inside, m, block: tl.constexpr):
    """The blocks of keys that any of the queries i sees, first and after the last; 0, 0 for none."""
    start, stop = _interval(span, b, i, inside, m)
    some = stop > start
    first = tl.min(tl.where(some, start, m), 0) // block
    last = tl.cdiv(tl.max(tl.where(some, stop, 0), 0), block)
    return tl.minimum(first, last), last


@triton.jit
def _open_tiles(span, b, i, inside, m, first, last, block: tl.constexpr):
    """Of these blocks of keys those that each of the queries i sees whole."""
    start, stop = _interval(span, b, i, inside, m)
    begin = tl.cdiv(tl.max(tl.where(inside, start, 0), 0), block)
    end = tl.min(tl.where(inside, stop, m), 0) // block
    begin = tl.minimum(tl.maximum(begin, first), last)
    return begin, tl.minimum(tl.maximum(end, begin), last)


@triton.jit
def _both(first, last, other, other_last):
    """Two ranges of blocks in their order, without those of the second one that the first has; none is open."""
    swap = other < first
    left, left_last = tl.where(swap, other, first), tl.where(swap, other_last, last)
    right, right_last = tl.where(swap, first, other), tl.where(swap, last, other_last)
    right = tl.maximum(right, left_last)
    return left, left, left, left_last, right, tl.maximum(right, right_last)


@triton.jit
def key_tiles(sight, b, i, inside, m, block: tl.constexpr):
    """The blocks of keys that the queries i see: a range without masks, open … end, and two ranges with masks."""
    first, last = _tiles_of(sight.first, b, i, inside, m, block)
    if (sight.second is None and sight.rest is None) and sight.q_document is None:
        open_, end = _open_tiles(sight.first, b, i, inside, m, first, last, block)
        return open_, end, first, open_, end, last
    elif sight.second is None:
        return first, first, first, last, last, last
    else:
        other, other_last = _tiles_of(sight.second, b, i, inside, m, block)
        return _both(first, last, other, other_last)


@triton.jit
def seen_tiles(sight, b, i, inside, m, block: tl.constexpr):
    """The blocks of keys that the queries i see, as two ranges."""
    first, last = _tiles_of(sight.first, b, i, inside, m, block)
    if sight.second is None:
        return first, last, last, last
    else:
        other, other_last = _tiles_of(sight.second, b, i, inside, m, block)
        _, _, left, left_last, right, right_last = _both(first, last, other, other_last)
        return left, left_last, right, right_last


@triton.jit
def _query_range(span, b, j, j_end, n, block: tl.constexpr):
    """The blocks of queries of which one may see a key of j … j_end − 1, and of those the ones that see all of them.

    Each as the first and the one after the last.
    """
    low, high = j * 0, j * 0 + n  # queries that may see some
    open_low, open_high = j * 0, j * 0 + n  # queries that see all
    if span.start.kind == SLOT:
        high = tl.minimum(high, j_end - unpacked(span.start.value))
        open_high = tl.minimum(open_high, j - unpacked(span.start.value) + 1)
    elif span.start.kind == NUMBER:
        high = tl.where(j_end > unpacked(span.start.value), high, 0)
        open_high = tl.where(j >= unpacked(span.start.value), open_high, 0)
    elif span.start.kind == EACH:
        open_high = j * 0
    if span.stop.kind == SLOT:
        low = tl.maximum(low, j - unpacked(span.stop.value) + 1)
        open_low = tl.maximum(open_low, j_end - unpacked(span.stop.value))
    elif span.stop.kind == NUMBER:
        high = tl.where(j < unpacked(span.stop.value), high, 0)
        open_high = tl.where(j_end <= unpacked(span.stop.value), open_high, 0)
    elif span.stop.kind == EACH:
        open_high = j * 0
    first, last = tl.maximum(low, 0) // block, tl.cdiv(tl.maximum(high, 0), block)
    if span.start.kind == EACH or span.stop.kind == EACH:
        first, last = last, first
        for tile in range(tl.cdiv(n, block)):
            i = tile * block + tl.arange(0, block)
            start, stop = _interval(span, b, i, i < n, j_end)
            hit = tl.max(((start < stop) & (stop > j)).to(tl.int32), 0) != 0
            first = tl.where(hit, tl.minimum(first, tile), first)
            last = tl.where(hit, tile + 1, last)
    last = tl.maximum(last, first)
    begin = tl.minimum(tl.maximum(tl.cdiv(tl.maximum(open_low, 0), block), first), last)
    end = tl.minimum(tl.maximum(tl.maximum(open_high, 0) // block, begin), last)
    return first, last, begin, end


@triton.jit
def query_tiles(sight, b, j, j_end, n, m, block: tl.constexpr):
    """As ``_tiles``, of the blocks of queries for the keys j … j_end − 1."""
    first, last, open_, end = _query_range(sight.first, b, j, tl.minimum(j_end, m), n, block)
    if (sight.second is None and sight.rest is None) and sight.q_document is None:
        end = tl.where(j_end <= m, end, open_)
        return open_, end, first, open_, end, last
    elif sight.second is None:
        return first, first, first, last, last, last
    else:
        other, other_last, _, _ = _query_range(sight.second, b, j, tl.minimum(j_end, m), n, block)
        return _both(first, last, other, other_last)
