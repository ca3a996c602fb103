"""Weight by ranges of distances."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

from ... import reductions
from ...coordinates import FAR
from ...errors import HeadwayError
from ...kernels import Call
from ...reductions import Reduction
from .._numbers import whole
from ._base import Statistic, mean

POWERS = tuple(1 << i for i in range(13))
EDGES = (*(1 - x for x in reversed(POWERS[1:])), 0, *POWERS)
"""… −7…−4, −3, −2, −1, 0, 1, 2, 3, 4…7 … doubled up to 4,096 on both sides: −1 and 1 are alone, then 2…3, 4…7, …"""


@dataclass(frozen=True, eq=False)
class Distances(Statistic):
    """The weight that each query gives to each range of distances, [batch, H, n, edges + 1].

        W[h,i,r] = Σⱼ A[h,i,j] over the keys with edge r−1 ≤ index(j) − index(i) < edge r

    Range 0 has all distances below the first edge, the last range all from the last edge on.

    Args:
        edges: rising whole numbers. Default: ranges that double on both sides of 0, up to 4,096 tokens.

    Raises:
        HeadwayError: if edges are not whole numbers that rise.
    """

    name = "distances"

    edges: tuple[int, ...] = EDGES

    def __post_init__(self) -> None:
        edges = [whole(edge) for edge in self.edges] if isinstance(self.edges, Iterable) else []
        known = tuple(edge for edge in edges if edge is not None and -FAR <= edge <= FAR)
        if not known or len(known) < len(edges) or any(a >= b for a, b in pairwise(known)):
            raise HeadwayError(
                f"Distances has edges {self.edges}: give whole numbers that rise, such as (-8, 0, 8), up to 2**60"
            )
        object.__setattr__(self, "edges", known)

    def reductions(self, call: Call) -> tuple[Reduction, ...]:
        return (reductions.WeightsByDistance(self.edges),)

    def summary(self, value: Tensor, counted: Tensor) -> dict[str, Tensor]:
        means = mean(value, counted)
        return {name: means[..., i] for i, name in enumerate(self.names)}

    @property
    def names(self) -> list[str]:
        """The ranges in words, such as "−3 to −2"."""
        inner = [f"{a}" if a + 1 == b else f"{a} to {b - 1}" for a, b in pairwise(self.edges)]
        return [f"distance {x}" for x in (f"below {self.edges[0]}", *inner, f"from {self.edges[-1]}")]
