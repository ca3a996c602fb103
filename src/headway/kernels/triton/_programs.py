"""The programs that run on a GPU, in Triton.

A program computes a block of queries against the keys that they see (``forward``, ``queries_gradient``), or a block of
keys against the queries that see them (``keys_gradient``). Blocks of which every pair is in sight go through a loop
without masks, the others through a second loop; an index of that loop stands for blocks on either side. Few queries
against many keys are computed in splits of the keys, which are merged (``split_forward``). No program writes what
another one writes, so that results are the same bits in every run.
"""

import triton
import triton.language as tl

from ._blocks import (
    LOG2E,
    SLOT,
    by_query,
    dot,
    dropout_factors,
    formula_of,
    in_sight,
    key_tiles,
    load_matrix,
    load_statistic,
    load_vector,
    place_of_pairs,
    query_tiles,
    scores_of,
    seen_tiles,
    store_matrix,
    store_statistic,
    table_row,
    unpacked,
)
from ._reducers import add_block, no_sums, scaled, store_sums

# ---------------------------------------------------------------- forward


@triton.jit
def _add_keys(
    state, q, x, parts, wanted, b, h, kv, i, i_inside, tile, n, m,
    head_dim: tl.constexpr, v_dim: tl.constexpr, head_pad: tl.constexpr, v_pad: tl.constexpr,
    block: tl.constexpr, width: tl.constexpr, masked: tl.constexpr, interpreted: tl.constexpr,
):  # fmt: skip
    """Adds a block of keys to the sums of the queries i."""
    total, largest, sums, found = state
    j = tile * block + tl.arange(0, block)
    j_inside = j < m
    k = load_matrix(x.k, b, kv, j, j_inside, head_dim, head_pad)
    if x.v is not None:
        v = load_matrix(x.v, b, kv, j, j_inside, v_dim, v_pad)
    score, _ = scores_of(
        dot(q, tl.trans(k), interpreted), parts.terms, b, h, i, j, i_inside, j_inside, False, interpreted
    )
    if masked:
        seen = in_sight(parts.sight, b, h, i, j, i_inside, m, False)
        score = tl.where(seen, score, float("-inf"))
        if x.v is not None:  # a key that no query here sees may hold NaN
            v = tl.where((tl.max(seen.to(tl.int32), 0) != 0)[:, None], v, 0.0)
    above = tl.maximum(largest, tl.max(score, 1))
    origin = tl.where(above == float("-inf"), 0.0, above)
    weight = tl.exp2((score - origin[:, None]) * LOG2E)
    shrink = tl.exp2((largest - origin) * LOG2E)
    if width > 0:
        found = scaled(found, sums, largest, origin, shrink)
        found = add_block(found, wanted, score, weight, origin, b, i, j, i_inside, j_inside, n, m, width)
    sums = sums * shrink + tl.sum(weight, 1)
    if x.v is not None:
        if parts.drop is not None:
            weight *= dropout_factors(parts.drop, b, h, i, j, i_inside, j_inside, False)
        total = total * shrink[:, None] + dot(weight.to(v.dtype), v, interpreted)
    return total, above, sums, found


@triton.jit(do_not_specialize=["n", "m"])
def forward(
    x, parts, wanted, out, row_max, row_sum, n, m, heads, group,
    head_dim: tl.constexpr, v_dim: tl.constexpr, head_pad: tl.constexpr, v_pad: tl.constexpr,
    rows: tl.constexpr, block: tl.constexpr, width: tl.constexpr, interpreted: tl.constexpr,
):  # fmt: skip
    """The output and the statistics of a block of queries, and what is wanted of their weights."""
    tiles = tl.cdiv(n, rows)
    which = tl.program_id(0) // tiles
    b, h = which // heads, which % heads
    kv = h // group
    i = (tl.program_id(0) % tiles) * rows + tl.arange(0, rows)
    inside = i < n
    q = load_matrix(x.q, b, h, i, inside, head_dim, head_pad)
    state = (
        tl.zeros([rows, v_pad], tl.float32),
        tl.full([rows], float("-inf"), tl.float32),
        tl.zeros([rows], tl.float32),
        no_sums(wanted, rows, width),
    )
    open_, end, left, left_last, right, right_last = key_tiles(parts.sight, b, i, inside, m, block)
    for tile in range(open_, end):
        state = _add_keys(
            state, q, x, parts, wanted, b, h, kv, i, inside, tile, n, m,
            head_dim, v_dim, head_pad, v_pad, block, width, False, interpreted,
        )  # fmt: skip
    gap = right - left_last
    for step in range(left, right_last - gap):
        tile = tl.where(step < left_last, step, step + gap)
        state = _add_keys(
            state, q, x, parts, wanted, b, h, kv, i, inside, tile, n, m,
            head_dim, v_dim, head_pad, v_pad, block, width, True, interpreted,
        )  # fmt: skip
    _finish(state, wanted, parts.sink, out, row_max, row_sum, b, h, which, i, inside, n, v_dim, v_pad, width)


