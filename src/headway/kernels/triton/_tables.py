"""Lowers distance biases to a table with a row for each distance, or to a formula. Autograd records the operations.

If positions rise by one on both sides, δ = key position − query position has n + m − 1 values, in the order of the
slots' own distances. A bias of any form is then a table with that many rows, whose gradient is a sum along each
diagonal of the scores' gradients. Maps rise with the distance, so the places of a map's row are a run of that sequence.
The gradient of the row is the sum of the run, in a fixed order; ``index_add`` on a GPU would add in any order. A
``Linear`` with one slope is a formula there too.

Programs read any other positions. A table then has rows for the distances up to its reach. A formula with two
parameters for each head is computed for each pair.

Everything else, such as the rows of Swin's windows or a second table, becomes a dense bias beforehand. The gradient of
a row is then a sum over its pairs, sorted by row, again in a fixed order. If the dense bias were too large, programs
read one table by classes, or by one or two axes: they find the row of a pair from numbers of its query and its key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...biases import cosines, distance_bias
from ...coordinates import Coordinates
from ...terms import (
    Bias,
    Bucketize,
    Classes,
    Clip,
    Cosines,
    Grid,
    Linear,
    Log,
    Part,
    Piecewise,
    Power,
    Rows,
    Stretched,
    distance,
)
from ._slots import Places, Slots, axis_of, one_query, places_at


class DistanceTable(NamedTuple):
    """The bias of each distance.

    Attributes:
        values: float32 [heads or 1, rows].
        origin: the row of distance 0, between slots if positions rise by one, else between positions.
        q: the positions of the queries, int64 [b, n]; None if positions rise by one.
        k: the positions of the keys.
        ends: int32 [2] if positions rise by one and the bias is ``Rows``, else None. All distances up to the first
            number share a row, and all from the second one on.
    """

    values: Tensor
    origin: int
    q: Tensor | None
    k: Tensor | None
    ends: Tensor | None = None


class Axis(NamedTuple):
    """Finds a place for each pair: k − q + origin, clipped to 0 … ``last``.

    Attributes:
        q: a number for each query, [b, n].
        k: a number for each key, [b, m].
        origin: the place of equal numbers.
        last: the last place.
    """

    q: Tensor
    k: Tensor
    origin: int
    last: int


class GridTable(NamedTuple):
    """The bias of each place of one axis, or of each pair of places of two axes. The second axis runs faster.

    Attributes:
        values: float32 [heads or 1, places].
        axes: one or two.
    """

    values: Tensor
    axes: tuple[Axis, ...]


class DistanceFormula(NamedTuple):
    """A bias that programs compute from the distance; see ``FORMULAS``.

    Attributes:
        kind: the class of the bias.
        first: its first parameter, float32 [heads or 1].
        second: its second parameter, float32 [heads or 1]; None for a ``Linear`` with one slope.
        start: the distance from the first query to the first key, [1], if positions rise by one; else None.
        q: the positions of the queries, [b, n]; None if they rise by one.
        k: the positions of the keys, [b, m].
    """

    kind: type[Part]
    first: Tensor
    second: Tensor | None
    start: Tensor | None
    q: Tensor | None
    k: Tensor | None

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """Its parameters."""
        return (self.first,) if self.second is None else (self.first, self.second)


class StretchedPieces(NamedTuple):
    """A piecewise linear bias of a distance that each query stretches. Programs compute it.

    Attributes:
        edges: the rising edges, float32 [pieces − 1].
        intercept: the intercept of each piece, float32 [heads or 1, pieces].
        slope: the slope of each piece, float32 [heads or 1, pieces].
        rate: float32 [1].
        stretch: float32 [b, n].
        sizes: if positions rise by one, ln(1 + rate·|δ|) at each distance of slots and ``BEYOND`` more on either side,
            float32, and its derivative by the rate; else None.
        q: the positions of the queries, [b, n]; None if they rise by one.
        k: the positions of the keys, [b, m].
    """

    edges: Tensor
    intercept: Tensor
    slope: Tensor
    rate: Tensor
    stretch: Tensor
    sizes: tuple[Tensor, Tensor] | None
    q: Tensor | None
    k: Tensor | None

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """The tensors whose gradients programs compute."""
        return self.intercept, self.slope, self.rate, self.stretch


FORMULAS = {Linear: ("past", "future"), Log: ("weight", "rate"), Power: ("weight", "exponent")}
"""The formulas that programs compute, and the names of their parameters."""


BEYOND = 128
"""The most slots that a block may have beyond the last one. Tables by distance of slots have rows for these too, so
that programs need not compare."""
MOST_EXACT = 1 << 24
"""The most slots whose indices are exact in float32."""
MAX_REACH = 1 << 16
"""The largest distance up to which buckets become a table if positions do not rise by one."""


def is_of_distances(rows: Rows, rising: bool, whole: bool) -> bool:
    """Whether a bias by rows is a table of distances; otherwise it is a dense bias.

    Args:
        rows: the bias.
        rising: whether positions rise by one on both sides.
        whole: whether positions are integers.
    """
    if rising or type(rows.map) is Clip:
        return type(rows.map) in (Clip, Bucketize)
    return type(rows.map) is Bucketize and whole and rows.map.reach is not None and rows.map.reach <= MAX_REACH


class Picked(torch.autograd.Function):
    """table[:, rows] of (table, rows), for rows in any order."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, rows: Tensor) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.count = table.shape[1]
        return table.index_select(1, rows)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        from ._start import run_sums

        rows, order = ctx.saved_tensors[0].sort(stable=True)
        numbers = torch.arange(ctx.count + 1, device=rows.device)
        return run_sums(upstream.index_select(1, order), torch.searchsorted(rows, numbers)), None


