"""Lowers a call to the inputs of the programs: numbers for each query, key, distance or pair, and relative vectors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...coordinates import Coordinates
from ...masks import And, Bounds, Documents, Mask, Padding
from ...records import Record
from ...terms import (
    Bias,
    DenseBias,
    DistanceBias,
    QueryScale,
    RelativeKeys,
    RelativeQueries,
    RelativeValues,
    Rows,
    Sink,
    Sinusoids,
    SoftCap,
    Term,
    TokenBias,
)
from .._problem import Call, Problem
from ..lowering import LoweredCall, with_intervals, with_simpler_terms
from ..lowering.sinusoids import with_columns
from ._choices import DTYPES, are_few
from ._relative import Relative, by_sinusoids, relative, why_not_by_row
from ._slots import Slots
from ._tables import (
    MOST_EXACT,
    DistanceFormula,
    DistanceTable,
    Divided,
    GridTable,
    StretchedPieces,
    bias_of_pairs,
    divided,
    formula_of,
    stretched_pieces,
    table_by_axes,
    table_by_position,
    table_of_slots,
)

RELATIVE = (RelativeKeys, RelativeQueries, RelativeValues)
REST_LIMIT = 1 << 26
"""The most bytes of a dense mask, with one byte for each pair, or of a dense bias, with four."""


def is_small(batch: int, heads: int, n: int, m: int) -> bool:
    """Returns whether a bias of these sizes may be made dense."""
    return batch * heads * n * m * 4 <= REST_LIMIT


@dataclass(frozen=True, eq=False)
class Scores(Record):
    """The parts of scores other than products. A part that a call does not have is None.

    score = cap(scale · factor · (⟨q, k⟩ + relative products) + table[distance] + grid[places]
                + formula(distance) + pieces(distance, query) + queries + keys + dense)

    All are float32 except ``dense`` and relative vectors.
    """

    factor: Tensor | None
    """[b, heads or 1, n or 1]"""
    relative_keys: Relative | None
    relative_queries: Relative | None
    table: DistanceTable | None
    grid: GridTable | None
    formula: DistanceFormula | None
    stretched: StretchedPieces | None
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
        """The tensors that may require a gradient."""
        table, grid = (None if x is None else x.values for x in (self.table, self.grid))
        relative = [x for term in (self.relative_keys, self.relative_queries) if term is not None for x in term.learned]
        biases = table, grid, *self.parameters, *self.pieces, self.queries, self.keys, self.dense
        found = (self.factor, *relative, *biases, self.sink)
        return [x for x in found if x is not None]

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """The parameters of the formula."""
        return () if self.formula is None else self.formula.parameters

    @property
    def pieces(self) -> tuple[Tensor, ...]:
        """The parameters of the stretched bias."""
        return () if self.stretched is None else self.stretched.parameters


@dataclass(frozen=True, eq=False)
class TritonCall(LoweredCall):
    """A lowered call with ``scores``. Its mask consists of intervals, ``real_keys``, documents and ``allowed``."""

    scores: Scores = None  # type: ignore[assignment]
    relative_values: Relative | None = None
    real_keys: Bounds = (None, None)
    """The bounds of each sequence's keys without padding: numbers, [b or 1, 1] or None."""
    documents: tuple[Tensor, Tensor] | None = None
    """The documents of queries and keys, [b, n] and [b, m]. A query sees keys of its own document."""
    allowed: Tensor | None = None
    """The rest of the mask, bool, which broadcasts to [batch, heads, n, m]."""


def kinds_of(problem: Problem) -> Divided:
    """Groups the distance biases of a problem by the form in which programs take them."""
    biases = [term.values for term in problem.terms if isinstance(term, DistanceBias)]
    if not problem.n or not problem.m:
        biases = []
    few = max(problem.n, problem.m) <= MOST_EXACT
    found = divided(biases, problem.positions_rise_by_one, problem.positions_are_whole, few)
    return found.with_grid() if would_be_large(problem, found.of_pairs) else found


