"""The programs that run on a GPU, in Triton.

A program computes a block of queries against the keys that they see (``forward``, ``queries_gradient``), or a block of
keys against the queries that see them (``keys_gradient``). Blocks of which every pair is in sight go through a loop
without masks, the others through a second loop; an index of that loop stands for blocks on either side. Few queries
against many keys are computed in splits of the keys, which are merged (``split_forward``). No program writes what
another one writes, so that results are the same bits in every run.

What the scores are made of comes as named tuples (``arguments.py``), whose fields are None where a call has no such
part; Triton compiles a program for each set of parts.
"""

import triton
import triton.language as tl

# Triton reads global variables only if they are declared constant.
PRECISION = tl.constexpr("ieee")  # of float32: products by tensor cores (tf32x3) leave out the last two bits
LOG2E = tl.constexpr(1.4426950408889634)
NONE, NUMBER, SLOT, EACH = (tl.constexpr(kind) for kind in range(4))
ANY, ALIGNED, BESIDE, FLUSH = (tl.constexpr(layout) for layout in range(4))
LINEAR, LOG, POWER = (tl.constexpr(kind) for kind in range(3))


# ---------------------------------------------------------------- loads and products


@triton.jit
def _number(x):
    """A whole number of a tuple, which is passed as 4x + 3."""
    return (x - 3) >> 2


@triton.jit
def _stride(x, layout: tl.constexpr):
    if layout == ALIGNED or layout == FLUSH:
        return tl.multiple_of((x - 3) >> 2, 16)  # what a call returns would forget it
    else:
        return _number(x)


@triton.jit
def _last_stride(x, layout: tl.constexpr):
    if layout == BESIDE or layout == FLUSH:
        return 1
    else:
        return _stride(x, layout)


@triton.jit
def _of_head(h, flipped: tl.constexpr):
    """The head of a block of pairs as it is multiplied: a number, or, if each query has its own, a block."""
    if h.type.is_block():
        return _by_query(h, flipped)
    else:
        return h


@triton.jit
def _first(x, b, h):
    """Where the rows of a head are; of each query's head, if h is one for each."""
    return x.at + b.to(tl.int64) * _stride(x.b, x.layout) + h.to(tl.int64) * _stride(x.h, x.layout)


@triton.jit
def _matrix(x, b, h, at, inside, width: tl.constexpr, padded: tl.constexpr):
    """Loads rows ``at`` of x, [rows, padded]; 0 outside."""
    column = tl.arange(0, padded)
    row = _first(x, b, _of_head(h, False)) + at.to(tl.int64)[:, None] * _last_stride(x.n, x.layout)
    place = row + column[None, :]
    if padded == width:
        return tl.load(place, mask=inside[:, None], other=0.0)
    else:
        return tl.load(place, mask=inside[:, None] & (column < width)[None, :], other=0.0)


@triton.jit
def _store_matrix(x, b, h, at, inside, value, width: tl.constexpr, padded: tl.constexpr):
    column = tl.arange(0, padded)
    place = _first(x, b, h) + at.to(tl.int64)[:, None] * _last_stride(x.n, x.layout) + column[None, :]
    tl.store(place, value.to(x.at.dtype.element_ty), mask=inside[:, None] & (column < width)[None, :])


@triton.jit
def _vector(x, b, h, at, inside, other):
    """Loads the numbers ``at`` of x, which has one for each token."""
    return tl.load(_first(x, b, h) + at.to(tl.int64) * _last_stride(x.n, x.layout), mask=inside, other=other)


@triton.jit
def _of_pairs(x, layout: tl.constexpr, b, h, i, j, flipped: tl.constexpr):
    """Where the numbers of the pairs of queries i and keys j are in x, which has one for each."""
    first = x.at + b.to(tl.int64) * _stride(x.b, layout) + _of_head(h, flipped).to(tl.int64) * _stride(x.h, layout)
    rows = _by_query(i.to(tl.int64) * _stride(x.n, layout), flipped)
    return first + rows + _by_key(j.to(tl.int64) * _last_stride(x.m, layout), flipped)


