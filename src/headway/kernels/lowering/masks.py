"""Splits masks into intervals of key slots, with which kernels skip unseen keys, and a remaining mask."""

from __future__ import annotations

import torch
from torch import Tensor

from ...coordinates import Coordinates
from ...errors import HeadwayError
from ...masks import And, Bound, Bounds, Mask, Or, Slot

EVERYTHING: Bounds = (None, None)

Limit = int | Slot | Tensor
Limits = tuple[tuple[Limit, ...], tuple[Limit, ...]]
"""An interval as starts and stops: the key slots from the largest start to the smallest stop."""


def lower_mask(mask: Mask | None, q: Coordinates, k: Coordinates) -> tuple[tuple[Bounds, ...], Mask | None]:
    """Splits a mask into intervals and a rest. A query sees the keys of any interval that the rest allows.

    Returns:
        intervals: up to two intervals of key slots for each query, which may overlap; empty for all keys.
        rest: the part of the mask that is not an interval, or None.
    """
    if mask is None or not q.index.shape[1] or not k.index.shape[1]:
        return (), None
    limits, rest = limits_of(mask, q, k)
    intervals = tuple([(_furthest(starts, q, k, True), _furthest(stops, q, k, False)) for starts, stops in limits])
    everything = any(start is None and stop is None for start, stop in intervals)
    return () if everything else intervals, rest


def slots(bound: int | Slot | Tensor, q: Coordinates, k: Coordinates) -> Tensor:
    """Returns a bound as a tensor [b, 1 or n]."""
    if isinstance(bound, Tensor):
        return bound
    n, m = q.index.shape[1], k.index.shape[1]
    if isinstance(bound, int):
        return q.index.new_full((1, 1), within(bound, n, m))
    offset = within(bound.offset, n, m)
    if q.ordered and q.start is not None:
        return q.index + (offset - q.start)
    return torch.arange(offset, offset + n, device=q.index.device)[None]


def within(offset: int, n: int, m: int) -> int:
    """Clamps a number or an offset so that a tensor can hold it. With n queries and m keys this changes nothing."""
    return max(-n, min(offset, m))


def limits_of(mask: Mask, q: Coordinates, k: Coordinates) -> tuple[list[Limits], Mask | None]:
    """Splits a mask into one or two intervals and a rest, without reading a bound's values."""
    kind = type(mask)
    if kind is And:
        joined: list[Limits] = [((), ())]
        rests = []
        for part in mask.masks:  # type: ignore[attr-defined]
            limits, rest = limits_of(part, q, k)
            if len(joined) > 1 and len(limits) > 1:
                rest = part
            else:
                joined = [(a + c, b + d) for a, b in joined for c, d in limits]
            if rest is not None:
                rests.append(rest)
        return joined, And(tuple(rests)) if len(rests) > 1 else (rests[0] if rests else None)
    if kind is Or:
        parts = [limits_of(part, q, k) for part in mask.masks]  # type: ignore[attr-defined]
        either = [interval for limits, _ in parts for interval in limits]
        if len(either) == 2 and parts[0][1] is None and parts[1][1] is None:
            return either, None
        return [((), ())], mask
    interval = mask.interval(q, k)
    if interval is None:
        return [((), ())], mask
    if kind.foreign:
        _check(mask, interval, q.index.shape[1])
    start, stop = interval
    return [(() if start is None else (start,), () if stop is None else (stop,))], None


def _check(mask: Mask, interval: Bounds, n: int) -> None:
    """Raises HeadwayError if the interval of a user's mask does not consist of bounds."""
    for bound in interval:
        if bound is None or type(bound) in (int, Slot):
            continue
        shown = f"a {type(bound).__name__}"
        if isinstance(bound, Tensor):
            kind = bound.dtype
            whole = not (kind.is_floating_point or kind.is_complex or kind == torch.bool)
            if whole and bound.ndim == 2 and bound.shape[1] in (1, n):
                continue
            shown = f"a tensor of shape {tuple(bound.shape)} and {kind}"
        raise HeadwayError(
            f"{type(mask).__name__}.interval returns {shown}: return None, an int, a masks.Slot or integers "
            f"[batch, {n}], where either size may be 1"
        )


def _furthest(limits: tuple[Limit, ...], q: Coordinates, k: Coordinates, largest: bool) -> Bound:
    """Returns the largest of several bounds, or the smallest, for each query; None without bounds."""
    furthest: Bound = None
    for limit in limits:
        furthest = limit if furthest is None else _further(furthest, limit, q, k, largest)
    return furthest


def _further(a: Limit, b: Limit, q: Coordinates, k: Coordinates, largest: bool) -> Limit:
    """Returns the larger of two bounds, or the smaller, for each query."""
    if type(a) is type(b) and isinstance(a, (int, Slot)):
        return max(a, b) if largest else min(a, b)
    if isinstance(a, int) or isinstance(b, Tensor):
        a, b = b, a
    if not isinstance(a, Tensor):
        a = slots(a, q, k)
    if isinstance(b, int):
        b = within(b, q.index.shape[1], k.index.shape[1])
        return a.clamp(min=b) if largest else a.clamp(max=b)
    if not isinstance(b, Tensor):
        b = slots(b, q, k)
    return torch.maximum(a, b) if largest else torch.minimum(a, b)
