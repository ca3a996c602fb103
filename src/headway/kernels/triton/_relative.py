"""Lowers relative keys, queries and values to inputs of the programs, by operations that autograd records.

If positions rise by one, a term has a vector for each distance of slots. Programs multiply these vectors with the
tokens block by block (``programs/_skew.py``), and the products of pairs never leave a program.

At other positions, this module computes the products of each token with every vector of the table, [tokens, rows], and
programs look up the product of each pair. The gradients of these products, and the sums of weights by row with which
relative values are multiplied, come from a program that visits the rows of each block (``sums_by_row``). This takes
memory for each token and each vector, so the table must not grow with the sequence.

Sinusoids at such positions have no table. In short calls, their products with the queries are a dense bias; otherwise
they are additional columns of q and k (``lowering/sinusoids.py``).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...terms import Bucketize, Clip, RelativeKeys, RelativeQueries, RelativeValues, Rows, Sinusoids
from .._problem import Call
from ..lowering.sinusoids import RotatedQuery
from ._slots import Slots, axis_of
from ._tables import by_whole_distance, is_of_distances

MAX_ROWS = 1 << 12
"""The most vectors of a table whose products with each token are computed."""


class Relative(NamedTuple):
    """A relative term.

    Attributes:
        tokens: the queries or keys that are multiplied, [batch, heads or kv_heads, tokens, width]; None for values.
        vectors: the vectors of the distances, [heads or 1, rows, width].
        products: the products of each token with each vector, float32 [batch, heads, tokens, rows], for looking up;
            None if programs multiply blocks, and for values.
        origin: the row of distance 0, between slots if positions rise by one, else between positions.
        q: the positions of the queries, [b, n]; None if positions rise by one.
        k: the positions of the keys.
        ends: int32 [2]. All distances of slots up to the first number share a vector, and all from the second one on.
            None for sinusoids, and for vectors by position.
    """

    tokens: Tensor | None
    vectors: Tensor
    products: Tensor | None
    origin: int
    q: Tensor | None
    k: Tensor | None
    ends: Tensor | None = None

    @property
    def learned(self) -> list[Tensor]:
        """The tensors whose gradients programs compute."""
        found = [self.products] if self.products is not None else [self.tokens, self.vectors]
        return [x for x in found if x is not None]


class Products(torch.autograd.Function):
    """a·bᵀ. Rows whose gradient is 0, such as tokens without pairs, may hold NaN."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a @ b.mT

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, Tensor | None]:
        a, b = ctx.saved_tensors
        d_a, d_b = None, None
        if ctx.needs_input_grad[0]:
            d_a = (upstream @ b.nan_to_num(0, 0, 0)).sum_to_size(a.shape)
        if ctx.needs_input_grad[1]:
            d_b = (upstream.mT @ a.nan_to_num(0, 0, 0)).double().sum_to_size(b.shape).to(b.dtype)
        return d_a, d_b


def why_not_by_row(rows: Rows, whole: bool) -> str | None:
    """Returns why the products with every vector of a table cannot be computed; None if they can.

    Args:
        rows: the table, by ``Clip`` or ``Bucketize``.
        whole: whether positions are integers.
    """
    if not is_of_distances(rows, False, whole):
        return "relative vectors by Bucketize need a reach and integer positions"
    assert isinstance(rows.map, (Clip, Bucketize))
    reach = rows.map.reach if isinstance(rows.map, Bucketize) else None
    count = rows.map.count if reach is None else 2 * reach + 3
    return None if count <= MAX_ROWS else f"it takes at most {MAX_ROWS:,} relative vectors, not {count:,}"


def relative(
    term: RelativeKeys | RelativeQueries | RelativeValues, call: Call, in_blocks: bool, slots: Slots
) -> Relative:
    """Returns a relative term of a lowered call.

    Args:
        term: the term. Sinusoids need ``in_blocks``.
        call: the call.
        in_blocks: whether programs multiply blocks of the vectors.
        slots: the slots of the call.
    """
    rows, tokens = term.rows, None
    if isinstance(term, RelativeKeys):
        tokens = queries_of(term, call)
    elif isinstance(term, RelativeQueries):
        tokens = call.k if term.key is None else term.key.to(call.k.dtype)
    q, k = call.q_coordinates, call.k_coordinates
    if in_blocks:
        if isinstance(rows, Sinusoids):
            found, ends = waves_at(rows, slots.distances(rows.axis)), None
        else:
            places = slots.places(rows)
            found, ends = places.of(rows.table.float()), places.ends
        return Relative(tokens, found.to(call.q.dtype), None, q.index.shape[1] - 1, None, None, ends)
    assert isinstance(rows, Rows)
    vectors, origin = by_whole_distance(rows)
    products = None if tokens is None else Products.apply(_of_each_head(tokens, call).float(), vectors)
    return Relative(tokens, vectors, products, origin, q.axis(axis_of(rows)), k.axis(axis_of(rows)))


def queries_of(term: RelativeKeys, call: Call) -> Tensor:
    """Returns the queries that relative keys are multiplied with, in the dtype of q."""
    query = call.q if term.query is None else term.query
    if term.query_bias is not None:
        query = query.float() + term.query_bias.float()[:, None]
    return query.to(call.q.dtype)


def _of_each_head(tokens: Tensor, call: Call) -> Tensor:
    """Returns tokens as [batch, heads, …], repeating keys [batch, kv_heads, …]."""
    return tokens.repeat_interleave(call.q.shape[1] // max(tokens.shape[1], 1), dim=1)


def waves_at(rows: Sinusoids, distances: Tensor) -> Tensor:
    """Returns the vectors at distances [count], float32 [heads or 1, count, width]."""
    angle = distances[:, None].double() * rows.frequencies.double()
    waves = torch.cat([-angle.sin(), angle.cos()], dim=-1).float()
    return waves @ rows.weight.float().mT


def by_sinusoids(term: RelativeKeys, call: Call) -> Tensor:
    """Returns the unscaled products of queries and sinusoidal keys for each pair, float32 [batch, heads, n, m]."""
    rows = term.rows
    assert isinstance(rows, Sinusoids)
    rates = rows.frequencies.double()
    at, to = (side.axis(rows.axis).double() for side in (call.q_coordinates, call.k_coordinates))
    turned = RotatedQuery.apply(queries_of(term, call).float(), rows.weight.float(), rates, at)
    angle = (to[..., None] * rates)[:, None]
    return Products.apply(turned, torch.cat([angle.sin(), angle.cos()], dim=-1).float())