@triton.jit
def _statistic(x, which, at, inside, n, other):
    """Loads numbers of x, [batch·heads, n] float32, whose rows lie together."""
    return tl.load(x + which.to(tl.int64) * n + at, mask=inside, other=other)


@triton.jit
def _store_statistic(x, which, at, inside, n, value):
    tl.store(x + which.to(tl.int64) * n + at, value, mask=inside)


@triton.jit
def _dot(a, b, interpreted: tl.constexpr):
    """a @ b in float32. The interpreter would multiply the bits of bfloat16 (triton#11584)."""
    if interpreted:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision=PRECISION)
    else:
        return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def _look_up(table, at, interpreted: tl.constexpr):
    """table[at] for a block of pairs.

    On a GPU by assembly: of ``tl.load`` in a loop the compiler makes copies to shared memory, 64 of 4 bytes each, or
    gives the products another layout.
    """
    if interpreted:
        return tl.load(table + at)
    else:
        return tl.inline_asm_elementwise(
            "ld.global.nc.f32 $0, [$1];", "=f,l", [(table + at).to(tl.uint64, bitcast=True)], tl.float32, True, 1
        )


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
def _scrambled(x):
    """A 32-bit hash with good avalanche, the same as in ``reference``."""
    x = (x ^ (x >> 16)) * tl.full([1], 0x21F0AAAD, tl.uint32)
    x = (x ^ (x >> 15)) * tl.full([1], 0x735A2D97, tl.uint32)
    return x ^ (x >> 15)


@triton.jit
def _by_query(x, flipped: tl.constexpr):
    """A number for each query as a block [queries, 1], or [1, queries]."""
    if flipped:
        return x[None, :]
    else:
        return x[:, None]


@triton.jit
def _by_key(x, flipped: tl.constexpr):
    if flipped:
        return x[:, None]
    else:
        return x[None, :]


@triton.jit
def _kept(drop, b, h, i, j, i_inside, j_inside, flipped: tl.constexpr):
    """What dropout multiplies the weights of a block with: 0, or 1/(1 − dropout)."""
    seed = tl.load(drop.seed)
    one = tl.zeros([1], tl.int64)
    row, head = one + b + _number(drop.first_row), one + h + _number(drop.first_head)
    head = _scrambled(_scrambled(row.to(tl.uint32)) + head.to(tl.uint32))
    head = _scrambled((one + seed).to(tl.uint32) + _scrambled((one + (seed >> 32)).to(tl.uint32) + head))
    row = _scrambled(head + _vector(drop.queries, b, b, i, i_inside, 0).to(tl.uint32))
    column = _vector(drop.keys, b, b, j, j_inside, 0).to(tl.uint32)
    drawn = _scrambled(_by_query(row, flipped) + _by_key(column, flipped))
    return tl.where(drawn.to(tl.int64) >= _number(drop.below), drop.factor, 0.0)


# ---------------------------------------------------------------- which keys a query sees


@triton.jit
def _bound(x, b, i, inside, default):
    """A bound of an interval for the queries i, int32."""
    if x.kind == NONE:
        return i * 0 + default
    elif x.kind == NUMBER:
        return i * 0 + _number(x.value)
    elif x.kind == SLOT:
        return i + _number(x.value)
    else:
        return _vector(x.value, b, b, i, inside, 0)


@triton.jit
def _interval(span, b, i, inside, m):
    start = tl.maximum(_bound(span.start, b, i, inside, 0), 0)
    stop = tl.minimum(_bound(span.stop, b, i, inside, m), m)
    return start, tl.where(inside, stop, 0)


@triton.jit
def _in_sight(sight, b, h, i, j, i_inside, m, flipped: tl.constexpr):
    """Which keys j the queries i see."""
    start, stop = _interval(sight.first, b, i, i_inside, m)
    column = _by_key(j, flipped)
    seen = (column >= _by_query(start, flipped)) & (column < _by_query(stop, flipped))
    if sight.second is not None:
        start, stop = _interval(sight.second, b, i, i_inside, m)
        seen |= (column >= _by_query(start, flipped)) & (column < _by_query(stop, flipped))
    if sight.q_document is not None:
        q = _vector(sight.q_document, b, b, i, i_inside, 0)
        k = _vector(sight.k_document, b, b, j, j < m, 0)
        seen &= _by_query(q, flipped) == _by_key(k, flipped)
    if sight.rest is not None:
        seen &= tl.load(_of_pairs(sight.rest, sight.rest_layout, b, h, i, j, flipped), mask=seen, other=0) != 0
    return seen


