"""The documents and the padding of a call's tokens, from its mask and coordinates."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..kernels import Call
from ..masks import Documents, Padding, conjuncts, real_stop


def documents(call: Call) -> tuple[Tensor, Tensor] | None:
    """The documents of queries [1 or b, n] and keys [1 or b, m]: the mask's, else those of the coordinates."""
    q, k = call.q_coordinates, call.k_coordinates
    for mask in conjuncts(call.mask):
        if isinstance(mask, Documents):
            return mask.ids_of(q, k)
    return None if q.document is None or k.document is None else (q.document, k.document)


def real_queries(call: Call, slots: Sequence[tuple[int, int]] = ()) -> Tensor | None:
    """The queries that are not padding, [batch or 1, n] bool; None if that is not known.

    ``slots`` are the ranges (start, stop) of the keys that are the queries' tokens, the last ones by default.
    """
    at, n, m = call.q_coordinates, call.q.shape[2], call.k.shape[2]
    if (stop := real_stop(at)) is not None:
        return (at.index >= 0) & (at.index < stop)
    if not slots and call.aligned and n <= m:
        slots = [(m - n, m)]
    for mask in conjuncts(call.mask) if slots else ():
        if isinstance(mask, Padding):
            real = mask.allowed(at, call.k_coordinates)[:, 0, 0]
            return torch.cat([real[:, start:stop] for start, stop in slots], 1)
    return None