class Divided(NamedTuple):
    """The biases of a call, grouped by the form in which programs take them.

    Attributes:
        table: the biases that become one table of distances.
        formula: the biases that are computed for each pair, at most one.
        stretched: the piecewise linear biases that each query stretches.
        of_pairs: the biases that are added to a dense bias.
        grid: at most one bias that is a table by axes or classes; empty unless ``of_pairs`` would be too large.
    """

    table: list[Bias]
    formula: list[Bias]
    stretched: list[Stretched]
    of_pairs: list[Bias]
    grid: list[Rows]

    def with_grid(self) -> Divided:
        """Returns the same with one bias moved to ``grid``: the first that can be a table by axes or classes."""
        found = next((x for x in self.of_pairs if isinstance(x, Rows) and _is_by_axes(x)), None)
        if found is None:
            return self
        return self._replace(of_pairs=[x for x in self.of_pairs if x is not found], grid=[found])


def divided(biases: Sequence[Bias], rising: bool, whole: bool, exact: bool = True) -> Divided:
    """Groups biases by the form in which programs take them.

    Args:
        biases: the biases.
        rising: whether positions rise by one on both sides, so that any bias can be a table.
        whole: whether positions are integers.
        exact: whether there are at most ``MOST_EXACT`` slots.
    """
    found = Divided([], [], [], [], [])
    for values in biases:
        if isinstance(values, Stretched):
            found.stretched.append(values)
        elif isinstance(values, Rows):
            of_distances = is_of_distances(values, rising, whole) and (rising or not found.table)
            (found.table if of_distances else found.of_pairs).append(values)
        elif type(values) in FORMULAS and not found.formula and (not rising or (has_one_slope(values) and exact)):
            found.formula.append(values)  # one slope takes fewer instructions than a table, two slopes take more
        else:
            (found.table if rising else found.of_pairs).append(values)
    return found


def bias_of_pairs(values: Bias, q: Coordinates, k: Coordinates) -> Tensor:
    """Returns the bias of each pair, float32 [b or 1, heads or 1, n, m]."""
    if isinstance(values, Rows):
        return _picked(values.table.float(), values.map.rows(q, k))
    if isinstance(values, Piecewise):
        right, share = _between(values, distance(q, k, values.axis).float())
        table = values.values.float()
        low, high = _picked(table, right - 1), _picked(table, right)
        return low + share[:, None] * (high - low)
    return distance_bias(values, q, k, torch.float32).float()


def _picked(table: Tensor, rows: Tensor) -> Tensor:
    """Returns table[:, rows], [b, heads, n, m], of a table [heads, count] and rows [b, n, m]."""
    return Picked.apply(table, rows.flatten()).unflatten(1, rows.shape).movedim(1, 0)


def table_by_position(rows: Rows, q: Coordinates, k: Coordinates) -> DistanceTable:
    """Returns a bias by rows of ``Clip``, or of ``Bucketize`` with a reach, as a table for positions with any gaps."""
    return DistanceTable(*by_whole_distance(rows), q.axis(axis_of(rows)), k.axis(axis_of(rows)))


def _axes(rows: Rows) -> tuple[Any, ...]:
    """Returns the maps, each of which finds one place."""
    return rows.map.maps if type(rows.map) is Grid else (rows.map,)


def _is_by_axes(rows: Rows) -> bool:
    return len(_axes(rows)) <= 2 and all(type(one) in (Clip, Classes) for one in _axes(rows))


def table_by_axes(rows: Rows, q: Coordinates, k: Coordinates) -> GridTable:
    """Returns a bias by rows of ``Clip`` or ``Classes``, or of a ``Grid`` of two of these."""
    return GridTable(rows.table.float(), tuple(_axis(one, q, k) for one in _axes(rows)))


