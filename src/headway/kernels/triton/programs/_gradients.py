"""The programs of the gradients of queries, keys and values, and of what there is for each of them, in Triton.

Blocks of which every pair is in sight go through a loop without masks, the others through a second one, as in
``_forward.py``.
"""

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
from ._weights import (
    load_keys,
    load_queries,
    products_of,
    value_products,
    weights_and_gradients,
)


@triton.jit(do_not_specialize=["n"])
def query_statistics(
    row_max, row_sum, out, d_out, d_lse, statistics, n, heads,
    v_dim: tl.constexpr, v_pad: tl.constexpr, rows: tl.constexpr, with_delta: tl.constexpr,
):  # fmt: skip
    """What the weights of a block of queries are computed from again, and δ = Σ d_out·out − d_lse if it is wanted."""
    tiles = tl.cdiv(n, rows)
    which = tl.program_id(0) // tiles
    i = (tl.program_id(0) % tiles) * rows + tl.arange(0, rows)
    inside = i < n
    largest = load_statistic(row_max, which, i, inside, n, 0.0)
    total = load_statistic(row_sum, which, i, inside, n, 1.0) * excess(largest)
    rate, offset = exponents(largest)
    store_statistic(statistics.rate, which, i, inside, n, rate)
    store_statistic(statistics.offset, which, i, inside, n, offset)
    store_statistic(statistics.inverse, which, i, inside, n, tl.where(total == 0, 0.0, 1 / total))
    if with_delta:
        b, h = which // heads, which % heads
        value = load_matrix(out, b, h, i, inside, v_dim, v_pad).to(tl.float32)
        delta = tl.sum(value * load_matrix(d_out, b, h, i, inside, v_dim, v_pad).to(tl.float32), 1)
        if d_lse is not None:
            delta -= load_statistic(d_lse, which, i, inside, n, 0.0)
        store_statistic(statistics.delta, which, i, inside, n, delta)


@triton.jit
def _add_to_query(
    state, queries, up, x, parts, statistics, own_delta, d_q, d_for_relative_keys, d_factor, d_queries, d_stretch,
    d_rate, beyond, b, h, kv, which, i, i_inside, i_start, tile, n, m,
    head_dim: tl.constexpr, v_dim: tl.constexpr, head_pad: tl.constexpr, v_pad: tl.constexpr,
    block: tl.constexpr, masked: tl.constexpr, interpreted: tl.constexpr,
):  # fmt: skip
    for_q, for_keys, by_factor, of_values, rising, whole, of_stretch, whole_stretch, of_rate, whole_rate = state
    j = tile * block + tl.arange(0, block)
    j_inside = j < m
    keys = load_keys(x, parts.terms, b, kv, j, j_inside, head_dim, head_pad)
    v = load_matrix(x.v, b, kv, j, j_inside, v_dim, v_pad)
    products = products_of(
        queries, keys, parts.terms, b, h, i, j, i_inside, j_inside, i_start, tile * block, False, interpreted
    )
    values = value_products(up, v, parts, b, h, i, j, i_inside, j_inside, i_start, tile * block, False, interpreted)
    weight, _, values, slope, seen = weights_and_gradients(
        parts, statistics, products, values, beyond, b, h, which, i, j, i_inside, j_inside, n, m,
        masked, False, interpreted,
    )  # fmt: skip
    k, _ = keys
    if masked:
        k = tl.where(keys_in_sight(parts.sight, seen, b, j, i_start, products.shape[0], n, m)[:, None], k, 0.0)
    delta = load_statistic(statistics.delta, which, i, i_inside, n, 0.0)
    gradient = weight * (values - delta[:, None]) * slope
    if d_q is not None:
        for_q += dot(gradient.to(k.dtype), k, interpreted)
    if d_for_relative_keys is not None:
        for_keys = add_vectors(
            for_keys, gradient, parts.terms.relative_keys, h, i_start, tile * block, False, block, interpreted
        )
    if d_factor is not None:  # where nothing is seen, products may be NaN
        by_factor += tl.sum(tl.where(gradient == 0, 0.0, gradient * products), 1)
    if own_delta is not None:
        of_values += tl.sum(weight * values, 1)
    if d_queries is not None:
        rising, whole = rising + tl.sum(weight * values * slope, 1), whole + tl.sum(weight * slope, 1)
    if d_stretch is not None or d_rate is not None:
        found = stretched_of(parts.terms, b, h, i, j, i_inside, j_inside, False, interpreted)
        if d_stretch is not None:
            part = tl.where(weight == 0, 0.0, weight * slope * found[3])
            of_stretch, whole_stretch = of_stretch + tl.sum(part * values, 1), whole_stretch + tl.sum(part, 1)
        if d_rate is not None:
            part = tl.where(weight == 0, 0.0, weight * slope * found[4])
            of_rate, whole_rate = of_rate + tl.sum(part * values, 1), whole_rate + tl.sum(part, 1)
    return for_q, for_keys, by_factor, of_values, rising, whole, of_stretch, whole_stretch, of_rate, whole_rate


