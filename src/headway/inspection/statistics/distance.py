"""How far a query looks."""

from __future__ import annotations

from dataclasses import dataclass

from ... import reductions
from ...kernels import Call
from ...reductions import Reduction
from ._base import Statistic


@dataclass(frozen=True, eq=False)
class Distance(Statistic):
    """The mean distance to the keys that each query attends to, in tokens, [batch, H, n].

        D[h,i] = Σⱼ A[h,i,j]·|index(j) − index(i)|

    References:
        Vig and Belinkov 2019, "Analyzing the Structure of Attention in a Transformer Language Model".
    """

    name = "distance"

    def reductions(self, call: Call) -> tuple[Reduction, ...]:
        return (reductions.MeanDistance(),)
