"""Weights between words, from those between their tokens."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ... import reductions
from ...errors import HeadwayError
from ...kernels import Call
from ...reductions import Reduction
from ..statistics import Statistic
from ._base import Batch


class BetweenWords(Statistic):
    """The base of statistics of the weights between words.

        W[h,a,b] = meanᵢ Σⱼ A[h,i,j] over the tokens i of word a and j of word b

    This is the rule of Clark et al. 2019, section 4.1. A subclass reduces what there is of one layer at a time, so that
    the weights between words are never held for all layers. Tokens of no word, such as [CLS] and [SEP], do not take
    part.
    """

    word_of: Tensor
    """The word of each token, [batch, n] in int64; −1 for tokens of no word."""
    count: int
    """The number of words, W."""

    def check(self, call: Call) -> None:
        batch, n, m = call.q.shape[0], call.q.shape[2], call.k.shape[2]
        if n != m or tuple(self.word_of.shape) != (batch, n):
            raise HeadwayError(
                f"{self.name!r} has the words of {list(self.word_of.shape)} tokens, and the layer has {[batch, n]} "
                f"queries and {m} keys: run the model on only these tokens, without a cache"
            )

    def reductions(self, call: Call) -> tuple[Reduction, ...]:
        return (reductions.WeightsByLabel(self.word_of.to(call.q.device), self.count),)

    def result(self, call: Call, values: list[Any], counted: Tensor) -> Any:
        (on_words,) = values  # [batch, H, n, W]
        pieces = self._pieces(on_words.dtype, on_words.device)
        means = pieces / pieces.sum(1, keepdim=True).clamp(min=1)
        return self.reduced(means.transpose(1, 2)[:, None] @ on_words, _seen(call, pieces))

    def summary(self, value: Any, counted: Tensor) -> dict[str, Tensor]:
        return {}

    @abstractmethod
    def reduced(self, weights: Tensor, sees: Tensor) -> Any:
        """Reduces the weights between words [batch, H, W, W] of a layer; they are 0 for words without tokens.

        ``sees`` [batch, W, W] tells whether a token of a word may attend to one of the other word.
        """

    def _pieces(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Whether a token is one of a word, [batch, n, W]."""
        of_words = torch.arange(self.count, device=device)
        return (self.word_of.to(device)[..., None] == of_words).to(dtype)


def _seen(call: Call, pieces: Tensor) -> Tensor:
    """[batch, W, W]"""
    allowed = allowed_of(call).to(pieces.dtype)
    return (pieces.transpose(1, 2) @ allowed @ pieces) > 0


def allowed_of(call: Call) -> Tensor:
    """Whether the mask lets each query attend to each key, in any head, [batch or 1, n, m]."""
    n, m = call.q.shape[2], call.k.shape[2]
    if call.mask is None:
        return torch.ones(1, n, m, dtype=torch.bool, device=call.q.device)
    return call.mask.allowed(call.q_coordinates, call.k_coordinates).any(1).expand(-1, n, m)


class MostAttendedWords(NamedTuple):
    """The other word to which each word gives most weight."""

    word: Tensor
    """Its index, [batch, H, W] in int64, the lowest of several; −1 where no other word gets any weight."""
    sees: Tensor
    """Whether a word sees another, [batch, W, W]."""


@dataclass(frozen=True, eq=False)
class MostAttendedWord(BetweenWords):
    """The other word to which each word gives most weight, ``MostAttendedWords``; only words in ``among`` [batch, W].

    References:
        Clark et al. 2019, "What Does BERT Look At? An Analysis of BERT's Attention", section 4.
    """

    name = "most_attended_word"

    word_of: Tensor
    count: int
    among: Tensor | None = None

    def reduced(self, weights: Tensor, sees: Tensor) -> MostAttendedWords:
        weights.diagonal(dim1=-2, dim2=-1).zero_()
        if self.among is not None:
            weights = weights * self.among.to(weights.device, weights.dtype)[:, None, None]
        largest, word = weights.max(-1)
        return MostAttendedWords(word.masked_fill(largest == 0, -1), sees)


def words_of(batch: Batch) -> tuple[Tensor, int]:
    """The word of each token, [batch, n], and the most words that a text has."""
    return batch.word_of, max(len(text.text) for text in batch.texts)
