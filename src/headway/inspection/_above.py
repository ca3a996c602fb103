"""All weights of a call above a threshold, in memory that grows with their number."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import HeadwayError
from ..kernels import KERNELS, Call, cut, reduce, why_not_in_parts
from ..kernels._results import log_sum_exp
from ..reductions import RowStatistics, TopKeys
from ._table import DataTable
from ._weights import LIMIT, said

FEW = 16
"""The largest weights of each query that are found first, which the kernels do fastest."""
HELD = 1 << 22
"""The largest weights that are held while one part of a layer is searched."""
SLACK = 0.01
"""By how much a score may be below the threshold of its query, since two passes may round it in two ways."""
OCTETS = 36
"""Bytes of an entry."""


@dataclass(frozen=True, eq=False)
class WeightList:
    """All weights of a layer above a threshold, sorted by example, head, query and key.

    Attributes:
        threshold: the list has every weight of at least this size.
        examples: the row of the batch of each weight, int64 [entries].
        heads: its head, likewise.
        queries: the slot of its query.
        keys: the slot of its key.
        weights: the weights, [entries].
    """

    threshold: float
    examples: Tensor
    heads: Tensor
    queries: Tensor
    keys: Tensor
    weights: Tensor

    def __len__(self) -> int:
        return len(self.weights)

    def table(self, tokens: Sequence[str] | None = None) -> DataTable:
        """Returns one row for each weight, with example, head, query, key and weight.

        Args:
            tokens: the names of the tokens, for two further columns. Default: only numbers.

        Raises:
            HeadwayError: if there are fewer tokens than queries or keys.
        """
        columns = {"example": self.examples, "head": self.heads, "query": self.queries, "key": self.keys}
        numbers = {name: x.tolist() for name, x in columns.items()}
        most = max(max(numbers["query"] + numbers["key"], default=-1) + 1, 0)
        if tokens is not None and len(tokens) < most:
            raise HeadwayError(f"tokens has {len(tokens)} names and there are {most} tokens: give one for each")
        rows = DataTable()
        for values in zip(*numbers.values(), self.weights.tolist(), strict=True):
            row: dict[str, Any] = dict(zip((*numbers, "weight"), values, strict=True))
            if tokens is not None:
                row |= {"from": tokens[row["query"]], "to": tokens[row["key"]]}
            rows.append(row)
        return rows

    def __repr__(self) -> str:
        return f"WeightList({len(self):,} weights of {self.threshold:g} or more)"


def checked_threshold(threshold: Any) -> float:
    """Returns a threshold as a float. Raises HeadwayError for anything that is not a threshold."""
    number = not isinstance(threshold, bool) and isinstance(threshold, (int, float))
    if not number or not 0 < threshold <= 1:
        raise HeadwayError(f"threshold is {threshold!r}: give a weight above 0 and at most 1, such as 0.1")
    return float(threshold)


def all_above(call: Call, threshold: float, counted: Tensor | None, head: int | None) -> WeightList:
    """Returns all weights of a call of at least a threshold.

    Args:
        call: the call.
        threshold: the threshold, above 0.
        counted: the queries that count, [batch or 1, n] bool; None for all.
        head: the head; None for all.

    Raises:
        HeadwayError: if they take more than 1 GiB.
    """
    heads = call.q.shape[1]
    if not call.k.shape[2]:  # there is no largest weight
        return of_weights(call.q.new_zeros(*call.q.shape[:3], 0), threshold, range(heads), range(call.q.shape[2]))
    group = heads // call.k.shape[1]
    first = 0
    if head is not None and can_be_cut(call):
        first = head // group * group
        call = cut(call, "heads", first, first + group)
    (largest, total), (top, keys) = reduce(KERNELS, call, [RowStatistics(), TopKeys(min(call.k.shape[2], FEW))])
    parts = [entries_of(top, keys, threshold)]
    unknown = (top[..., -1] >= threshold).any(-1).any(0)  # these heads may have more
    if top.shape[-1] < call.k.shape[2] and bool(unknown.any()):
        found = parts[0]
        parts = [tuple(x[~unknown[found[1]]] for x in found)]
        for part in searched(call, threshold, log_sum_exp(largest, total), unknown):
            parts.append(part)
            size = OCTETS * sum(len(one[-1]) for one in parts)
            if size > LIMIT:
                raise HeadwayError(
                    f"weights of {threshold:g} or more take above {said(LIMIT)}: give a larger threshold, or head="
                )
    example, of_head, query, key, weight = (torch.cat(column) for column in zip(*parts, strict=True))
    of_head = of_head + first
    wanted = torch.ones_like(weight, dtype=torch.bool)
    if head is not None:
        wanted = of_head == head
    if counted is not None:
        wanted = wanted & counted.expand(call.q.shape[0], -1)[example, query]
    columns = [x[wanted] for x in (example, of_head, query, key, weight)]
    return WeightList(threshold, *sorted_entries(columns, heads, call.q.shape[2], call.k.shape[2]))


def of_weights(weights: Tensor, threshold: float, heads: Sequence[int], rows: Sequence[int]) -> WeightList:
    """Returns the entries above a threshold of weights [batch, heads, rows, m] that were kept.

    Args:
        weights: the weights.
        threshold: the threshold.
        heads: the number of each head that was kept.
        rows: the slot of each query that was kept.
    """
    example, head, row, key = (weights >= threshold).nonzero().unbind(1)
    of_head, query = torch.tensor(list(heads))[head.cpu()], torch.tensor(list(rows))[row.cpu()]
    found = (example.cpu(), of_head, query, key.cpu(), weights[example, head, row, key].cpu())
    last_head, last_row = max(heads, default=0), max(rows, default=0)
    return WeightList(threshold, *sorted_entries(found, last_head + 1, last_row + 1, weights.shape[3]))


def can_be_cut(call: Call) -> bool:
    """Whether a call can be cut into heads and queries."""
    return call.restore is None and why_not_in_parts(call) is None


Entries = tuple[Tensor, ...]
"""Example, head, query, key and weight of each entry."""


def searched(call: Call, threshold: float, lse: Tensor, chosen: Tensor) -> Iterator[Entries]:
    """Yields all weights of at least a threshold in parts of a call.

    A key counts only if its score is about lse + ln(threshold) or more. Few keys do, so a text may be long.

    Args:
        call: the call.
        threshold: the threshold, above 0.
        lse: the log-sum-exp of each query, [batch, heads, n].
        chosen: the heads that are searched, [heads] bool.
    """
    batch, heads, n, _ = call.q.shape
    m, group = call.k.shape[2], heads // call.k.shape[1]
    # no softmax has a log-sum-exp of NaN, and then no key is left out
    least = (lse + (math.log(threshold) - SLACK)).float().nan_to_num(-torch.inf, torch.inf, -torch.inf)
    cuts, count = can_be_cut(call), min(m, int(1 / threshold) + 1)
    groups = chosen.view(-1, group).any(-1).nonzero()[:, 0].tolist() if cuts else [0]
    width = group if cuts else heads
    rows = max(HELD // (batch * width * count), 48) if cuts else n
    for of_keys in groups:
        first, last = of_keys * width, (of_keys + 1) * width
        of_group = cut(call, "heads", first, last) if cuts else call
        for start in range(0, n, rows):
            stop = min(start + rows, n)
            part = cut(of_group, "queries", start, stop) if cuts and stop - start < n else of_group
            bound = least[:, first:last, start:stop]
            while True:
                ((top, keys),) = reduce(KERNELS, part, [TopKeys(count, bound)])
                if count >= m or not bool((top[..., -1] >= threshold).any()):
                    break
                count = min(4 * count, m)  # the weights of another normalizer need not sum to 1
            example, head, query, key, weight = entries_of(top, keys, threshold)
            kept = chosen[head + first]
            yield tuple(x[kept] for x in (example, head + first, query + start, key, weight))


def entries_of(top: Tensor, keys: Tensor, threshold: float) -> Entries:
    """The entries of at least a threshold among the largest weights of each query, [batch, heads, n, count]."""
    example, head, query, place = ((top >= threshold) & (keys >= 0)).nonzero().unbind(1)
    return example, head, query, keys[example, head, query, place], top[example, head, query, place]


def sorted_entries(entries: Sequence[Tensor], heads: int, n: int, m: int) -> list[Tensor]:
    """Entries in the order of example, head, query and key."""
    example, head, query, key, _ = entries
    order = (((example * heads + head) * n + query) * m + key).argsort()
    return [x[order] for x in entries]
