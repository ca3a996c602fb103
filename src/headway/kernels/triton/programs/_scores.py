"""The scores of a block from its products, with every bias of its pairs, in Triton."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ._blocks import (
    LOG2E,
    by_key,
    by_query,
    last_stride,
    load_vector,
    look_up,
    of_head,
    place_of,
    place_of_pairs,
    read_pairs,
    slots,
    unpacked,
)

LINEAR, LOG, POWER, SLOPE = (tl.constexpr(kind) for kind in range(4))
FAR = tl.constexpr(2.0**60)  # beyond every distance
SQUARE = tl.constexpr(128)  # a multiple of all blocks


class Pieces(NamedTuple):
    """A bias in straight pieces of t = ln(1 + rate·|δ|)·stretch, for each pair.

    Attributes:
        bias: the bias.
        piece: the number of the piece.
        t: its t.
        by_stretch: the derivative of the bias by the stretch of the query.
        by_rate: its derivative by the rate, divided by that stretch.
    """

    bias: Any
    piece: Any
    t: Any
    by_stretch: Any
    by_rate: Any


@triton.jit
def scores_of(products, terms, beyond, tile, flipped: tl.constexpr):
    """The scores of a block from its products, and the derivative by what the cap bounds; 1 without a cap.

    beyond is the bias by the table if all pairs share it, and else None.
    """
    b, h = tile.head.b, tile.head.h
    score = products * terms.scale
    if terms.factor is not None:
        score *= by_query(load_vector(terms.factor, b, h, tile.q.at, tile.q.inside, 0.0), flipped)
    if beyond is not None:
        score += beyond
    elif terms.table is not None:
        table = terms.table.at + of_head(h, flipped).to(tl.int64) * unpacked(terms.table.h)
        score += look_up(table, table_row(terms, tile, flipped))
    if terms.grid is not None:
        table = terms.grid.at + of_head(h, flipped).to(tl.int64) * unpacked(terms.grid.h)
        score += look_up(table, grid_row(terms, tile, flipped))
    if terms.formula is not None:
        score += formula_of(terms, tile, flipped)[0]
    if terms.stretched is not None:
        score += stretched_of(terms, tile, flipped).bias
    if terms.queries is not None:
        score += by_query(load_vector(terms.queries, b, h, tile.q.at, tile.q.inside, 0.0), flipped)
    if terms.keys is not None:
        place = place_of(terms.keys, b, of_head(h, flipped))
        place += by_key(tile.k.at.to(tl.int64) * last_stride(terms.keys.n, terms.keys.layout), flipped)
        score += tl.load(place, mask=by_key(tile.k.inside, flipped), other=0.0)
    if terms.dense is not None:
        i, j = tl.where(tile.q.inside, tile.q.at, 0), tl.where(tile.k.inside, tile.k.at, 0)  # never used outside
        score += read_pairs(place_of_pairs(terms.dense, terms.dense_layout, b, h, i, j, flipped))
    if terms.cap is None:
        return score, 1.0
    else:
        value, slope = _tanh(score / terms.cap)
        return value * terms.cap, slope


# ---------------------------------------------------------------- relative products that are looked up


@triton.jit
def with_looked_up(products, terms, tile, flipped: tl.constexpr):
    """Adds to the products of a block those of relative keys and queries that are looked up."""
    if terms.query_products is not None:
        row = row_of(terms.query_products, terms, tile, flipped)
        products += look_up_by_query(terms.query_products, tile, row, flipped)
    if terms.key_products is not None:
        row = row_of(terms.key_products, terms, tile, flipped)
        at = tl.where(tile.k.inside, tile.k.at, 0).to(tl.int64) * unpacked(terms.key_products.n)
        place = place_of(terms.key_products, tile.head.b, of_head(tile.head.h, flipped)) + by_key(at, flipped)
        products += look_up(place, row)
    return products


@triton.jit
def look_up_by_query(x, tile, row, flipped: tl.constexpr):
    """The number of each query at a row for each pair."""
    at = tl.where(tile.q.inside, tile.q.at, 0).to(tl.int64) * unpacked(x.n)
    return look_up(place_of(x, tile.head.b, of_head(tile.head.h, flipped)) + by_query(at, flipped), row)


@triton.jit
def row_of(x, terms, tile, flipped: tl.constexpr):
    """The row of a table of relative vectors for each pair."""
    return _row_at(x, terms.relative_q_position, terms.relative_k_position, tile, flipped)


# ---------------------------------------------------------------- biases by distance


@triton.jit
def table_row(terms, tile, flipped: tl.constexpr):
    """The row of the table of biases for each pair, from the distance key − query."""
    if terms.q_position is None:  # positions rise by one on both sides
        return by_key(slots(tile.k.at), flipped) - by_query(slots(tile.q.at), flipped) + unpacked(terms.table.origin)
    else:
        return _row_at(terms.table, terms.q_position, terms.k_position, tile, flipped)


@triton.jit
def far_biases(terms, h):
    """The biases of all distances up to the first end of the table, and of all from the second one on."""
    table = terms.table.at + h.to(tl.int64) * unpacked(terms.table.h)
    return tl.load(table), tl.load(table + unpacked(terms.table.last))


@triton.jit
def far_block(step, low, high, first, last):
    """The block of a step of a loop over those outside of low … high − 1, and its bias: ``first`` for those before."""
    return tl.where(step < low, step, step + (high - low)), tl.where(step < low, first, last)


@triton.jit
def near_keys(terms, i_start, first, last, rows: tl.constexpr, block: tl.constexpr):
    """Of a range of blocks of keys the part outside of which all pairs with a block of queries share a bias."""
    shift = i_start - unpacked(terms.table.origin)
    low = tl.maximum(tl.load(terms.table_ends) + shift + 1, 0) // block
    high = tl.cdiv(tl.maximum(tl.load(terms.table_ends + 1) + shift + rows - 1, 0), block)
    low = tl.minimum(tl.maximum(low, first), last)
    return low, tl.minimum(tl.maximum(high, low), last)


@triton.jit
def squares_apart(terms):
    """How many squares of ``SQUARE`` tokens a query is behind a key, and before it, from where on the bias is shared.

    The gradient of the table is divided by squares: blocks are parts of them, so that all programs agree on it.
    """
    origin = unpacked(terms.table.origin)
    behind = tl.cdiv(origin - tl.load(terms.table_ends) + SQUARE - 1, SQUARE)
    return behind, tl.cdiv(tl.load(terms.table_ends + 1) - origin + SQUARE - 1, SQUARE)


@triton.jit
def near_queries(terms, j_start, first, last, rows: tl.constexpr):
    """Of a range of blocks of queries the part outside of which squares share a bias with a block of keys."""
    behind, before = squares_apart(terms)
    square: tl.constexpr = SQUARE // rows
    low = tl.maximum(j_start // SQUARE - before + 1, 0) * square
    high = tl.maximum(j_start // SQUARE + behind, 0) * square
    low = tl.minimum(tl.maximum(low, first), last)
    return low, tl.minimum(tl.maximum(high, low), last)


@triton.jit
def are_far(terms, i_start, j_start):
    """Whether the queries of a block are so far behind its keys, or before them, that squares share a bias."""
    behind, before = squares_apart(terms)
    apart = i_start // SQUARE - j_start // SQUARE
    return apart >= behind, (apart < behind) & (-apart >= before)


@triton.jit
def grid_row(terms, tile, flipped: tl.constexpr):
    """The row of the table by axes or classes for each pair."""
    row = _row_at(terms.grid.first, terms.first_q, terms.first_k, tile, flipped)
    if terms.second_q is not None:
        row *= unpacked(terms.grid.second.last) + 1
        row += _row_at(terms.grid.second, terms.second_q, terms.second_k, tile, flipped)
    return row


@triton.jit
def _row_at(table, q_position, k_position, tile, flipped: tl.constexpr):
    """The row of a table for the distance of each pair in positions, or in numbers of an axis."""
    distance = _distance(q_position, k_position, tile, flipped)
    if distance.dtype.is_floating():
        distance = tl.floor(distance)
        distance = tl.where(distance > -FAR, tl.where(distance < FAR, distance, FAR), -FAR).to(tl.int64)
    row = distance + unpacked(table.origin)
    return tl.minimum(tl.maximum(row, 0), unpacked(table.last)).to(tl.int32)


@triton.jit
def _distance(q_position, k_position, tile, flipped: tl.constexpr):
    """The distance key − query of each pair, in the dtype of the positions."""
    b = tile.head.b
    q = load_vector(q_position, b, b, tile.q.at, tile.q.inside, 0)
    k = load_vector(k_position, b, b, tile.k.at, tile.k.inside, 0)
    return by_key(k, flipped) - by_query(q, flipped)


@triton.jit
def _distance_of_slots(i, j, start, flipped: tl.constexpr):
    """start + key slot − query slot of each pair; steps of the columns, of which a thread has many, are constant."""
    if flipped:
        step = tl.arange(0, i.shape[0])
        return (by_key(j.to(tl.float32), True) - by_query((i - step).to(tl.float32) - start, True)) - by_query(
            step.to(tl.float32), True
        )
    else:
        step = tl.arange(0, j.shape[0])
        base = by_key((j - step).to(tl.float32), False) - by_query(i.to(tl.float32) - start, False)
        return base + by_key(step.to(tl.float32), False)


@triton.jit
def formula_of(terms, tile, flipped: tl.constexpr):
    """A bias of the distance for each pair, and its derivatives by both parameters."""
    formula = terms.formula
    if terms.formula_q is None:  # positions rise by one on both sides; slots are exact in float32
        distance = _distance_of_slots(tile.q.at, tile.k.at, tl.load(terms.formula_start).to(tl.float32), flipped)
    else:
        distance = _distance(terms.formula_q, terms.formula_k, tile, flipped).to(tl.float32)
    far = tl.abs(distance)
    first = tl.load(formula.first + of_head(tile.head.h, flipped) * unpacked(formula.first_h))
    if formula.kind == SLOPE:
        return -far * first, -far, tl.zeros_like(far)
    else:
        second = tl.load(formula.second + of_head(tile.head.h, flipped) * unpacked(formula.second_h))
        return _of_two(formula.kind, distance, far, first, second)


@triton.jit
def _of_two(kind: tl.constexpr, distance, far, first, second):
    """A bias with two parameters, and its derivatives by both."""
    if kind == LINEAR:
        past = distance <= 0
        return -far * tl.where(past, first, second), tl.where(past, -far, 0.0), tl.where(past, 0.0, -far)
    elif kind == LOG:
        size = _log1p(second * far)
        return -first * size, -size, -first * far / (1 + second * far)
    else:
        log = tl.log(tl.where(far == 0, 1.0, far))
        size = tl.where(far == 0, 0.0, tl.exp(second * log))
        return -first * size, -size, -first * size * log


@triton.jit
def _sizes(terms, tile, flipped: tl.constexpr):
    """ln(1 + rate·|δ|) of each pair, and its derivative by the rate."""
    if terms.sizes is not None:  # positions rise by one on both sides
        at = by_key(slots(tile.k.at), flipped) - by_query(slots(tile.q.at), flipped) + unpacked(terms.sizes.origin)
        return look_up(terms.sizes.at, at), look_up(terms.sizes.by_rate, at)
    else:
        distance = _distance(terms.stretched_q, terms.stretched_k, tile, flipped)
        far, rate = tl.abs(distance.to(tl.float32)), tl.load(terms.stretched.rate)
        return _log1p(rate * far), far / (1 + rate * far)


@triton.jit
def stretched_of(terms, tile, flipped: tl.constexpr):
    """A bias in straight pieces for each pair.

    A block begins with the piece of its smallest t, and goes through the edges below its largest one, where the slope
    changes.
    """
    pieces = terms.stretched
    size, by_rate = _sizes(terms, tile, flipped)
    b = tile.head.b
    t = size * by_query(load_vector(terms.stretch, b, b, tile.q.at, tile.q.inside, 0.0), flipped)
    inside = by_query(tile.q.inside, flipped) & by_key(tile.k.inside, flipped) & (t == t)
    edges = tl.load(pieces.edges + tl.arange(0, terms.stretched.padded))
    first = tl.sum((edges <= tl.min(tl.where(inside, t, float("inf")))).to(tl.int32), 0)
    first = tl.minimum(first, unpacked(pieces.last))
    last = tl.sum((edges <= tl.max(tl.where(inside, t, float("-inf")))).to(tl.int32), 0)
    last = tl.minimum(last, unpacked(pieces.last))
    own = of_head(tile.head.h, flipped).to(tl.int64) * unpacked(pieces.h)
    slope = tl.load(pieces.slope + own + first) + tl.zeros_like(t)
    bias = tl.load(pieces.intercept + own + first) + slope * t
    piece = first + tl.zeros_like(t).to(tl.int32)
    for one in range(first, last):
        beyond, step = t - tl.load(pieces.edges + one), tl.load(pieces.step + own + one)
        bias += step * tl.maximum(beyond, 0.0)
        slope += tl.where(beyond >= 0, step, 0.0)
        piece += (beyond >= 0).to(tl.int32)
    return Pieces(bias, piece, t, slope * size, slope * by_rate)


# ---------------------------------------------------------------- functions


@triton.jit
def _tanh(x):
    """tanh x and its derivative, both by e⁻²ˣ: 1 − tanh² x has no digit left where tanh x is almost 1."""
    size = tl.abs(x)
    e = tl.exp2(size * (-2 * LOG2E))
    half = 1 / (1 + e)
    z = x * x
    p = z * -5.70498872745e-3 + 2.06390887954e-2
    p = p * z - 5.37397155531e-2
    p = p * z + 1.33314422036e-1
    p = p * z - 3.33332819422e-1
    y = tl.where(size < 0.625, size + size * z * p, 1 - 2 * e * half)
    return tl.where(x < 0, -y, y), 4 * e * half * half


@triton.jit
def _log1p(x):
    """ln(1 + x), for x ≥ 0, with the digits of a small x: ln(1 + x)·x/((1 + x) − 1) rounds twice alike."""
    above = 1 + x
    return tl.where(above == 1, x, tl.log(above) * (x / tl.where(above == 1, 1.0, above - 1)))
