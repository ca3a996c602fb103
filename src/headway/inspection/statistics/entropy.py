"""Entropy: how widely a query spreads its attention."""

from __future__ import annotations

from dataclasses import dataclass

from ... import reductions
from ...kernels import Call
from ...reductions import Reduction
from ._base import Statistic


@dataclass(frozen=True, eq=False)
class Entropy(Statistic):
    """The entropy of each query's weights, [batch, H, n] in nats, from 0 to ln(visible keys).

        H[h,i] = −Σⱼ A[h,i,j]·ln A[h,i,j]

    If a sink takes part of the weight, the sum is only over the keys.

    References:
        Clark et al. 2019, "What Does BERT Look at?", section 3.3.
    """

    name = "entropy"

    def reductions(self, call: Call) -> tuple[Reduction, ...]:
        return (reductions.Entropy(),)