@triton.jit
def _tiles_of(span, b, i, inside, m, block: tl.constexpr):
    """The blocks of keys that any of the queries i sees, first and after the last; 0, 0 for none."""
    start, stop = _interval(span, b, i, inside, m)
    some = stop > start
    first = tl.min(tl.where(some, start, m), 0) // block
    last = tl.cdiv(tl.max(tl.where(some, stop, 0), 0), block)
    return tl.minimum(first, last), last


@triton.jit
def _open_tiles(span, b, i, inside, m, first, last, block: tl.constexpr):
    """Of these blocks of keys those that each of the queries i sees whole."""
    start, stop = _interval(span, b, i, inside, m)
    begin = tl.cdiv(tl.max(tl.where(inside, start, 0), 0), block)
    end = tl.min(tl.where(inside, stop, m), 0) // block
    begin = tl.minimum(tl.maximum(begin, first), last)
    return begin, tl.minimum(tl.maximum(end, begin), last)


@triton.jit
def _both(first, last, other, other_last):
    """Two ranges of blocks in their order, without those of the second one that the first has; none is open."""
    swap = other < first
    left, left_last = tl.where(swap, other, first), tl.where(swap, other_last, last)
    right, right_last = tl.where(swap, first, other), tl.where(swap, last, other_last)
    right = tl.maximum(right, left_last)
    return left, left, left, left_last, right, tl.maximum(right, right_last)


@triton.jit
def _tiles(sight, b, i, inside, m, block: tl.constexpr):
    """The blocks of keys that the queries i see: a range without masks, open … end, and two ranges with masks."""
    first, last = _tiles_of(sight.first, b, i, inside, m, block)
    if (sight.second is None and sight.rest is None) and sight.q_document is None:
        open_, end = _open_tiles(sight.first, b, i, inside, m, first, last, block)
        return open_, end, first, open_, end, last
    elif sight.second is None:
        return first, first, first, last, last, last
    else:
        other, other_last = _tiles_of(sight.second, b, i, inside, m, block)
        return _both(first, last, other, other_last)


@triton.jit
def _seen_tiles(sight, b, i, inside, m, block: tl.constexpr):
    """The blocks of keys that the queries i see, as two ranges."""
    first, last = _tiles_of(sight.first, b, i, inside, m, block)
    if sight.second is None:
        return first, last, last, last
    else:
        other, other_last = _tiles_of(sight.second, b, i, inside, m, block)
        _, _, left, left_last, right, right_last = _both(first, last, other, other_last)
        return left, left_last, right, right_last


