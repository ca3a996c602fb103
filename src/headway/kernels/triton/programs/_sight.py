"""Which keys a query sees, and which blocks of keys and queries a program goes through, in Triton.

Intervals say which blocks are in sight, and which of these whole. Documents and any other rest of a mask do not: two
programs before look at every block (``classify_tiles``), and list those in sight (``list_tiles``), the whole ones in
front, the others from the end.
"""

import triton
import triton.language as tl

from ._blocks import by_key, by_query, load_vector, place_of, place_of_pairs, unpacked
from ._tiles import Head, tile_of

NONE, NUMBER, SLOT, EACH = (tl.constexpr(kind) for kind in range(4))
COUNTS = tl.constexpr(2)  # the numbers in front of a list


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
def _limit(x, b, default):
    if x.kind == NONE:
        return default + b * 0
    elif x.kind == NUMBER:
        return unpacked(x.value) + b * 0
    else:
        return tl.load(place_of(x.value, b, b))


@triton.jit
def _keys_of(span, b, m):
    """The keys of a sequence that are no padding, the first and the one after the last."""
    return tl.maximum(_limit(span.first, b, 0), 0), tl.minimum(_limit(span.last, b, m), m)


@triton.jit
def _interval(span, b, i, inside, m):
    first, last = _keys_of(span, b, m)
    start = tl.maximum(_bound(span.start, b, i, inside, 0), first)
    stop = tl.minimum(_bound(span.stop, b, i, inside, m), last)
    return start, tl.where(inside, stop, 0)


@triton.jit
def _in_interval(span, b, i, j, i_inside, m, flipped: tl.constexpr):
    start, stop = _interval(span, b, i, i_inside, m)
    seen = by_key(j, flipped) < by_query(stop, flipped)
    if span.start.kind != NONE or span.first.kind != NONE:
        seen &= by_key(j, flipped) >= by_query(start, flipped)
    return seen


@triton.jit
def in_sight(sight, tile, flipped: tl.constexpr):
    """Which keys of a tile its queries see."""
    b, m, i, j = tile.head.b, tile.head.m, tile.q.at, tile.k.at
    seen = _in_interval(sight.first, b, i, j, tile.q.inside, m, flipped)
    if sight.second is not None:
        seen |= _in_interval(sight.second, b, i, j, tile.q.inside, m, flipped)
    if sight.q_document is not None:
        q = load_vector(sight.q_document, b, b, i, tile.q.inside, 0)
        k = load_vector(sight.k_document, b, b, j, j < m, 0)
        seen &= by_query(q, flipped) == by_key(k, flipped)
    if sight.rest is not None:
        place = place_of_pairs(sight.rest, sight.rest_layout, b, tile.head.h, i, j, flipped)
        seen &= tl.load(place, mask=seen, other=0) != 0
    return seen


@triton.jit
def _in_any(span, seen, tile, rows: tl.constexpr):
    """Which keys are in the interval of any query of a block."""
    if span.start.kind == EACH or span.stop.kind == EACH:
        return tl.max(seen.to(tl.int32), 0) != 0
    else:  # bounds are the same for all or move by one: the intervals together are one
        b, m, first = tile.head.b, tile.head.m, tile.q.start
        begin, end = _keys_of(span, b, m)
        start = tl.maximum(_bound(span.start, b, first, True, 0), begin)
        stop = tl.minimum(_bound(span.stop, b, tl.minimum(first + rows, tile.head.n) - 1, True, m), end)
        if span.start.kind == SLOT and span.stop.kind == SLOT:
            stop = tl.where(unpacked(span.start.value) < unpacked(span.stop.value), stop, 0)
        return (tile.k.at >= start) & (tile.k.at < stop)


@triton.jit
def keys_in_sight(sight, seen, tile, rows: tl.constexpr):
    """Which keys of a tile any of its queries sees; ``seen`` are the pairs in sight, [queries, keys]."""
    if sight.q_document is not None or sight.rest is not None:
        return tl.max(seen.to(tl.int32), 0) != 0
    elif sight.second is None:
        return _in_any(sight.first, seen, tile, rows)
    else:
        first = _in_any(sight.first, seen, tile, rows)
        return first | _in_any(sight.second, seen, tile, rows)


@triton.jit
def _meets(span, tile, block: tl.constexpr):
    """Which queries see any of the keys of a tile."""
    start = tile.k.start
    first, last = _interval(span, tile.head.b, tile.q.at, tile.q.inside, tile.head.m)
    return tl.maximum(first, start) < tl.minimum(last, start + block)


