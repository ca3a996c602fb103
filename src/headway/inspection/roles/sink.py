"""Sinks: heads that attend to the first token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .._run import Statistics
from ..statistics import Statistic
from ..texts import EncodedText
from ._base import Batch, Evidence, Role, total


@dataclass(frozen=True, eq=False)
class Sink(Role):
    """A head that puts much of its weight on the first token, or on a learned sink.

        figure = meanᵢ A[h,i,0]   over the queries i > 0

    The first token is one that the model adds, such as [CLS], or the first of the text. The guess is equal weights.

    Args:
        threshold: the least figure.
        margin: the least distance from equal weights.

    References:
        Xiao et al. 2024, "Efficient Streaming Language Models with Attention Sinks"; Gu et al. 2025, "When Attention
        Sink Emerges in Language Models", whose threshold is 0.3.
    """

    name: ClassVar[str] = "sink"

    threshold: float = 0.3
    margin: float = 0.1

    def candidates(self, texts: Sequence[EncodedText]) -> tuple[str, ...]:
        return "first", "learned"

    def statistics(self, batch: Batch) -> tuple[str | Statistic, ...]:
        return "first", "sink"

    def evidence(self, batch: Batch, found: Statistics) -> Evidence:
        others = batch.words.clone()
        others[:, 0] = False
        hits = torch.stack([total(found[name], others) for name in ("first", "sink")], -1)
        learned = bool((found["sink"] > 0).any())  # a layer without learned sinks has no cases of them
        cases: Tensor = others.sum(-1, keepdim=True) * torch.tensor([1, int(learned)], device=batch.device)
        return Evidence(hits, cases[:, None])
