"""The programs of reductions over queries, in Triton."""

import triton
import triton.language as tl

from ._blocks import by_query, load_vector, store_statistic
from ._sight import query_tiles, seen_tiles
from ._tiles import Head, Tile, Tokens, tokens_at
from ._weights import load_keys, load_queries, products_of, weights_of


@triton.jit
def _counting(weight, counted, head, q, flipped: tl.constexpr):
    """The weights of the queries that count; 0 for the others."""
    inside = q.inside
    if counted is not None:
        inside = inside & (load_vector(counted, head.b, head.b, q.at, inside, 0) != 0)
    return tl.where(by_query(inside, flipped), weight, 0.0)


@triton.jit(do_not_specialize=["n", "m"])
def column_sums(x, parts, statistics, counted, sums, n, m, heads, group, rows: tl.constexpr, block: tl.constexpr):
    """The sums of the weights of a block of keys over the queries that count, in float64."""
    tiles = tl.cdiv(m, block)
    which = tl.program_id(0) // tiles
    b, h = which // heads, which % heads
    head, own = Head(b, h, h // group, which, n, m), tokens_at(tl.program_id(0) % tiles, block, m)
    keys = load_keys(x, head, own)
    total = tl.zeros([block], tl.float64)
    _, _, first, _, _, last = query_tiles(parts.sight, b, own.start, own.start + block, n, m, rows)
    for step in range(first, last):
        tile = Tile(head, tokens_at(step, rows, n), own)
        products = products_of(load_queries(x, head, tile.q), keys, parts.terms, tile, True)
        weight = weights_of(parts, statistics, products, None, tile, True, True)[0]
        total += tl.sum(_counting(weight, counted, head, tile.q, True), 1).to(tl.float64)
    store_statistic(sums, which, own.at, own.inside, m, total.to(tl.float32))


@triton.jit(do_not_specialize=["n", "m", "down", "across"])
def pooled_map(
    x, parts, statistics, counted, mass, largest, n, m, heads, group, down, across,
    rows: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """The sum and the largest of the weights in a cell, of the queries ⌈r·n/down⌉ … ⌈(r + 1)·n/down⌉ − 1 that count."""
    which, cell = tl.program_id(0) // (down * across), tl.program_id(0) % (down * across)
    b, h = which // heads, which % heads
    head = Head(b, h, h // group, which, n, m)
    row, column = (cell // across).to(tl.int64), (cell % across).to(tl.int64)
    i_start, i_stop = tl.cdiv(row * n, down).to(tl.int32), tl.cdiv((row + 1) * n, down).to(tl.int32)
    j_start, j_stop = tl.cdiv(column * m, across).to(tl.int32), tl.cdiv((column + 1) * m, across).to(tl.int32)
    total, most = tl.zeros([rows], tl.float64), tl.zeros([rows], tl.float32)
    for i_tile in range(tl.cdiv(i_stop - i_start, rows)):
        first = i_start + i_tile * rows
        i = first + tl.arange(0, rows)
        q = Tokens(i, i < i_stop, first)
        queries = load_queries(x, head, q)
        left, _, _, last = seen_tiles(parts.sight, b, q.at, q.inside, m, block)
        for j_tile in range(tl.maximum(left, j_start // block), tl.minimum(last, tl.cdiv(j_stop, block))):
            j = j_tile * block + tl.arange(0, block)
            tile = Tile(head, q, Tokens(j, (j >= j_start) & (j < j_stop), j_tile * block))
            products = products_of(queries, load_keys(x, head, tile.k), parts.terms, tile, False)
            weight = weights_of(parts, statistics, products, None, tile, True, False)[0]
            weight = tl.where(tile.k.inside[None, :], _counting(weight, counted, head, q, False), 0.0)
            total += tl.sum(weight, 1).to(tl.float64)
            most = tl.maximum(most, tl.max(weight, 1))
    place = tl.program_id(0).to(tl.int64)
    tl.store(mass + place, tl.sum(total, 0).to(tl.float32))
    tl.store(largest + place, tl.max(most, 0))
