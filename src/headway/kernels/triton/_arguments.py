"""What programs get: tensors with their strides, and the parts of scores, as named tuples.

A field is None where a call has no such part. Strides are in elements.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Plane(NamedTuple):
    """A tensor [batch, heads, tokens], or [batch, heads, tokens, width] whose rows lie together."""

    at: Any
    b: int
    h: int
    n: int


class Pairs(NamedTuple):
    """A tensor [batch, heads, queries, keys]."""

    at: Any
    b: int
    h: int
    n: int
    m: int


class Bound(NamedTuple):
    """The first key that a query sees, or the one after the last: none, a number, a slot beside the query's, or one
    for each query.
    """

    kind: Any
    value: Any
    at: Any
    b: Any
    n: Any


class Span(NamedTuple):
    start: Bound
    stop: Bound


class Sight(NamedTuple):
    first: Span
    second: Span | None
    q_document: Plane | None
    k_document: Plane | None
    rest: Pairs | None


class Table(NamedTuple):
    at: Any
    h: int
    last: int
    origin: int
    q: Plane | None
    k: Plane | None


class Terms(NamedTuple):
    scale: float
    cap: float | None
    factor: Plane | None
    table: Table | None
    queries: Plane | None
    keys: Plane | None


class Dropout(NamedTuple):
    below: int
    factor: float
    seed: Any
    first_row: int
    first_head: int
    queries: Plane
    keys: Plane


class Inputs(NamedTuple):
    q: Plane
    k: Plane
    v: Plane


class Parts(NamedTuple):
    """What the scores and weights of a call are made of. Its strides do not decide what is compiled."""

    sink: Plane | None
    terms: Terms
    sight: Sight
    drop: Dropout | None
