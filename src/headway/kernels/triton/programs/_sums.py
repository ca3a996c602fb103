"""The programs of gradients that are sums over pairs: of tables, of relative vectors, and of dense biases, in Triton.

No program writes what another one writes, and nothing is added atomically: gradients are the same bits in every run.
"""

import triton
import triton.language as tl

from ._blocks import by_query, dot, load_vector, place_of_pairs, unpacked
from ._scores import SQUARE, are_far, grid_row, row_of, squares_apart, stretched_of, table_row
from ._sight import SLOT, is_in_sight, key_tiles, query_tiles, seen_tiles
from ._skew import have_one_vector, unskewed
from ._tiles import Head, Tile, tile_of, tokens_at
from ._weights import gradient_of, kept_weights

RELATIVE_KEYS, RELATIVE_QUERIES, RELATIVE_VALUES = (tl.constexpr(kind) for kind in range(3))
BY_DISTANCE, BY_AXES, BY_PIECE = (tl.constexpr(kind) for kind in range(3))


# ---------------------------------------------------------------- tables of biases


@triton.jit
def _diagonal(sight, offset, i_tiles, j_tiles, block: tl.constexpr):
    """The tiles of queries of a diagonal of square tiles, first and after the last; none where nothing is in sight."""
    first, last = tl.maximum(0, -offset), tl.minimum(i_tiles, j_tiles - offset)
    if sight.second is None:
        if sight.first.stop.kind == SLOT:
            last = tl.where(offset * block - block < unpacked(sight.first.stop.value) - 1, last, first)
        if sight.first.start.kind == SLOT:
            last = tl.where(offset * block + block > unpacked(sight.first.start.value), last, first)
    return first, last


@triton.jit
def _is_near(terms, i_start, j_start):
    if terms.table_ends is None:
        return True
    else:
        behind, before = are_far(terms, i_start, j_start)
        return (behind | before) == 0