@triton.jit
def queries_in_sight(sight, seen, tile, block: tl.constexpr):
    """Which queries of a tile see any of its keys; ``seen`` are the pairs in sight, [keys, queries]."""
    if sight.q_document is not None or sight.rest is not None:
        return tl.max(seen.to(tl.int32), 0) != 0
    elif sight.second is None:
        return _meets(sight.first, tile, block)
    else:
        first = _meets(sight.first, tile, block)
        return first | _meets(sight.second, tile, block)


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
    begin, finish = _keys_of(sight.first, b, m)
    low, high = tl.maximum(j, begin), tl.minimum(j_end, finish)
    first, last, open_, end = _query_range(sight.first, b, low, high, n, block)
    if (sight.second is None and sight.rest is None) and sight.q_document is None:
        last = tl.where(low < high, last, first)
        open_, end = tl.minimum(open_, last), tl.where((begin <= j) & (j_end <= finish), tl.minimum(end, last), 0)
        end = tl.maximum(end, open_)
        return open_, end, first, open_, end, last
    elif sight.second is None:
        last = tl.where(low < high, last, first)
        return first, first, first, last, last, last
    else:
        other, other_last, _, _ = _query_range(sight.second, b, low, high, n, block)
        last, other_last = tl.where(low < high, last, first), tl.where(low < high, other_last, other)
        return _both(first, last, other, other_last)


# ---------------------------------------------------------------- lists of blocks


@triton.jit
def list_of(sight, b, h, tile):
    """Where the list of a block of queries, or of keys, is; 0 without lists."""
    if sight.lists is None:
        return 0
    else:
        row = b.to(tl.int64) * unpacked(sight.lists.b) + h * unpacked(sight.lists.h) + tile
        return sight.lists.at + row * unpacked(sight.lists.width)


@triton.jit
def listed_ranges(listed):
    """Two ranges of steps of a list, as ``key_tiles`` has them: without masks, and with masks."""
    opened, masked = tl.load(listed), tl.load(listed + 1)
    return opened * 0, opened, opened * 0, masked, masked, masked


@triton.jit
def key_steps(sight, listed, b, i, inside, m, block: tl.constexpr):
    """Two ranges of steps for the blocks of keys that the queries i see: of a list, or as ``key_tiles``."""
    if sight.lists is None:
        return key_tiles(sight, b, i, inside, m, block)
    else:
        return listed_ranges(listed)


@triton.jit
def open_tile(sight, listed, step):
    """The block of a step of the range without masks."""
    if sight.lists is None:
        return step
    else:
        return tl.load(listed + COUNTS + step)


@triton.jit
def masked_tile(sight, listed, step, left_last, gap):
    """The block of a step of the two ranges with masks, of which the first ends with ``left_last``."""
    if sight.lists is None:
        return tl.where(step < left_last, step, step + gap)
    else:
        return tl.load(listed + unpacked(sight.lists.width) - 1 - step)


@triton.jit(do_not_specialize=["n", "m", "heads"])
def classify_tiles(
    sight, kinds, n, m, heads, rows: tl.constexpr, block: tl.constexpr, of_keys: tl.constexpr, chunk: tl.constexpr
):
    """Whether each block is out of sight (0), in sight in part (1), or whole (2), ``chunk`` of a row by one program.

    kinds: int8 [batch·heads, own, others]: blocks of queries and of keys, or, for lists of keys, the reverse.
    """
    if of_keys:
        tiles, others = tl.cdiv(m, block), tl.cdiv(n, rows)
    else:
        tiles, others = tl.cdiv(n, rows), tl.cdiv(m, block)
    chunks = tl.cdiv(others, chunk)
    row, first = tl.program_id(0) // chunks, tl.program_id(0) % chunks * chunk
    which, own = row // tiles, row % tiles
    b, h = which // heads, which % heads
    head = Head(b, h, h, which, n, m)  # no keys are read
    for other in range(first, tl.minimum(first + chunk, others)):
        if of_keys:
            tile = tile_of(head, other, own, rows, block)
        else:
            tile = tile_of(head, own, other, rows, block)
        seen = in_sight(sight, tile, False)
        some = tl.max(tl.max(seen.to(tl.int32), 1), 0)
        if not of_keys:  # queries beyond the last one are never stored
            seen |= (tile.q.at >= n)[:, None]
        whole = tl.min(tl.min(seen.to(tl.int32), 1), 0)
        tl.store(kinds + row.to(tl.int64) * others + other, (some * (1 + whole)).to(tl.int8))


@triton.jit(do_not_specialize=["others"])
def list_tiles(lists, kinds, others, chunk: tl.constexpr):
    """Lists the blocks that one block sees, or that see it, by their kinds."""
    row = tl.program_id(0).to(tl.int64)
    listed = lists.at + row * unpacked(lists.width)
    from_end = listed + unpacked(lists.width) - 1
    opened, masked = others * 0, others * 0
    for first in range(0, others, chunk):
        tile = first + tl.arange(0, chunk)
        kind = tl.load(kinds + row * others + tile, mask=tile < others, other=0)
        whole, part = (kind == 2).to(tl.int32), (kind == 1).to(tl.int32)
        tl.store(listed + COUNTS + opened + tl.cumsum(whole, 0) - whole, tile, mask=whole != 0)
        tl.store(from_end - masked - tl.cumsum(part, 0) + part, tile, mask=part != 0)
        opened, masked = opened + tl.sum(whole, 0), masked + tl.sum(part, 0)
    tl.store(listed, opened)
    tl.store(listed + 1, masked)


@triton.jit
def is_in_sight(sight, tile):
    """Whether any pair of a tile is in sight, where intervals do not say it."""
    if (sight.rest is None) and (sight.q_document is None):
        return True
    else:
        return tl.max(tl.max(in_sight(sight, tile, False).to(tl.int32), 1), 0) != 0
