"""The programs of the gradients of queries, keys and values, and of what there is for each of them, in Triton.

Blocks of which every pair is in sight go through a loop without masks, the others through a second one, as in
``_forward.py``.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ._blocks import (
    dot,
    excess,
    exponents,
    load_matrix,
    load_statistic,
    load_vector,
    store_matrix,
    store_statistic,
)
from ._scores import are_far, far_biases, far_block, formula_of, near_keys, near_queries, stretched_of
from ._sight import (
    key_steps,
    keys_in_sight,
    list_of,
    listed_ranges,
    masked_tile,
    open_tile,
    queries_in_sight,
    query_tiles,
)
from ._skew import add_vectors
from ._tiles import Head, Tile, tokens_at
from ._weights import Factors, load_keys, load_queries, products_of, value_products, weights_and_gradients


@triton.jit(do_not_specialize=["n"])
def query_statistics(results, d_out, d_lse, statistics, n, heads, rows: tl.constexpr, with_delta: tl.constexpr):
    """What the weights of a block of queries are computed from again, and δ = Σ d_out·out − d_lse if it is wanted."""
    tiles = tl.cdiv(n, rows)
    which = tl.program_id(0) // tiles
    i = (tl.program_id(0) % tiles) * rows + tl.arange(0, rows)
    inside = i < n
    largest = load_statistic(results.row_max, which, i, inside, n, 0.0)
    total = load_statistic(results.row_sum, which, i, inside, n, 1.0) * excess(largest)
    rate, offset = exponents(largest)
    store_statistic(statistics.rate, which, i, inside, n, rate)
    store_statistic(statistics.offset, which, i, inside, n, offset)
    store_statistic(statistics.inverse, which, i, inside, n, tl.where(total == 0, 0.0, 1 / total))
    if with_delta:
        b, h = which // heads, which % heads
        value = load_matrix(results.out, b, h, i, inside).to(tl.float32)
        delta = tl.sum(value * load_matrix(d_out, b, h, i, inside).to(tl.float32), 1)
        if d_lse is not None:
            delta -= load_statistic(d_lse, which, i, inside, n, 0.0)
        store_statistic(statistics.delta, which, i, inside, n, delta)


# ---------------------------------------------------------------- queries


class QueryBlock(NamedTuple):
    """A block of queries and the gradients of its output, combined with each block of keys."""

    queries: Factors
    up: Any


class Sums(NamedTuple):
    """The sums of each query's weights times their gradients, and of the weights."""

    of_gradients: Any
    of_weights: Any


class QuerySums(NamedTuple):
    """The sums over keys for the gradients of a block of queries; 0 for those that are not wanted.

    Attributes:
        q: Σ gradient·key.
        relative: likewise for the tokens that relative keys are multiplied with.
        factor: Σ gradient·product.
        delta: Σ weight·(gradient of the weight).
        queries: for the biases of queries.
        stretch: for the stretches.
        rate: for the rate of the stretched bias.
    """

    q: Any
    relative: Any
    factor: Any
    delta: Any
    queries: Sums
    stretch: Sums
    rate: Sums


@triton.jit
def _added(sums, gradients, weights):
    """Adds the numbers of a block [queries, keys]."""
    return Sums(sums.of_gradients + tl.sum(gradients, 1), sums.of_weights + tl.sum(weights, 1))


@triton.jit
def _sum_of_gradients(sums, delta):
    """Σ weight·(gradient of weight − δ) from its two sums; 0 for a query that sees nothing."""
    return sums.of_gradients - tl.where(sums.of_weights == 0, 0.0, delta * sums.of_weights)


