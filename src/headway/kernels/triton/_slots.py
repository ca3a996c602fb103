"""The distances of slots for positions that rise by one, and the row of a table at each of them.

They depend only on positions and maps, so a prepared call keeps them for later ones.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from ..._torch import writes_of
from ...coordinates import Coordinates
from ...terms import Bias, Bucketize, Clip, Part, Rows, Sinusoids

if TYPE_CHECKING:
    from ._start import Starts

MOST_KEPT = 16
"""The most results that ``Slots`` keeps."""

Made = TypeVar("Made")


class Places:
    """The row of a table at each of several places. Rows rise from place to place.

    Args:
        rows: the row of each place, int64 [count].
        count: the number of rows.
    """

    def __init__(self, rows: Tensor, count: int) -> None:
        self.rows, self.count = rows, count

    @cached_property
    def begins(self) -> Tensor:
        """The first place of each row, followed by the number of places, int64 [count + 1]."""
        return torch.searchsorted(self.rows, torch.arange(self.count + 1, device=self.rows.device))

    @cached_property
    def ends(self) -> Tensor:
        """The last place with the first place's row, and the first place with the last one's, int32 [2]."""
        first = torch.searchsorted(self.rows, self.rows[:1], right=True) - 1
        last = torch.searchsorted(self.rows, self.rows[-1:])
        return torch.cat([first, last]).to(torch.int32)

    def of(self, table: Tensor) -> Tensor:
        """Returns the rows of a table [heads, rows] of numbers or vectors at all places."""
        recorded = table.requires_grad and torch.is_grad_enabled()
        return Runs.apply(table, self) if recorded else table.index_select(1, self.rows)

    def gradient(self, gradient: Tensor, starts: Starts | None = None) -> Tensor:
        """Returns the sum over the places of each row, in a fixed order, float32.

        Args:
            gradient: the gradient of each place.
            starts: starts the program; by default triton looks it up.
        """
        from ._start import run_sums

        return run_sums(gradient.contiguous(), self.begins, starts)


class Runs(torch.autograd.Function):
    """table[:, rows] of (table, places). A row is a number or a vector.

    The gradient of a row is the sum of a run, in a fixed order; the gradient of ``index_select`` adds in any order.
    """

    @staticmethod
    def forward(ctx: Any, table: Tensor, places: Places) -> Tensor:
        ctx.places = places
        return table.index_select(1, places.rows)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        return ctx.places.gradient(upstream), None


class Slots:
    """Keeps results that depend only on the positions of queries and keys, which rise by one.

    Args:
        q: coordinates of the queries, at least one.
        k: coordinates of the keys, at least one.
    """

    def __init__(self, q: Coordinates, k: Coordinates) -> None:
        self.q, self.k = q, k
        self._kept: dict[Hashable, tuple[Any, Any]] = {}

    def distances(self, axis: int, beyond: int = 0) -> Tensor:
        """Returns the distances between n queries and m keys in the order of their slots, [n + m − 1 + 2·beyond].

        The distance of query slot i and key slot j is at j − i + n − 1 + beyond.

        Args:
            axis: the axis of the positions.
            beyond: the number of further distances on either side.
        """
        return self._of(("distances", axis, beyond), None, lambda: distances_of_slots(self.q, self.k, axis, beyond))

    def places(self, rows: Rows, beyond: int = 0) -> Places:
        """Returns the places of these distances in a table by ``Clip`` or ``Bucketize``."""
        distances = self.distances(axis_of(rows), beyond)
        return self._of(_key_of(rows.map, beyond), rows.map, lambda: places_at(rows, distances))

    def _of(self, key: Hashable, alive: Any, make: Callable[[], Made]) -> Made:
        """Returns the result kept for a key, or makes it. ``alive`` is the object whose identity the key holds."""
        found = self._kept.get(key)
        if found is not None:
            return found[1]
        with torch.inference_mode(False), torch.no_grad():  # an inference tensor could not be used in training
            made = make()
        if key is not None:
            if len(self._kept) >= MOST_KEPT:
                self._kept.clear()
            self._kept[key] = alive, made
        return made


def _key_of(where: Part, beyond: int) -> Hashable:
    """Returns a key on which the places of a map depend; None if no key can tell whether they are the same."""
    if type(where) is Clip:
        return where.low, where.high, where.axis, beyond
    if type(where) is not Bucketize:
        return None
    boundaries = where.boundaries
    return id(boundaries), 0 if boundaries.is_inference() else writes_of(boundaries), where.axis, beyond


def distances_of_slots(q: Coordinates, k: Coordinates, axis: int, beyond: int = 0) -> Tensor:
    """Returns ``Slots.distances`` of these coordinates."""
    n, m = q.index.shape[1], k.index.shape[1]
    # the positions of every axis are the same except for their start
    first = k.axis(axis)[:1, :1] - q.axis(axis)[:1, :1]
    return (torch.arange(1 - n - beyond, m + beyond, device=q.position.device) + first[0]).contiguous()


def places_at(rows: Rows, distances: Tensor) -> Places:
    """Returns the places of rising distances [count] in a table."""
    query, keys = one_query(distances, axis_of(rows))
    return Places(rows.map.rows(query, keys)[0, 0], rows.map.count)


def axis_of(values: Bias | Sinusoids) -> int:
    """Returns the axis of the positions that a function of the distance reads."""
    return values.maps[0].axis if isinstance(values, Rows) else values.axis  # type: ignore[union-attr]


def one_query(distances: Tensor, axis: int) -> tuple[Coordinates, Coordinates]:
    """Returns one query at 0 and keys at these distances from it."""
    positions = distances[None, :, None].expand(-1, -1, axis + 1)
    return Coordinates(positions[:, :1] * 0, distances[None, :1]), Coordinates(positions, distances[None])
