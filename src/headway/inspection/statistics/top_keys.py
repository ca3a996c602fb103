"""The largest weights of a query, and their keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ... import reductions
from ...errors import HeadwayError
from ...kernels import Call
from ...reductions import Reduction
from .._numbers import whole
from ._base import Statistic, left_out, mean
from ._results import TopWeights


@dataclass(frozen=True, eq=False)
class TopKeys(Statistic):
    """The ``count`` largest weights of each query and their keys, ``TopWeights``.

    Among equal scores, the key with the lowest slot comes first. Every key that is not in the list weighs at most
    ``bound``. For a softmax that is at most 1/count: with count ≥ 1/t, all weights above t are in the list.

    Args:
        count: weights for each query, from 1 to the number of keys.

    Raises:
        HeadwayError: if count is not a whole number, below 1 or above the number of keys.
    """

    name = "top_keys"

    count: int = 8

    def __post_init__(self) -> None:
        if whole(self.count) is None:
            raise HeadwayError(f"TopKeys has count {self.count!r}: give a whole number, such as TopKeys(8)")
        object.__setattr__(self, "count", whole(self.count))

    def check(self, call: Call) -> None:
        m = call.k.shape[2]
        if not 1 <= self.count <= m:
            raise HeadwayError(f"TopKeys has count {self.count} and there are {m} keys: give TopKeys({min(8, m)})")

    def reductions(self, call: Call) -> tuple[Reduction, ...]:
        return (reductions.TopKeys(self.count),)

    def result(self, call: Call, values: list[Any], counted: Tensor) -> TopWeights:
        ((weights, keys),) = values
        weights = left_out(weights, counted)
        return TopWeights(weights, left_out(keys, counted), weights[..., -1])

    def summary(self, value: TopWeights, counted: Tensor) -> dict[str, Tensor]:
        return {f"{self.name} {self.count}": mean(value.weights.sum(-1), counted)}