def would_be_large(problem: Problem, of_pairs: list[Bias]) -> bool:
    """Returns whether these biases and the dense ones need a dense sum that is too large."""
    dense = [term for term in problem.terms if isinstance(term, DenseBias) and is_of_pairs(term)]
    if not of_pairs and len(dense) < 2:
        return False
    rows = max(problem.coordinate_rows, *(part.extent("batch") for part in (*of_pairs, *dense)))
    return not is_small(rows, problem.heads, problem.n, problem.m)


class Frame(NamedTuple):
    """The part of a lowered call that depends only on positions and mask. Later calls at the same positions share it.

    Attributes:
        intervals: as in ``LoweredCall``.
        rest: likewise.
        real_keys: as in ``TritonCall``.
        documents: likewise.
        allowed: likewise.
        slots: results that depend on the positions.
    """

    intervals: tuple[Bounds, ...]
    rest: Mask | None
    real_keys: Bounds
    documents: tuple[Tensor, Tensor] | None
    allowed: Tensor | None
    slots: Slots

    @staticmethod
    def of(call: Call) -> Frame:
        """Returns the frame of ``call``."""
        mask, real_keys = _without_padding(call)
        lowered = with_intervals(call if mask is call.mask else call._with(mask=mask))
        sides = lowered.q_coordinates, lowered.k_coordinates
        return Frame(lowered.intervals, lowered.rest, real_keys, *rest_of(lowered.rest, *sides), Slots(*sides))


def lower_for_programs(call: Call, frame: Frame | None = None) -> TritonCall:
    """Returns the call in terms that the programs take.

    Args:
        call: the call.
        frame: the frame of an earlier call that differs only in its terms and in the values of q, k and v.
    """
    frame = Frame.of(call) if frame is None else frame
    slots, some = frame.slots, bool(call.q.shape[2] and call.k.shape[2])
    sides = {"q_coordinates": slots.q, "k_coordinates": slots.k}
    seen = {"mask": None, "intervals": frame.intervals, "rest": frame.rest}
    simple = with_simpler_terms(LoweredCall._made({**call._values(), **sides, **seen}))
    in_blocks = some and any(isinstance(x, RELATIVE) for x in simple.terms) and _in_blocks(simple)
    lowered, of_sinusoids = _without_sinusoids(simple, in_blocks)
    terms, q_at, k_at = lowered.terms, lowered.q_coordinates, lowered.k_coordinates
    relatives = [x for x in terms if isinstance(x, RELATIVE)] if some else []
    vectors = {type(x): relative(x, lowered, in_blocks, slots) for x in relatives}
    factor = sum_of([term.factor for term in terms if isinstance(term, QueryScale)])
    problem = Problem(lowered)
    rising, kinds = problem.positions_rise_by_one, kinds_of(problem)
    table = table_of_slots(kinds.table, slots) if kinds.table and rising else None
    for rows in kinds.table if not rising else ():
        assert isinstance(rows, Rows)
        table = table_by_position(rows, q_at, k_at)
    of_pairs = [bias_of_pairs(x, q_at, k_at) for x in kinds.of_pairs]
    if some:
        of_pairs += [_scaled(x, lowered.scale, factor) for x in of_sinusoids]
    queries, keys, dense = added(terms, of_pairs)
    scores = Scores(
        factor,
        vectors.get(RelativeKeys),
        vectors.get(RelativeQueries),
        table,
        next((table_by_axes(x, q_at, k_at) for x in kinds.grid), None),
        next((formula_of(x, q_at, k_at, rising) for x in kinds.formula), None),
        next((stretched_pieces(x, slots, rising) for x in kinds.stretched), None),
        sum_of(queries),
        sum_of(keys),
        dense,
        sum_of([term.by_query for term in terms if isinstance(term, Sink)]),
        next((float(term.cap) for term in terms if isinstance(term, SoftCap)), None),
    )
    parts = {"scores": scores, "relative_values": vectors.get(RelativeValues), "real_keys": frame.real_keys}
    rest = {"documents": frame.documents, "allowed": frame.allowed}
    return TritonCall._made({**lowered._values(), **parts, **rest})


