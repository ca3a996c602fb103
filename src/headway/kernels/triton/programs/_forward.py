"""The programs of the output, in Triton.

A program computes a block of queries against the keys that they see. Blocks of which every pair is in sight go through
a loop without masks, the others through a second loop; an index of that loop stands for blocks on either side. Few
queries against many keys are computed in splits of the keys, which are merged.
"""

from typing import Any, NamedTuple

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
from ._tiles import Head, Tile, Tokens, tokens_at
from ._weights import load_keys, load_queries, products_of


class State(NamedTuple):
    """What is known of a block of queries after some of the keys.

    Attributes:
        total: Σ exp(score − largest)·value.
        largest: the largest score.
        sums: Σ exp(score − largest).
        reduced: what is reduced of the weights.
    """

    total: Any
    largest: Any
    sums: Any
    reduced: Any


@triton.jit
def _before(x, wanted, rows: tl.constexpr, width: tl.constexpr):
    """The state before the first block of keys."""
    if x.v is not None:
        total = tl.zeros([rows, x.v.padded], tl.float32)
    else:
        total = tl.zeros([rows], tl.float32)
    largest = tl.full([rows], float("-inf"), tl.float32)
    return State(total, largest, tl.zeros([rows], tl.float32), no_sums(wanted, rows, width))


@triton.jit
def _add_keys(
    state, queries, x, parts, wanted, beyond, tile, block: tl.constexpr, width: tl.constexpr, masked: tl.constexpr
):
    """Adds a block of keys to the state of a block of queries."""
    keys = load_keys(x, tile.head, tile.k)
    if x.v is not None:
        v = load_matrix(x.v, tile.head.b, tile.head.kv, tile.k.at, tile.k.inside)
    products = products_of(queries, keys, parts.terms, tile, False)
    score, _ = scores_of(products, parts.terms, beyond, tile, False)
    if masked:
        seen = in_sight(parts.sight, tile, False)
        score = tl.where(seen, score, float("-inf"))
        if x.v is not None:  # a key that no query here sees may hold NaN
            rows: tl.constexpr = score.shape[0]
            v = tl.where(keys_in_sight(parts.sight, seen, tile, rows)[:, None], v, 0.0)
    above = tl.maximum(state.largest, tl.max(score, 1))
    rate, offset = exponents(above)
    weight = powers(score, rate[:, None], offset[:, None])
    shrink = tl.exp2(offset - offset_of(state.largest))
    reduced = state.reduced
    if width > 0:
        origin = tl.where(above == float("-inf"), 0.0, above)
        reduced = scaled(reduced, state.sums, state.largest, origin, shrink)
        reduced = add_block(reduced, wanted, score, weight, origin, tile, width)
    sums = state.sums * shrink + tl.sum(weight, 1)
    total = state.total
    if x.v is not None:
        if parts.drop is not None:
            weight *= dropout_factors(parts.drop, tile, False)
        total = total * shrink[:, None] + dot(weight.to(v.dtype), v)
        if parts.relative_values is not None:
            total = add_vectors(total, weight, parts.relative_values, tile, False, block)
    return State(total, above, sums, reduced)


