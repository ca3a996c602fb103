"""Evaluates masks that are Python functions once for a call, as intervals of keys or as a bit for each pair.

A user's mask has only ``allowed``, which kernels cannot call. It is evaluated in blocks of queries. If each row is one
or two runs of keys, the mask becomes intervals, with which kernels skip keys. Otherwise each pair takes a bit. Values
are only read on a CPU. On other devices, and in graphs, each pair takes a byte.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from .._torch import writes_of
from ..coordinates import Coordinates
from ..masks import And, Bits, Boolean, Function, Interval, Mask, Or, conjuncts, is_python, parts_of
from ..records import attributes
from ..tracing import watched
from ._problem import Call, Problem
from .lowering.masks import EVERYTHING, lower_mask

WHOLE, PAIRS = 1 << 22, 1 << 20
"""The most pairs in one call of ``allowed``. With more pairs, it is called for blocks of at most this many."""
MOST_BYTES = 1 << 30
"""The most bytes of an evaluated mask, of one bit for each pair or, in a graph, one byte."""
RUNS = 2
"""The most runs of keys in a row that become intervals: a lowered mask holds this many."""


def evaluated(call: Call) -> Call:
    """Returns the call with a mask that kernels can read.

    Args:
        call: the call.
    """
    mask = call.mask
    if mask is None or not is_python(mask):
        return call
    q, k = call.q_coordinates, call.k_coordinates
    if 0 in (*call.q.shape[:3], k.index.shape[1]):  # there are no pairs
        return call._with(mask=None)
    return call._with(mask=_readable(mask, q, k))


def without_unseen(call: Call) -> Call:
    """Returns the call with zeros in queries that see no key and keys that no query sees, if q or k hold NaN or ∞.

    Gradients of such tokens are 0, but lowering would multiply these zeros by the NaN or ∞.

    Args:
        call: the call, with a mask that kernels can read, on a CPU.
    """
    q, k, mask = call.q, call.k, call.mask
    if mask is None or bool(q.isfinite().all() & k.isfinite().all()):
        return call
    (batch, heads, n, _), (_, kv_heads, m, _) = q.shape, k.shape
    seeing, seen = [], torch.zeros(batch, heads, m, dtype=torch.bool)
    rows = max(1, PAIRS // max(1, batch * heads * m))
    for start in range(0, n, rows):
        stop = min(start + rows, n)
        allowed = mask.block(start, stop, n).allowed(call.q_coordinates.rows(start, stop), call.k_coordinates)
        allowed = allowed.expand(batch, heads, stop - start, m)
        seeing.append(allowed.any(-1))
        seen |= allowed.any(-2)
    seen = seen.unflatten(1, (kv_heads, -1)).any(2)
    return call._with(
        q=q.masked_fill(~torch.cat(seeing, dim=2)[..., None], 0) if seeing else q, k=k.masked_fill(~seen[..., None], 0)
    )


def bytes_of(problem: Problem, mask: Mask) -> int:
    """Returns an upper bound of the bytes that an evaluated mask takes, from the sizes of its tensors.

    Args:
        problem: the facts of the call.
        mask: its mask.
    """
    unread = [part for part in conjuncts(mask) if is_python(part) and not _has_interval(part)]
    if not unread:
        return 0
    rows, heads = (max(part.extent(axis) for part in unread) for axis in ("batch", "heads"))
    each = problem.n * problem.m if watched() else problem.n * -(-problem.m // 8)
    return max(rows, problem.coordinate_rows) * heads * each


def cost_of_mask(problem: Problem, kernel: str | None) -> str:
    """Returns the cost of a mask of Python functions, for ``explain``; empty without one, or with intervals only.

    Args:
        problem: the facts of the call.
        kernel: the name of the kernel that the call takes.
    """
    names: dict[str, None] = {}
    for part in conjuncts(problem.mask):
        if not _has_interval(part):
            names |= dict.fromkeys(_functions_in(part))
    if not names:
        return ""
    assert problem.mask is not None
    said = f"{', '.join(names)} is evaluated for {problem.n * problem.m:,} pairs in each call"
    if kernel == "cpu":
        said += (
            " (the layers of a model share it), as intervals of keys or as at most "
            f"{max(1, bytes_of(problem, problem.mask) >> 10):,} KiB of bits"
        )
    spared = [name.removesuffix("allowed") + "interval" for name in names if name.endswith(".allowed")]
    return said + (f": {', '.join(spared)} would avoid that" if spared else "")


def _functions_in(mask: Mask) -> Iterator[str]:
    """Yields the names of the Python functions in a mask."""
    if joined := parts_of(mask):
        for part in joined:
            yield from _functions_in(part)
    elif isinstance(mask, Function):
        yield getattr(mask.function, "__name__", type(mask.function).__name__)
    elif is_python(mask):
        yield f"{type(mask).__name__}.allowed"


def _has_interval(mask: Mask) -> bool:
    """Returns whether a mask defines ``interval``, which may still return None for some coordinates."""
    if joined := parts_of(mask):
        return all(map(_has_interval, joined))
    return not is_python(mask) or type(mask).interval is not Mask.interval


# ---------------------------------------------------------------- a mask in tensors


def _readable(mask: Mask, q: Coordinates, k: Coordinates) -> Mask:
    parts = [_by_intervals(part, q, k) for part in conjuncts(mask)]
    unread = [part for part in parts if is_python(part)]
    if not unread:
        return _all(parts)
    readable = [part for part in parts if not is_python(part)]
    if watched() or not k.index.is_cpu:
        return _all([*readable, Boolean(_every_pair(unread, q, k))])
    return _all([*readable, _evaluated_once(unread, readable, q, k)])


def _all(parts: list[Mask]) -> Mask:
    return parts[0] if len(parts) == 1 else And(tuple(parts))


def _by_intervals(mask: Mask, q: Coordinates, k: Coordinates) -> Mask:
    """Returns the mask with intervals in place of a user's masks, if all of these have one."""
    if not is_python(mask):
        return mask
    found = _with_intervals(mask, q, k)
    return mask if is_python(found) or lower_mask(found, q, k)[1] is not None else found