@triton.jit
def _add_to_query(sums, own, x, parts, statistics, wanted, beyond, tile, block: tl.constexpr, masked: tl.constexpr):
    """Adds a block of keys to the sums of a block of queries."""
    head, q = tile.head, tile.q
    keys = load_keys(x, head, tile.k)
    v = load_matrix(x.v, head.b, head.kv, tile.k.at, tile.k.inside)
    products = products_of(own.queries, keys, parts.terms, tile, False)
    values = value_products(own.up, v, parts, tile, False)
    found = weights_and_gradients(parts, statistics, products, values, beyond, tile, masked, False)
    weight, values, slope = found.weight, found.gradient, found.slope
    k = keys.x
    if masked:
        k = tl.where(keys_in_sight(parts.sight, found.seen, tile, products.shape[0])[:, None], k, 0.0)
    delta = load_statistic(statistics.delta, head.which, q.at, q.inside, head.n, 0.0)
    gradient = weight * (values - delta[:, None]) * slope
    d_q, relative, factor, of_values = sums.q, sums.relative, sums.factor, sums.delta
    queries, stretch, rate = sums.queries, sums.stretch, sums.rate
    if wanted.q is not None:
        d_q += dot(gradient.to(k.dtype), k)
    if wanted.for_relative_keys is not None:
        relative = add_vectors(relative, gradient, parts.terms.relative_keys, tile, False, block)
    if wanted.factor is not None:  # where nothing is seen, products may be NaN
        factor += tl.sum(tl.where(gradient == 0, 0.0, gradient * products), 1)
    if wanted.delta is not None:
        of_values += tl.sum(weight * values, 1)
    if wanted.queries is not None:
        queries = _added(queries, weight * values * slope, weight * slope)
    if wanted.stretch is not None or wanted.rate is not None:
        pieces = stretched_of(parts.terms, tile, False)
        if wanted.stretch is not None:
            part = tl.where(weight == 0, 0.0, weight * slope * pieces.by_stretch)
            stretch = _added(stretch, part * values, part)
        if wanted.rate is not None:
            part = tl.where(weight == 0, 0.0, weight * slope * pieces.by_rate)
            rate = _added(rate, part * values, part)
    return QuerySums(d_q, relative, factor, of_values, queries, stretch, rate)


@triton.jit
def _no_query_sums(x, terms, rows: tl.constexpr):
    """The sums before the first block of keys."""
    zeros = tl.zeros([rows], tl.float32)
    relative = zeros
    if terms.relative_keys is not None:
        relative = tl.zeros([rows, terms.relative_keys.padded], tl.float32)
    none = Sums(zeros, zeros)
    return QuerySums(tl.zeros([rows, x.q.padded], tl.float32), relative, zeros, zeros, none, none, none)


@triton.jit
def _store_of_queries(sums, statistics, d_lse, wanted, terms, head, q):
    """Stores the gradients of a block of queries."""
    b, h, which, n, i, inside = head.b, head.h, head.which, head.n, q.at, q.inside
    if wanted.delta is None:  # δ was computed before
        delta = load_statistic(statistics.delta, which, i, inside, n, 0.0)
    else:
        delta = sums.delta
        if d_lse is not None:
            delta -= load_statistic(d_lse, which, i, inside, n, 0.0)
        store_statistic(wanted.delta, which, i, inside, n, delta)
    if wanted.factor is not None:
        store_statistic(wanted.factor, which, i, inside, n, sums.factor * terms.scale)
    if wanted.queries is not None:
        store_statistic(wanted.queries, which, i, inside, n, _sum_of_gradients(sums.queries, delta))
    if wanted.stretch is not None:
        store_statistic(wanted.stretch, which, i, inside, n, _sum_of_gradients(sums.stretch, delta))
    if wanted.rate is not None:
        of_rate = _sum_of_gradients(sums.rate, delta)
        stretch = load_vector(terms.stretch, b, b, i, inside, 0.0)
        store_statistic(wanted.rate, which, i, inside, n, tl.where(of_rate == 0, 0.0, of_rate * stretch))
    scale = tl.zeros_like(delta) + terms.scale
    if terms.factor is not None:
        scale *= load_vector(terms.factor, b, h, i, inside, 0.0)
    if wanted.q is not None:
        store_matrix(wanted.q, b, h, i, inside, sums.q * scale[:, None])
    if wanted.for_relative_keys is not None:
        store_matrix(wanted.for_relative_keys, b, h, i, inside, sums.relative * scale[:, None])