@triton.jit
def _sum_of_gradients(gradients, weights, delta):
    """Σ weight·(gradient of weight − δ) from its two sums; 0 for a query that sees nothing."""
    return gradients - tl.where(weights == 0, 0.0, delta * weights)


@triton.jit(do_not_specialize=["n", "m"])
def queries_gradient(
    x, parts, d_out, statistics, d_lse, own_delta, d_q, d_for_relative_keys, d_factor, d_queries, d_stretch, d_rate,
    n, m, heads, group,
    head_dim: tl.constexpr, v_dim: tl.constexpr, head_pad: tl.constexpr, v_pad: tl.constexpr,
    rows: tl.constexpr, block: tl.constexpr, interpreted: tl.constexpr,
):  # fmt: skip
    """The gradients of a block of queries, of what relative keys are multiplied with, of their factors and biases.

    Also those of their stretches, and of each query a part of that of the rate.

    Also δ as Σ weight·(gradient of weight) − d_lse, computed without rounding to the output's dtype; the gradients of
    biases, which are sums over many pairs, need it.
    """
    tiles = tl.cdiv(n, rows)
    which = tl.program_id(0) // tiles
    b, h = which // heads, which % heads
    kv = h // group
    own = tiles - 1 - tl.program_id(0) % tiles  # under a causal mask the last queries have the most to do
    i_start = own * rows
    i = i_start + tl.arange(0, rows)
    inside = i < n
    queries = load_queries(x, parts.terms, b, h, i, inside, head_dim, head_pad)
    up = load_matrix(d_out, b, h, i, inside, v_dim, v_pad)
    zeros = tl.zeros([rows], tl.float32)
    of_relative = zeros
    if parts.terms.relative_keys is not None:
        of_relative = tl.zeros([rows, parts.terms.relative_keys.padded], tl.float32)
    state = (
        tl.zeros([rows, head_pad], tl.float32), of_relative, zeros, zeros, zeros, zeros, zeros, zeros, zeros, zeros,
    )  # fmt: skip
    listed = list_of(parts.sight, b, h, own)
    open_, end, left, left_last, right, right_last = key_steps(parts.sight, listed, b, i, inside, m, block)
    low, high = open_, end
    if parts.terms.table_ends is not None and parts.sight.lists is None:
        low, high = near_keys(parts.terms, i_start, open_, end, rows, block)
        past, future = far_biases(parts.terms, h)
        for step in range(open_, end - (high - low)):
            tile, beyond = far_block(step, low, high, past, future)
            state = _add_to_query(
                state, queries, up, x, parts, statistics, own_delta, d_q, d_for_relative_keys, d_factor, d_queries,
                d_stretch, d_rate, beyond, b, h, kv, which, i, inside, i_start, tile, n, m,
                head_dim, v_dim, head_pad, v_pad, block, False, interpreted,
            )  # fmt: skip
    for step in range(low, high):
        tile = open_tile(parts.sight, listed, step)
        state = _add_to_query(
            state, queries, up, x, parts, statistics, own_delta, d_q, d_for_relative_keys, d_factor, d_queries,
            d_stretch, d_rate, None, b, h, kv, which, i, inside, i_start, tile, n, m,
            head_dim, v_dim, head_pad, v_pad, block, False, interpreted,
        )  # fmt: skip
    gap = right - left_last
    for step in range(left, right_last - gap):
        tile = masked_tile(parts.sight, listed, step, left_last, gap)
        state = _add_to_query(
            state, queries, up, x, parts, statistics, own_delta, d_q, d_for_relative_keys, d_factor, d_queries,
            d_stretch, d_rate, None, b, h, kv, which, i, inside, i_start, tile, n, m,
            head_dim, v_dim, head_pad, v_pad, block, True, interpreted,
        )  # fmt: skip
    gradient, of_relative, by_factor, delta, rising, whole, of_stretch, whole_stretch, of_rate, whole_rate = state
    if own_delta is None:  # δ was computed before
        delta = load_statistic(statistics.delta, which, i, inside, n, 0.0)
    else:
        if d_lse is not None:
            delta -= load_statistic(d_lse, which, i, inside, n, 0.0)
        store_statistic(own_delta, which, i, inside, n, delta)
    if d_factor is not None:
        store_statistic(d_factor, which, i, inside, n, by_factor * parts.terms.scale)
    if d_queries is not None:
        store_statistic(d_queries, which, i, inside, n, _sum_of_gradients(rising, whole, delta))
    if d_stretch is not None:
        store_statistic(d_stretch, which, i, inside, n, _sum_of_gradients(of_stretch, whole_stretch, delta))
    if d_rate is not None:
        of_rate = _sum_of_gradients(of_rate, whole_rate, delta)
        stretch = load_vector(parts.terms.stretch, b, b, i, inside, 0.0)
        store_statistic(d_rate, which, i, inside, n, tl.where(of_rate == 0, 0.0, of_rate * stretch))
    scale = zeros + parts.terms.scale
    if parts.terms.factor is not None:
        scale *= load_vector(parts.terms.factor, b, h, i, inside, 0.0)
    if d_q is not None:
        store_matrix(d_q, b, h, i, inside, gradient * scale[:, None], head_dim, head_pad)
    if d_for_relative_keys is not None:
        store_matrix(
            d_for_relative_keys, b, h, i, inside, of_relative * scale[:, None],
            parts.terms.relative_keys.width, parts.terms.relative_keys.padded,
        )  # fmt: skip