@triton.jit
def _finish(
    state, wanted, sink, out, row_max, row_sum, b, h, which, i, inside, n,
    v_dim: tl.constexpr, v_pad: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """Adds the sink, and stores the output, the statistics and what is wanted of the queries i."""
    total, largest, sums, found = state
    # a query that sees nothing, or scores of −∞ alone, gives zeros; of NaN the maximum is −∞ too, but no sum
    blind = (largest == float("-inf")) & (sums == 0)
    if sink is not None:
        logit = load_vector(sink, b, h, i, inside, 0.0).to(tl.float32)
        above = tl.maximum(largest, logit, propagate_nan=tl.PropagateNan.ALL)
        origin = tl.where(above == float("-inf"), 0.0, above)
        shrink = tl.exp2((largest - origin) * LOG2E)
        if width > 0:
            found = scaled(found, sums, largest, origin, shrink)
        of_keys = sums * shrink
        sums = of_keys + tl.exp2((logit - origin) * LOG2E)
        total *= shrink[:, None]
    else:
        above, of_keys = largest, sums
    if out is not None:
        share = tl.where(blind[:, None], 0.0, total / tl.where(sums == 0, 1.0, sums)[:, None])
        store_matrix(out, b, h, i, inside, share, v_dim, v_pad)
    if width > 0:
        store_sums(found, wanted, of_keys, sums, which, i, inside, n, width)
    store_statistic(row_max, which, i, inside, n, above)
    store_statistic(row_sum, which, i, inside, n, sums)


# ---------------------------------------------------------------- forward of few queries


@triton.jit(do_not_specialize=["n", "m", "heads", "group", "splits"])
def split_forward(
    x, parts, totals, largests, sums_of, n, m, heads, group, splits,
    head_dim: tl.constexpr, v_dim: tl.constexpr, head_pad: tl.constexpr, v_pad: tl.constexpr,
    rows: tl.constexpr, block: tl.constexpr, interpreted: tl.constexpr,
):  # fmt: skip
    """The sums of all queries of the heads that share keys, over a split of the keys that any of them sees.

    Row r of the block is query r % n of the group's head r // n, so that keys and values are loaded once for all.
    totals: [splits, batch, heads, n, v_dim]; largests, sums_of: [splits, batch, heads, n], all float32.
    """
    kv_heads = heads // group
    split, which = tl.program_id(0) % splits, tl.program_id(0) // splits
    b, kv = which // kv_heads, which % kv_heads
    r = tl.arange(0, rows)
    h, i, inside = kv * group + r // n, r % n, r < n * group
    q = load_matrix(x.q, b, h, i, inside, head_dim, head_pad)
    state = (
        tl.zeros([rows, v_pad], tl.float32),
        tl.full([rows], float("-inf"), tl.float32),
        tl.zeros([rows], tl.float32),
        no_sums(None, rows, 0),
    )
    left, left_last, right, right_last = seen_tiles(parts.sight, b, i, inside, m, block)
    gap = right - left_last
    share = tl.cdiv(right_last - gap - left, splits)
    start = left + split * share
    for step in range(start, tl.minimum(start + share, right_last - gap)):
        tile = tl.where(step < left_last, step, step + gap)
        state = _add_keys(
            state, q, x, parts, None, b, h, kv, i, inside, tile, n, m,
            head_dim, v_dim, head_pad, v_pad, block, 0, True, interpreted,
        )  # fmt: skip
    total, largest, sums, _ = state
    groups = tl.num_programs(0) // splits
    row = ((split.to(tl.int64) * groups + which) * group + r // n) * n + i
    column = tl.arange(0, v_pad)
    tl.store(totals + row[:, None] * v_dim + column[None, :], total, mask=inside[:, None] & (column < v_dim)[None, :])
    tl.store(largests + row, largest, mask=inside)
    tl.store(sums_of + row, sums, mask=inside)


@triton.jit(do_not_specialize=["n", "heads", "splits"])
def merge_splits(
    totals, largests, sums_of, sink, out, row_max, row_sum, n, heads, splits,
    v_dim: tl.constexpr, v_pad: tl.constexpr, chunk: tl.constexpr,
):  # fmt: skip
    """The output and the statistics of a query from those of its splits, in their order."""
    which, count = tl.program_id(0) // n, tl.num_programs(0)
    b, h, i = which // heads, which % heads, tl.program_id(0) % n + tl.zeros([1], tl.int32)
    column = tl.arange(0, v_pad)
    total, sums = tl.zeros([1, v_pad], tl.float32), tl.zeros([1], tl.float32)
    largest = tl.full([1], float("-inf"), tl.float32)
    for first in range(0, splits, chunk):
        split = first + tl.arange(0, chunk)
        inside = split < splits
        row = split.to(tl.int64) * count + tl.program_id(0)
        part = tl.load(largests + row, mask=inside, other=float("-inf"))
        above = tl.maximum(largest, tl.max(part, 0))
        origin = tl.where(above == float("-inf"), 0.0, above)
        shrink, factor = tl.exp2((largest - origin) * LOG2E), tl.exp2((part - origin) * LOG2E)
        sums = sums * shrink + tl.sum(tl.load(sums_of + row, mask=inside, other=0.0) * factor, 0)
        place = totals + row[:, None] * v_dim + column[None, :]
        parts = tl.load(place, mask=inside[:, None] & (column < v_dim)[None, :], other=0.0)
        total = total * shrink[:, None] + tl.sum(parts * factor[:, None], 0)[None, :]
        largest = above
    state = total, largest, sums, no_sums(None, 1, 0)
    _finish(state, None, sink, out, row_max, row_sum, b, h, which, i, i < n, n, v_dim, v_pad, 0)


# ---------------------------------------------------------------- reductions over queries


@triton.jit
def _counting(weight, counted, b, i, i_inside, flipped: tl.constexpr):
    """The weights of the queries that count; 0 for the others."""
    if counted is not None:
        i_inside = i_inside & (load_vector(counted, b, b, i, i_inside, 0) != 0)
    return tl.where(by_query(i_inside, flipped), weight, 0.0)


@triton.jit(do_not_specialize=["n", "m"])
def column_sums(
    x, parts, rows_of, counted, sums, n, m, heads, group,
    head_dim: tl.constexpr, head_pad: tl.constexpr, rows: tl.constexpr, block: tl.constexpr, interpreted: tl.constexpr,
):  # fmt: skip
    """The sums of the weights of a block of keys over the queries that count, in float64."""
    tiles = tl.cdiv(m, block)
    which, start = tl.program_id(0) // tiles, (tl.program_id(0) % tiles) * block
    b, h = which // heads, which % heads
    j = start + tl.arange(0, block)
    j_inside = j < m
    k = load_matrix(x.k, b, h // group, j, j_inside, head_dim, head_pad)
    total = tl.zeros([block], tl.float64)
    _, _, first, _, _, last = query_tiles(parts.sight, b, start, start + block, n, m, rows)
    for tile in range(first, last):
        i = tile * rows + tl.arange(0, rows)
        i_inside = i < n
        q = load_matrix(x.q, b, h, i, i_inside, head_dim, head_pad)
        weight = _weights(
            parts, rows_of, dot(k, tl.trans(q), interpreted), b, h, which, i, j, i_inside, j_inside, n, m,
            True, True, interpreted,
        )[0]  # fmt: skip
        total += tl.sum(_counting(weight, counted, b, i, i_inside, True), 1).to(tl.float64)
    store_statistic(sums, which, j, j_inside, m, total.to(tl.float32))


@triton.jit(do_not_specialize=["n", "m", "down", "across"])
def pooled_map(
    x, parts, rows_of, counted, mass, largest, n, m, heads, group, down, across,
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
        i = i_start + i_tile * rows + tl.arange(0, rows)
        i_inside = i < i_stop
        q = load_matrix(x.q, b, h, i, i_inside, head_dim, head_pad)
        left, _, _, last = seen_tiles(parts.sight, b, i, i_inside, m, block)
        for j_tile in range(tl.maximum(left, j_start // block), tl.minimum(last, tl.cdiv(j_stop, block))):
            j = j_tile * block + tl.arange(0, block)
            j_inside = (j >= j_start) & (j < j_stop)
            k = load_matrix(x.k, b, h // group, j, j_inside, head_dim, head_pad)
            weight = _weights(
                parts, rows_of, dot(q, tl.trans(k), interpreted), b, h, which, i, j, i_inside, j_inside, n, m,
                True, False, interpreted,
            )[0]  # fmt: skip
            weight = tl.where(j_inside[None, :], _counting(weight, counted, b, i, i_inside, False), 0.0)
            total += tl.sum(weight, 1).to(tl.float64)
            most = tl.maximum(most, tl.max(weight, 1))
    place = tl.program_id(0).to(tl.int64)
    tl.store(mass + place, tl.sum(total, 0).to(tl.float32))
    tl.store(largest + place, tl.max(most, 0))


# ---------------------------------------------------------------- gradients


@triton.jit(do_not_specialize=["n"])
def deltas(out, d_out, d_lse, delta, n, heads, v_dim: tl.constexpr, v_pad: tl.constexpr, rows: tl.constexpr):
    """δ = Σ d_out·out − d_lse of a block of queries."""
    tiles = tl.cdiv(n, rows)
    which = tl.program_id(0) // tiles
    b, h = which // heads, which % heads
    i = (tl.program_id(0) % tiles) * rows + tl.arange(0, rows)
    inside = i < n
    value = load_matrix(out, b, h, i, inside, v_dim, v_pad).to(tl.float32)
    gradient = load_matrix(d_out, b, h, i, inside, v_dim, v_pad).to(tl.float32)
    found = tl.sum(value * gradient, 1)
    if d_lse is not None:
        found -= load_statistic(d_lse, which, i, inside, n, 0.0)
    store_statistic(delta, which, i, inside, n, found)


@triton.jit
def _weights(
    parts, rows_of, products, b, h, which, i, j, i_inside, j_inside, n, m,
    masked: tl.constexpr, flipped: tl.constexpr, interpreted: tl.constexpr,
):  # fmt: skip
    """The weights of a block from the products ⟨q, k⟩, the cap's slope, what has no weight, and what is in sight."""
    row_max, row_sum, _ = rows_of
    score, slope = scores_of(products, parts.terms, b, h, i, j, i_inside, j_inside, flipped, interpreted)
    largest = by_query(load_statistic(row_max, which, i, i_inside, n, 0.0), flipped)
    total = by_query(load_statistic(row_sum, which, i, i_inside, n, 1.0), flipped)
    weight = tl.exp2((score - largest) * LOG2E) / total
    unseen = score == float("-inf")
    seen = 0
    if masked:
        seen = in_sight(parts.sight, b, h, i, j, i_inside, m, flipped)
        unseen |= seen == 0
    return tl.where(unseen, 0.0, weight), slope, unseen, seen


@triton.jit
def _weights_and_gradients(
    parts, rows_of, products, values, b, h, which, i, j, i_inside, j_inside, n, m,
    masked: tl.constexpr, flipped: tl.constexpr, interpreted: tl.constexpr,
):  # fmt: skip
    """Of a block the weights before and after dropout, their gradients, the cap's slope, and what is in sight.

    products are ⟨q, k⟩, and values ⟨d_out, v⟩. The gradient of a score is weight·(gradient of weight − δ)·slope.
    """
    weight, slope, unseen, seen = _weights(
        parts, rows_of, products, b, h, which, i, j, i_inside, j_inside, n, m, masked, flipped, interpreted
    )
    # a key of weight 0 may have a value that is NaN
    values = tl.where(unseen, 0.0, values)
    if parts.drop is None:
        return weight, weight, values, slope, seen
    else:
        factor = dropout_factors(parts.drop, b, h, i, j, i_inside, j_inside, flipped)
        return weight, weight * factor, values * factor, slope, seen


@triton.jit
def _add_to_query(
    state, q, up, x, parts, rows_of, b, h, kv, which, i, i_inside, tile, n, m,
    head_dim: tl.constexpr, v_dim: tl.constexpr, head_pad: tl.constexpr, v_pad: tl.constexpr,
    block: tl.constexpr, masked: tl.constexpr, interpreted: tl.constexpr,
):  # fmt: skip
    d_q, of_values, rising, whole = state
    j = tile * block + tl.arange(0, block)
    j_inside = j < m
    k = load_matrix(x.k, b, kv, j, j_inside, head_dim, head_pad)
    v = load_matrix(x.v, b, kv, j, j_inside, v_dim, v_pad)
    products, values = dot(q, tl.trans(k), interpreted), dot(up, tl.trans(v), interpreted)
    weight, _, values, slope, seen = _weights_and_gradients(
        parts, rows_of, products, values, b, h, which, i, j, i_inside, j_inside, n, m, masked, False, interpreted
    )
    if masked:
        k = tl.where((tl.max(seen.to(tl.int32), 0) != 0)[:, None], k, 0.0)
    delta = load_statistic(rows_of[2], which, i, i_inside, n, 0.0)
    gradient = weight * (values - delta[:, None]) * slope
    d_q += dot(gradient.to(k.dtype), k, interpreted)
    product = weight * values
    return d_q, of_values + tl.sum(product, 1), rising + tl.sum(product * slope, 1), whole + tl.sum(weight * slope, 1)


@triton.jit(do_not_specialize=["n", "m"])
def queries_gradient(
    x, parts, d_out, rows_of, d_lse, own_delta, d_q, d_factor, d_queries, n, m, heads, group,
    head_dim: tl.constexpr, v_dim: tl.constexpr, head_pad: tl.constexpr, v_pad: tl.constexpr,
    rows: tl.constexpr, block: tl.constexpr, interpreted: tl.constexpr,
):  # fmt: skip
    """The gradients of a block of queries, of their factors and of their biases.

    Also δ as Σ weight·(gradient of weight) − d_lse, of which nothing was rounded to the output's dtype: with it the
    gradients of scores add up to what they should, which gradients of biases need, as sums of many.
    """
    tiles = tl.cdiv(n, rows)
    which = tl.program_id(0) // tiles
    b, h = which // heads, which % heads
    kv = h // group
    i = (tl.program_id(0) % tiles) * rows + tl.arange(0, rows)
    inside = i < n
    q = load_matrix(x.q, b, h, i, inside, head_dim, head_pad)
    up = load_matrix(d_out, b, h, i, inside, v_dim, v_pad)
    zeros = tl.zeros([rows], tl.float32)
    state = tl.zeros([rows, head_pad], tl.float32), zeros, zeros, zeros
    open_, end, left, left_last, right, right_last = key_tiles(parts.sight, b, i, inside, m, block)
    for tile in range(open_, end):
        state = _add_to_query(
            state, q, up, x, parts, rows_of, b, h, kv, which, i, inside, tile, n, m,
            head_dim, v_dim, head_pad, v_pad, block, False, interpreted,
        )  # fmt: skip
    gap = right - left_last
    for step in range(left, right_last - gap):
        tile = tl.where(step < left_last, step, step + gap)
        state = _add_to_query(
            state, q, up, x, parts, rows_of, b, h, kv, which, i, inside, tile, n, m,
            head_dim, v_dim, head_pad, v_pad, block, True, interpreted,
        )  # fmt: skip
    gradient, delta, rising, whole = state
    if d_lse is not None:
        delta -= load_statistic(d_lse, which, i, inside, n, 0.0)
    if own_delta is not None:
        store_statistic(own_delta, which, i, inside, n, delta)
    gradient *= parts.terms.scale
    if d_factor is not None:
        product = tl.where(gradient == 0, 0.0, gradient * q.to(tl.float32))  # a query that sees nothing may be NaN
        store_statistic(d_factor, which, i, inside, n, tl.sum(product, 1))
    if parts.terms.factor is not None:
        gradient *= load_vector(parts.terms.factor, b, h, i, inside, 0.0)[:, None]
    if d_q is not None:
        store_matrix(d_q, b, h, i, inside, gradient, head_dim, head_pad)
    if d_queries is not None:
        store_statistic(d_queries, which, i, inside, n, rising - tl.where(whole == 0, 0.0, delta * whole))


@triton.jit
def _add_to_key(
    state, k, v, x, parts, d_out, rows_of, b, h, which, j, j_inside, tile, n, m,
    head_dim: tl.constexpr, v_dim: tl.constexpr, head_pad: tl.constexpr, v_pad: tl.constexpr,
    rows: tl.constexpr, masked: tl.constexpr, interpreted: tl.constexpr,
):  # fmt: skip
    d_k, d_v, sums, firsts, seconds = state
    i = tile * rows + tl.arange(0, rows)
    i_inside = i < n
    q = load_matrix(x.q, b, h, i, i_inside, head_dim, head_pad)
    up = load_matrix(d_out, b, h, i, i_inside, v_dim, v_pad)
    products, values = dot(k, tl.trans(q), interpreted), dot(v, tl.trans(up), interpreted)
    weight, kept, values, slope, seen = _weights_and_gradients(
        parts, rows_of, products, values, b, h, which, i, j, i_inside, j_inside, n, m, masked, True, interpreted
    )
    if masked:
        q = tl.where((tl.max(seen.to(tl.int32), 0) != 0)[:, None], q, 0.0)
    d_v += dot(kept.to(v.dtype), up, interpreted)
    gradient = weight * (values - load_statistic(rows_of[2], which, i, i_inside, n, 0.0)[None, :]) * slope
    sums += tl.sum(gradient, 1)
    if parts.terms.formula is not None:
        _, first, second = formula_of(parts.terms, b, h, i, j, i_inside, j_inside, True)
        firsts += tl.sum(gradient * first, 1)
        seconds += tl.sum(gradient * second, 1)
    if parts.terms.factor is not None:
        gradient *= load_vector(parts.terms.factor, b, h, i, i_inside, 0.0)[None, :]
    return d_k + dot(gradient.to(q.dtype), q, interpreted), d_v, sums, firsts, seconds


@triton.jit(do_not_specialize=["n", "m"])
def keys_gradient(
    x, parts, d_out, rows_of, d_k, d_v, d_keys, d_first, d_second, n, m, kv_heads, group,
    head_dim: tl.constexpr, v_dim: tl.constexpr, head_pad: tl.constexpr, v_pad: tl.constexpr,
    rows: tl.constexpr, block: tl.constexpr, interpreted: tl.constexpr,
):  # fmt: skip
    """The gradients of a block of keys and values, over all heads that share them.

    Also those of the biases of the keys, and for each key a part of those of a formula's parameters.
    """
    tiles = tl.cdiv(m, block)
    b, kv = tl.program_id(0) // tiles // kv_heads, tl.program_id(0) // tiles % kv_heads
    start = (tl.program_id(0) % tiles) * block
    j = start + tl.arange(0, block)
    inside = j < m
    k = load_matrix(x.k, b, kv, j, inside, head_dim, head_pad)
    v = load_matrix(x.v, b, kv, j, inside, v_dim, v_pad)
    d_key, d_value = tl.zeros([block, head_pad], tl.float32), tl.zeros([block, v_pad], tl.float32)
    open_, end, left, left_last, right, right_last = query_tiles(parts.sight, b, start, start + block, n, m, rows)
    gap = right - left_last
    for member in range(group):
        h = kv * group + member
        which = b * kv_heads * group + h
        zeros = tl.zeros([block], tl.float32)
        state = d_key, d_value, zeros, zeros, zeros
        for tile in range(open_, end):
            state = _add_to_key(
                state, k, v, x, parts, d_out, rows_of, b, h, which, j, inside, tile, n, m,
                head_dim, v_dim, head_pad, v_pad, rows, False, interpreted,
            )  # fmt: skip
        for step in range(left, right_last - gap):
            tile = tl.where(step < left_last, step, step + gap)
            state = _add_to_key(
                state, k, v, x, parts, d_out, rows_of, b, h, which, j, inside, tile, n, m,
                head_dim, v_dim, head_pad, v_pad, rows, True, interpreted,
            )  # fmt: skip
        d_key, d_value, sums, firsts, seconds = state
        if d_keys is not None:
            store_statistic(d_keys, which, j, inside, m, sums)
        if d_first is not None:
            store_statistic(d_first, which, j, inside, m, firsts)
        if d_second is not None:
            store_statistic(d_second, which, j, inside, m, seconds)
    if d_k is not None:
        store_matrix(d_k, b, kv, j, inside, d_key * parts.terms.scale, head_dim, head_pad)
    if d_v is not None:
        store_matrix(d_v, b, kv, j, inside, d_value, v_dim, v_pad)


# ---------------------------------------------------------------- the gradient of a table of distances


@triton.jit
def _tile_gradient(
    x, parts, d_out, rows_of, b, h, kv, which, i_tile, j_tile, n, m,
    head_dim: tl.constexpr, v_dim: tl.constexpr, head_pad: tl.constexpr, v_pad: tl.constexpr,
    rows: tl.constexpr, block: tl.constexpr, interpreted: tl.constexpr,
):  # fmt: skip
    """The gradients of the scores of a tile."""
    i, j = i_tile * rows + tl.arange(0, rows), j_tile * block + tl.arange(0, block)
    i_inside, j_inside = i < n, j < m
    q = load_matrix(x.q, b, h, i, i_inside, head_dim, head_pad)
    up = load_matrix(d_out, b, h, i, i_inside, v_dim, v_pad)
    k = load_matrix(x.k, b, kv, j, j_inside, head_dim, head_pad)
    v = load_matrix(x.v, b, kv, j, j_inside, v_dim, v_pad)
    products, values = dot(q, tl.trans(k), interpreted), dot(up, tl.trans(v), interpreted)
    weight, _, values, slope, _ = _weights_and_gradients(
        parts, rows_of, products, values, b, h, which, i, j, i_inside, j_inside, n, m, True, False, interpreted
    )
    return weight * (values - load_statistic(rows_of[2], which, i, i_inside, n, 0.0)[:, None]) * slope


@triton.jit(do_not_specialize=["n", "m"])
def diagonals_gradient(
    x, parts, d_out, rows_of, partial, n, m, heads, group,
    head_dim: tl.constexpr, v_dim: tl.constexpr, head_pad: tl.constexpr, v_pad: tl.constexpr,
    block: tl.constexpr, interpreted: tl.constexpr,
):  # fmt: skip
    """The sums of the gradients of scores at each distance, over a diagonal of square tiles.

    All tiles of a diagonal have the same distances at the same places, so that they are added as they are, and the
    sum is reduced along its own diagonals once. partial: [batch·heads, diagonals, 2·block]; the first half has the
    distances up to that of the corner, the other half those above.
    """
    i_tiles, j_tiles = tl.cdiv(n, block), tl.cdiv(m, block)
    diagonals = i_tiles + j_tiles - 1
    which, diagonal = tl.program_id(0) // diagonals, tl.program_id(0) % diagonals
    b, h = which // heads, which % heads
    offset = diagonal - i_tiles + 1
    first, last = tl.maximum(0, -offset), tl.minimum(i_tiles, j_tiles - offset)
    if parts.sight.second is None:
        if parts.sight.first.stop.kind == SLOT:
            last = tl.where(offset * block - block < unpacked(parts.sight.first.stop.value) - 1, last, first)
        if parts.sight.first.start.kind == SLOT:
            last = tl.where(offset * block + block > unpacked(parts.sight.first.start.value), last, first)
    total = tl.zeros([block, block], tl.float32)
    for tile in range(first, last):
        gradient = _tile_gradient(
            x, parts, d_out, rows_of, b, h, h // group, which, tile, tile + offset, n, m,
            head_dim, v_dim, head_pad, v_pad, block, block, interpreted,
        )  # fmt: skip
        total += gradient
    row, column = tl.arange(0, block)[:, None], tl.arange(0, block)[None, :]
    place = partial + (which.to(tl.int64) * diagonals + diagonal) * (2 * block) + tl.arange(0, block)
    at = row + column - (block - 1)
    near = tl.where(at >= 0, tl.gather(total, tl.maximum(at, 0), 1), 0.0)
    tl.store(place, tl.sum(near, 0))
    at = row + column + 1
    far = tl.where(at < block, tl.gather(total, tl.minimum(at, block - 1), 1), 0.0)
    tl.store(place + block, tl.sum(far, 0))


@triton.jit(do_not_specialize=["n", "m", "shares", "count"])
def rows_gradient(
    x, parts, d_out, rows_of, partial, n, m, heads, group, shares, count,
    head_dim: tl.constexpr, v_dim: tl.constexpr, head_pad: tl.constexpr, v_pad: tl.constexpr,
    rows: tl.constexpr, block: tl.constexpr, chunk: tl.constexpr, interpreted: tl.constexpr,
):  # fmt: skip
    """The sums of the gradients of scores in each row of the table, for positions with any gaps.

    A program has every ``shares``-th block of keys and a chunk of the table. In each tile it goes through the rows
    that occur. partial: [batch·heads, shares, count].
    """
    chunks = tl.cdiv(count, chunk)
    which, share = tl.program_id(0) // chunks // shares, tl.program_id(0) // chunks % shares
    start = tl.program_id(0) % chunks * chunk
    b, h = which // heads, which % heads
    own = start + tl.arange(0, chunk)
    sums = tl.zeros([chunk], tl.float32)
    for j_tile in range(share, tl.cdiv(m, block), shares):
        _, _, left, _, _, last = query_tiles(parts.sight, b, j_tile * block, (j_tile + 1) * block, n, m, rows)
        for i_tile in range(left, last):
            i, j = i_tile * rows + tl.arange(0, rows), j_tile * block + tl.arange(0, block)
            row = table_row(parts.terms, b, i, j, i < n, j < m, False)
            inside = (i < n)[:, None] & (j < m)[None, :]
            low = tl.maximum(tl.min(tl.where(inside, row, count)), start)
            high = tl.minimum(tl.max(tl.where(inside, row, -1)), start + chunk - 1)
            if low <= high:
                gradient = _tile_gradient(
                    x, parts, d_out, rows_of, b, h, h // group, which, i_tile, j_tile, n, m,
                    head_dim, v_dim, head_pad, v_pad, rows, block, interpreted,
                )  # fmt: skip
                for one in range(low, high + 1):
                    sums += tl.where(own == one, tl.sum(tl.where(row == one, gradient, 0.0)), 0.0)
    place = partial + (which.to(tl.int64) * shares + share) * count + own
    tl.store(place, sums, mask=own < count)


# ---------------------------------------------------------------- the gradient of a dense bias


@triton.jit(do_not_specialize=["n", "m", "sequences", "members"])
def dense_gradient(
    x, parts, d_out, rows_of, d_dense, n, m, heads, group, own_heads, sequences, members,
    head_dim: tl.constexpr, v_dim: tl.constexpr, head_pad: tl.constexpr, v_pad: tl.constexpr,
    rows: tl.constexpr, block: tl.constexpr, layout: tl.constexpr, interpreted: tl.constexpr,
):  # fmt: skip
    """The gradient of a tile of a dense bias: the sum over the sequences and heads that share it, in their order.

    The bias has own_heads heads; each of its numbers is for ``sequences`` sequences and ``members`` heads.
    """
    i_tiles, j_tiles = tl.cdiv(n, rows), tl.cdiv(m, block)
    own, tile = tl.program_id(0) // (i_tiles * j_tiles), tl.program_id(0) % (i_tiles * j_tiles)
    own_b, own_h, i_tile, j_tile = own // own_heads, own % own_heads, tile // j_tiles, tile % j_tiles
    i, j = i_tile * rows + tl.arange(0, rows), j_tile * block + tl.arange(0, block)
    i_inside, j_inside = i < n, j < m
    total = tl.zeros([rows, block], tl.float32)
    for step in range(sequences * members):
        b, h = own_b + step // members, own_h + step % members
        _, _, first, _, _, last = key_tiles(parts.sight, b, i, i_inside, m, block)
        if (first <= j_tile) & (j_tile < last):
            total += _tile_gradient(
                x, parts, d_out, rows_of, b, h, h // group, b * heads + h, i_tile, j_tile, n, m,
                head_dim, v_dim, head_pad, v_pad, rows, block, interpreted,
            )  # fmt: skip
    place = place_of_pairs(d_dense, layout, own_b, own_h, i, j, False)
    tl.store(place, total.to(d_dense.at.dtype.element_ty), mask=i_inside[:, None] & j_inside[None, :])


@triton.jit
def run_sums(x, starts, out, length, count, block: tl.constexpr):
    """Sums of runs of numbers, out[h, r] = Σ x[h, starts[r] … starts[r + 1] − 1], in float64."""
    h, r = tl.program_id(0).to(tl.int64) // count, tl.program_id(0).to(tl.int64) % count
    start, stop = tl.load(starts + r), tl.load(starts + r + 1)
    total = tl.zeros([block], tl.float64)
    for first in range(start, stop, block):
        at = first + tl.arange(0, block)
        total += tl.load(x + h * length + at, mask=at < stop, other=0.0).to(tl.float64)
    tl.store(out + h * count + r, tl.sum(total, 0).to(tl.float32))
