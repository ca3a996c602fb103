"""Local heads: those that attend to the neighbourhood."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ...errors import HeadwayError
from .._run import Statistics
from ..statistics import Distances, Statistic
from ..texts import EncodedText
from ._base import Batch, Evidence, Role, total


class WeightNearby(Distances):
    """The weight before, within and after a window around the query."""

    name = "weight nearby"


@dataclass(frozen=True, eq=False)
class Local(Role):
    """A head that puts most of its weight within a few tokens of the query.

        figure = meanᵢ Σⱼ A[h,i,j]   over the keys j with |j − i| ≤ window

    The guess is equal weights.

    Args:
        window: the tokens on each side.
        threshold: the least figure.
        margin: the least distance from equal weights.

    Raises:
        HeadwayError: if the window is below 1.

    References:
        Pande et al. 2021, "The Heads Hypothesis", whose local heads have a window of two tokens on each side.
    """

    name: ClassVar[str] = "local"

    window: int = 2
    threshold: float = 0.6
    margin: float = 0.1

    def __post_init__(self) -> None:
        if self.window < 1:
            raise HeadwayError(f"window is {self.window}: give at least 1")

    def candidates(self, texts: Sequence[EncodedText]) -> tuple[str, ...]:
        return (f"±{self.window} tokens",)

    def statistics(self, batch: Batch) -> tuple[str | Statistic, ...]:
        return (WeightNearby((-self.window, self.window + 1)),)

    def evidence(self, batch: Batch, found: Statistics) -> Evidence:
        hits = total(found["weight nearby"][..., 1], batch.words)
        return Evidence(hits[..., None], batch.words.sum(-1)[:, None, None])
