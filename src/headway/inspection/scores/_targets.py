"""Weights of the keys that a rule on tokens names: the previous one, an earlier copy, the token after such a copy."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ... import reductions
from ...errors import HeadwayError
from ...kernels import Call
from ...reductions import Reduction
from .._record import Records
from ..statistics import Statistic
from ..statistics._base import left_out, mean
from ..statistics._neighbour import slots_beside
from ._base import Score, call_of, records_of_one_call
from ._results import HeadScores


class TargetWeights(NamedTuple):
    """The weight that queries give to their targets."""

    weight: Tensor
    """The sum over the targets of each query, [batch, H, n]; NaN for a query that has none."""
    targets: Tensor
    """The number of targets of each query, [batch, H, n] in int64."""


class TargetScore(Score, Statistic):
    """The base of scores of the weight that queries give to their targets. A rule on tokens says which keys these are.

    Targets are keys in sight: hidden keys, padding and tokens of other documents are never targets. A query without a
    target does not count. A score is a statistic too, for ``capture(statistics=…)`` and ``attention_statistics``, whose
    result is a ``TargetWeights``.
    """

    @abstractmethod
    def labels(self, call: Call) -> tuple[Tensor, Tensor, int]:
        """Returns labels of queries and keys, and the largest distance, as ``reductions.WeightsOfMatches`` has them.

        Args:
            call: the call.
        """

    def reductions(self, call: Call) -> tuple[Reduction, ...]:
        return (reductions.WeightsOfMatches(*self.labels(call)),)

    def result(self, call: Call, values: list[Any], counted: Tensor) -> TargetWeights:
        ((weight, targets),) = values
        return TargetWeights(left_out(weight, counted & (targets > 0)), targets.masked_fill(~counted, 0))

    def summary(self, value: TargetWeights, counted: Tensor) -> dict[str, Tensor]:
        return {self.name: mean(value.weight, value.targets > 0)}

    def of(self, seen: Records) -> HeadScores:
        scores = {}
        for record in records_of_one_call(seen, self.name):
            call = call_of(record, self.name)
            try:
                self.check(call)
            except HeadwayError as error:
                raise HeadwayError(f"{record.layer!r}: {error}") from None
            scores[record.layer] = record.statistics(self).summary()[self.name]
        return HeadScores(self.name, scores)


AVERAGES = ("queries", "pairs")


@dataclass(frozen=True, eq=False)
class TokenScore(TargetScore):
    """The base of scores of targets that are found by token ids.

    Args:
        ids: the id of each key's token, whole numbers [m] or [batch, m]; −1 where there is no token.
        average: "queries" for the mean over queries of their weight on all of their targets, or "pairs" for the mean
            over all pairs of a query and a target.

    Raises:
        HeadwayError: if ids are not whole numbers of these shapes, or average is unknown.
    """

    ids: Tensor
    average: str = "queries"

    def __post_init__(self) -> None:
        x = self.ids
        if not isinstance(x, Tensor) or x.is_floating_point() or x.dtype == torch.bool or x.ndim not in (1, 2):
            said = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            raise HeadwayError(f"{self.name!r} has ids of {said}: give the whole numbers [tokens] or [batch, tokens]")
        if self.average not in AVERAGES:
            raise HeadwayError(f"average is {self.average!r}: give {' or '.join(map(repr, AVERAGES))}")

    def check(self, call: Call) -> None:
        batch, m = call.q.shape[0], call.k.shape[2]
        if self.ids.shape[-1] != m or (self.ids.ndim == 2 and self.ids.shape[0] not in (1, batch)):
            raise HeadwayError(
                f"{self.name!r} has ids of shape {tuple(self.ids.shape)}: give one for each key, [{m}] or "
                f"[{batch}, {m}], and choose layers that have these keys"
            )

    def summary(self, value: TargetWeights, counted: Tensor) -> dict[str, Tensor]:
        if self.average == "queries":
            return super().summary(value, counted)
        total = value.weight.double().nansum(-1) / value.targets.sum(-1)
        return {self.name: total.to(value.weight.dtype)}

    def _ids_beside(self, call: Call, offset: int, *, queries: bool = False) -> Tensor:
        """The id of the token that is ``offset`` tokens after each key, or query, of its document; −1 for none."""
        ids = (self.ids if self.ids.ndim == 2 else self.ids[None]).to(call.q.device, torch.int64)
        slots = token_beside(call, offset, queries=queries)
        batch = max(ids.shape[0], slots.shape[0])
        ids, slots = ids.expand(batch, -1), slots.expand(batch, -1)
        return ids.gather(1, slots.clamp(min=0)).masked_fill(slots < 0, -1) if ids.shape[1] else slots


def token_beside(call: Call, offset: int, *, queries: bool) -> Tensor:
    """The key slot of the token that is ``offset`` tokens after each query, or key; −1 for none, and for padding."""
    index = (call.q_coordinates if queries else call.k_coordinates).index + offset
    return slots_beside(call, offset, queries=queries).masked_fill(index < 0, -1)  # padding in front is below 0