@triton.jit(do_not_specialize=["n", "m"])
def queries_gradient(
    x, parts, d_out, statistics, d_lse, wanted, n, m, heads, group, rows: tl.constexpr, block: tl.constexpr
):
    """The gradients of a block of queries, of what relative keys are multiplied with, of their factors and biases.

    Also those of their stretches, and of each query a part of that of the rate.

    Also δ as Σ weight·(gradient of weight) − d_lse, computed without rounding to the output's dtype; the gradients of
    biases, which are sums over many pairs, need it.
    """
    tiles = tl.cdiv(n, rows)
    which = tl.program_id(0) // tiles
    b, h = which // heads, which % heads
    head = Head(b, h, h // group, which, n, m)
    number = tiles - 1 - tl.program_id(0) % tiles  # under a causal mask the last queries have the most to do
    q = tokens_at(number, rows, n)
    own = QueryBlock(load_queries(x, head, q), load_matrix(d_out, b, h, q.at, q.inside))
    sums = _no_query_sums(x, parts.terms, rows)
    listed = list_of(parts.sight, b, h, number)
    open_, end, left, left_last, right, right_last = key_steps(parts.sight, listed, b, q.at, q.inside, m, block)
    low, high = open_, end
    if parts.terms.table_ends is not None and parts.sight.lists is None:
        low, high = near_keys(parts.terms, q.start, open_, end, rows, block)
        past, future = far_biases(parts.terms, h)
        for step in range(open_, end - (high - low)):
            at, beyond = far_block(step, low, high, past, future)
            tile = Tile(head, q, tokens_at(at, block, m))
            sums = _add_to_query(sums, own, x, parts, statistics, wanted, beyond, tile, block, False)
    for step in range(low, high):
        tile = Tile(head, q, tokens_at(open_tile(parts.sight, listed, step), block, m))
        sums = _add_to_query(sums, own, x, parts, statistics, wanted, None, tile, block, False)
    gap = right - left_last
    for step in range(left, right_last - gap):
        tile = Tile(head, q, tokens_at(masked_tile(parts.sight, listed, step, left_last, gap), block, m))
        sums = _add_to_query(sums, own, x, parts, statistics, wanted, None, tile, block, True)
    _store_of_queries(sums, statistics, d_lse, wanted, parts.terms, head, q)


# ---------------------------------------------------------------- keys and values


class KeyBlock(NamedTuple):
    """A block of keys and values, combined with each block of queries."""

    keys: Factors
    v: Any


class KeySums(NamedTuple):
    """The sums over queries for the gradients of a block of keys; 0 for those that are not wanted.

    Attributes:
        k: Σ gradient·query.
        relative: likewise for the tokens that relative queries are multiplied with.
        v: Σ weight·d_out.
        keys: Σ gradient.
        first: Σ gradient·(derivative of a formula by its first parameter).
        second: likewise for the second parameter.
        behind: Σ gradient of the queries far behind the keys.
        before: likewise for those far before them.
    """

    k: Any
    relative: Any
    v: Any
    keys: Any
    first: Any
    second: Any
    behind: Any
    before: Any


@triton.jit
def _add_to_key(
    sums, own, x, parts, d_out, statistics, wanted, beyond, tile,
    rows: tl.constexpr, masked: tl.constexpr, near: tl.constexpr,
):  # fmt: skip
    """Adds a block of queries to the sums of a block of keys."""
    head, i, inside = tile.head, tile.q.at, tile.q.inside
    queries = load_queries(x, head, tile.q)
    up = load_matrix(d_out, head.b, head.h, i, inside)
    products = products_of(queries, own.keys, parts.terms, tile, True)
    values = value_products(up, own.v, parts, tile, True)
    found = weights_and_gradients(parts, statistics, products, values, beyond, tile, masked, True)
    q = queries.x
    if masked:
        hit = queries_in_sight(parts.sight, found.seen, tile, products.shape[0])
        q = tl.where(hit[:, None], q, 0.0)
    d_k, relative, d_v, keys = sums.k, sums.relative, sums.v, sums.keys
    firsts, seconds, behind, before = sums.first, sums.second, sums.behind, sums.before
    if wanted.v is not None:
        d_v += dot(found.kept.to(own.v.dtype), up)
    delta = load_statistic(statistics.delta, head.which, i, inside, head.n, 0.0)
    gradient = found.weight * (found.gradient - delta[None, :]) * found.slope
    if wanted.keys is not None:
        keys += tl.sum(gradient, 1)
    if wanted.far is not None and not near:
        are_behind, are_before = are_far(parts.terms, tile.q.start, tile.k.start)
        behind += tl.where(are_behind, tl.sum(gradient, 1), 0.0)
        before += tl.where(are_before, tl.sum(gradient, 1), 0.0)
    if wanted.first is not None or wanted.second is not None:
        _, first, second = formula_of(parts.terms, tile, True)
        if wanted.first is not None:
            firsts += tl.sum(gradient * first, 1)
        if wanted.second is not None:
            seconds += tl.sum(gradient * second, 1)
    if parts.terms.factor is not None:
        gradient *= load_vector(parts.terms.factor, head.b, head.h, i, inside, 0.0)[None, :]
    if wanted.for_relative_queries is not None:
        relative = add_vectors(relative, gradient, parts.terms.relative_queries, tile, True, rows)
    if wanted.k is not None:
        d_k += dot(gradient.to(q.dtype), q)
    return KeySums(d_k, relative, d_v, keys, firsts, seconds, behind, before)


@triton.jit(do_not_specialize=["n", "m"])
def keys_gradient(x, parts, d_out, statistics, wanted, n, m, kv_heads, group, rows: tl.constexpr, block: tl.constexpr):
    """The gradients of a block of keys and values, over all heads that share them.

    Also those of what relative queries are multiplied with, of the biases of the keys, and for each key a part of those
    of a formula's parameters, and of the first and the last number of a clipped table.
    """
    tiles = tl.cdiv(m, block)
    b, kv = tl.program_id(0) // tiles // kv_heads, tl.program_id(0) // tiles % kv_heads
    number = tl.program_id(0) % tiles
    k = tokens_at(number, block, m)
    shared = Head(b, kv, kv, b, n, m)  # of all heads that share the keys
    own = KeyBlock(load_keys(x, shared, k), load_matrix(x.v, b, kv, k.at, k.inside))
    zeros = tl.zeros([block], tl.float32)
    d_key, relative, d_value = (
        tl.zeros([block, x.k.padded], tl.float32),
        zeros,
        tl.zeros([block, x.v.padded], tl.float32),
    )
    if parts.terms.relative_queries is not None:
        relative = tl.zeros([block, parts.terms.relative_queries.padded], tl.float32)
    ranges = query_tiles(parts.sight, b, k.start, k.start + block, n, m, rows)
    for member in range(group):
        h = kv * group + member
        which = b * kv_heads * group + h
        head = Head(b, h, kv, which, n, m)
        listed = list_of(parts.sight, b, h, number)
        if parts.sight.lists is not None:
            ranges = listed_ranges(listed)
        open_, end, left, left_last, right, right_last = ranges
        gap = right - left_last
        sums = KeySums(d_key, relative, d_value, zeros, zeros, zeros, zeros, zeros)
        low, high = open_, end
        if parts.terms.table_ends is not None and parts.sight.lists is None:
            low, high = near_queries(parts.terms, k.start, open_, end, rows)
            past, future = far_biases(parts.terms, h)
            for step in range(open_, end - (high - low)):
                at, beyond = far_block(step, low, high, future, past)
                tile = Tile(head, tokens_at(at, rows, n), k)
                sums = _add_to_key(sums, own, x, parts, d_out, statistics, wanted, beyond, tile, rows, False, False)
        for step in range(low, high):
            tile = Tile(head, tokens_at(open_tile(parts.sight, listed, step), rows, n), k)
            sums = _add_to_key(
                sums, own, x, parts, d_out, statistics, wanted, None, tile, rows, False, parts.sight.lists is None
            )
        for step in range(left, right_last - gap):
            tile = Tile(head, tokens_at(masked_tile(parts.sight, listed, step, left_last, gap), rows, n), k)
            sums = _add_to_key(sums, own, x, parts, d_out, statistics, wanted, None, tile, rows, True, False)
        d_key, relative, d_value = sums.k, sums.relative, sums.v
        if wanted.keys is not None:
            store_statistic(wanted.keys, which, k.at, k.inside, m, sums.keys)
        if wanted.first is not None:
            store_statistic(wanted.first, which, k.at, k.inside, m, sums.first)
        if wanted.second is not None:
            store_statistic(wanted.second, which, k.at, k.inside, m, sums.second)
        if wanted.far is not None:
            store_statistic(wanted.far, which, k.at, k.inside, m, sums.behind)
            store_statistic(wanted.far, which + tl.num_programs(0) // tiles * group, k.at, k.inside, m, sums.before)
    if wanted.k is not None:
        store_matrix(wanted.k, b, kv, k.at, k.inside, d_key * parts.terms.scale)
    if wanted.for_relative_queries is not None:
        store_matrix(wanted.for_relative_queries, b, kv, k.at, k.inside, relative * parts.terms.scale)
    if wanted.v is not None:
        store_matrix(wanted.v, b, kv, k.at, k.inside, d_value)
