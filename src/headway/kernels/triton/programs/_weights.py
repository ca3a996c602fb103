"""The weights of a block and their gradients, from its queries, keys and values, in Triton."""

import triton
import triton.language as tl

from ._blocks import by_query, dot, dropout_factors, load_exponents, load_matrix, load_statistic, powers
from ._scores import look_up_by_query, row_of, scores_of, with_looked_up
from ._sight import in_sight
from ._skew import products_by_distance

# ---------------------------------------------------------------- products


@triton.jit
def load_queries(x, terms, b, h, i, inside, head_dim: tl.constexpr, head_pad: tl.constexpr):
    """The queries i, and what relative keys are multiplied with; 0 without these."""
    q, other = load_matrix(x.q, b, h, i, inside, head_dim, head_pad), 0
    if x.for_relative_keys is not None:
        other = load_matrix(x.for_relative_keys, b, h, i, inside, terms.relative_keys.width, terms.relative_keys.padded)
    return q, other


@triton.jit
def load_keys(x, terms, b, kv, j, inside, head_dim: tl.constexpr, head_pad: tl.constexpr):
    """The keys j, and what relative queries are multiplied with; 0 without these."""
    k, other = load_matrix(x.k, b, kv, j, inside, head_dim, head_pad), 0
    if x.for_relative_queries is not None:
        other = load_matrix(
            x.for_relative_queries, b, kv, j, inside, terms.relative_queries.width, terms.relative_queries.padded
        )
    return k, other


@triton.jit
def products_of(
    queries, keys, terms, b, h, i, j, i_inside, j_inside, i_start, j_start,
    flipped: tl.constexpr, interpreted: tl.constexpr,
):  # fmt: skip
    """⟨q, k⟩ of a block, and the products of relative keys and queries."""
    q, for_relative_keys = queries
    k, for_relative_queries = keys
    if flipped:
        products = dot(k, tl.trans(q), interpreted)
    else:
        products = dot(q, tl.trans(k), interpreted)
    if terms.relative_keys is not None:
        products += products_by_distance(
            for_relative_keys, terms.relative_keys, h, i_start, j_start, False, flipped, k.shape[0], interpreted
        )
    if terms.relative_queries is not None:
        products += products_by_distance(
            for_relative_queries, terms.relative_queries, h, i_start, j_start, True, flipped, k.shape[0], interpreted
        )
    return with_looked_up(products, terms, b, h, i, j, i_inside, j_inside, flipped, interpreted)


@triton.jit
def value_products(
    up, v, parts, b, h, i, j, i_inside, j_inside, i_start, j_start, flipped: tl.constexpr, interpreted: tl.constexpr
):
    """⟨d_out, v⟩ of a block, where v may have relative values."""
    if flipped:
        products = dot(v, tl.trans(up), interpreted)
    else:
        products = dot(up, tl.trans(v), interpreted)
    if parts.relative_values is not None:
        products += products_by_distance(
            up, parts.relative_values, h, i_start, j_start, False, flipped, v.shape[0], interpreted
        )
    if parts.of_values is not None:
        row = row_of(parts.of_values, parts.terms, b, i, j, i_inside, j_inside, flipped)
        products += look_up_by_query(parts.of_values, b, h, i, i_inside, row, flipped, interpreted)
    return products


# ---------------------------------------------------------------- weights


@triton.jit
def weights_of(
    parts, statistics, products, beyond, b, h, which, i, j, i_inside, j_inside, n, m,
    masked: tl.constexpr, flipped: tl.constexpr, interpreted: tl.constexpr,
):  # fmt: skip
    """The weights of a block from its products, the cap's slope, and what is in sight if it is ``masked``."""
    score, slope = scores_of(products, parts.terms, beyond, b, h, i, j, i_inside, j_inside, flipped, interpreted)
    rate, offset, inverse = load_exponents(statistics, which, i, i_inside, n)
    weight = powers(score, by_query(rate, flipped), by_query(offset, flipped)) * by_query(inverse, flipped)
    seen = 0
    if masked:
        seen = in_sight(parts.sight, b, h, i, j, i_inside, m, flipped)
        weight = tl.where(seen, weight, 0.0)
        if parts.terms.cap is not None:  # the products of what is not in sight may be NaN
            slope = tl.where(seen, slope, 0.0)
    return weight, slope, seen