@triton.jit
def _add_to_key(
    state, keys, v, x, parts, d_out, statistics, d_k, d_for_relative_queries, d_v, d_keys, d_first, d_second, d_far,
    beyond, b, h, which, j, j_inside, j_start, tile, n, m,
    head_dim: tl.constexpr, v_dim: tl.constexpr, head_pad: tl.constexpr, v_pad: tl.constexpr,
    rows: tl.constexpr, masked: tl.constexpr, near: tl.constexpr, interpreted: tl.constexpr,
):  # fmt: skip
    for_k, for_queries, for_v, sums, firsts, seconds, behind, before = state
    i = tile * rows + tl.arange(0, rows)
    i_inside = i < n
    queries = load_queries(x, parts.terms, b, h, i, i_inside, head_dim, head_pad)
    up = load_matrix(d_out, b, h, i, i_inside, v_dim, v_pad)
    products = products_of(
        queries, keys, parts.terms, b, h, i, j, i_inside, j_inside, tile * rows, j_start, True, interpreted
    )
    values = value_products(up, v, parts, b, h, i, j, i_inside, j_inside, tile * rows, j_start, True, interpreted)
    weight, kept, values, slope, seen = weights_and_gradients(
        parts, statistics, products, values, beyond, b, h, which, i, j, i_inside, j_inside, n, m,
        masked, True, interpreted,
    )  # fmt: skip
    q, _ = queries
    if masked:
        hit = queries_in_sight(parts.sight, seen, b, i, i_inside, j_start, products.shape[0], m)
        q = tl.where(hit[:, None], q, 0.0)
    if d_v is not None:
        for_v += dot(kept.to(v.dtype), up, interpreted)
    gradient = weight * (values - load_statistic(statistics.delta, which, i, i_inside, n, 0.0)[None, :]) * slope
    if d_keys is not None:
        sums += tl.sum(gradient, 1)
    if d_far is not None and not near:
        are_behind, are_before = are_far(parts.terms, tile * rows, j_start)
        behind += tl.where(are_behind, tl.sum(gradient, 1), 0.0)
        before += tl.where(are_before, tl.sum(gradient, 1), 0.0)
    if d_first is not None or d_second is not None:
        _, first, second = formula_of(parts.terms, b, h, i, j, i_inside, j_inside, True)
        if d_first is not None:
            firsts += tl.sum(gradient * first, 1)
        if d_second is not None:
            seconds += tl.sum(gradient * second, 1)
    if parts.terms.factor is not None:
        gradient *= load_vector(parts.terms.factor, b, h, i, i_inside, 0.0)[None, :]
    if d_for_relative_queries is not None:
        for_queries = add_vectors(
            for_queries, gradient, parts.terms.relative_queries, h, tile * rows, j_start, True, rows, interpreted
        )
    if d_k is not None:
        for_k += dot(gradient.to(q.dtype), q, interpreted)
    return for_k, for_queries, for_v, sums, firsts, seconds, behind, before