def _axis(one: Clip | Classes, q: Coordinates, k: Coordinates) -> Axis:
    if isinstance(one, Clip):
        return Axis(q.axis(one.axis), k.axis(one.axis), -one.low, one.count - 1)
    return Axis(-one.classes * one.q_class.long(), one.k_class.long(), 0, one.count - 1)


def by_whole_distance(rows: Rows) -> tuple[Tensor, int]:
    """Returns a table with a row for each distance up to its reach, and the row of distance 0.

    Args:
        rows: a table by ``Clip``, or by ``Bucketize`` with a reach.
    """
    if isinstance(rows.map, Clip):
        return rows.table.float(), -rows.map.low
    assert isinstance(rows.map, Bucketize)
    assert rows.map.reach is not None
    last = rows.map.reach + 1  # all distances from here on share a row
    return places_at(rows, torch.arange(-last, last + 1, device=rows.table.device)).of(rows.table.float()), last


def has_one_slope(values: Bias) -> bool:
    """Returns whether a bias is linear with one slope tensor for both directions."""
    return isinstance(values, Linear) and values.past is values.future


def formula_of(values: Bias, q: Coordinates, k: Coordinates, rising: bool) -> DistanceFormula:
    """Returns a bias of one of the ``FORMULAS`` with its parameters.

    Args:
        values: the bias.
        q: coordinates of the queries, at least one.
        k: coordinates of the keys, at least one.
        rising: whether positions rise by one on both sides.
    """
    first, second = (getattr(values, name) for name in FORMULAS[type(values)])
    parameters = first.float(), None if has_one_slope(values) else second.float()
    at, to = q.axis(axis_of(values)), k.axis(axis_of(values))
    if rising:
        return DistanceFormula(type(values), *parameters, to[0, :1] - at[0, :1], None, None)
    return DistanceFormula(type(values), *parameters, None, at, to)


def stretched_pieces(values: Stretched, slots: Slots, rising: bool) -> StretchedPieces:
    """Returns a stretched bias.

    Args:
        values: the bias.
        slots: the slots.
        rising: whether positions rise by one on both sides.
    """
    edges = values.edges.detach().float()
    intercept, slope, rate, stretch = (x.float() for x in (values.intercept, values.slope, values.rate, values.stretch))
    if not rising:
        at = slots.q.axis(values.axis), slots.k.axis(values.axis)
        return StretchedPieces(edges, intercept, slope, rate, stretch, None, *at)
    far, wide = slots.distances(values.axis, BEYOND).abs().double(), values.rate.detach().double()
    sizes = torch.log1p(wide * far).float(), (far / (1 + wide * far)).float()
    return StretchedPieces(edges, intercept, slope, rate, stretch, sizes, None, None)


def table_of_slots(biases: Sequence[Bias], slots: Slots) -> DistanceTable:
    """Returns the sum of distance biases as a table, for positions of both sides that rise by one.

    Args:
        biases: at least one.
        slots: the slots.
    """
    origin = slots.q.index.shape[1] - 1 + BEYOND
    if len(biases) == 1 and isinstance(biases[0], Rows):
        places = places_of(biases[0], slots)
        return DistanceTable(places.of(biases[0].table.float()), origin, None, None, places.ends)
    first, *others = [_bias_of(values, slots) for values in biases]
    return DistanceTable(sum(others, first), origin, None, None)


def places_of(rows: Rows, slots: Slots) -> Places:
    """Returns the row of a bias at each distance of slots, for positions of both sides that rise by one."""
    return slots.places(rows, BEYOND)


def _bias_of(values: Bias, slots: Slots) -> Tensor:
    """Returns the bias at the distances of slots, float32 [heads or 1, rows]."""
    if isinstance(values, Rows):
        return places_of(values, slots).of(values.table.float())
    distances = slots.distances(axis_of(values), BEYOND)
    query, keys = one_query(distances, axis_of(values))
    if isinstance(values, Piecewise):
        return _interpolated(values, distances.float())
    if isinstance(values, Cosines):
        return cosines(values, query, keys, torch.float32)[0, :, 0]
    return distance_bias(values, query, keys, torch.float32)[0, :, 0].float()


def _between(values: Piecewise, distances: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the knot to the right of each distance, and the distance's fraction of the way to that knot."""
    knots = values.knots.to(distances.dtype)
    right = torch.searchsorted(knots, distances.contiguous()).clamp(1, len(knots) - 1)
    return right, ((distances - knots[right - 1]) / (knots[right] - knots[right - 1])).clamp(0, 1)


def _interpolated(values: Piecewise, distances: Tensor) -> Tensor:
    right, share = _between(values, distances)
    table = values.values.float()
    low, high = (Places(rows, table.shape[1]).of(table) for rows in (right - 1, right))
    return low + share * (high - low)
