"""Weights of the key at a fixed distance from each query."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from ... import reductions
from ...coordinates import Coordinates
from ...kernels import Call
from ...reductions import Reduction
from .._tokens import documents
from ._base import Statistic, left_out


class Neighbour(Statistic):
    """The base of statistics of the weight of the key that is ``offset`` tokens after the query.

    Tokens are counted by the index of their coordinates, within the document of the query. If several keys have that
    index, the first one counts. If there is no such key, or the mask hides it, the weight is 0.
    """

    offset: ClassVar[int]

    def reductions(self, call: Call) -> tuple[Reduction, ...]:
        return (reductions.WeightsAt(slots_beside(call, self.offset)[..., None]),)

    def result(self, call: Call, values: list[Any], counted: Tensor) -> Tensor:
        (value,) = values
        return left_out(value[..., 0], counted)


def slots_beside(call: Call, offset: int, *, queries: bool = True) -> Tensor:
    """The key slot of the token that is ``offset`` tokens after each query, or key, of its document; −1 for none."""
    side, keys = call.q_coordinates if queries else call.k_coordinates, call.k_coordinates
    ids = documents(call)
    if ids is None:
        return slots_with(side.index + offset, keys)
    of_tokens, of_keys = ids[0 if queries else 1], ids[1]
    if keys.ordered and keys.start is not None:
        slots = slots_with(side.index + offset, keys)
        batch = max(x.shape[0] for x in (slots, of_tokens, of_keys))
        slots, of_tokens, of_keys = (x.expand(batch, -1) for x in (slots, of_tokens, of_keys))
        same = of_keys.gather(1, slots.clamp(min=0)) == of_tokens if of_keys.shape[1] else slots >= 0
        return slots.masked_fill(~same, -1)
    # the index may restart in each document
    return _found(*_paired(_ranked(of_tokens, of_keys), _ranked(side.index + offset, keys.index)))


def slots_with(index: Tensor, keys: Coordinates) -> Tensor:
    """The first key slot of each index, [b, n]; −1 where no key has it."""
    if not keys.ordered or keys.start is None:
        return _found(index, keys.index)
    slots = index - keys.start
    return slots.masked_fill((slots < 0) | (slots >= keys.index.shape[1]), -1)


def _found(index: Tensor, of_keys: Tensor) -> Tensor:
    """The first slot whose number is that of each query, [b, n]; −1 where there is none."""
    batch, m = max(index.shape[0], of_keys.shape[0]), of_keys.shape[1]
    index, of_keys = index.expand(batch, -1).contiguous(), of_keys.expand(batch, -1)
    if not m:
        return torch.full_like(index, -1)
    rising, order = of_keys.sort(dim=1, stable=True)
    at = torch.searchsorted(rising, index).clamp(max=m - 1)
    return torch.where(rising.gather(1, at) == index, order.gather(1, at), -1)


def _ranked(of_queries: Tensor, of_keys: Tensor) -> tuple[Tensor, Tensor]:
    """The ranks of numbers among those of the keys, [b, n] and [b, m], from 0 to m − 1; −1 where no key has it."""
    batch, m = max(of_queries.shape[0], of_keys.shape[0]), of_keys.shape[1]
    of_queries, of_keys = (x.long().expand(batch, -1).contiguous() for x in (of_queries, of_keys))
    if not m:
        return torch.full_like(of_queries, -1), of_keys
    rising, order = of_keys.sort(dim=1, stable=True)
    ranks = torch.zeros_like(rising)
    ranks[:, 1:] = (rising[:, 1:] != rising[:, :-1]).cumsum(1)
    at = torch.searchsorted(rising, of_queries).clamp(max=m - 1)
    known = torch.where(rising.gather(1, at) == of_queries, ranks.gather(1, at), -1)
    return known, torch.empty_like(ranks).scatter(1, order, ranks)


def _paired(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Pairs of ranks as one number each, of the queries and of the keys; −1 where one of them is −1."""
    m = one[1].shape[1]
    of_queries, of_keys = (a * m + b for a, b in zip(one, other, strict=True))
    return of_queries.masked_fill((one[0] < 0) | (other[0] < 0), -1), of_keys
