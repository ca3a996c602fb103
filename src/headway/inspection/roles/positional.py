"""Positional heads: those that attend at a fixed offset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ...errors import HeadwayError
from .._run import Statistics
from ..statistics import Statistic
from ..texts import EncodedText
from ._base import Batch, Evidence, Role, total

OFFSETS = tuple(range(-5, 6))
BESIDE = ("previous", "current", "next")
VARIANTS = ("largest", "weight")


@dataclass(frozen=True, eq=False)
class Positional(Role):
    """A head whose largest weight is at one offset.

        figure(d) = share of queries i with argmaxⱼ A[h,i,j] = i + d,   d = −5, …, 5

    Cases are the tokens of words that have a token at the offset. The guess is a key in sight, drawn with equal
    chances.

    Args:
        by: "largest" for the share of largest weights, at least 0.9 as by Voita et al.; "weight" for the mean weight of
            the previous token, the token itself or the next one, at least 0.5 as in the code of Clark et al.
        threshold: the least figure. Default: 0.9 or 0.5.
        margin: the least distance from the guess.

    Raises:
        HeadwayError: if ``by`` is unknown.

    References:
        Voita et al. 2019, "Analyzing Multi-Head Self-Attention", section 5.1; Clark et al. 2019, "What Does BERT Look
        At?", section 3.1.
    """

    name: ClassVar[str] = "positional"

    by: str = "largest"
    threshold: float = -1.0
    margin: float = 0.1

    def __post_init__(self) -> None:
        if self.by not in VARIANTS:
            raise HeadwayError(f"by is {self.by!r}: give {' or '.join(map(repr, VARIANTS))}")
        if self.threshold < 0:
            object.__setattr__(self, "threshold", 0.9 if self.by == "largest" else 0.5)

    @property
    def offsets(self) -> Sequence[int]:
        """The offsets that are tried."""
        return OFFSETS if self.by == "largest" else (-1, 0, 1)

    def candidates(self, texts: Sequence[EncodedText]) -> tuple[str, ...]:
        return tuple(f"{offset:+d}" if offset else "0" for offset in self.offsets)

    def statistics(self, batch: Batch) -> tuple[str | Statistic, ...]:
        return ("largest", "visible") if self.by == "largest" else (*BESIDE, "visible")

    def evidence(self, batch: Batch, found: Statistics) -> Evidence:
        words, cases = batch.words, self._cases(batch)
        if self.by == "weight":
            hits = [total(found[name], there) for name, there in zip(BESIDE, cases, strict=True)]
        else:
            offset = found["largest"].key - torch.arange(words.shape[1], device=batch.device)
            hits = [((offset == d) & there[:, None]).sum(-1) for d, there in zip(self.offsets, cases, strict=True)]
        return Evidence(torch.stack(hits, -1), torch.stack([there.sum(-1) for there in cases], -1)[:, None])

    def guesses(self, batch: Batch, found: Statistics, equal: Statistics) -> Tensor:
        chance = 1 / equal["visible"].double().clamp(min=1)
        return torch.stack([total(chance, there) for there in self._cases(batch)], -1)[:, :, None]

    def _cases(self, batch: Batch) -> list[Tensor]:
        """For each offset the queries that have a token there, [batch, n]."""
        at = torch.arange(batch.words.shape[1], device=batch.device)
        return [batch.words & (at + d >= 0) & (at + d < len(at)) for d in self.offsets]
