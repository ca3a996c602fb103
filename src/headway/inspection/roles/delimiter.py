"""Heads that attend to delimiters: tokens that the model adds, and punctuation."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from .._run import Statistics
from ..statistics import Classes, Statistic
from ..texts import EncodedText
from ._base import Batch, Evidence, Role, total

KINDS = ("special", "punctuation")


class WeightOfDelimiters(Classes):
    """The weight of tokens that the model adds, and of punctuation."""

    name = "weight of delimiters"


@dataclass(frozen=True, eq=False)
class Delimiter(Role):
    """A head that puts most of its weight on tokens that the model adds, such as [SEP], or on punctuation.

        figure = meanᵢ Σⱼ A[h,i,j]   over the keys j of the kind

    Tokens that belong to no word count as added by the model; some tokenizers make tokens of white space, too. Cases
    are the tokens of words that are not punctuation. The guess is equal weights.

    Args:
        threshold: the least figure.
        margin: the least distance from equal weights.

    References:
        Clark et al. 2019, "What Does BERT Look At?", section 3.2; 0.6 is the threshold of their code.
    """

    name: ClassVar[str] = "delimiter"

    threshold: float = 0.6
    margin: float = 0.1

    def candidates(self, texts: Sequence[EncodedText]) -> tuple[str, ...]:
        return KINDS

    def statistics(self, batch: Batch) -> tuple[str | Statistic, ...]:
        labels = torch.where(_punctuation(batch), 1, -1).masked_fill(~batch.words, 0)
        return (WeightOfDelimiters(labels, KINDS),)

    def evidence(self, batch: Batch, found: Statistics) -> Evidence:
        queries = batch.words & ~_punctuation(batch)
        weights = found["weight of delimiters"]
        hits = torch.stack([total(weights[..., kind], queries) for kind in range(len(KINDS))], -1)
        kinds = torch.stack([~batch.words, _punctuation(batch)], -1).any(1)  # texts without any do not count as cases
        return Evidence(hits, (queries.sum(-1, keepdim=True) * kinds)[:, None])


def _punctuation(batch: Batch) -> torch.Tensor:
    """The tokens of words that consist only of punctuation, [batch, n]."""
    rows = []
    for text in batch.texts:
        written = [text.text.text[start:stop] for start, stop in text.text.words]
        words = {i for i, word in enumerate(written) if all(unicodedata.category(x)[0] == "P" for x in word)}
        rows.append([word in words for word in text.word_of])
    return torch.tensor(rows, device=batch.device)