@triton.jit
def _query_range(span, b, j, j_end, n, block: tl.constexpr):
    """The blocks of queries of which one may see a key of j … j_end − 1, and of those the ones that see all of them.

    Each as the first and the one after the last.
    """
    low, high = j * 0, j * 0 + n  # queries that may see some
    open_low, open_high = j * 0, j * 0 + n  # queries that see all
    if span.start.kind == SLOT:
        high = tl.minimum(high, j_end - _number(span.start.value))
        open_high = tl.minimum(open_high, j - _number(span.start.value) + 1)
    elif span.start.kind == NUMBER:
        high = tl.where(j_end > _number(span.start.value), high, 0)
        open_high = tl.where(j >= _number(span.start.value), open_high, 0)
    elif span.start.kind == EACH:
        open_high = j * 0
    if span.stop.kind == SLOT:
        low = tl.maximum(low, j - _number(span.stop.value) + 1)
        open_low = tl.maximum(open_low, j_end - _number(span.stop.value))
    elif span.stop.kind == NUMBER:
        high = tl.where(j < _number(span.stop.value), high, 0)
        open_high = tl.where(j_end <= _number(span.stop.value), open_high, 0)
    elif span.stop.kind == EACH:
        open_high = j * 0
    first, last = tl.maximum(low, 0) // block, tl.cdiv(tl.maximum(high, 0), block)
    if span.start.kind == EACH or span.stop.kind == EACH:
        first, last = last, first
        for tile in range(tl.cdiv(n, block)):
            i = tile * block + tl.arange(0, block)
            start, stop = _interval(span, b, i, i < n, j_end)
            hit = tl.max(((start < stop) & (stop > j)).to(tl.int32), 0) != 0
            first = tl.where(hit, tl.minimum(first, tile), first)
            last = tl.where(hit, tile + 1, last)
    last = tl.maximum(last, first)
    begin = tl.minimum(tl.maximum(tl.cdiv(tl.maximum(open_low, 0), block), first), last)
    end = tl.minimum(tl.maximum(tl.maximum(open_high, 0) // block, begin), last)
    return first, last, begin, end


@triton.jit
def _query_tiles(sight, b, j, j_end, n, m, block: tl.constexpr):
    """As ``_tiles``, of the blocks of queries for the keys j … j_end − 1."""
    first, last, open_, end = _query_range(sight.first, b, j, tl.minimum(j_end, m), n, block)
    if (sight.second is None and sight.rest is None) and sight.q_document is None:
        end = tl.where(j_end <= m, end, open_)
        return open_, end, first, open_, end, last
    elif sight.second is None:
        return first, first, first, last, last, last
    else:
        other, other_last, _, _ = _query_range(sight.second, b, j, tl.minimum(j_end, m), n, block)
        return _both(first, last, other, other_last)


# ---------------------------------------------------------------- scores


@triton.jit
def _scores(products, terms, b, h, i, j, i_inside, j_inside, flipped: tl.constexpr, interpreted: tl.constexpr):
    """The scores of a block from the products ⟨q, k⟩, and the derivative by what the cap bounds; 1 without a cap."""
    score = products * terms.scale
    if terms.factor is not None:
        score *= _by_query(_vector(terms.factor, b, h, i, i_inside, 0.0), flipped)
    if terms.table is not None:
        table = terms.table.at + _of_head(h, flipped).to(tl.int64) * _number(terms.table.h)
        score += _look_up(table, _row_of(terms, b, i, j, i_inside, j_inside, flipped), interpreted)
    if terms.formula is not None:
        score += _formula(terms, b, h, i, j, i_inside, j_inside, flipped)[0]
    if terms.queries is not None:
        score += _by_query(_vector(terms.queries, b, h, i, i_inside, 0.0), flipped)
    if terms.keys is not None:
        place = _first(terms.keys, b, _of_head(h, flipped))
        place += _by_key(j.to(tl.int64) * _last_stride(terms.keys.n, terms.keys.layout), flipped)
        score += tl.load(place, mask=_by_key(j_inside, flipped), other=0.0)
    if terms.dense is not None:
        inside = _by_query(i_inside, flipped) & _by_key(j_inside, flipped)
        place = _of_pairs(terms.dense, terms.dense_layout, b, h, i, j, flipped)
        score += tl.load(place, mask=inside, other=0.0).to(tl.float32)
    if terms.cap is None:
        return score, 1.0
    else:
        value, slope = _tanh(score / terms.cap)
        return value * terms.cap, slope


@triton.jit
def _row_of(terms, b, i, j, i_inside, j_inside, flipped: tl.constexpr):
    """The row of the table for each pair, from the distance key − query."""
    if terms.q_position is None:  # positions rise by one on both sides
        row = _by_key(j, flipped) - _by_query(i, flipped) + _number(terms.table.origin)
    else:
        distance = _distance(terms.q_position, terms.k_position, b, i, j, i_inside, j_inside, flipped)
        if distance.dtype.is_floating():
            distance = tl.floor(distance)
        row = distance + _number(terms.table.origin)
    return tl.minimum(tl.maximum(row, 0), _number(terms.table.last)).to(tl.int32)


@triton.jit
def _distance(q_position, k_position, b, i, j, i_inside, j_inside, flipped: tl.constexpr):
    """The distance key − query of each pair, in the dtype of the positions."""
    q = _vector(q_position, b, b, i, i_inside, 0)
    k = _vector(k_position, b, b, j, j_inside, 0)
    return _by_key(k, flipped) - _by_query(q, flipped)


@triton.jit
def _formula(terms, b, h, i, j, i_inside, j_inside, flipped: tl.constexpr):
    """A bias of the distance for each pair, and its derivatives by both parameters."""
    formula = terms.formula
    distance = _distance(terms.formula_q, terms.formula_k, b, i, j, i_inside, j_inside, flipped).to(tl.float32)
    far = tl.abs(distance)
    first = tl.load(formula.first + _of_head(h, flipped) * _number(formula.first_h))
    second = tl.load(formula.second + _of_head(h, flipped) * _number(formula.second_h))
    if formula.kind == LINEAR:
        past = distance <= 0
        return -far * tl.where(past, first, second), tl.where(past, -far, 0.0), tl.where(past, 0.0, -far)
    elif formula.kind == LOG:
        size = _log1p(second * far)
        return -first * size, -size, -first * far / (1 + second * far)
    else:
        log = tl.log(tl.where(far == 0, 1.0, far))
        size = tl.where(far == 0, 0.0, tl.exp(second * log))
        return -first * size, -size, -first * size * log


@triton.jit
def _log1p(x):
    """ln(1 + x), for x ≥ 0, with the digits of a small x: ln(1 + x)·x/((1 + x) − 1) rounds twice alike."""
    above = 1 + x
    return tl.where(above == 1, x, tl.log(above) * (x / tl.where(above == 1, 1.0, above - 1)))


# ---------------------------------------------------------------- forward


@triton.jit
def _add_keys(
    state, q, x, parts, b, h, kv, i, i_inside, tile, m,
    head_dim: tl.constexpr, v_dim: tl.constexpr, head_pad: tl.constexpr, v_pad: tl.constexpr,
    block: tl.constexpr, masked: tl.constexpr, interpreted: tl.constexpr,
):  # fmt: skip
    """Adds a block of keys to the sums of the queries i."""
    total, largest, sums = state
    j = tile * block + tl.arange(0, block)
    j_inside = j < m
    k = _matrix(x.k, b, kv, j, j_inside, head_dim, head_pad)
    v = _matrix(x.v, b, kv, j, j_inside, v_dim, v_pad)
    score, _ = _scores(
        _dot(q, tl.trans(k), interpreted), parts.terms, b, h, i, j, i_inside, j_inside, False, interpreted
    )
    if masked:
        seen = _in_sight(parts.sight, b, h, i, j, i_inside, m, False)
        score = tl.where(seen, score, float("-inf"))
        # a key that no query here sees may hold NaN
        v = tl.where((tl.max(seen.to(tl.int32), 0) != 0)[:, None], v, 0.0)
    above = tl.maximum(largest, tl.max(score, 1))
    origin = tl.where(above == float("-inf"), 0.0, above)
    weight = tl.exp2((score - origin[:, None]) * LOG2E)
    shrink = tl.exp2((largest - origin) * LOG2E)
    sums = sums * shrink + tl.sum(weight, 1)
    if parts.drop is not None:
        weight *= _kept(parts.drop, b, h, i, j, i_inside, j_inside, False)
    total = total * shrink[:, None] + _dot(weight.to(v.dtype), v, interpreted)
    return total, above, sums


@triton.jit(do_not_specialize=["n", "m"])
def forward(
    x, parts, out, row_max, row_sum, n, m, heads, group,
    head_dim: tl.constexpr, v_dim: tl.constexpr, head_pad: tl.constexpr, v_pad: tl.constexpr,
    rows: tl.constexpr, block: tl.constexpr, interpreted: tl.constexpr,
):  # fmt: skip
    """The output and the statistics of a block of queries."""
    tiles = tl.cdiv(n, rows)
    which = tl.program_id(0) // tiles
    b, h = which // heads, which % heads
    kv = h // group
    i = (tl.program_id(0) % tiles) * rows + tl.arange(0, rows)
    inside = i < n
    q = _matrix(x.q, b, h, i, inside, head_dim, head_pad)
    state = (
        tl.zeros([rows, v_pad], tl.float32),
        tl.full([rows], float("-inf"), tl.float32),
        tl.zeros([rows], tl.float32),
    )
    open_, end, left, left_last, right, right_last = _tiles(parts.sight, b, i, inside, m, block)
    for tile in range(open_, end):
        state = _add_keys(
            state, q, x, parts, b, h, kv, i, inside, tile, m,
            head_dim, v_dim, head_pad, v_pad, block, False, interpreted,
        )  # fmt: skip
    gap = right - left_last
    for step in range(left, right_last - gap):
        tile = tl.where(step < left_last, step, step + gap)
        state = _add_keys(
            state, q, x, parts, b, h, kv, i, inside, tile, m,
            head_dim, v_dim, head_pad, v_pad, block, True, interpreted,
        )  # fmt: skip
    _finish(state, parts.sink, out, row_max, row_sum, b, h, which, i, inside, n, v_dim, v_pad)


@triton.jit
def _finish(state, sink, out, row_max, row_sum, b, h, which, i, inside, n, v_dim: tl.constexpr, v_pad: tl.constexpr):
    """Adds the sink, and stores the output and the statistics of the queries i."""
    total, largest, sums = state
    # a query that sees nothing, or scores of −∞ alone, gives zeros; of NaN the maximum is −∞ too, but no sum
    blind = (largest == float("-inf")) & (sums == 0)
    if sink is not None:
        logit = _vector(sink, b, h, i, inside, 0.0).to(tl.float32)
        above = tl.maximum(largest, logit, propagate_nan=tl.PropagateNan.ALL)
        origin = tl.where(above == float("-inf"), 0.0, above)
        shrink = tl.exp2((largest - origin) * LOG2E)
        sums = sums * shrink + tl.exp2((logit - origin) * LOG2E)
        total *= shrink[:, None]
    else:
        above = largest
    share = tl.where(blind[:, None], 0.0, total / tl.where(sums == 0, 1.0, sums)[:, None])
    _store_matrix(out, b, h, i, inside, share, v_dim, v_pad)
    _store_statistic(row_max, which, i, inside, n, above)
    _store_statistic(row_sum, which, i, inside, n, sums)


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
    q = _matrix(x.q, b, h, i, inside, head_dim, head_pad)
    state = (
        tl.zeros([rows, v_pad], tl.float32),
        tl.full([rows], float("-inf"), tl.float32),
        tl.zeros([rows], tl.float32),
    )
    left, left_last, right, right_last = _seen_tiles(parts.sight, b, i, inside, m, block)
    gap = right - left_last
    share = tl.cdiv(right_last - gap - left, splits)
    start = left + split * share
    for step in range(start, tl.minimum(start + share, right_last - gap)):
        tile = tl.where(step < left_last, step, step + gap)
        state = _add_keys(
            state, q, x, parts, b, h, kv, i, inside, tile, m,
            head_dim, v_dim, head_pad, v_pad, block, True, interpreted,
        )  # fmt: skip
    total, largest, sums = state
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
    state = total, largest, sums
    _finish(state, sink, out, row_max, row_sum, b, h, which, i, i < n, n, v_dim, v_pad)


# ---------------------------------------------------------------- gradients


@triton.jit(do_not_specialize=["n"])
def deltas(out, d_out, d_lse, delta, n, heads, v_dim: tl.constexpr, v_pad: tl.constexpr, rows: tl.constexpr):
    """δ = Σ d_out·out − d_lse of a block of queries."""
    tiles = tl.cdiv(n, rows)
    which = tl.program_id(0) // tiles
    b, h = which // heads, which % heads
    i = (tl.program_id(0) % tiles) * rows + tl.arange(0, rows)
    inside = i < n
    value = _matrix(out, b, h, i, inside, v_dim, v_pad).to(tl.float32)
    gradient = _matrix(d_out, b, h, i, inside, v_dim, v_pad).to(tl.float32)
    found = tl.sum(value * gradient, 1)
    if d_lse is not None:
        found -= _statistic(d_lse, which, i, inside, n, 0.0)
    _store_statistic(delta, which, i, inside, n, found)


@triton.jit
def _weights(
    parts, rows_of, products, values, b, h, which, i, j, i_inside, j_inside, n, m,
    masked: tl.constexpr, flipped: tl.constexpr, interpreted: tl.constexpr,
):  # fmt: skip
    """Of a block the weights before and after dropout, their gradients, the cap's slope, and what is in sight.

    products are ⟨q, k⟩, and values ⟨d_out, v⟩. The gradient of a score is weight·(gradient of weight − δ)·slope.
    """
    row_max, row_sum, _ = rows_of
    score, slope = _scores(products, parts.terms, b, h, i, j, i_inside, j_inside, flipped, interpreted)
    largest = _by_query(_statistic(row_max, which, i, i_inside, n, 0.0), flipped)
    total = _by_query(_statistic(row_sum, which, i, i_inside, n, 1.0), flipped)
    weight = tl.exp2((score - largest) * LOG2E) / total
    unseen = score == float("-inf")
    seen = 0
    if masked:
        seen = _in_sight(parts.sight, b, h, i, j, i_inside, m, flipped)
        unseen |= seen == 0
    weight = tl.where(unseen, 0.0, weight)
    # a key of weight 0 may have a value that is NaN
    values = tl.where(unseen, 0.0, values)
    if parts.drop is None:
        return weight, weight, values, slope, seen
    else:
        factor = _kept(parts.drop, b, h, i, j, i_inside, j_inside, flipped)
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
    k = _matrix(x.k, b, kv, j, j_inside, head_dim, head_pad)
    v = _matrix(x.v, b, kv, j, j_inside, v_dim, v_pad)
    products, values = _dot(q, tl.trans(k), interpreted), _dot(up, tl.trans(v), interpreted)
    weight, _, values, slope, seen = _weights(
        parts, rows_of, products, values, b, h, which, i, j, i_inside, j_inside, n, m, masked, False, interpreted
    )
    if masked:
        k = tl.where((tl.max(seen.to(tl.int32), 0) != 0)[:, None], k, 0.0)
    delta = _statistic(rows_of[2], which, i, i_inside, n, 0.0)
    gradient = weight * (values - delta[:, None]) * slope
    d_q += _dot(gradient.to(k.dtype), k, interpreted)
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
    q = _matrix(x.q, b, h, i, inside, head_dim, head_pad)
    up = _matrix(d_out, b, h, i, inside, v_dim, v_pad)
    zeros = tl.zeros([rows], tl.float32)
    state = tl.zeros([rows, head_pad], tl.float32), zeros, zeros, zeros
    open_, end, left, left_last, right, right_last = _tiles(parts.sight, b, i, inside, m, block)
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
        delta -= _statistic(d_lse, which, i, inside, n, 0.0)
    if own_delta is not None:
        _store_statistic(own_delta, which, i, inside, n, delta)
    gradient *= parts.terms.scale
    if d_factor is not None:
        product = tl.where(gradient == 0, 0.0, gradient * q.to(tl.float32))  # a query that sees nothing may be NaN
        _store_statistic(d_factor, which, i, inside, n, tl.sum(product, 1))
    if parts.terms.factor is not None:
        gradient *= _vector(parts.terms.factor, b, h, i, inside, 0.0)[:, None]
    if d_q is not None:
        _store_matrix(d_q, b, h, i, inside, gradient, head_dim, head_pad)
    if d_queries is not None:
        _store_statistic(d_queries, which, i, inside, n, rising - tl.where(whole == 0, 0.0, delta * whole))


@triton.jit
def _add_to_key(
    state, k, v, x, parts, d_out, rows_of, b, h, which, j, j_inside, tile, n, m,
    head_dim: tl.constexpr, v_dim: tl.constexpr, head_pad: tl.constexpr, v_pad: tl.constexpr,
    rows: tl.constexpr, masked: tl.constexpr, interpreted: tl.constexpr,
):  # fmt: skip
    d_k, d_v, sums, firsts, seconds = state
    i = tile * rows + tl.arange(0, rows)
    i_inside = i < n
    q = _matrix(x.q, b, h, i, i_inside, head_dim, head_pad)
    up = _matrix(d_out, b, h, i, i_inside, v_dim, v_pad)
    products, values = _dot(k, tl.trans(q), interpreted), _dot(v, tl.trans(up), interpreted)
    weight, kept, values, slope, seen = _weights(
        parts, rows_of, products, values, b, h, which, i, j, i_inside, j_inside, n, m, masked, True, interpreted
    )
    if masked:
        q = tl.where((tl.max(seen.to(tl.int32), 0) != 0)[:, None], q, 0.0)
    d_v += _dot(kept.to(v.dtype), up, interpreted)
    gradient = weight * (values - _statistic(rows_of[2], which, i, i_inside, n, 0.0)[None, :]) * slope
    sums += tl.sum(gradient, 1)
    if parts.terms.formula is not None:
        _, first, second = _formula(parts.terms, b, h, i, j, i_inside, j_inside, True)
        firsts += tl.sum(gradient * first, 1)
        seconds += tl.sum(gradient * second, 1)
    if parts.terms.factor is not None:
        gradient *= _vector(parts.terms.factor, b, h, i, i_inside, 0.0)[None, :]
    return d_k + _dot(gradient.to(q.dtype), q, interpreted), d_v, sums, firsts, seconds


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
    k = _matrix(x.k, b, kv, j, inside, head_dim, head_pad)
    v = _matrix(x.v, b, kv, j, inside, v_dim, v_pad)
    d_key, d_value = tl.zeros([block, head_pad], tl.float32), tl.zeros([block, v_pad], tl.float32)
    open_, end, left, left_last, right, right_last = _query_tiles(parts.sight, b, start, start + block, n, m, rows)
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
            _store_statistic(d_keys, which, j, inside, m, sums)
        if d_first is not None:
            _store_statistic(d_first, which, j, inside, m, firsts)
        if d_second is not None:
            _store_statistic(d_second, which, j, inside, m, seconds)
    if d_k is not None:
        _store_matrix(d_k, b, kv, j, inside, d_key * parts.terms.scale, head_dim, head_pad)
    if d_v is not None:
        _store_matrix(d_v, b, kv, j, inside, d_value, v_dim, v_pad)


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
    q = _matrix(x.q, b, h, i, i_inside, head_dim, head_pad)
    up = _matrix(d_out, b, h, i, i_inside, v_dim, v_pad)
    k = _matrix(x.k, b, kv, j, j_inside, head_dim, head_pad)
    v = _matrix(x.v, b, kv, j, j_inside, v_dim, v_pad)
    products, values = _dot(q, tl.trans(k), interpreted), _dot(up, tl.trans(v), interpreted)
    weight, _, values, slope, _ = _weights(
        parts, rows_of, products, values, b, h, which, i, j, i_inside, j_inside, n, m, True, False, interpreted
    )
    return weight * (values - _statistic(rows_of[2], which, i, i_inside, n, 0.0)[:, None]) * slope


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
            last = tl.where(offset * block - block < _number(parts.sight.first.stop.value) - 1, last, first)
        if parts.sight.first.start.kind == SLOT:
            last = tl.where(offset * block + block > _number(parts.sight.first.start.value), last, first)
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
        _, _, left, _, _, last = _query_tiles(parts.sight, b, j_tile * block, (j_tile + 1) * block, n, m, rows)
        for i_tile in range(left, last):
            i, j = i_tile * rows + tl.arange(0, rows), j_tile * block + tl.arange(0, block)
            row = _row_of(parts.terms, b, i, j, i < n, j < m, False)
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
        _, _, first, _, _, last = _tiles(parts.sight, b, i, i_inside, m, block)
        if (first <= j_tile) & (j_tile < last):
            total += _tile_gradient(
                x, parts, d_out, rows_of, b, h, h // group, b * heads + h, i_tile, j_tile, n, m,
                head_dim, v_dim, head_pad, v_pad, rows, block, interpreted,
            )  # fmt: skip
    place = _of_pairs(d_dense, layout, own_b, own_h, i, j, False)
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
