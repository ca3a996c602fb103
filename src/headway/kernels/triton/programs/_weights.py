"""The weights of a block and their gradients, from its queries, keys and values, in Triton."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ._blocks import by_query, dot, dropout_factors, load_exponents, load_matrix, load_statistic, powers
from ._scores import look_up_by_query, row_of, scores_of, with_looked_up
from ._sight import in_sight
from ._skew import products_by_distance


class Factors(NamedTuple):
    """Queries or keys as they are multiplied.

    Attributes:
        x: the queries or keys.
        relative: what relative keys, or relative queries, are multiplied with; 0 without these.
    """

    x: Any
    relative: Any


class Weights(NamedTuple):
    """The weights of a tile with their gradients. The gradient of a score is weight·(gradient − δ)·slope.

    Attributes:
        weight: the weights.
        kept: the weights after dropout.
        gradient: the gradients of the weights.
        slope: the derivative of the score by what the cap bounds; 1 without a cap.
        seen: which pairs are in sight, if the tile is masked.
    """

    weight: Any
    kept: Any
    gradient: Any
    slope: Any
    seen: Any


# ---------------------------------------------------------------- products


@triton.jit
def load_queries(x, head, q):
    """A block of queries, and what relative keys are multiplied with."""
    queries, other = load_matrix(x.q, head.b, head.h, q.at, q.inside), 0
    if x.for_relative_keys is not None:
        other = load_matrix(x.for_relative_keys, head.b, head.h, q.at, q.inside)
    return Factors(queries, other)


@triton.jit
def load_keys(x, head, k):
    """A block of keys, and what relative queries are multiplied with."""
    keys, other = load_matrix(x.k, head.b, head.kv, k.at, k.inside), 0
    if x.for_relative_queries is not None:
        other = load_matrix(x.for_relative_queries, head.b, head.kv, k.at, k.inside)
    return Factors(keys, other)


@triton.jit
def products_of(queries, keys, terms, tile, flipped: tl.constexpr):
    """⟨q, k⟩ of a block, and the products of relative keys and queries."""
    if flipped:
        products = dot(keys.x, tl.trans(queries.x))
    else:
        products = dot(queries.x, tl.trans(keys.x))
    if terms.relative_keys is not None:
        products += products_by_distance(queries.relative, terms.relative_keys, tile, False, flipped, keys.x.shape[0])
    if terms.relative_queries is not None:
        products += products_by_distance(keys.relative, terms.relative_queries, tile, True, flipped, keys.x.shape[0])
    return with_looked_up(products, terms, tile, flipped)


@triton.jit
def value_products(up, v, parts, tile, flipped: tl.constexpr):
    """⟨d_out, v⟩ of a block, where v may have relative values."""
    if flipped:
        products = dot(v, tl.trans(up))
    else:
        products = dot(up, tl.trans(v))
    if parts.relative_values is not None:
        products += products_by_distance(up, parts.relative_values, tile, False, flipped, v.shape[0])
    if parts.of_values is not None:
        row = row_of(parts.of_values, parts.terms, tile, flipped)
        products += look_up_by_query(parts.of_values, tile, row, flipped)
    return products


# ---------------------------------------------------------------- weights


@triton.jit
def weights_of(parts, statistics, products, beyond, tile, masked: tl.constexpr, flipped: tl.constexpr):
    """The weights of a block from its products, the cap's slope, and what is in sight if it is ``masked``."""
    score, slope = scores_of(products, parts.terms, beyond, tile, flipped)
    rate, offset, inverse = load_exponents(statistics, tile.head, tile.q)
    weight = powers(score, by_query(rate, flipped), by_query(offset, flipped)) * by_query(inverse, flipped)
    seen = 0
    if masked:
        seen = in_sight(parts.sight, tile, flipped)
        weight = tl.where(seen, weight, 0.0)
        if parts.terms.cap is not None:  # the products of what is not in sight may be NaN
            slope = tl.where(seen, slope, 0.0)
    return weight, slope, seen


@triton.jit
def weights_and_gradients(
    parts, statistics, products, values, beyond, tile, masked: tl.constexpr, flipped: tl.constexpr
):
    """The weights of a tile and their gradients, from the products of queries and keys, and from ⟨d_out, v⟩."""
    weight, slope, seen = weights_of(parts, statistics, products, beyond, tile, masked, flipped)
    # a key of weight 0, by its mask or by a bias of −∞, may have a value that is NaN
    if (parts.terms.dense is not None or parts.terms.keys is not None) or parts.terms.queries is not None:
        values = tl.where(weight == 0, 0.0, values)
    elif masked:
        values = tl.where(seen, values, 0.0)
    if parts.drop is None:
        return Weights(weight, weight, values, slope, seen)
    else:
        factor = dropout_factors(parts.drop, tile, flipped)
        return Weights(weight, weight * factor, values * factor, slope, seen)


class TileGradient(NamedTuple):
    """The gradients of the scores of a tile.

    Attributes:
        of_scores: the gradients.
        kept: the weights after dropout.
        seen: which pairs are in sight.
        for_relative_keys: what relative keys are multiplied with; 0 without these.
        for_relative_queries: what relative queries are multiplied with; 0 without these.
        up: the gradients of the output.
    """

    of_scores: Any
    kept: Any
    seen: Any
    for_relative_keys: Any
    for_relative_queries: Any
    up: Any


@triton.jit
def gradient_of(x, parts, d_out, statistics, tile, flipped: tl.constexpr):
    """The gradients of the scores of a tile, and what they were computed from."""
    head, q, k = tile.head, tile.q, tile.k
    queries = load_queries(x, head, q)
    up = load_matrix(d_out, head.b, head.h, q.at, q.inside)
    keys = load_keys(x, head, k)
    v = load_matrix(x.v, head.b, head.kv, k.at, k.inside)
    products = products_of(queries, keys, parts.terms, tile, flipped)
    values = value_products(up, v, parts, tile, flipped)
    found = weights_and_gradients(parts, statistics, products, values, None, tile, True, flipped)
    delta = by_query(load_statistic(statistics.delta, head.which, q.at, q.inside, head.n, 0.0), flipped)
    of_scores = found.weight * (found.gradient - delta) * found.slope
    return TileGradient(of_scores, found.kept, found.seen, queries.relative, keys.relative, up)


@triton.jit
def kept_weights(x, parts, statistics, tile):
    """The weights of a tile after dropout."""
    products = products_of(
        load_queries(x, tile.head, tile.q), load_keys(x, tile.head, tile.k), parts.terms, tile, False
    )
    weight = weights_of(parts, statistics, products, None, tile, True, False)[0]
    if parts.drop is not None:
        weight *= dropout_factors(parts.drop, tile, False)
    return weight
