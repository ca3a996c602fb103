"""Lowering expresses a call in simpler terms, so that a kernel need not implement every term.

It uses torch's operations on the call's own device, and autograd computes gradients through them. It reads values of
tensors only on a CPU, inside the operator.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ...coordinates import Coordinates
from ...masks import Bounds, Mask
from ...terms import ContentSlope, QueryScale, RelativeKeys, Sink, Sinusoids
from .._problem import Call, Problem
from .masks import lower_mask
from .sinusoids import without_sinusoids
from .terms import as_scaled, as_slopes, one_sink, one_temperature


@dataclass(frozen=True, eq=False)
class LoweredCall(Call):
    """A call with one dtype for q, k and v, at most one query scale and one sink, and no mask.

    A query sees the keys of any interval that ``rest`` allows. ``lower`` also removes sinusoids.

    intervals: up to two intervals of key slots for each query, which may overlap; empty for all keys
    rest: the part of the mask that is not an interval, or None
    """

    intervals: tuple[Bounds, ...] = ()
    rest: Mask | None = None


def _with_starts(q: Coordinates, k: Coordinates) -> tuple[Coordinates, Coordinates]:
    """Returns aligned coordinates with their starts. An operator does not get starts: a CPU reads the first index.

    Padded rows never have a start, not even a single row: masks read the length of rows without a start.
    """
    n, m = q.index.shape[1], k.index.shape[1]
    padded = isinstance(k.length, Tensor)
    if k.start is None and not padded and m and k.index.is_cpu and len(k.index) == 1:
        k = k._with(start=int(k.index[0, 0]))
    return q if k.start is None else q._with(start=k.start + m - n), k


def reasons_against(problem: Problem) -> Iterator[str]:
    """Yields every reason why terms cannot be expressed in simpler ones, from metadata only.

    Args:
        problem: the facts of the call.
    """
    for term in problem.terms:
        if _is_unscaled(term) and (problem.scale == 0 or any(type(one) is QueryScale for one in problem.terms)):
            yield "it does not combine unscaled RelativeKeys with a QueryScale or a scale of 0"


def lower(call: Call) -> LoweredCall:
    """Returns the call in simpler terms."""
    lowered = simplified(call)
    if any(isinstance(term, RelativeKeys) and isinstance(term.rows, Sinusoids) for term in lowered.terms):
        return without_sinusoids(lowered, lowered.intervals)
    return lowered


def simplified(call: Call) -> LoweredCall:
    """Returns the call in simpler terms, but with its sinusoids."""
    return with_simpler_terms(with_intervals(call))


def with_intervals(call: Call) -> LoweredCall:
    """Returns the call with intervals in place of its mask, and with its own terms."""
    q_at, k_at = call.q_coordinates, call.k_coordinates
    if call.aligned and q_at.start is None:
        q_at, k_at = _with_starts(q_at, k_at)
    intervals, rest = lower_mask(call.mask, q_at, k_at)
    return LoweredCall._made({**call._values(), "mask": None, "intervals": intervals, "rest": rest})


def with_simpler_terms(lowered: LoweredCall) -> LoweredCall:
    """Returns a call with intervals in simpler terms and one dtype, but with its sinusoids."""
    if not lowered.q.dtype == lowered.k.dtype == lowered.v.dtype:
        lowered = lowered._with(q=lowered.q.float(), k=lowered.k.float(), v=lowered.v.float())
    terms: tuple[Any, ...] = lowered.terms
    if not terms:
        return lowered
    if sum(isinstance(term, QueryScale) for term in terms) > 1:
        terms = one_temperature(terms)
    sinks = sum(isinstance(term, Sink) for term in terms)
    if sinks and not lowered.include_sink:
        terms = tuple([term for term in terms if not isinstance(term, Sink)])
    elif sinks > 1:
        terms = one_sink(terms)
    if any(isinstance(term, ContentSlope) or _is_unscaled(term) for term in terms):
        terms = tuple([_simpler(term, lowered) for term in terms])
    return lowered if terms is lowered.terms else lowered._with(terms=terms)


def _is_unscaled(term: Any) -> bool:
    return isinstance(term, RelativeKeys) and not term.scaled


def _simpler(term: Any, call: LoweredCall) -> Any:
    if isinstance(term, ContentSlope):
        return as_slopes(term, call.q, call.k)
    return as_scaled(term, call.q, call.scale) if _is_unscaled(term) else term
