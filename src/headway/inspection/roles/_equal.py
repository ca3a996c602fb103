"""Statistics of equal weights, which are the baseline of many roles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ... import masks, reductions
from ...errors import HeadwayError
from ...kernels import Call
from ...kernels._problem import tensors_in
from ...reductions import Reduction
from .._run import Statistics, statistics_of
from ..statistics import Statistic


@dataclass(frozen=True, eq=False)
class EqualWeights(Statistic):
    """Statistics of a head that gives all keys in sight equal weights, a ``Statistics``.

    Raises HeadwayError if the weights of the call are NaN, which evidence would take for queries that do not count.
    """

    name = "equal weights"

    statistics: Sequence[Statistic]

    def reductions(self, call: Call) -> tuple[Reduction, ...]:
        return (reductions.Entropy(),)

    def result(self, call: Call, values: list[Any], counted: Tensor) -> Statistics:
        (entropy,) = values
        damaged = (entropy.isnan() & counted).any(-1).any(0)
        if bool(damaged.any()):
            head = int(damaged.nonzero()[0])
            raise HeadwayError(f"weights of head {head} are NaN: roles need queries and keys that are finite numbers")
        return statistics_of(with_equal_weights(call), self.statistics, counted.any(1))

    def summary(self, value: Any, counted: Tensor) -> dict[str, Tensor]:
        return {}


def with_equal_weights(call: Call) -> Call:
    """The call with scores of 0: all keys that the mask allows have equal weights. One head, if the mask allows it."""
    batch, heads, n = call.q.shape[:3]
    heads = heads if _by_head(call.mask) else 1
    zero = torch.zeros(1, 1, 1, 1, dtype=torch.float32, device=call.q.device)
    keys = zero.expand(batch, heads, call.k.shape[2], 1)
    return call._with(
        q=zero.expand(batch, heads, n, 1),
        k=keys,
        v=keys,
        terms=(),
        dropout=0.0,
        seed=None,
        q_rotation=None,
        k_rotation=None,
        v_rotation=None,
        out_rotation=None,
        restore=None,
    )


def _by_head(mask: masks.Mask | None) -> bool:
    """Whether a mask may be different for different heads."""
    own = any(one.foreign for one in masks.conjuncts(mask))
    return own or any(x.ndim >= 3 and x.shape[-3] > 1 for x in tensors_in(mask))
