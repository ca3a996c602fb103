"""The programs of reductions over queries, in Triton."""

import triton
import triton.language as tl

from ._blocks import by_query, load_vector, store_statistic
from ._sight import query_tiles, seen_tiles
from ._weights import load_keys, load_queries, products_of, weights_of


@triton.jit
def _counting(weight, counted, b, i, i_inside, flipped: tl.constexpr):
    """The weights of the queries that count; 0 for the others."""
    if counted is not None:
        i_inside = i_inside & (load_vector(counted, b, b, i, i_inside, 0) != 0)
    return tl.where(by_query(i_inside, flipped), weight, 0.0)


@triton.jit(do_not_specialize=["n", "m"])
def column_sums(
    x, parts, statistics, counted, sums, n, m, heads, group,
    head_dim: tl.constexpr, head_pad: tl.constexpr, rows: tl.constexpr, block: tl.constexpr, interpreted: tl.constexpr,
):  # fmt: skip
    """The sums of the weights of a block of keys over the queries that count, in float64."""
    tiles = tl.cdiv(m, block)
    which, start = tl.program_id(0) // tiles, (tl.program_id(0) % tiles) * block
    b, h = which // heads, which % heads
    j = start + tl.arange(0, block)
    j_inside = j < m
    keys = load_keys(x, parts.terms, b, h // group, j, j_inside, head_dim, head_pad)
    total = tl.zeros([block], tl.float64)
    _, _, first, _, _, last = query_tiles(parts.sight, b, start, start + block, n, m, rows)
    for tile in range(first, last):
        i = tile * rows + tl.arange(0, rows)
        i_inside = i < n
        queries = load_queries(x, parts.terms, b, h, i, i_inside, head_dim, head_pad)
        products = products_of(
            queries, keys, parts.terms, b, h, i, j, i_inside, j_inside, tile * rows, start, True, interpreted
        )
        weight = weights_of(
            parts, statistics, products, None, b, h, which, i, j, i_inside, j_inside, n, m, True, True, interpreted
        )[0]
        total += tl.sum(_counting(weight, counted, b, i, i_inside, True), 1).to(tl.float64)
    store_statistic(sums, which, j, j_inside, m, total.to(tl.float32))


@triton.jit(do_not_specialize=["n", "m", "down", "across"])
def pooled_map(
    x, parts, statistics, counted, mass, largest, n, m, heads, group, down, across,
    head_dim: tl.constexpr, head_pad: tl.constexpr, rows: tl.constexpr, block: tl.constexpr, interpreted: tl.constexpr,
):  # fmt: skip
    """The sum and the largest of the weights in a cell, of the queries ⌈r·n/down⌉ … ⌈(r + 1)·n/down⌉ − 1 that count."""
    which, cell = tl.program_id(0) // (down * across), tl.program_id(0) % (down * across)
    b, h = which // heads, which % heads
    row, column = (cell // across).to(tl.int64), (cell % across).to(tl.int64)
    i_start, i_stop = tl.cdiv(row * n, down).to(tl.int32), tl.cdiv((row + 1) * n, down).to(tl.int32)
    j_start, j_stop = tl.cdiv(column * m, across).to(tl.int32), tl.cdiv((column + 1) * m, across).to(tl.int32)
    total, most = tl.zeros([rows], tl.float64), tl.zeros([rows], tl.float32)
    for i_tile in range(tl.cdiv(i_stop - i_start, rows)):
        i_first = i_start + i_tile * rows
        i = i_first + tl.arange(0, rows)
        i_inside = i < i_stop
        queries = load_queries(x, parts.terms, b, h, i, i_inside, head_dim, head_pad)
        left, _, _, last = seen_tiles(parts.sight, b, i, i_inside, m, block)
        for j_tile in range(tl.maximum(left, j_start // block), tl.minimum(last, tl.cdiv(j_stop, block))):
            j = j_tile * block + tl.arange(0, block)
            j_inside = (j >= j_start) & (j < j_stop)
            keys = load_keys(x, parts.terms, b, h // group, j, j_inside, head_dim, head_pad)
            products = products_of(
                queries, keys, parts.terms, b, h, i, j, i_inside, j_inside, i_first, j_tile * block, False, interpreted
            )
            weight = weights_of(
                parts, statistics, products, None, b, h, which, i, j, i_inside, j_inside, n, m, True, False, interpreted
            )[0]
            weight = tl.where(j_inside[None, :], _counting(weight, counted, b, i, i_inside, False), 0.0)
            total += tl.sum(weight, 1).to(tl.float64)
            most = tl.maximum(most, tl.max(weight, 1))
    place = tl.program_id(0).to(tl.int64)
    tl.store(mass + place, tl.sum(total, 0).to(tl.float32))
    tl.store(largest + place, tl.max(most, 0))
