"""The programs of the output, in Triton.

A program computes a block of queries against the keys that they see. Blocks of which every pair is in sight go through
a loop without masks, the others through a second loop; an index of that loop stands for blocks on either side. Few
queries against many keys are computed in splits of the keys, which are merged.
"""

import triton
import triton.language as tl

from ._blocks import (
    dot,
    dropout_factors,
    excess,
    exponents,
    load_matrix,
    load_vector,
    offset_of,
    powers,
    store_matrix,
    store_statistic,
)
from ._reducers import add_block, no_sums, scaled, store_sums
from ._scores import far_biases, far_block, near_keys, scores_of
from ._sight import in_sight, key_steps, keys_in_sight, list_of, masked_tile, open_tile, seen_tiles
from ._skew import add_vectors
from ._weights import load_keys, load_queries, products_of


@triton.jit
def _add_keys(
    state, queries, x, parts, wanted, beyond, b, h, kv, i, i_inside, i_start, tile, n, m,
    head_dim: tl.constexpr, v_dim: tl.constexpr, head_pad: tl.constexpr, v_pad: tl.constexpr,
    block: tl.constexpr, width: tl.constexpr, masked: tl.constexpr, interpreted: tl.constexpr,
):  # fmt: skip
    """Adds a block of keys to the sums of the queries i, which begin at i_start."""
    total, largest, sums, found = state
    j = tile * block + tl.arange(0, block)
    j_inside = j < m
    keys = load_keys(x, parts.terms, b, kv, j, j_inside, head_dim, head_pad)
    if x.v is not None:
        v = load_matrix(x.v, b, kv, j, j_inside, v_dim, v_pad)
    products = products_of(
        queries, keys, parts.terms, b, h, i, j, i_inside, j_inside, i_start, tile * block, False, interpreted
    )
    score, _ = scores_of(products, parts.terms, beyond, b, h, i, j, i_inside, j_inside, False, interpreted)
    if masked:
        seen = in_sight(parts.sight, b, h, i, j, i_inside, m, False)
        score = tl.where(seen, score, float("-inf"))
        if x.v is not None:  # a key that no query here sees may hold NaN
            rows: tl.constexpr = score.shape[0]
            v = tl.where(keys_in_sight(parts.sight, seen, b, j, i_start, rows, n, m)[:, None], v, 0.0)
    above = tl.maximum(largest, tl.max(score, 1))
    rate, offset = exponents(above)
    weight = powers(score, rate[:, None], offset[:, None])
    shrink = tl.exp2(offset - offset_of(largest))
    if width > 0:
        origin = tl.where(above == float("-inf"), 0.0, above)
        found = scaled(found, sums, largest, origin, shrink)
        found = add_block(found, wanted, score, weight, origin, b, i, j, i_inside, j_inside, n, m, width)
    sums = sums * shrink + tl.sum(weight, 1)
    if x.v is not None:
        if parts.drop is not None:
            weight *= dropout_factors(parts.drop, b, h, i, j, i_inside, j_inside, False)
        total = total * shrink[:, None] + dot(weight.to(v.dtype), v, interpreted)
        if parts.relative_values is not None:
            total = add_vectors(
                total, weight, parts.relative_values, h, i_start, tile * block, False, block, interpreted
            )
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
    own = tiles - 1 - tl.program_id(0) % tiles  # under a causal mask the last queries have the most to do
    i_start = own * rows
    i = i_start + tl.arange(0, rows)
    inside = i < n
    queries = load_queries(x, parts.terms, b, h, i, inside, head_dim, head_pad)
    state = (
        tl.zeros([rows, v_pad], tl.float32),
        tl.full([rows], float("-inf"), tl.float32),
        tl.zeros([rows], tl.float32),
        no_sums(wanted, rows, width),
    )
    listed = list_of(parts.sight, b, h, own)
    open_, end, left, left_last, right, right_last = key_steps(parts.sight, listed, b, i, inside, m, block)
    low, high = open_, end
    if parts.terms.table_ends is not None and parts.sight.lists is None:
        low, high = near_keys(parts.terms, i_start, open_, end, rows, block)
        past, future = far_biases(parts.terms, h)
        for step in range(open_, end - (high - low)):
            tile, beyond = far_block(step, low, high, past, future)
            state = _add_keys(
                state, queries, x, parts, wanted, beyond, b, h, kv, i, inside, i_start, tile, n, m,
                head_dim, v_dim, head_pad, v_pad, block, width, False, interpreted,
            )  # fmt: skip
    for step in range(low, high):
        tile = open_tile(parts.sight, listed, step)
        state = _add_keys(
            state, queries, x, parts, wanted, None, b, h, kv, i, inside, i_start, tile, n, m,
            head_dim, v_dim, head_pad, v_pad, block, width, False, interpreted,
        )  # fmt: skip
    gap = right - left_last
    for step in range(left, right_last - gap):
        tile = masked_tile(parts.sight, listed, step, left_last, gap)
        state = _add_keys(
            state, queries, x, parts, wanted, None, b, h, kv, i, inside, i_start, tile, n, m,
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
        rate, offset = exponents(above)
        shrink = tl.exp2(offset - offset_of(largest))
        if width > 0:
            found = scaled(found, sums, largest, tl.where(above == float("-inf"), 0.0, above), shrink)
        of_keys = sums * shrink
        sums = of_keys + powers(logit, rate, offset)
        total *= shrink[:, None]
    else:
        above, of_keys = largest, sums
    if out is not None:
        share = tl.where(blind[:, None], 0.0, total / tl.where(sums == 0, 1.0, sums)[:, None])
        store_matrix(out, b, h, i, inside, share, v_dim, v_pad)
    part = 1 / excess(above)
    sums *= part
    if width > 0:
        found = scaled(found, sums * 0, sums * 0, sums * 0, part)
        store_sums(found, wanted, of_keys * part, sums, which, i, inside, n, width)
    store_statistic(row_max, which, i, inside, n, above)
    store_statistic(row_sum, which, i, inside, n, sums)


# ---------------------------------------------------------------- few queries


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
    inside = r < n * group
    member, i = tl.where(inside, r // n, 0), r % n  # what is of a head is read for all rows
    h = kv * group + member
    queries = load_queries(x, parts.terms, b, h, i, inside, head_dim, head_pad)
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
            state, queries, x, parts, None, None, b, h, kv, i, inside, 0, tile, n, m,
            head_dim, v_dim, head_pad, v_pad, block, 0, True, interpreted,
        )  # fmt: skip
    total, largest, sums, _ = state
    groups = tl.num_programs(0) // splits
    row = ((split.to(tl.int64) * groups + which) * group + member) * n + i
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
        _, offset = exponents(above)
        shrink, factor = tl.exp2(offset - offset_of(largest)), tl.exp2(offset - offset_of(part))
        sums = sums * shrink + tl.sum(tl.load(sums_of + row, mask=inside, other=0.0) * factor, 0)
        place = totals + row[:, None] * v_dim + column[None, :]
        parts = tl.load(place, mask=inside[:, None] & (column < v_dim)[None, :], other=0.0)
        total = total * shrink[:, None] + tl.sum(parts * factor[:, None], 0)[None, :]
        largest = above
    state = total, largest, sums, no_sums(None, 1, 0)
    _finish(state, None, sink, out, row_max, row_sum, b, h, which, i, i < n, n, v_dim, v_pad, 0)