def _with_intervals(mask: Mask, q: Coordinates, k: Coordinates) -> Mask:
    if joined := parts_of(mask):
        return mask._with(masks=tuple([_with_intervals(part, q, k) for part in joined]))
    if not is_python(mask):
        return mask
    intervals, rest = lower_mask(mask, q, k)
    if rest is not None:
        return mask
    return Interval.of(intervals[0] if intervals else EVERYTHING)


def _every_pair(masks: list[Mask], q: Coordinates, k: Coordinates) -> Tensor:
    return reduce(torch.logical_and, [mask.allowed(q, k) for mask in masks])


# ---------------------------------------------------------------- in blocks of queries


def _in_blocks(masks: list[Mask], others: list[Mask], q: Coordinates, k: Coordinates) -> Mask:
    """Returns masks as tensors. Where the other masks hide a key, their value is arbitrary."""
    n, m = q.index.shape[1], k.index.shape[1]
    most = RUNS if len(lower_mask(_all(others), q, k)[0] if others else ()) < 2 else 1
    runs: list[Tensor] | None = []
    bits: list[Tensor] = []
    buffer = _Buffer(m, q.index.device)
    rows = n if n * m <= WHOLE or not all(map(_is_cut, masks)) else _rows_at_once(masks, q, k)
    for start in range(0, n, rows):
        stop = min(start + rows, n)
        here = q.rows(start, stop)

        def allowed_by(parts: list[Mask], start: int = start, stop: int = stop, here: Coordinates = here) -> Tensor:
            return _every_pair([part.block(start, stop, n) for part in parts], here, k)

        allowed = allowed_by(masks).expand(-1, -1, stop - start, m)
        found = None
        if runs is not None and allowed.shape[1] == 1:
            found = buffer.fill(allowed).runs(most)
            if found is None and others:
                within = allowed & allowed_by(others)
                if within.shape == allowed.shape:
                    allowed = within
                    found = buffer.fill(allowed).runs(most)
        if runs is not None and found is None:
            bits = [_bits_of_runs(ends, m) for ends in runs]
            runs = None
        if runs is None:
            bits.append(buffer.fill(allowed).bits())
        elif found is not None:
            runs.append(found)
    if runs is None:
        return Bits(_joined(bits), m)
    ends = _joined(runs)
    intervals = [Interval(ends[:, 0, :, 2 * i], ends[:, 0, :, 2 * i + 1]) for i in range(RUNS)]
    return intervals[0] if not bool(ends[..., 2:].any()) else Or(tuple(intervals))


def _is_cut(mask: Mask) -> bool:
    """Returns whether a mask declares how its tensors are cut into blocks of queries."""
    if joined := parts_of(mask):
        return all(map(_is_cut, joined))
    unnamed = [name for name, value in attributes(mask).items() if isinstance(value, Tensor) and name not in mask.axes]
    return not unnamed or type(mask).block is not Mask.block


