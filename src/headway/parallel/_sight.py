"""Finds which keys the queries of a run may attend to, as far as possible without a tensor of all pairs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..coordinates import Coordinates
from ..kernels.lowering.masks import lower_mask, slots
from ..masks import And, Boolean, Bound, Interval, Mask, Slot, parts_of


def sight(mask: Mask | None, q: Coordinates, k: Coordinates) -> tuple[int, int]:
    """Returns a range of key slots that contains every key which a query may attend to; empty if there is no such key.

    Tensors are only read on a CPU. If they are on a device with streams, or the mask is not an interval, the range is
    all keys.

    Args:
        mask: the mask of these queries and keys; None hides nothing.
        q: coordinates of the queries.
        k: coordinates of the keys.
    """
    n, m = q.index.shape[1], k.index.shape[1]
    if mask is None or not n or not m:
        return 0, m if n else 0
    if joined := parts_of(mask):
        ranges = [sight(part, q, k) for part in joined]
        if type(mask) is And:
            low, high = max(low for low, _ in ranges), min(high for _, high in ranges)
        else:
            ranges = [one for one in ranges if one[0] < one[1]] or [(0, 0)]
            low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
        return low, max(low, high)
    if type(mask) is Boolean:
        return _of_values(mask.values, m)
    bounds = mask.interval(q, k)
    if bounds is None:
        return 0, m
    seeing = _seeing(bounds, n, m)
    if seeing is not None and not bool(seeing.any()):
        return 0, 0
    low, high = _extreme(bounds[0], n, 0, seeing, lowest=True), _extreme(bounds[1], n, m, seeing, lowest=False)
    low = min(max(low, 0), m)
    return low, min(max(high, low), m)


def sees_all(mask: Mask | None, q: Coordinates, k: Coordinates) -> bool:
    """Returns whether every query is known to see every key; only masks that are intervals tell.

    Args:
        mask: the mask of these queries and keys; None hides nothing.
        q: coordinates of the queries.
        k: coordinates of the keys.
    """
    n, m = q.index.shape[1], k.index.shape[1]
    if mask is None or not n or not m:
        return mask is None
    if joined := parts_of(mask):
        return (all if type(mask) is And else any)(sees_all(part, q, k) for part in joined)
    if type(mask) is Boolean or (bounds := mask.interval(q, k)) is None:
        return False
    if any(isinstance(bound, Tensor) and not bound.is_cpu for bound in bounds):
        return False
    first, last = (_numbers(bound, n, default) for bound, default in zip(bounds, (0, m), strict=True))
    return bool((first <= 0).all() & (last >= m).all())


def as_one_interval(
    masks: Sequence[Sequence[Mask | None]], q: Sequence[Coordinates], k: Sequence[Coordinates]
) -> Interval | None:
    """Returns the mask of several runs of queries and keys, with the slots of the runs one after another.

    Args:
        masks: for each run of queries the masks of the runs of keys; None hides nothing.
        q: coordinates of each run of queries.
        k: coordinates of each run of keys.

    Returns:
        The mask; its bounds are None if each query sees each key. Returns None if a query does not see one interval, if
        a mask is not an interval, or if reading it would mean waiting for a device.
    """
    bounds = [_of_query_run(row, at, k) for row, at in zip(masks, q, strict=True)]
    each = [one for one in bounds if one is not None]
    if len(each) < len(bounds):
        return None
    batch = max(len(start) for start, _ in each)
    start, stop = (torch.cat([x.expand(batch, -1) for x in side], 1) for side in zip(*each, strict=True))
    everything = bool((start == 0).all()) and bool((stop == sum(at.index.shape[1] for at in k)).all())
    return Interval(None, None) if everything else Interval(start, stop)


def _of_query_run(
    masks: Sequence[Mask | None], q: Coordinates, keys: Sequence[Coordinates]
) -> tuple[Tensor, Tensor] | None:
    """The interval that each query of a run sees of all runs of keys, [b, n]; None if it is not a single interval."""
    before, n = 0, q.index.shape[1]
    if not q.index.is_cpu:
        return None
    low, high, seen = (q.index.new_full((1, n), x) for x in (sum(at.index.shape[1] for at in keys), 0, 0))
    for mask, k in zip(masks, keys, strict=True):
        m = k.index.shape[1]
        intervals, rest = lower_mask(mask, q, k)
        if rest is not None or len(intervals) > 1:
            return None
        bounds = intervals[0] if intervals else (None, None)
        start, stop = (
            slots(default if bound is None else bound, q, k).clamp(0, m)
            for bound, default in zip(bounds, (0, m), strict=True)
        )
        some = stop > start
        low = torch.minimum(low, torch.where(some, before + start, low))
        high = torch.maximum(high, torch.where(some, before + stop, high))
        seen = seen + torch.where(some, stop - start, 0)
        before += m
    return (low, high) if bool((seen == (high - low).clamp(min=0)).all()) else None


def _of_values(values: Tensor, m: int) -> tuple[int, int]:
    if not values.is_cpu or values.shape[-1] != m:
        return (0, m) if not values.is_cpu or bool(values.any()) else (0, 0)
    seen = values.reshape(-1, m).any(0).nonzero()
    return (int(seen[0]), int(seen[-1]) + 1) if len(seen) else (0, 0)


def _seeing(bounds: tuple[Bound, Bound], n: int, m: int) -> Tensor | None:
    """Which queries see a key, [b, 1 or n]; None if the bounds are not tensors that can be read."""
    start, stop = bounds
    if not any(isinstance(bound, Tensor) for bound in bounds):
        return None
    if any(isinstance(bound, Tensor) and not bound.is_cpu for bound in bounds):
        return None
    return _numbers(stop, n, m).clamp(max=m) > _numbers(start, n, 0).clamp(min=0)


def _numbers(bound: Bound, n: int, default: int) -> Tensor:
    if isinstance(bound, Tensor):
        return bound
    if isinstance(bound, Slot):
        return torch.arange(n)[None] + bound.offset
    return torch.full((1, 1), default if bound is None else bound)


def _extreme(bound: Bound, n: int, default: int, seeing: Tensor | None, *, lowest: bool) -> int:
    """The lowest or highest value of a bound over the queries that see a key."""
    if bound is None:
        return default
    if isinstance(bound, int):
        return bound
    if isinstance(bound, Slot) and seeing is None:
        return bound.offset + (0 if lowest else n - 1)
    if isinstance(bound, Tensor) and not bound.is_cpu:
        return 0 if lowest else 1 << 62
    assert seeing is not None
    numbers, seeing = torch.broadcast_tensors(_numbers(bound, n, default), seeing)
    numbers = numbers[seeing]
    return int(numbers.min() if lowest else numbers.max())


def pairs_of(mask: Mask | None, at: Coordinates) -> list[int]:
    """Returns how many keys each token of one row may attend to; parts of the mask that are not intervals hide nothing.

    Args:
        mask: the mask; None hides nothing.
        at: coordinates of the row, on a CPU.
    """
    n = at.index.shape[1]
    low, high = _rows(mask, at, n)
    counts: list[int] = (high - low).clamp(min=0).expand(1, n)[0].tolist()
    return counts


def _rows(mask: Mask | None, at: Coordinates, n: int) -> tuple[Tensor, Tensor]:
    everything = torch.zeros(1, 1, dtype=torch.long), torch.full((1, 1), n)
    if mask is None:
        return everything
    if joined := parts_of(mask):
        lows, highs = zip(*(_rows(part, at, n) for part in joined), strict=True)
        first, last = (torch.maximum, torch.minimum) if type(mask) is And else (torch.minimum, torch.maximum)
        low, high = lows[0], highs[0]
        for a, b in zip(lows[1:], highs[1:], strict=True):
            low, high = first(low, a), last(high, b)
        return low, high
    bounds = mask.interval(at, at)
    if bounds is None:
        return everything
    return _numbers(bounds[0], n, 0).clamp(min=0), _numbers(bounds[1], n, n).clamp(max=n)
