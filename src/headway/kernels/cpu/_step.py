"""Prepares a decoding step once, for any number of keys and any padding of the rows."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from ...coordinates import Coordinates
from ...masks import Mask, Slot
from ...terms import Term
from .._problem import Call, without_tables
from .._repeated import tensors_anew, why_not
from .._results import ForwardResults, new_out
from ..lowering import LoweredCall, lower
from ..lowering.masks import Limit, limits_of
from . import _library
from ._describe import describe_forward
from ._descriptor import AT_K, AT_KEYS, AT_Q, AT_V, FAR_SLOT, numbers_from
from ._tensor_words import (
    COMPUTED,
    LOWERED,
    STRIDES,
    WORDS,
    TensorWords,
    constants_of,
    patches_of,
    write_place,
)

FROM_ZERO = (0,)
"""The index of the first key of every row, by default."""
RISING = array("q", [0, 1, 0, 0])
"""The strides of coordinates of one row that rise from token to token."""


class StepBound(NamedTuple):
    """The first key that a query sees, or the one after the last: the tighter of two limits.

    One limit is a fixed key of the stream, the other a slot relative to the query's own.

    Attributes:
        furthest: ``max`` for the first key, ``min`` for the one after the last.
        token: the index of the fixed key in its stream; None without one.
        ahead: slots after the query's own; None for the first slot, or the one after the last.
    """

    furthest: Callable[..., Any]
    token: int | None
    ahead: int | None

    @staticmethod
    def of(furthest: Callable[..., Any], limits: Sequence[Limit], first: int, before: int) -> StepBound | None:
        """Returns the tightest of several limits; None if one is a tensor.

        Args:
            furthest: ``max`` or ``min``.
            limits: the limits.
            first: the index of the first key.
            before: the keys before the first query.
        """
        indices = [limit + first for limit in limits if isinstance(limit, int)]
        aheads = [limit.offset - before for limit in limits if isinstance(limit, Slot)]
        if len(indices) + len(aheads) < len(limits):
            return None
        return StepBound(furthest, furthest(indices, default=None), furthest(aheads, default=None))

    def write(
        self, words: array[int], at: int, n: int, m: int, starts: Sequence[int], stops: Sequence[int] | None
    ) -> array[int]:
        """Writes the addresses of the bound's slots for the queries of each row, and returns the slots.

        Args:
            words: the words of the call.
            at: the first word of the bound.
            n: the number of queries.
            m: the number of keys.
            starts: the index of the first key in each row.
            stops: the index after the last real key of each row; None without padding at the end.
        """
        is_stop = self.furthest is min
        first = m - n + self.ahead if self.ahead is not None else m if is_stop else 0
        own = (first,) if n == 1 or self.ahead is None else range(first, first + n)
        indices: Sequence[int] = () if self.token is None else (self.token,) * len(starts)
        if is_stop and stops is not None:
            indices = tuple(map(min, indices, stops)) if indices else stops
        if indices:
            rows = zip(indices, starts, strict=True)
            slots = array("q", [self.furthest(index - start, slot) for index, start in rows for slot in own])
        else:
            slots = array("q", own)
        each = len(own)
        words[at], words[at + 1] = slots.buffer_info()[0], 8 * len(slots)
        words[at + STRIDES], words[at + STRIDES + 1] = each * (len(slots) > each), int(each > 1)
        return slots


ALL_FROM_THE_FIRST = StepBound(max, None, None)


class PreparedStep:
    """A decoding step: a call without gradients whose queries are the last of any number of keys.

    Later steps reuse the words of the first one. They change only the number of keys, the addresses of q, k, v and the
    coordinates, and the bounds of the mask. Steps do not change the object, so threads may share it.

    Args:
        call: the first call, lowered. Its intervals hold numbers as placeholders for the bounds.
        bounds: the bounds of these intervals.
        anew: the ids of the terms' tensors that each call replaces.
    """

    __slots__ = (
        "bounds",
        "item",
        "keep_alive",
        "padded",
        "patches",
        "places",
        "plain",
        "queries",
        "reads_starts",
        "results",
        "words",
    )

    def __init__(self, call: LoweredCall, bounds: Sequence[StepBound], anew: set[int]) -> None:
        results = ForwardResults(new_out(call.q, call.v, call.q.dtype))
        descriptor = describe_forward(call, results)
        self.item, self.queries = call.q.itemsize, call.q.shape[2]
        self.padded = call.k_coordinates.padding is not None
        self.words, self.results = array("q", descriptor.words), TensorWords.of(descriptor.fresh_places[0], results.out)
        patches = patches_of(call.terms, dict.fromkeys(anew, 0), descriptor)
        self.patches = patches or []
        self.keep_alive = constants_of(descriptor, self.patches, descriptor.terms_at)
        # the number of axes is followed by the positions of queries and keys and their indices
        first = descriptor.coordinates_at + 1
        self.places = [
            (at, name) for at, name in ((first, "position"), (first + 2 * WORDS, "index")) if at in descriptor.places
        ]
        for at, _ in self.places:  # as for keys at 0, 1, 2 …
            self.words[at + STRIDES : at + WORDS] = self.words[at + WORDS + STRIDES : at + 2 * WORDS] = RISING
            self.words[at + WORDS], self.words[at + WORDS + 1] = numbers_from(0)
        at = descriptor.mask_at + 1
        self.bounds = [
            (at + WORDS * number, bound)
            for number, bound in enumerate(bounds)
            if bound != ALL_FROM_THE_FIRST  # the words already state this one
        ]
        self.reads_starts = any(bound.token is not None for bound in bounds)
        of_the_mask = any(descriptor.mask_at <= at < descriptor.terms_at for at in descriptor.places)
        self.plain = patches is not None and not of_the_mask

    @staticmethod
    def of(call: Call, terms_vary: bool) -> PreparedStep | str:
        """Returns the prepared step, or why it holds for one number of keys only, or needs more than the kernel.

        Args:
            call: the first call, whose q and k have been rotated.
            terms_vary: whether later calls have other terms, of the same kinds.
        """
        reason = why_not(call)
        if reason is not None:
            return reason
        bare = without_tables(call._with(q=call.q.detach(), k=call.k.detach(), v=call.v.detach(), mask=None))
        lowered = lower(bare)
        if lowered.terms is not bare.terms:
            return LOWERED
        bounds, rest = _bounds_of(call)
        if bounds is None:
            return COMPUTED
        lowered = lowered._with(intervals=((0, 0),) * (len(bounds) // 2), rest=rest)
        step = PreparedStep(lowered, bounds, tensors_anew(call, terms_vary))
        return step if step.plain else COMPUTED

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, terms: tuple[Term, ...], sides: tuple[Coordinates, Coordinates] | None
    ) -> Tensor | None:
        """Returns the output; None if the kernel cannot read a tensor as it is.

        Args:
            q: queries, rotated, of the first step's shape.
            k: keys, rotated, of any number.
            v: values.
            terms: the terms; empty for those of the first step.
            sides: the coordinates of queries and keys; None if keys stand at 0, 1, 2 …
        """
        words = self.words[:]
        if not (write_keys(words, AT_K, k, self.item) and write_keys(words, AT_V, v, self.item)):
            return None
        return self.run(words, q, k.shape[2], terms, sides)

    def of_storage(self, k: Tensor, v: Tensor) -> StoredStep | None:
        """Returns the step for keys and values that fill the front of a storage; None if it cannot be read.

        Args:
            k: the storage of rotated keys, which the caller keeps alive.
            v: the storage of values.
        """
        words = self.words[:]
        if not (write_keys(words, AT_K, k, self.item) and write_keys(words, AT_V, v, self.item)):
            return None
        return StoredStep(self, words)

    def run(
        self,
        words: array[int],
        q: Tensor,
        m: int,
        terms: tuple[Term, ...],
        sides: tuple[Coordinates, Coordinates] | None,
    ) -> Tensor | None:
        """Returns the output. The words already have the addresses of keys and values.

        Args:
            words: the words, which this call changes.
            q: queries.
            m: the number of keys.
            terms: the terms.
            sides: the coordinates.
        """
        n = self.queries
        words[AT_KEYS] = m
        if not write_keys(words, AT_Q, q, self.item):
            return None
        if sides is None and self.places and m > FAR_SLOT:
            keys = Coordinates.span(m)
            sides = keys.rows(m - n, m), keys
        for at, name in self.places:
            if sides is not None:
                if not all(_write_rows(words, at + WORDS * i, getattr(side, name)) for i, side in enumerate(sides)):
                    return None
            else:
                words[at], words[at + 1] = numbers_from(m - n)
        starts: Sequence[int] = FROM_ZERO
        stops = None
        if sides is not None and self.reads_starts:
            starts, stops = sides[1].row_starts(), sides[1].row_stops() if self.padded else None
        kept = [bound.write(words, at, n, m, starts, stops) for at, bound in self.bounds]
        for patch in self.patches:
            if not patch.words.write(words, patch.tensor(terms)):
                return None
        out = self.results.new(words)
        _library.run(words)
        del kept, sides  # the words pointed to them until here
        return out


class StoredStep(NamedTuple):
    """A decoding step whose keys and values fill the front of a storage, as in a cache.

    Attributes:
        step: the step.
        words: its words, with the addresses of keys and values.
    """

    step: PreparedStep
    words: array[int]

    def __call__(self, q: Tensor, m: int, terms: tuple[Term, ...]) -> Tensor | None:
        """Returns the output of the last of m keys, which stand at 0, 1, 2 …, as ``PreparedStep`` does."""
        return self.step.run(self.words[:], q, m, terms, None)


def write_keys(words: array[int], at: int, x: Tensor, item: int) -> bool:
    """Writes the address and the strides of queries, keys or values; returns whether they are aligned."""
    words[at + 3], words[at + 4], words[at + 5], words[at + 6] = x.stride()  # as STRIDES : WORDS
    return write_place(words, at, x, item)


def _bounds_of(call: Call) -> tuple[list[StepBound] | None, Mask | None]:
    """Returns the bounds of a mask for any number of keys, two for each interval, and the rest of the mask.

    The bounds are None if one depends on more than indices and slots.
    """
    if call.mask is None:
        return [], None
    n, m = call.q.shape[2], call.k.shape[2]
    first = 0 if call.k_coordinates.padding is None else 1  # padding hides indices below 0: from 1 on, 0 stays a bound
    keys = Coordinates.span(m, start=first)
    intervals, rest = limits_of(call.mask, keys.rows(m - n, m), keys)
    if any(not starts and not stops for starts, stops in intervals):
        return [], rest
    bounds = []
    for interval in intervals:
        for furthest, limits in zip((max, min), interval, strict=True):
            bound = StepBound.of(furthest, limits, first, m - n)
            if bound is None:
                return None, rest
            bounds.append(bound)
    return bounds, rest


def _write_rows(words: array[int], at: int, x: Tensor) -> bool:
    """Writes coordinates [1 or batch, tokens] or [1 or batch, tokens, 1]; returns whether they are aligned."""
    words[at + STRIDES] = 0 if x.shape[0] == 1 else x.stride(0)
    words[at + STRIDES + 1] = 0 if x.shape[1] == 1 else x.stride(1)
    return write_place(words, at, x, x.itemsize)