@triton.jit
def weights_and_gradients(
    parts, statistics, products, values, beyond, b, h, which, i, j, i_inside, j_inside, n, m,
    masked: tl.constexpr, flipped: tl.constexpr, interpreted: tl.constexpr,
):  # fmt: skip
    """Of a block the weights before and after dropout, their gradients, the cap's slope, and what is in sight.

    products are those of queries and keys, and values ⟨d_out, v⟩. The gradient of a score is
    weight·(gradient of weight − δ)·slope.
    """
    weight, slope, seen = weights_of(
        parts, statistics, products, beyond, b, h, which, i, j, i_inside, j_inside, n, m, masked, flipped, interpreted
    )
    # a key of weight 0, by its mask or by a bias of −∞, may have a value that is NaN
    if (parts.terms.dense is not None or parts.terms.keys is not None) or parts.terms.queries is not None:
        values = tl.where(weight == 0, 0.0, values)
    elif masked:
        values = tl.where(seen, values, 0.0)
    if parts.drop is None:
        return weight, weight, values, slope, seen
    else:
        factor = dropout_factors(parts.drop, b, h, i, j, i_inside, j_inside, flipped)
        return weight, weight * factor, values * factor, slope, seen


@triton.jit
def tile_gradient(
    x, parts, d_out, statistics, b, h, kv, which, i_tile, j_tile, n, m,
    head_dim: tl.constexpr, v_dim: tl.constexpr, head_pad: tl.constexpr, v_pad: tl.constexpr,
    rows: tl.constexpr, block: tl.constexpr, interpreted: tl.constexpr,
):  # fmt: skip
    """The gradients of the scores of a tile."""
    return tile_of(
        x, parts, d_out, statistics, b, h, kv, which, i_tile, j_tile, n, m,
        head_dim, v_dim, head_pad, v_pad, rows, block, False, interpreted,
    )[0]  # fmt: skip


@triton.jit
def tile_of(
    x, parts, d_out, statistics, b, h, kv, which, i_tile, j_tile, n, m,
    head_dim: tl.constexpr, v_dim: tl.constexpr, head_pad: tl.constexpr, v_pad: tl.constexpr,
    rows: tl.constexpr, block: tl.constexpr, flipped: tl.constexpr, interpreted: tl.constexpr,
):  # fmt: skip
    """Of a tile the gradients of the scores, the weights after dropout, what is in sight, and what was multiplied."""
    i, j = i_tile * rows + tl.arange(0, rows), j_tile * block + tl.arange(0, block)
    i_inside, j_inside = i < n, j < m
    queries = load_queries(x, parts.terms, b, h, i, i_inside, head_dim, head_pad)
    up = load_matrix(d_out, b, h, i, i_inside, v_dim, v_pad)
    keys = load_keys(x, parts.terms, b, kv, j, j_inside, head_dim, head_pad)
    v = load_matrix(x.v, b, kv, j, j_inside, v_dim, v_pad)
    i_start, j_start = i_tile * rows, j_tile * block
    products = products_of(
        queries, keys, parts.terms, b, h, i, j, i_inside, j_inside, i_start, j_start, flipped, interpreted
    )
    values = value_products(up, v, parts, b, h, i, j, i_inside, j_inside, i_start, j_start, flipped, interpreted)
    weight, kept, values, slope, seen = weights_and_gradients(
        parts, statistics, products, values, None, b, h, which, i, j, i_inside, j_inside, n, m,
        True, flipped, interpreted,
    )  # fmt: skip
    delta = by_query(load_statistic(statistics.delta, which, i, i_inside, n, 0.0), flipped)
    return weight * (values - delta) * slope, kept, seen, queries[1], keys[1], up


@triton.jit
def kept_weights(
    x, parts, statistics, b, h, kv, which, i_tile, j_tile, n, m,
    head_dim: tl.constexpr, head_pad: tl.constexpr, rows: tl.constexpr, block: tl.constexpr, interpreted: tl.constexpr,
):  # fmt: skip
    """The weights of a tile after dropout."""
    i, j = i_tile * rows + tl.arange(0, rows), j_tile * block + tl.arange(0, block)
    i_inside, j_inside = i < n, j < m
    queries = load_queries(x, parts.terms, b, h, i, i_inside, head_dim, head_pad)
    keys = load_keys(x, parts.terms, b, kv, j, j_inside, head_dim, head_pad)
    products = products_of(
        queries, keys, parts.terms, b, h, i, j, i_inside, j_inside, i_tile * rows, j_tile * block, False, interpreted
    )
    weight = weights_of(
        parts, statistics, products, None, b, h, which, i, j, i_inside, j_inside, n, m, True, False, interpreted
    )[0]
    if parts.drop is not None:
        weight *= dropout_factors(parts.drop, b, h, i, j, i_inside, j_inside, False)
    return weight
