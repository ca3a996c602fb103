"""The number of keys that a query sees."""

from __future__ import annotations

from dataclasses import dataclass

from ... import reductions
from ...kernels import Call
from ...reductions import Reduction
from ._base import Statistic


@dataclass(frozen=True, eq=False)
class Visible(Statistic):
    """The number of keys that each query may attend to, [batch, H, n] in int64.

        V[h,i] = |{j : score[h,i,j] > −∞}|

    It bounds other statistics: the entropy is at most ln V, and the weights of a uniform head are 1/V.
    """

    name = "visible"

    def reductions(self, call: Call) -> tuple[Reduction, ...]:
        return (reductions.VisibleKeys(),)
