"""The base of roles of heads that find earlier copies of a token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from .._run import Statistics
from ..scores._targets import TokenScore
from ..statistics import Statistic
from ..texts import EncodedText
from ._base import Batch, Evidence, Role, total
from ._repeated import LENGTH, distinct_ids, repeated


@dataclass(frozen=True, eq=False)
class OfCopies(Role):
    """The base of roles that are measured on random tokens that are repeated, by a score of tokens."""

    score: ClassVar[type[TokenScore]]

    threshold: float = 0.3
    margin: float = 0.1

    def why_not(self, texts: Sequence[EncodedText], longest: int | None) -> str | None:
        count = len(distinct_ids(texts))
        if count < LENGTH:
            return f"{LENGTH} different tokens to repeat, where the texts have {count}"
        fewest = len(repeated(texts, longest, torch.Generator().manual_seed(0))[0])
        return None if longest is None or fewest <= longest else f"a model that reads {fewest} tokens, not {longest}"

    def probes(
        self, texts: Sequence[EncodedText], longest: int | None, generator: torch.Generator
    ) -> Sequence[EncodedText]:
        return repeated(texts, longest, generator)

    def candidates(self, texts: Sequence[EncodedText]) -> tuple[str, ...]:
        return ("repeats",)

    def statistics(self, batch: Batch) -> tuple[str | Statistic, ...]:
        return (self.score(batch.ids.masked_fill(~batch.words, -1)),)

    def evidence(self, batch: Batch, found: Statistics) -> Evidence:
        weight, targets = found[self.score.name]
        cases = batch.words[:, None] & (targets > 0)
        return Evidence(total(weight, batch.words)[..., None], cases.sum(-1, keepdim=True))