def _rows_at_once(masks: list[Mask], q: Coordinates, k: Coordinates) -> int:
    rows, heads = (max(mask.extent(axis) for mask in masks) for axis in ("batch", "heads"))
    rows = max(rows, q.index.shape[0], k.index.shape[0])
    return max(1, PAIRS // (rows * heads * k.index.shape[1]))


def _joined(blocks: list[Tensor]) -> Tensor:
    """Concatenates blocks of queries [b, h, rows, …], where b and h may be 1."""
    batch, heads = (max(block.shape[dim] for block in blocks) for dim in (0, 1))
    return torch.cat([block.expand(batch, heads, -1, -1) for block in blocks], dim=2)


class _Buffer:
    """Memory for the pairs of a block, with a byte for each key, eight before the first, and some after the last.

    Eight bytes, or pairs, are read as one number.
    """

    def __init__(self, keys: int, device: torch.device) -> None:
        self.keys, self.width = keys, keys // 8 * 8 + 8
        self.pairs = torch.zeros(0, self.width + 8, dtype=torch.bool, device=device)
        self.shape: tuple[int, ...] = ()

    def fill(self, allowed: Tensor) -> _Buffer:
        """Copies a block [b, h, rows, keys] of a mask."""
        self.shape = tuple(allowed.shape[:3])
        count = self.shape[0] * self.shape[1] * self.shape[2]
        if len(self.pairs) < count:
            self.pairs = self.pairs.new_zeros(count, self.pairs.shape[1])
        self.pairs[:count, 8 : 8 + self.keys].view(*self.shape, self.keys).copy_(allowed)
        return self

    def bits(self) -> Tensor:
        """Returns the bits of each row, uint8 [b, h, rows, bytes]."""
        count = self.shape[0] * self.shape[1] * self.shape[2]
        eights = self.pairs[:count, 8 : 8 + -(-self.keys // 8) * 8].view(torch.int64)
        # the multiplication moves the lowest bit of byte i to bit 56 + i; the shift drops everything else
        return ((eights * 0x0102040810204080) >> 56).to(torch.uint8).view(*self.shape, -1)

    def runs(self, most: int) -> Tensor | None:
        """Returns the first key and the one after the last of each run of a row, int64 [b, h, rows, 2·RUNS].

        Rows with fewer runs are filled with runs that begin and end at 0. None if a row has more than ``most`` runs.
        """
        count = self.shape[0] * self.shape[1] * self.shape[2]
        pairs = self.pairs[:count]
        changes = pairs[:, 7 : 7 + self.width] ^ pairs[:, 8 : 8 + self.width]  # where a run begins or has just ended
        eights = changes.view(torch.int64)
        row, eight = eights.nonzero(as_tuple=True)
        if len(row) > 2 * most * count:
            return None
        which, byte = eights[row, eight].view(torch.bool).view(-1, 8).nonzero(as_tuple=True)
        row, key = row[which], eight[which] * 8 + byte
        changed = torch.bincount(row, minlength=count)
        if changed.numel() and int(changed.max()) > 2 * most:
            return None
        ends = row.new_zeros(count, 2 * RUNS)
        ends[row, torch.arange(len(row), device=row.device) - (changed.cumsum(0) - changed)[row]] = key
        return ends.view(*self.shape, -1)


def _bits_of_runs(ends: Tensor, keys: int) -> Tensor:
    """Returns the bits of rows from their runs, in the form of ``_Buffer.runs``."""
    slot = torch.arange(keys, device=ends.device)
    starts, stops = ends.unflatten(-1, (RUNS, 2)).unbind(-1)
    allowed = ((slot >= starts[..., None]) & (slot < stops[..., None])).any(-2)
    return _Buffer(keys, ends.device).fill(allowed).bits()


# ---------------------------------------------------------------- what layers of one forward pass share

_shared: ContextVar[dict[Hashable, tuple[Mask, list[Any]]] | None] = ContextVar("headway_masks", default=None)
"""The evaluated masks of this forward pass, with the objects whose identity is a key; None outside of one."""


@contextmanager
def shared_masks() -> Iterator[None]:
    """A context for one forward pass of a model, in which a mask is evaluated once for calls with the same coordinates.

    The data that a function reads may change afterwards without notice.
    """
    token = _shared.set({})
    try:
        yield
    finally:
        _shared.reset(token)


def _evaluated_once(masks: list[Mask], others: list[Mask], q: Coordinates, k: Coordinates) -> Mask:
    """Returns masks as tensors, reused from an earlier layer with the same masks and coordinates."""
    shared = _shared.get()
    held: list[Any] = []
    key = None if shared is None else (*[_identity(one, held) for one in (*masks, *others)], _placed(q, k, held))
    if shared is not None and key in shared:
        return shared[key][0]
    with torch.inference_mode(False), torch.no_grad():
        made = _in_blocks(masks, others, q, k)
    if shared is not None:
        shared[key] = made, held
    return made


def _identity(mask: Mask, held: list[Any]) -> Hashable:
    """Returns a key that identifies a mask among the layers of a forward pass, and appends the objects of the key."""
    if joined := parts_of(mask):
        return type(mask), *[_identity(part, held) for part in joined]
    if type(mask) is Function and mask.rows is not None and mask.heads is not None:  # made anew for each call
        held.append(mask.function)
        return id(mask.function), tuple(mask.rows.tolist()), tuple(mask.heads.tolist())
    key = mask.plan_key()
    if key is not None:
        return key
    held.append(mask)
    tensors = [value for value in attributes(mask).values() if isinstance(value, Tensor) and not value.is_inference()]
    return id(mask), sum(map(writes_of, tensors))


def _placed(q: Coordinates, k: Coordinates, held: list[Any]) -> Hashable:
    parts = [part for at in (q, k) for part in (at.position, at.index, at.document, at.length)]
    held += parts
    known = [id(part) if isinstance(part, Tensor) else part for part in parts]
    return *known, q.padding, k.padding
