"""The weights of a call as one tensor, for chosen heads and queries, and the limit of its size."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import HeadwayError
from ..kernels import Call
from ..kernels import reference as spec
from ..tracing import without_autocast

LIMIT = 1 << 30
"""The most bytes of weights that are held: 1 GiB."""

REMEDY = "take fewer of them by layers=, heads= or rows=, or keep='statistics' or 'qk', which grow with the tokens"


def dense_weights(
    call: Call,
    heads: Sequence[int] | None = None,
    rows: Sequence[int] | None = None,
    keys: Sequence[int] | None = None,
) -> Tensor:
    """The weights before dropout, [batch, heads, rows, keys] in q's dtype, of chosen heads and tokens; None for all.

    Rows are slots in rising order, keys slots in any. Memory beyond the result does not grow with the queries.
    """
    batch, all_heads, n, _ = call.q.shape
    m = call.k.shape[2]
    chosen = range(n) if rows is None else rows
    width = m if keys is None else len(keys)
    at = None if keys is None else torch.tensor(list(keys), dtype=torch.int64, device=call.q.device)
    dense = call.q.new_zeros(batch, all_heads if heads is None else len(heads), len(chosen), width)
    with torch.no_grad(), without_autocast(call.q):
        computed = spec.computed(call)
        most, done = spec.block_rows(computed), 0
        for start, stop in _runs(chosen, most):
            block = spec.QueryBlock(computed, start, stop)
            weights, *_ = spec.softmax(block, spec.masked(block, spec.scores(block)))
            weights = weights if heads is None else weights[:, list(heads)]
            here = dense[:, :, done : done + stop - start]
            if at is None:
                here[..., block.keys] = weights.to(dense.dtype)
            else:
                inside = (at >= block.keys.start) & (at < block.keys.stop)
                here[..., inside] = weights[..., at[inside] - block.keys.start].to(dense.dtype)
            done += stop - start
    return dense


def _runs(slots: Sequence[int], most: int) -> list[tuple[int, int]]:
    """The slots as ranges start … stop − 1 of at most so many."""
    ranges: list[tuple[int, int]] = []
    for slot in slots:
        if ranges and ranges[-1][1] == slot and slot - ranges[-1][0] < most:
            ranges[-1] = (ranges[-1][0], slot + 1)
        else:
            ranges.append((slot, slot + 1))
    return ranges


def size_of(
    call: Call, heads: Sequence[int] | None, rows: Sequence[int] | None, keys: Sequence[int] | None = None
) -> int:
    """The bytes of ``dense_weights``."""
    batch, all_heads, n, _ = call.q.shape
    count = batch * (all_heads if heads is None else len(heads)) * (n if rows is None else len(rows))
    return count * (call.k.shape[2] if keys is None else len(keys)) * call.q.element_size()


def refuse_above_limit(size: int, what: str) -> None:
    """Raises HeadwayError if a number of bytes of weights is above the limit."""
    if size > LIMIT:
        raise HeadwayError(f"{what} would take {said(size)}, above the limit of {said(LIMIT)}: {REMEDY}")


def said(size: int) -> str:
    """Bytes in words: 512 bytes, 3.4 MiB."""
    number = float(size)
    for unit in ("bytes", "KiB", "MiB"):
        if number < 1024:
            return f"{size} bytes" if unit == "bytes" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} GiB"