@triton.jit(do_not_specialize=["n", "m"])
def diagonals_gradient(
    x, parts, d_out, statistics, partial, n, m, heads, group, length,
    block: tl.constexpr, beyond: tl.constexpr,
):  # fmt: skip
    """The sums of the gradients of scores at each distance, over a diagonal of square tiles.

    All tiles of a diagonal have the same distances at the same places, so that they are added as they are, and the
    sum is reduced along its own diagonals once. partial: [batch·heads, 2, length], of which the first half has the
    distances of each diagonal up to that of the corner, and the other half those above, which lie a block further on.
    """
    i_tiles, j_tiles = tl.cdiv(n, block), tl.cdiv(m, block)
    diagonals = i_tiles + j_tiles - 1
    which, diagonal = tl.program_id(0) // diagonals, tl.program_id(0) % diagonals
    b, h = which // heads, which % heads
    offset = diagonal - i_tiles + 1
    first, last = _diagonal(parts.sight, offset, i_tiles, j_tiles, block)
    if parts.terms.table_ends is not None:  # what is far is summed with the gradients of keys
        behind, before = squares_apart(parts.terms)
        all_far = (-offset * block >= behind * SQUARE + SQUARE) | (offset * block >= before * SQUARE + SQUARE)
        last = tl.where(all_far, first, last)
    total = tl.zeros([block, block], tl.float32)
    for step in range(first, last):
        near = _is_near(parts.terms, step * block, (step + offset) * block)
        head = Head(b, h, h // group, which, n, m)
        if near & is_in_sight(parts.sight, tile_of(head, step, step + offset, block, block)):
            tile = tile_of(head, step, step + offset, block, block)  # made here, it takes fewer registers
            total += gradient_of(x, parts, d_out, statistics, tile, False).of_scores
    row, column = tl.arange(0, block)[:, None], tl.arange(0, block)[None, :]
    place = partial + which.to(tl.int64) * 2 * length + beyond + diagonal * block + tl.arange(0, block)
    at = row + column - (block - 1)
    near = tl.where(at >= 0, tl.gather(total, tl.maximum(at, 0), 1), 0.0)
    tl.store(place, tl.sum(near, 0))
    at = row + column + 1
    far = tl.where(at < block, tl.gather(total, tl.minimum(at, block - 1), 1), 0.0)
    tl.store(place + length + block, tl.sum(far, 0))


@triton.jit(do_not_specialize=["n", "m", "shares", "count"])
def rows_gradient(
    x, parts, d_out, statistics, partial, partial_slopes, n, m, heads, group, shares, count,
    rows: tl.constexpr, block: tl.constexpr, chunk: tl.constexpr, by: tl.constexpr,
):  # fmt: skip
    """The sums of the gradients of scores in each row of a table: by distance, for positions with any gaps, or by axes.

    BY_PIECE those in each piece of a stretched bias, and their sums times t in partial_slopes. A program has every
    ``shares``-th block of keys and a chunk of the table. In each tile it goes through the rows that occur.
    partial: [batch·heads, shares, count].
    """
    chunks = tl.cdiv(count, chunk)
    which, share = tl.program_id(0) // chunks // shares, tl.program_id(0) // chunks % shares
    start = tl.program_id(0) % chunks * chunk
    b, h = which // heads, which % heads
    own = start + tl.arange(0, chunk)
    sums, slopes = tl.zeros([chunk], tl.float32), tl.zeros([chunk], tl.float32)
    for j_tile in range(share, tl.cdiv(m, block), shares):
        _, _, left, _, _, last = query_tiles(parts.sight, b, j_tile * block, (j_tile + 1) * block, n, m, rows)
        for i_tile in range(left, last):
            tile = tile_of(Head(b, h, h // group, which, n, m), i_tile, j_tile, rows, block)
            if by == BY_DISTANCE:
                row = table_row(parts.terms, tile, False)
            elif by == BY_AXES:
                row = grid_row(parts.terms, tile, False)
            else:
                pieces = stretched_of(parts.terms, tile, False)
                row, t = pieces.piece, pieces.t
            inside = tile.q.inside[:, None] & tile.k.inside[None, :]
            low = tl.maximum(tl.min(tl.where(inside, row, count)), start)
            high = tl.minimum(tl.max(tl.where(inside, row, -1)), start + chunk - 1)
            if (low <= high) & is_in_sight(parts.sight, tile):
                gradient = gradient_of(x, parts, d_out, statistics, tile, False).of_scores
                for one in range(low, high + 1):
                    part = tl.where(row == one, gradient, 0.0)
                    sums += tl.where(own == one, tl.sum(part), 0.0)
                    if by == BY_PIECE:
                        slopes += tl.where(own == one, tl.sum(tl.where(part == 0, 0.0, part * t)), 0.0)
    place = (which.to(tl.int64) * shares + share) * count + own
    tl.store(partial + place, sums, mask=own < count)
    if by == BY_PIECE:
        tl.store(partial_slopes + place, slopes, mask=own < count)


# ---------------------------------------------------------------- relative keys, queries and values


@triton.jit(do_not_specialize=["n", "m", "members", "shares"])
def vectors_gradient(
    x, parts, d_out, statistics, vectors, partial, n, m, heads, group, own_heads, members, shares,
    block: tl.constexpr, kind: tl.constexpr,
):  # fmt: skip
    """The gradients of the vectors of the distances of a diagonal of square tiles, two blocks of them.

    A head of the vectors is that of ``members`` sequences and heads, of which a program has every ``shares``-th.
    partial: [own_heads, shares, diagonals, 2, block, width], the nearer distances and the farther ones.
    """
    i_tiles, j_tiles = tl.cdiv(n, block), tl.cdiv(m, block)
    diagonals = i_tiles + j_tiles - 1
    own, diagonal = tl.program_id(0) // diagonals // shares, tl.program_id(0) % diagonals
    share, each = tl.program_id(0) // diagonals % shares, heads // own_heads
    offset = diagonal - i_tiles + 1
    first, last = _diagonal(parts.sight, offset, i_tiles, j_tiles, block)
    near, far = tl.zeros([block, vectors.padded], tl.float32), tl.zeros([block, vectors.padded], tl.float32)
    alike = False
    if vectors.clipped:  # if all distances of the diagonal share a vector, its gradient stands in one row
        alike = have_one_vector(vectors, 0, offset * block, block)
    for member in range(share, members, shares):
        b, h = member // each, own * each + member % each
        for step in range(first, last):
            head = Head(b, h, h // group, b * heads + h, n, m)
            tile = tile_of(head, step, step + offset, block, block)
            found = gradient_of(x, parts, d_out, statistics, tile, kind != RELATIVE_QUERIES)
            gradient = found.of_scores
            if kind == RELATIVE_VALUES:
                gradient, tokens = found.kept, found.up
            else:
                if parts.terms.factor is not None:
                    factor = load_vector(parts.terms.factor, b, h, tile.q.at, tile.q.inside, 0.0)
                    gradient *= by_query(factor, kind != RELATIVE_QUERIES)
                if kind == RELATIVE_QUERIES:
                    tokens = found.for_relative_queries
                else:
                    tokens = found.for_relative_keys
                # a token without pairs may hold NaN
                tokens = tl.where((tl.max(found.seen.to(tl.int32), 0) != 0)[:, None], tokens, 0.0)
            if alike:
                both = tl.sum(tl.sum(gradient, 0)[:, None] * tokens.to(tl.float32), 0)
                near += tl.where(tl.arange(0, block)[:, None] == 0, both[None, :], 0.0)
            else:
                nearer, farther = unskewed(gradient, 0, block)
                near += dot(nearer.to(tokens.dtype), tokens)
                far += dot(farther.to(tokens.dtype), tokens)
    row, column = tl.arange(0, block)[:, None], tl.arange(0, vectors.padded)[None, :]
    place = partial + (tl.program_id(0).to(tl.int64) * (2 * block) + row) * vectors.width + column
    tl.store(place, near, mask=(row < block) & (column < vectors.width))
    tl.store(place + block * vectors.width, far, mask=(row < block) & (column < vectors.width))


@triton.jit(do_not_specialize=["n", "m", "count"])
def sums_by_row(
    x, parts, d_out, statistics, table, sums, n, m, heads, group, count,
    rows: tl.constexpr, block: tl.constexpr, chunk: tl.constexpr, kind: tl.constexpr,
):  # fmt: skip
    """The sums over the pairs of each token with the same row of a table of relative vectors.

    Of the gradients of products, for each query, or for each key of relative queries; for relative values of the
    weights after dropout. A program has a block of tokens and a chunk of the table, and in each tile it goes through
    the rows that occur. sums: [batch·heads, tokens, count].
    """
    chunks = tl.cdiv(count, chunk)
    start = tl.program_id(0) % chunks * chunk
    if kind == RELATIVE_QUERIES:
        tiles = tl.cdiv(m, block)
    else:
        tiles = tl.cdiv(n, rows)
    which, number = tl.program_id(0) // chunks // tiles, tl.program_id(0) // chunks % tiles
    b, h = which // heads, which % heads
    own = start + tl.arange(0, chunk)[None, :]
    if kind == RELATIVE_QUERIES:
        token, tokens = number * block + tl.arange(0, block), m
        _, _, first, _, _, last = query_tiles(parts.sight, b, number * block, (number + 1) * block, n, m, rows)
        found = tl.zeros([block, chunk], tl.float32)
    else:
        token, tokens = number * rows + tl.arange(0, rows), n
        first, _, _, last = seen_tiles(parts.sight, b, token, token < n, m, block)
        found = tl.zeros([rows, chunk], tl.float32)
    for other in range(first, last):
        head = Head(b, h, h // group, which, n, m)
        if kind == RELATIVE_QUERIES:
            tile = tile_of(head, other, number, rows, block)
        else:
            tile = tile_of(head, number, other, rows, block)
        row = row_of(table, parts.terms, tile, False)
        inside = tile.q.inside[:, None] & tile.k.inside[None, :]
        low = tl.maximum(tl.min(tl.where(inside, row, count)), start)
        high = tl.minimum(tl.max(tl.where(inside, row, -1)), start + chunk - 1)
        if (low <= high) & is_in_sight(parts.sight, tile):
            if kind == RELATIVE_VALUES:
                value = kept_weights(x, parts, statistics, tile)
            else:
                value = gradient_of(x, parts, d_out, statistics, tile, False).of_scores
                if parts.terms.factor is not None:
                    value *= load_vector(parts.terms.factor, b, h, tile.q.at, tile.q.inside, 0.0)[:, None]
                value *= parts.terms.scale
            for one in range(low, high + 1):
                part = tl.where(row == one, value, 0.0)
                if kind == RELATIVE_QUERIES:
                    part = tl.sum(part, 0)
                else:
                    part = tl.sum(part, 1)
                found += tl.where(own == one, part[:, None], 0.0)
    place = sums + (which.to(tl.int64) * tokens + token)[:, None] * count + own
    tl.store(place, found, mask=(token < tokens)[:, None] & (own < count))


# ---------------------------------------------------------------- dense biases, and rows of tables


@triton.jit(do_not_specialize=["n", "m", "sequences", "members"])
def dense_gradient(
    x, parts, d_out, statistics, d_dense, n, m, heads, group, own_heads, sequences, members,
    rows: tl.constexpr, block: tl.constexpr, layout: tl.constexpr,
):  # fmt: skip
    """The gradient of a tile of a dense bias: the sum over the sequences and heads that share it, in their order.

    The bias has own_heads heads; each of its numbers is for ``sequences`` sequences and ``members`` heads.
    """
    i_tiles, j_tiles = tl.cdiv(n, rows), tl.cdiv(m, block)
    own, number = tl.program_id(0) // (i_tiles * j_tiles), tl.program_id(0) % (i_tiles * j_tiles)
    own_b, own_h, i_tile, j_tile = own // own_heads, own % own_heads, number // j_tiles, number % j_tiles
    q, k = tokens_at(i_tile, rows, n), tokens_at(j_tile, block, m)
    total = tl.zeros([rows, block], tl.float32)
    for step in range(sequences * members):
        b, h = own_b + step // members, own_h + step % members
        _, _, first, _, _, last = key_tiles(parts.sight, b, q.at, q.inside, m, block)
        tile = Tile(Head(b, h, h // group, b * heads + h, n, m), q, k)
        if (first <= j_tile) & (j_tile < last) & is_in_sight(parts.sight, tile):
            total += gradient_of(x, parts, d_out, statistics, tile, False).of_scores
    place = place_of_pairs(d_dense, layout, own_b, own_h, q.at, k.at, False)
    tl.store(place, total.to(d_dense.at.dtype.element_ty), mask=q.inside[:, None] & k.inside[None, :])


@triton.jit
def run_sums(x, starts, out, length, count, width: tl.constexpr, padded: tl.constexpr, block: tl.constexpr):
    """Sums of runs of rows of ``width`` numbers, out[h, r] = Σ x[h, starts[r] … starts[r + 1] − 1], in float64."""
    h, r = tl.program_id(0).to(tl.int64) // count, tl.program_id(0).to(tl.int64) % count
    start, stop = tl.load(starts + r), tl.load(starts + r + 1)
    column = tl.arange(0, padded)
    total = tl.zeros([block, padded], tl.float64)
    for first in range(start, stop, block):
        at = first + tl.arange(0, block)
        place = x + (h * length + at)[:, None] * width + column[None, :]
        total += tl.load(place, mask=(at < stop)[:, None] & (column < width)[None, :], other=0.0).to(tl.float64)
    tl.store(out + (h * count + r) * width + column, tl.sum(total, 0).to(tl.float32), mask=column < width)
