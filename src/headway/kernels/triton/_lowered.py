"""A call in the terms that the programs take: one number for each query, key, distance or pair."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from ...coordinates import Coordinates
from ...masks import And, Documents, Mask
from ...terms import Bias, DenseBias, DistanceBias, QueryScale, Rows, Sink, SoftCap, Term, TokenBias
from .._problem import Call
from ..lowering import LoweredCall, lower
from ._tables import (
    FORMULAS,
    DistanceFormula,
    DistanceTable,
    bias_of_pairs,
    formula_of,
    is_of_distances,
    table_by_position,
    table_of_slots,
)

DTYPES = frozenset({torch.float16, torch.bfloat16, torch.float32})


@dataclass(frozen=True, eq=False)
class Scores:
    """What scores are made of besides products; None for what a call does not have. All but ``dense`` are float32.

    score = cap(scale · factor · ⟨q, k⟩ + table[distance] + formula(distance) + queries + keys + dense)
    """

    factor: Tensor | None
    """[b, heads or 1, n or 1]"""
    table: DistanceTable | None
    formula: DistanceFormula | None
    queries: Tensor | None
    """[b, heads or 1, n]"""
    keys: Tensor | None
    """[b, heads or 1, m]"""
    dense: Tensor | None
    """[b or 1, heads or 1, n, m], of one of ``DTYPES``"""
    sink: Tensor | None
    """[b, heads or 1, n or 1]"""
    cap: float | None

    @property
    def tensors(self) -> Iterable[Tensor]:
        """The tensors of which gradients may be wanted."""
        table = None if self.table is None else self.table.values
        found = (self.factor, table, *self.parameters, self.queries, self.keys, self.dense, self.sink)
        return [x for x in found if x is not None]

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """The parameters of the formula."""
        return () if self.formula is None else (self.formula.first, self.formula.second)


@dataclass(frozen=True, eq=False)
class TritonCall(LoweredCall):
    """A lowered call whose terms are ``scores``, and whose mask is intervals, documents and ``allowed``."""

    scores: Scores = None  # type: ignore[assignment]
    documents: tuple[Tensor, Tensor] | None = None
    """The documents of the queries and of the keys, [b, n] and [b, m]: a query sees those of its own."""
    allowed: Tensor | None = None
    """What the rest of the mask allows, bool; broadcasts to [batch, heads, n, m]."""


def lower_for_programs(call: Call) -> TritonCall:
    """Returns the call in terms that the programs take."""
    lowered = lower(call)
    q_at, k_at = call.q_coordinates, call.k_coordinates
    terms = lowered.terms
    some = call.q.shape[2] and call.k.shape[2]
    biases = [term.values for term in terms if isinstance(term, DistanceBias)] if some else []
    rising = all(side.spanned is side.position for side in (q_at, k_at))
    whole = not any(side.position.is_floating_point() for side in (q_at, k_at))
    by_pairs = [x for x in biases if isinstance(x, Rows) and not is_of_distances(x, rising, whole)]
    others = [x for x in biases if not any(x is one for one in by_pairs)]
    table, formula = _of_distances(others, rising, q_at, k_at)
    documents, allowed = _rest_of(lowered.rest, q_at, k_at)
    queries, keys, dense = _added(terms, [bias_of_pairs(x, q_at, k_at) for x in by_pairs])
    scores = Scores(
        _each([term.factor for term in terms if isinstance(term, QueryScale)]),
        table,
        formula,
        _each(queries),
        _each(keys),
        dense,
        _each([term.by_query for term in terms if isinstance(term, Sink)]),
        next((float(term.cap) for term in terms if isinstance(term, SoftCap)), None),
    )
    return TritonCall._made({**lowered._values(), "scores": scores, "documents": documents, "allowed": allowed})


def _of_distances(
    biases: list[Bias], rising: bool, q: Coordinates, k: Coordinates
) -> tuple[DistanceTable | None, DistanceFormula | None]:
    """Returns the biases as a table and a formula; as a table alone where the positions of both sides rise by one."""
    if not biases:
        return None, None
    if rising:
        return table_of_slots(biases, q, k), None
    formula = next((formula_of(bias, q, k) for bias in biases if type(bias) in FORMULAS), None)
    table = next((table_by_position(bias, q, k) for bias in biases if isinstance(bias, Rows)), None)
    return table, formula


def _added(
    terms: Iterable[Term], of_pairs: list[Tensor]
) -> tuple[list[Tensor | None], list[Tensor | None], Tensor | None]:
    """Returns the biases of queries, those of keys, and the sum of those of pairs: a dense bias is one of these."""
    queries, keys, dense = [], [], None
    for term in terms:
        if isinstance(term, TokenBias):
            queries.append(term.queries)
            keys.append(term.keys)
        elif isinstance(term, DenseBias):
            assert isinstance(term.values, Tensor)
            of_pairs = [*of_pairs, term.values[(None,) * (4 - term.values.ndim)]]
    for values in of_pairs:
        if values.shape[3] == 1:
            queries.append(values[..., 0])
        elif values.shape[2] == 1:
            keys.append(values[:, :, 0])
        else:
            values = values if values.dtype in DTYPES else values.float()
            dense = values if dense is None else dense.float() + values
    return queries, keys, dense


def is_of_pairs(term: DenseBias) -> bool:
    """Whether a dense bias has more than one query and more than one key."""
    return isinstance(term.values, Tensor) and term.values.ndim > 1 and 1 not in term.values.shape[-2:]


def _each(parts: Iterable[Tensor | None]) -> Tensor | None:
    """Returns the sum of the parts in float32; None for none. There is one query scale and one sink at most."""
    total = None
    for part in parts:
        if part is not None:
            total = part.float() if total is None else total + part.float()
    return total


def _rest_of(rest: Mask | None, q: Coordinates, k: Coordinates) -> tuple[tuple[Tensor, Tensor] | None, Tensor | None]:
    """Returns the documents and the dense part of what no interval says."""
    if rest is None:
        return None, None
    parts = rest.masks if isinstance(rest, And) else (rest,)
    documents, dense = None, None
    for part in parts:
        if type(part) is Documents and documents is None:
            documents = part.ids_of(q, k)
        else:
            allowed = part.allowed(q, k)
            dense = allowed if dense is None else dense & allowed
    return documents, dense