@triton.jit(do_not_specialize=["n", "m"])
def forward(
    x, parts, wanted, results, n, m, heads, group,
    rows: tl.constexpr, block: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """The output and the statistics of a block of queries, and what is wanted of their weights."""
    tiles = tl.cdiv(n, rows)
    which = tl.program_id(0) // tiles
    b, h = which // heads, which % heads
    head = Head(b, h, h // group, which, n, m)
    number = tiles - 1 - tl.program_id(0) % tiles  # under a causal mask the last queries have the most to do
    q = tokens_at(number, rows, n)
    queries = load_queries(x, head, q)
    state = _before(x, wanted, rows, width)
    listed = list_of(parts.sight, b, h, number)
    open_, end, left, left_last, right, right_last = key_steps(parts.sight, listed, b, q.at, q.inside, m, block)
    low, high = open_, end
    if parts.terms.table_ends is not None and parts.sight.lists is None:
        low, high = near_keys(parts.terms, q.start, open_, end, rows, block)
        past, future = far_biases(parts.terms, h)
        for step in range(open_, end - (high - low)):
            at, beyond = far_block(step, low, high, past, future)
            tile = Tile(head, q, tokens_at(at, block, m))
            state = _add_keys(state, queries, x, parts, wanted, beyond, tile, block, width, False)
    for step in range(low, high):
        tile = Tile(head, q, tokens_at(open_tile(parts.sight, listed, step), block, m))
        state = _add_keys(state, queries, x, parts, wanted, None, tile, block, width, False)
    gap = right - left_last
    for step in range(left, right_last - gap):
        tile = Tile(head, q, tokens_at(masked_tile(parts.sight, listed, step, left_last, gap), block, m))
        state = _add_keys(state, queries, x, parts, wanted, None, tile, block, width, True)
    _finish(state, wanted, parts.sink, results, head, q, width)


@triton.jit
def _finish(state, wanted, sink, results, head, q, width: tl.constexpr):
    """Adds the sink, and stores the output, the statistics and what is wanted of a block of queries."""
    total, largest, sums, reduced = state
    # a query that sees nothing, or scores of −∞ alone, gives zeros; of NaN the maximum is −∞ too, but no sum
    blind = (largest == float("-inf")) & (sums == 0)
    if sink is not None:
        logit = load_vector(sink, head.b, head.h, q.at, q.inside, 0.0).to(tl.float32)
        above = tl.maximum(largest, logit, propagate_nan=tl.PropagateNan.ALL)
        rate, offset = exponents(above)
        shrink = tl.exp2(offset - offset_of(largest))
        if width > 0:
            reduced = scaled(reduced, sums, largest, tl.where(above == float("-inf"), 0.0, above), shrink)
        of_keys = sums * shrink
        sums = of_keys + powers(logit, rate, offset)
        if results.out is not None:
            total *= shrink[:, None]
    else:
        above, of_keys = largest, sums
    if results.out is not None:
        share = tl.where(blind[:, None], 0.0, total / tl.where(sums == 0, 1.0, sums)[:, None])
        store_matrix(results.out, head.b, head.h, q.at, q.inside, share)
    part = 1 / excess(above)
    sums *= part
    if width > 0:
        reduced = scaled(reduced, sums * 0, sums * 0, sums * 0, part)
        store_sums(reduced, wanted, of_keys * part, sums, head, q, width)
    store_statistic(results.row_max, head.which, q.at, q.inside, head.n, above)
    store_statistic(results.row_sum, head.which, q.at, q.inside, head.n, sums)


# ---------------------------------------------------------------- few queries


@triton.jit(do_not_specialize=["n", "m", "heads", "group", "splits"])
def split_forward(x, parts, found, n, m, heads, group, splits, rows: tl.constexpr, block: tl.constexpr):
    """The sums of all queries of the heads that share keys, over a split of the keys that any of them sees.

    Row r of the block is query r % n of the group's head r // n, so that keys and values are loaded once for all.
    """
    kv_heads = heads // group
    split, which = tl.program_id(0) % splits, tl.program_id(0) // splits
    b, kv = which // kv_heads, which % kv_heads
    r = tl.arange(0, rows)
    inside = r < n * group
    member, i = tl.where(inside, r // n, 0), r % n  # what is of a head is read for all rows
    h = kv * group + member
    head, q = Head(b, h, kv, b * heads + h, n, m), Tokens(i, inside, 0)
    queries = load_queries(x, head, q)
    state = _before(x, None, rows, 0)
    left, left_last, right, right_last = seen_tiles(parts.sight, b, i, inside, m, block)
    gap = right - left_last
    share = tl.cdiv(right_last - gap - left, splits)
    start = left + split * share
    for step in range(start, tl.minimum(start + share, right_last - gap)):
        tile = Tile(head, q, tokens_at(tl.where(step < left_last, step, step + gap), block, m))
        state = _add_keys(state, queries, x, parts, None, None, tile, block, 0, True)
    groups = tl.num_programs(0) // splits
    row = ((split.to(tl.int64) * groups + which) * group + member) * n + i
    column = tl.arange(0, x.v.padded)
    place = found.total + row[:, None] * x.v.width + column[None, :]
    tl.store(place, state.total, mask=inside[:, None] & (column < x.v.width)[None, :])
    tl.store(found.largest + row, state.largest, mask=inside)
    tl.store(found.sums + row, state.sums, mask=inside)


@triton.jit(do_not_specialize=["n", "heads", "splits"])
def merge_splits(found, sink, results, n, heads, splits, chunk: tl.constexpr):
    """The output and the statistics of a query from those of its splits, in their order."""
    which, queries = tl.program_id(0) // n, tl.num_programs(0)
    b, h, i = which // heads, which % heads, tl.program_id(0) % n + tl.zeros([1], tl.int32)
    column = tl.arange(0, results.out.padded)
    total, sums = tl.zeros([1, results.out.padded], tl.float32), tl.zeros([1], tl.float32)
    largest = tl.full([1], float("-inf"), tl.float32)
    for first in range(0, splits, chunk):
        split = first + tl.arange(0, chunk)
        inside = split < splits
        row = split.to(tl.int64) * queries + tl.program_id(0)
        part = tl.load(found.largest + row, mask=inside, other=float("-inf"))
        above = tl.maximum(largest, tl.max(part, 0))
        _, offset = exponents(above)
        shrink, factor = tl.exp2(offset - offset_of(largest)), tl.exp2(offset - offset_of(part))
        sums = sums * shrink + tl.sum(tl.load(found.sums + row, mask=inside, other=0.0) * factor, 0)
        place = found.total + row[:, None] * results.out.width + column[None, :]
        parts = tl.load(place, mask=inside[:, None] & (column < results.out.width)[None, :], other=0.0)
        total = total * shrink[:, None] + tl.sum(parts * factor[:, None], 0)[None, :]
        largest = above
    state = State(total, largest, sums, no_sums(None, 1, 0))
    head = Head(b, h, h, which, n, n)  # no keys are read
    _finish(state, None, sink, results, head, Tokens(i, i < n, i), 0)
