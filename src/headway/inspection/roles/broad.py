"""Broad heads: those that attend to everything in sight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ...errors import HeadwayError
from .._run import Statistics
from ..statistics import Statistic
from ..texts import EncodedText
from ._base import Batch, Evidence, Role

VARIANTS = ("share", "nats")


@dataclass(frozen=True, eq=False)
class Broad(Role):
    """A head with high entropy.

        figure = meanᵢ H[h,i] / ln(keys in sight of i)   over the queries that see two keys or more

    There is no guess: equal weights have the figure 1.

    Args:
        by: "share" for the entropy as a share of the largest that is possible, at least 0.8; "nats" for the mean
            entropy itself, at least 3.8 as by Clark et al., which texts of fewer than 45 tokens cannot reach.
        threshold: the least figure. Default: 0.8 or 3.8.
        margin: not used, since there is no guess.

    Raises:
        HeadwayError: if ``by`` is unknown.

    References:
        Clark et al. 2019, "What Does BERT Look At?", section 3.3: 3.8 nats in sequences of 128 tokens, a share of 0.78.
    """

    name: ClassVar[str] = "broad"

    by: str = "share"
    threshold: float = -1.0
    margin: float = 0.0

    def __post_init__(self) -> None:
        if self.by not in VARIANTS:
            raise HeadwayError(f"by is {self.by!r}: give {' or '.join(map(repr, VARIANTS))}")
        if self.threshold < 0:
            object.__setattr__(self, "threshold", 0.8 if self.by == "share" else 3.8)

    def candidates(self, texts: Sequence[EncodedText]) -> tuple[str, ...]:
        return ("entropy",)

    def statistics(self, batch: Batch) -> tuple[str | Statistic, ...]:
        return "entropy", "visible"

    def evidence(self, batch: Batch, found: Statistics) -> Evidence:
        queries = batch.words[:, None] & (found["visible"] >= 2)
        most = found["visible"].double().clamp(min=2).log() if self.by == "share" else 1.0
        hits = (found["entropy"].double() / most).masked_fill(~queries, 0)
        return Evidence(hits.sum(-1, keepdim=True), queries.sum(-1, keepdim=True))

    def guesses(self, batch: Batch, found: Statistics, equal: Statistics) -> Tensor:
        return equal["entropy"].new_zeros(len(batch.texts), 1, 0, 1)