@triton.jit(do_not_specialize=["n", "m"])
def keys_gradient(
    x, parts, d_out, statistics, d_k, d_for_relative_queries, d_v, d_keys, d_first, d_second, d_far,
    n, m, kv_heads, group,
    head_dim: tl.constexpr, v_dim: tl.constexpr, head_pad: tl.constexpr, v_pad: tl.constexpr,
    rows: tl.constexpr, block: tl.constexpr, interpreted: tl.constexpr,
):  # fmt: skip
    """The gradients of a block of keys and values, over all heads that share them.

    Also those of what relative queries are multiplied with, of the biases of the keys, and for each key a part of those
    of a formula's parameters, and of the first and the last number of a clipped table: d_far is [2, batch·heads, m].
    """
    tiles = tl.cdiv(m, block)
    b, kv = tl.program_id(0) // tiles // kv_heads, tl.program_id(0) // tiles % kv_heads
    start = (tl.program_id(0) % tiles) * block
    j = start + tl.arange(0, block)
    inside = j < m
    keys = load_keys(x, parts.terms, b, kv, j, inside, head_dim, head_pad)
    v = load_matrix(x.v, b, kv, j, inside, v_dim, v_pad)
    zeros = tl.zeros([block], tl.float32)
    d_key, of_relative, d_value = tl.zeros([block, head_pad], tl.float32), zeros, tl.zeros([block, v_pad], tl.float32)
    if parts.terms.relative_queries is not None:
        of_relative = tl.zeros([block, parts.terms.relative_queries.padded], tl.float32)
    ranges = query_tiles(parts.sight, b, start, start + block, n, m, rows)
    for member in range(group):
        h = kv * group + member
        which = b * kv_heads * group + h
        listed = list_of(parts.sight, b, h, tl.program_id(0) % tiles)
        if parts.sight.lists is not None:
            ranges = listed_ranges(listed)
        open_, end, left, left_last, right, right_last = ranges
        gap = right - left_last
        state = d_key, of_relative, d_value, zeros, zeros, zeros, zeros, zeros
        low, high = open_, end
        if parts.terms.table_ends is not None and parts.sight.lists is None:
            low, high = near_queries(parts.terms, start, open_, end, rows)
            past, future = far_biases(parts.terms, h)
            for step in range(open_, end - (high - low)):
                tile, beyond = far_block(step, low, high, future, past)
                state = _add_to_key(
                    state, keys, v, x, parts, d_out, statistics, d_k, d_for_relative_queries, d_v, d_keys, d_first,
                    d_second, d_far, beyond, b, h, which, j, inside, start, tile, n, m,
                    head_dim, v_dim, head_pad, v_pad, rows, False, False, interpreted,
                )  # fmt: skip
        for step in range(low, high):
            tile = open_tile(parts.sight, listed, step)
            state = _add_to_key(
                state, keys, v, x, parts, d_out, statistics, d_k, d_for_relative_queries, d_v, d_keys, d_first,
                d_second, d_far, None, b, h, which, j, inside, start, tile, n, m,
                head_dim, v_dim, head_pad, v_pad, rows, False, parts.sight.lists is None, interpreted,
            )  # fmt: skip
        for step in range(left, right_last - gap):
            tile = masked_tile(parts.sight, listed, step, left_last, gap)
            state = _add_to_key(
                state, keys, v, x, parts, d_out, statistics, d_k, d_for_relative_queries, d_v, d_keys, d_first,
                d_second, d_far, None, b, h, which, j, inside, start, tile, n, m,
                head_dim, v_dim, head_pad, v_pad, rows, True, False, interpreted,
            )  # fmt: skip
        d_key, of_relative, d_value, sums, firsts, seconds, behind, before = state
        if d_keys is not None:
            store_statistic(d_keys, which, j, inside, m, sums)
        if d_first is not None:
            store_statistic(d_first, which, j, inside, m, firsts)
        if d_second is not None:
            store_statistic(d_second, which, j, inside, m, seconds)
        if d_far is not None:
            store_statistic(d_far, which, j, inside, m, behind)
            store_statistic(d_far, which + tl.num_programs(0) // tiles * group, j, inside, m, before)
    if d_k is not None:
        store_matrix(d_k, b, kv, j, inside, d_key * parts.terms.scale, head_dim, head_pad)
    if d_for_relative_queries is not None:
        store_matrix(
            d_for_relative_queries, b, kv, j, inside, of_relative * parts.terms.scale,
            parts.terms.relative_queries.width, parts.terms.relative_queries.padded,
        )  # fmt: skip
    if d_v is not None:
        store_matrix(d_v, b, kv, j, inside, d_value, v_dim, v_pad)
