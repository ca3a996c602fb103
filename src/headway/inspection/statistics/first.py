"""The weight of the first token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ... import reductions
from ...kernels import Call
from ...reductions import Reduction
from .._tokens import documents
from ._base import Statistic, left_out
from ._neighbour import slots_with


@dataclass(frozen=True, eq=False)
class First(Statistic):
    """The weight that each query gives to the first token of its document, [batch, H, n].

        A[h,i,j] with index(j) = 0, or the lowest index of a key in the document of i; 0 where it is not in sight

    Trained models often put much weight there when no other key is of use: an attention sink.

    References:
        Xiao et al. 2024, "Efficient Streaming Language Models with Attention Sinks"; Gu et al. 2025, "When Attention
        Sink Emerges in Language Models".
    """

    name = "first"

    def reductions(self, call: Call) -> tuple[Reduction, ...]:
        q, k = call.q_coordinates, call.k_coordinates
        ids = documents(call)
        if ids is None:
            return (reductions.WeightsAt(slots_with(torch.zeros_like(q.index), k)[..., None]),)
        return (reductions.WeightsAt(_first_of_documents(*ids, k.index)[..., None]),)

    def result(self, call: Call, values: list[Any], counted: Tensor) -> Tensor:
        (value,) = values
        return left_out(value[..., 0], counted)


def _first_of_documents(of_queries: Tensor, of_keys: Tensor, index: Tensor) -> Tensor:
    """The slot of the key of the lowest index from 0 on in the document of each query; −1 for none."""
    batch = max(x.shape[0] for x in (of_queries, of_keys, index))
    of_queries, of_keys, index = (x.expand(batch, -1) for x in (of_queries, of_keys, index))
    first = torch.full_like(of_queries, -1)
    for row in range(batch):
        ids, place = of_keys[row].unique(return_inverse=True)
        far = torch.iinfo(torch.int64).max
        real = index[row].masked_fill(index[row] < 0, far)
        lowest = torch.full_like(ids, far).scatter_reduce(0, place, real, "amin")
        slots = torch.full_like(ids, -1)
        at_lowest = ((real == lowest[place]) & (real != far)).nonzero()[:, 0].flip(0)  # the first slot is written last
        slots[place[at_lowest]] = at_lowest
        known = torch.searchsorted(ids, of_queries[row].to(ids.dtype)).clamp(max=max(len(ids) - 1, 0))
        if len(ids):
            first[row] = torch.where(ids[known] == of_queries[row], slots[known], -1)
    return first