def _without_padding(call: Call) -> tuple[Mask | None, Bounds]:
    """Returns the mask without padding, and the bounds of each sequence's real keys.

    Intersecting these bounds with the bounds of each query would turn them into a tensor by query.
    """
    mask = call.mask
    for part in mask.masks if isinstance(mask, And) else (mask,):
        bounds = part.interval(call.q_coordinates, call.k_coordinates) if type(part) is Padding else None
        if bounds is not None:
            others = tuple(one for one in mask.masks if one is not part) if isinstance(mask, And) else ()
            return And(others) if len(others) > 1 else next(iter(others), None), bounds
    return mask, (None, None)


def _in_blocks(call: Call) -> bool:
    """Whether programs multiply blocks of relative vectors. For a few queries they do so only if they must."""
    problem = Problem(call)
    if not problem.positions_rise_by_one:
        return False
    if not are_few(problem.n * problem.heads // max(problem.kv_heads, 1), problem.m):
        return True
    found = [term.rows for term in call.terms if isinstance(term, RELATIVE)]
    whole = problem.positions_are_whole
    return not all(_is_small(call) if isinstance(x, Sinusoids) else why_not_by_row(x, whole) is None for x in found)


def _is_small(call: Call) -> bool:
    batch, heads, n, _ = call.q.shape
    return is_small(batch, heads, n, call.k.shape[2])


def _without_sinusoids(call: LoweredCall, in_blocks: bool) -> tuple[LoweredCall, list[Tensor]]:
    """Returns the call without the sinusoids that programs cannot multiply in blocks, and their products with q."""
    found = [term for term in call.terms if isinstance(term, RelativeKeys) and isinstance(term.rows, Sinusoids)]
    if not found or in_blocks:
        return call, []
    rest = call._with(terms=_others(call.terms, found))
    return (rest, [by_sinusoids(term, call) for term in found]) if _is_small(call) else (with_columns(rest, found), [])


def _others(terms: tuple[Term, ...], those: list[RelativeKeys]) -> tuple[Term, ...]:
    return tuple(term for term in terms if all(term is not one for one in those))


def _scaled(products: Tensor, scale: float, factor: Tensor | None) -> Tensor:
    """Returns the scaled products of pairs, which are added to scores."""
    return products * scale if factor is None else Scaled.apply(products * scale, factor)


class Scaled(torch.autograd.Function):
    """products·factor of (products [batch, heads, n, m], factor [b, h, n]).

    A product with weight 0, which may be NaN, adds nothing to the gradient of the factor.
    """

    @staticmethod
    def forward(ctx: Any, products: Tensor, factor: Tensor) -> Tensor:
        ctx.save_for_backward(products, factor)
        return products * factor[..., None]

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor]:
        products, factor = ctx.saved_tensors
        by_factor = torch.where(upstream == 0, 0.0, upstream * products).sum(-1).sum_to_size(factor.shape)
        return torch.where(upstream == 0, 0.0, upstream * factor[..., None]), by_factor


def added(
    terms: Iterable[Term], of_pairs: list[Tensor]
) -> tuple[list[Tensor | None], list[Tensor | None], Tensor | None]:
    """Returns the biases by query, the biases by key, and the sum of the biases by pair, with dense ones sorted in."""
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


def only_rows(terms: tuple[Term, ...]) -> Rows | None:
    """Returns the rows of a call whose only term is a distance bias by rows; None for any other call."""
    if len(terms) != 1 or type(terms[0]) is not DistanceBias or type(terms[0].values) is not Rows:
        return None
    return terms[0].values


def is_of_pairs(term: DenseBias) -> bool:
    """Whether a dense bias has more than one query and more than one key."""
    return isinstance(term.values, Tensor) and term.values.ndim > 1 and 1 not in term.values.shape[-2:]


def sum_of(parts: Iterable[Tensor | None]) -> Tensor | None:
    """Returns the sum of the parts in float32; None without parts. There is at most one query scale and one sink."""
    total = None
    for part in parts:
        if part is not None:
            total = part.float() if total is None else total + part.float()
    return total


def rest_of(rest: Mask | None, q: Coordinates, k: Coordinates) -> tuple[tuple[Tensor, Tensor] | None, Tensor | None]:
    """Returns the documents and the dense part of a mask's rest."""
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
