"""The arguments of programs as named tuples: tensors with their strides, and the parts of scores.

A field is None if a call has no such part. An optional field is never nested in another optional field. Strides are in
elements. Every whole number is passed by ``number``.

A tuple that holds tuples ends with a constant, ``end``. Triton 3.6 records the constants of inner tuples, such as their
layouts, only up to the last constant of the outer tuple. An inner tuple behind it would lose its constants: the
compiler would see None, which it cannot compare with None.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from torch import Tensor
from triton import language as tl

END = tl.constexpr(0)


constant = cache(tl.constexpr)
"""Returns a number as a constant of programs, one object for each number, since making one takes time."""


def number(x: int) -> int:
    """Returns a whole number in the form that programs take.

    Triton compiles a program again if a number in a tuple is 1 or a multiple of 16, even with ``do_not_specialize``.
    4x + 3 is neither.
    """
    return 4 * x + 3


class Plane(NamedTuple):
    """A tensor [batch, heads, tokens], or one with rows that lie together, whose width the program knows.

    Its layout states what is known of its strides: nothing, that they are multiples of 16, or that the tokens of a head
    are contiguous.
    """

    at: Any
    b: int
    h: int
    n: int
    layout: Any

    @staticmethod
    def of(x: Tensor, strides: Sequence[int], layout: Any) -> Plane:
        b, h, n = map(number, strides)
        return Plane(x, b, h, n, layout)


class Matrix(NamedTuple):
    """A tensor [batch, heads, tokens, width] whose rows lie together, of a layout as for ``Plane``.

    Programs read and write its rows as blocks of the width ``padded``, a power of 2.
    """

    at: Any
    b: int
    h: int
    n: int
    layout: Any
    width: Any
    padded: Any

    @staticmethod
    def of(x: Tensor, layout: Any, padded: int) -> Matrix:
        b, h, n = map(number, x.stride()[:3])
        return Matrix(x, b, h, n, layout, constant(x.shape[3]), constant(padded))


class Pairs(NamedTuple):
    """A tensor [batch, heads, queries, keys].

    Its layout is a separate argument, since triton 3.6 would lose it here. It states that nothing is known of the
    strides, that the keys of a query are contiguous, or also that the other strides are multiples of 16.
    """

    at: Any
    b: int
    h: int
    n: int
    m: int


class Bound(NamedTuple):
    """The first key that a query sees, or the one after the last.

    It is None, a number, a slot relative to the query's, or a tensor with one for each query [batch, heads, queries].
    """

    kind: Any
    value: int | Plane
    end: Any = END


class Span(NamedTuple):
    """An interval of keys for each query, start … stop − 1, of the keys first … last − 1 of its sequence, [batch]."""

    start: Bound
    stop: Bound
    first: Bound
    last: Bound
    end: Any = END


class Lists(NamedTuple):
    """The blocks in sight of each block of queries, or of keys, int32 [batch, heads, blocks, width].

    A list begins with the counts of blocks in full and in partial sight. The first kind follows, and the second kind
    fills the list from its end. ``b`` and ``h`` are the strides, in lists, of sequences and heads.
    """

    at: Any
    b: int
    h: int
    width: int


class Sight(NamedTuple):
    first: Span
    second: Span | None
    q_document: Plane | None
    k_document: Plane | None
    rest: Pairs | None
    rest_layout: Any
    lists: Lists | None
    end: Any = END


class TableArguments(NamedTuple):
    at: Any
    h: int
    last: int
    origin: int


class Axis(NamedTuple):
    """The last place of an axis, and the place at which query and key have equal numbers."""

    last: int
    origin: int


class Grid(NamedTuple):
    """A bias for each place of one axis, or of two. The numbers of the tokens are in ``Terms``."""

    at: Any
    h: int
    first: Axis
    second: Axis
    end: Any = END


class Formula(NamedTuple):
    """A bias that is computed from the distance, with two parameters for each head. Both may be the same tensor."""

    kind: Any
    first: Any
    second: Any
    first_h: int
    second_h: int


class Stretched(NamedTuple):
    """A piecewise linear bias, with a piece in front of each edge and one behind the ``last``.

    The edges are padded with ∞ to a power of 2. Steps are the changes of the slope at the edges. Intercepts, slopes and
    steps are [heads, pieces].
    """

    edges: Any
    last: int
    padded: Any
    intercept: Any
    slope: Any
    step: Any
    h: int
    rate: Any


class SizeArguments(NamedTuple):
    """ln(1 + rate·|δ|) of each distance of slots, and its derivative by the rate."""

    at: Any
    by_rate: Any
    origin: int


class Vectors(NamedTuple):
    """A contiguous vector for each distance of slots, [heads or 1, rows, width].

    If distances are clipped, all vectors up to the first of two ends are equal, and all from the second one on.
    """

    at: Any
    h: int
    last: int
    origin: int
    width: Any
    padded: Any
    clipped: Any
    ends: Any


class ByRow(NamedTuple):
    """A number for each token and each row of a table by distance, [batch, heads, tokens, rows]."""

    at: Any
    b: int
    h: int
    n: int
    layout: Any
    last: int
    origin: int


class Terms(NamedTuple):
    """The parts of scores. ``query_products`` and ``key_products`` are looked up by distance.

    All rows of the table up to the first of two ``table_ends`` are equal, and all from the second one on.
    """

    scale: float
    dense_layout: Any
    cap: float | None = None
    factor: Plane | None = None
    relative_keys: Vectors | None = None
    relative_queries: Vectors | None = None
    query_products: ByRow | None = None
    key_products: ByRow | None = None
    relative_q_position: Plane | None = None
    relative_k_position: Plane | None = None
    table: TableArguments | None = None
    table_ends: Any = None
    q_position: Plane | None = None
    k_position: Plane | None = None
    grid: Grid | None = None
    first_q: Plane | None = None
    first_k: Plane | None = None
    second_q: Plane | None = None
    second_k: Plane | None = None
    formula: Formula | None = None
    formula_start: Any = None
    formula_q: Plane | None = None
    formula_k: Plane | None = None
    stretched: Stretched | None = None
    stretch: Plane | None = None
    sizes: SizeArguments | None = None
    stretched_q: Plane | None = None
    stretched_k: Plane | None = None
    queries: Plane | None = None
    keys: Plane | None = None
    dense: Pairs | None = None
    end: Any = END


class Dropout(NamedTuple):
    below: int
    factor: float
    seed: Any
    first_row: int
    first_head: int
    queries: Plane
    keys: Plane
    end: Any = END


class Inputs(NamedTuple):
    """The operands of products, including the queries of relative keys and the keys of relative queries."""

    q: Matrix
    k: Matrix
    v: Matrix | None
    for_relative_keys: Matrix | None
    for_relative_queries: Matrix | None
    end: Any = END


class Statistics(NamedTuple):
    """The statistics from which weights are recomputed, and δ, [batch, heads, n] each.

    weight = exp(score − largest)/sum = 2^(score·rate + offset)·inverse
    """

    rate: Any
    offset: Any
    inverse: Any
    delta: Any


class Results(NamedTuple):
    """Where the output goes, if it is wanted, and the statistics of each query, [batch, heads, n]."""

    out: Matrix | None
    row_max: Any
    row_sum: Any
    end: Any = END


class Splits(NamedTuple):
    """Sums over splits of the keys, float32: [splits, batch, heads, n, v_dim], and [splits, batch, heads, n] each."""

    total: Any
    largest: Any
    sums: Any


class QueryGradients(NamedTuple):
    """Where gradients of a block of queries go, None for what is not wanted: matrices, and numbers [batch, heads, n].

    ``delta`` is δ, which is computed if it is wanted and read from the statistics if not. Of the rate of a stretched
    bias each query has a part.
    """

    delta: Any = None
    q: Matrix | None = None
    for_relative_keys: Matrix | None = None
    factor: Any = None
    queries: Any = None
    stretch: Any = None
    rate: Any = None
    end: Any = END


class KeyGradients(NamedTuple):
    """Where gradients of a block of keys go, None for what is not wanted: matrices, and numbers [batch, heads, m].

    Each key has a part of those of a formula's parameters, ``first`` and ``second``, and of the first and the last
    number of a clipped table, ``far``, [2, batch, heads, m].
    """

    k: Matrix | None
    for_relative_queries: Matrix | None
    v: Matrix | None
    keys: Any
    first: Any
    second: Any
    far: Any
    end: Any = END


class Parts(NamedTuple):
    """The parts from which the scores and weights of a call are computed."""

    sink: Plane | None
    relative_values: Vectors | None
    of_values: ByRow | None
    """The products of the output's gradients with relative values, which are looked up."""
    terms: Terms
    sight: Sight
    drop: Dropout | None
    end: Any = END


class Wanted(NamedTuple):
    """The reductions of each query's weights, and their results: [batch, heads, n], or several numbers for each query.

    A ``width`` of 0 tells programs that no reduction is wanted, since triton 3.6 cannot compare this tuple with None.
    Inputs for tokens are [batch, tokens]. Keys are [batch or 1, n, at_count], contiguous in the last dimension. A label
    is −1 for none; labels of keys are below label_count. There are range_count + 1 edges.
    """

    entropy: Any = None
    visible: Any = None
    q_index: Any = None
    k_index: Any = None
    distance: Any = None
    edges: Any = None
    range_count: int | None = None
    ranges: Any = None
    q_label: Any = None
    k_label: Any = None
    most: int | None = None
    matched: Any = None
    matches: Any = None
    label: Any = None
    label_count: int | None = None
    labels: Any = None
    keys: Any = None
    keys_b: int | None = None
    at_count: int | None = None
    at: Any = None
    top_count: int | None = None
    top: Any = None
    top_keys: Any = None
