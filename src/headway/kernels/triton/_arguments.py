"""The arguments of programs: tensors with their strides, and the parts of scores, as named tuples.

A field is None if a call has no such part. An optional field is never nested in another optional field. Strides are in
elements. Every whole number is passed by ``number``.

A tuple that holds tuples ends with a constant, ``end``. Triton 3.6 keeps beside a tuple the constants of the tuples in
it, such as their layouts, and reads these in loops. It takes them over when it sets a constant of the outer tuple. A
tuple behind the last constant would have None in place of its own, which the compiler cannot compare with None.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor
from triton import language as tl

END = tl.constexpr(0)


def number(x: int) -> int:
    """Returns a whole number as programs take it.

    Triton compiles a program again where a number in a tuple is 1 or a multiple of 16, which ``do_not_specialize`` does
    not keep it from: 4x + 3 is neither.
    """
    return 4 * x + 3


class Plane(NamedTuple):
    """A tensor [batch, heads, tokens], or [batch, heads, tokens, width] whose rows lie together.

    Its layout says what is known of its strides: nothing, that they are multiples of 16, or that the tokens of a head
    lie beside one another.
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


class Pairs(NamedTuple):
    """A tensor [batch, heads, queries, keys].

    Its layout is passed beside it, since triton 3.6 would lose it here: nothing is known of its strides, or the keys of
    a query lie beside one another, or they do and the other strides are multiples of 16.
    """

    at: Any
    b: int
    h: int
    n: int
    m: int


class Bound(NamedTuple):
    """The first key that a query sees, or the one after the last: none, a number, a slot beside the query's, or one
    for each query, [batch, heads, queries].
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
    """Which blocks are in sight of each block of queries, or of keys, int32 [batch, heads, blocks, width].

    A list has the numbers of those in sight whole, and of the others; then the first ones, and from the end the others.
    ``b`` and ``h`` are lists from one sequence to the next, and from one head to the next.
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
    """The last place of an axis, and that of equal numbers of a query and a key."""

    last: int
    origin: int


class Grid(NamedTuple):
    """A bias for each place of the first axis, or of both; the numbers of tokens stand in ``Terms``."""

    at: Any
    h: int
    first: Axis
    second: Axis
    end: Any = END


class Formula(NamedTuple):
    """A bias that is computed from the distance, with two parameters for each head, which may be the same."""

    kind: Any
    first: Any
    second: Any
    first_h: int
    second_h: int


class Stretched(NamedTuple):
    """A bias in straight pieces, beyond the ``last`` edge and in front of each.

    The edges are padded with ∞ to a power of 2. Steps are how much the slope changes at each; intercepts, slopes and
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
    """A vector for each distance of slots, [heads or 1, rows, width], whose numbers lie together.

    If they are clipped, those up to the first of two ends are alike, and those from the other one on.
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
    """A number of each token for each row of a table by distance, [batch, heads, tokens, rows]."""

    at: Any
    b: int
    h: int
    n: int
    layout: Any
    last: int
    origin: int


class Terms(NamedTuple):
    """The parts of scores. ``query_products`` and ``key_products`` are those that are looked up by their distance.

    All rows of the table up to the first of two ``table_ends`` are alike, and all from the second one on.
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
    """What is multiplied: also the queries with relative keys, and the keys with relative queries."""

    q: Plane
    k: Plane
    v: Plane | None
    for_relative_keys: Plane | None
    for_relative_queries: Plane | None
    end: Any = END


class Statistics(NamedTuple):
    """What weights are computed from again, and δ, [batch, heads, n] each.

    weight = exp(score − largest)/sum = 2^(score·rate + offset)·inverse
    """

    rate: Any
    offset: Any
    inverse: Any
    delta: Any


class Parts(NamedTuple):
    """What the scores and weights of a call are made of."""

    sink: Plane | None
    relative_values: Vectors | None
    of_values: ByRow | None
    """The products of the gradients of the output with relative values, which are looked up."""
    terms: Terms
    sight: Sight
    drop: Dropout | None
    end: Any = END


class Wanted(NamedTuple):
    """What is to be reduced of the weights of each query, and where it goes: [batch, heads, n], or numbers of each.

    Programs know by their ``width`` whether anything is wanted, since triton 3.6 cannot compare it with None. What is
    of tokens is [batch, tokens], and keys are [batch or 1, n, at_count], with the numbers beside one another. Labels
    are −1 for none, those of keys below label_count; edges are those of range_count ranges, with that of their end.
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
