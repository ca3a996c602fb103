"""Weights of the key at a fixed distance from each query."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from ... import reductions
from ...kernels import Call
from ...reductions import Reduction
from .._tokens import documents
from ._base import Statistic, left_out


class Neighbour(Statistic):
    """The base of statistics of the weight of the key that is ``offset`` tokens after the query.

    Tokens are counted by the index of their coordinates, within the document of the query. Where there is no such key,
    or the mask hides it, the weight is 0.
    """

    offset: ClassVar[int]

    def reductions(self, call: Call) -> tuple[Reduction, ...]:
        q, k = call.q_coordinates, call.k_coordinates
        slots = slots_of(q.index + self.offset, k.index)
        ids = documents(call)
        if ids is not None:
            of_query, of_key = (x.expand(slots.shape[0], -1) for x in ids)
            same = of_key.gather(1, slots.clamp(min=0)) == of_query if of_key.shape[1] else slots < 0
            slots = slots.masked_fill(~same, -1)
        return (reductions.WeightsAt(slots[..., None]),)

    def result(self, call: Call, values: list[Any], counted: Tensor) -> Tensor:
        (value,) = values
        return left_out(value[..., 0], counted)


def slots_of(index: Tensor, of_keys: Tensor) -> Tensor:
    """The first key slot of each index, [b, n]; −1 where no key has it."""
    batch, m = max(index.shape[0], of_keys.shape[0]), of_keys.shape[1]
    index, of_keys = index.expand(batch, -1).contiguous(), of_keys.expand(batch, -1)
    if not m:
        return torch.full_like(index, -1)
    rising, order = of_keys.sort(dim=1, stable=True)
    at = torch.searchsorted(rising, index).clamp(max=m - 1)
    return torch.where(rising.gather(1, at) == index, order.gather(1, at), -1)
