"""Relative keys, queries and values of a square block of queries and keys, in Triton.

Where positions rise by one, the pairs of a block of queries r and keys c have 2·block − 1 distances c − r, counted from
that of its corner, each with a vector. Products with the vectors of ``block`` distances are a matrix [queries,
distances], where the product of a pair stands in column c − r modulo ``block``: of the matrix of the nearer distances
(c ≥ r), or of the farther ones. A choice between the two and a rotation of row r by r places give the matrix of pairs
(``skewed``; Huang et al., Music Transformer, 2018, skew one matrix of all distances by padding it). ``unskewed`` is the
inverse: gradients of pairs become two matrices, to be multiplied with the vectors, or with the queries.

Relative queries are products with keys: [distances, keys], where r − c takes the place of c − r.
"""

import triton
import triton.language as tl

from ._blocks import by_query, dot, unpacked

# ---------------------------------------------------------------- vectors


@triton.jit
def _first(x, i_start, j_start):
    """The vector of the distance from the first query to the first key of a block."""
    return j_start - i_start + unpacked(x.origin)


@triton.jit
def have_one_vector(x, i_start, j_start, block: tl.constexpr):
    """Whether all pairs of a block are so far apart that they share a vector."""
    first = _first(x, i_start, j_start)
    return (first + block - 1 <= tl.load(x.ends)) | (first - block + 1 >= tl.load(x.ends + 1))


@triton.jit
def _one_vector(x, tile):
    row = _first(x, tile.q.start, tile.k.start) + tl.zeros([1], tl.int32)
    return tl.reshape(_vectors(x, tile.head.h, row), [x.padded])


@triton.jit
def _both_vectors(x, tile, of_queries: tl.constexpr, block: tl.constexpr):
    """The vectors of the nearer and of the farther distances of a block."""
    h, step, first = tile.head.h, tl.arange(0, block), _first(x, tile.q.start, tile.k.start)
    if of_queries:
        return _vectors(x, h, first - step), _vectors(x, h, first - step + block)
    else:
        return _vectors(x, h, first + step), _vectors(x, h, first + step - block)


@triton.jit
def _vectors(x, h, row):
    column = tl.arange(0, x.padded)
    row = tl.minimum(tl.maximum(row, 0), unpacked(x.last))
    place = x.at + h.to(tl.int64) * unpacked(x.h) + row.to(tl.int64)[:, None] * x.width + column[None, :]
    if x.padded == x.width:
        return tl.load(place)
    else:
        return tl.load(place, mask=(column < x.width)[None, :], other=0.0)


# ---------------------------------------------------------------- pairs and distances


@triton.jit
def _along(axis: tl.constexpr, block: tl.constexpr):
    """For each place of a block its number along an axis, and along the other one."""
    row, column = tl.arange(0, block)[:, None], tl.arange(0, block)[None, :]
    if axis == 0:
        return row, column
    else:
        return column, row


@triton.jit
def skewed(near, far, axis: tl.constexpr, block: tl.constexpr):
    """The block of pairs from those of the nearer and the farther distances, which lie along an axis."""
    along, across = _along(axis, block)
    either = tl.where(along + across < block, near, far)
    return tl.gather(either, (along - across) & (block - 1), axis)


@triton.jit
def unskewed(pairs, axis: tl.constexpr, block: tl.constexpr):
    """The blocks of the nearer and the farther distances from that of pairs; 0 for what is no pair of the block."""
    along, across = _along(axis, block)
    rotated = tl.gather(pairs, (along + across) & (block - 1), axis)
    return tl.where(along + across < block, rotated, 0.0), tl.where(along + across < block, 0.0, rotated)


# ---------------------------------------------------------------- products


@triton.jit
def products_by_distance(tokens, x, tile, of_queries: tl.constexpr, flipped: tl.constexpr, block: tl.constexpr):
    """The products of tokens [block, width] with the vectors of each pair: of queries, or of keys if ``of_queries``."""
    if x.clipped:
        if have_one_vector(x, tile.q.start, tile.k.start, block):
            one = tl.sum(tokens.to(tl.float32) * _one_vector(x, tile).to(tl.float32)[None, :], 1)
            found = by_query(one, flipped != of_queries) + tl.zeros([block, block], tl.float32)
        else:
            found = _skewed_products(tokens, x, tile, of_queries, flipped, block)
        return found
    else:
        return _skewed_products(tokens, x, tile, of_queries, flipped, block)


@triton.jit
def _skewed_products(tokens, x, tile, of_queries: tl.constexpr, flipped: tl.constexpr, block: tl.constexpr):
    near, far = _both_vectors(x, tile, of_queries, block)
    if of_queries == flipped:
        near, far = dot(tokens, tl.trans(near)), dot(tokens, tl.trans(far))
        return skewed(near, far, 1, block)
    else:
        near, far = dot(near, tl.trans(tokens)), dot(far, tl.trans(tokens))
        return skewed(near, far, 0, block)


@triton.jit
def add_vectors(total, pairs, x, tile, of_queries: tl.constexpr, block: tl.constexpr):
    """Adds to total [block, width] the vectors of each pair times the numbers of pairs.

    These have along their first axis the queries, or, of relative queries, the keys.
    """
    if x.clipped:
        if have_one_vector(x, tile.q.start, tile.k.start, block):
            total += tl.sum(pairs, 1)[:, None] * _one_vector(x, tile).to(tl.float32)[None, :]
        else:
            total = _add_skewed(total, pairs, x, tile, of_queries, block)
        return total
    else:
        return _add_skewed(total, pairs, x, tile, of_queries, block)


@triton.jit
def _add_skewed(total, pairs, x, tile, of_queries: tl.constexpr, block: tl.constexpr):
    near, far = _both_vectors(x, tile, of_queries, block)
    nearer, farther = unskewed(pairs, 1, block)
    total += dot(nearer.to(near.dtype), near)
    return total + dot(farther.to(far.dtype), far)
