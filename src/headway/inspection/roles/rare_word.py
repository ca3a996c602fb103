"""Rare-word heads: attention to the least frequent token of the text."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ... import reductions
from ...errors import HeadwayError
from ...kernels import Call
from ...reductions import Reduction
from .._run import Statistics
from ..statistics import Statistic
from ..texts import EncodedText
from ._base import Batch, Evidence, Role
from ._words import allowed_of

CANDIDATES = ("rarest", "two rarest")


class AttendedRare(NamedTuple):
    """Whether queries attend to rare tokens."""

    hits: Tensor
    """Whether a query gives most weight to a rare token, [batch, H, n, k]."""
    sees: Tensor
    """Whether it sees one, [batch, n, k]."""
    chance: Tensor
    """The share of the words' tokens in its sight that are rare, [batch, n, k]."""


@dataclass(frozen=True, eq=False)
class MostAttendedRare(Statistic):
    """Whether the token of a word to which each query gives most weight is rare, ``AttendedRare``."""

    name = "attended rare tokens"

    rare: Tensor
    """Whether a token is rare, by k measures, [batch, k, n] bool."""
    words: Tensor
    """Whether a token belongs to a word, [batch, n] bool."""

    def reductions(self, call: Call) -> tuple[Reduction, ...]:
        others = int((~self.words).sum(-1).max())  # tokens that may rank ahead of the first token of a word
        return (reductions.TopKeys(min(others + 1, self.words.shape[1])),)

    def result(self, call: Call, values: list[Any], counted: Tensor) -> AttendedRare:
        ((_, keys),) = values
        there = keys >= 0
        of_words = _at(self.words[:, None], keys)[:, 0] & there
        first = of_words.long().argmax(-1, keepdim=True)
        hit = _at(self.rare, keys) & of_words[:, None]
        hit = hit.gather(-1, first[:, None].expand(*hit.shape[:-1], 1))[..., 0]
        allowed = allowed_of(call).expand(len(keys), keys.shape[2], -1).double()
        in_sight = (allowed @ self.words.double()[..., None])[..., 0]
        rare = allowed @ self.rare.double().transpose(1, 2)
        chance = rare / in_sight.clamp(min=1)[..., None]
        return AttendedRare(hit.permute(0, 2, 3, 1), rare > 0, chance)

    def summary(self, value: Any, counted: Tensor) -> dict[str, Tensor]:
        return {}


def _at(of_tokens: Tensor, keys: Tensor) -> Tensor:
    """[batch, k, n] at the keys [batch, H, n, c]: [batch, k, H, n, c]"""
    k = of_tokens.shape[1]
    picked: Tensor = of_tokens.gather(2, keys.clamp(min=0).flatten(1)[:, None].expand(-1, k, -1))
    return picked.view(len(keys), k, *keys.shape[1:])


@dataclass(frozen=True, eq=False)
class RareWord(Role):
    """A head whose largest weight is that of the least frequent token of the text.

        figure = share of queries i with count(argmaxⱼ A[h,i,j]) = min over the text of count

    Queries and keys are the tokens of words. "two rarest" is the share that attends to one of the two least frequent
    tokens; several that are equally rare all count. Queries that see no such token do not count as cases, nor do texts
    whose rarest token is one of the most frequent ones. The guess is a token of a word in sight, drawn with equal
    chances.

    Args:
        counts: how often each token id is in large text; others count as 0. Default: in the given texts.
        frequent: the number of ids that are too frequent to be rare.
        threshold: the least figure.
        margin: the least distance from the guess.

    Raises:
        HeadwayError: if frequent is below 0.

    References:
        Voita et al. 2019, "Analyzing Multi-Head Self-Attention", section 5.3, whose counts are those of the training
        data: their head of rare words is right in 66 % (two rarest: 83 %) on OpenSubtitles.
    """

    name: ClassVar[str] = "rare_word"

    counts: Mapping[int, int] | None = field(default=None, repr=False)
    frequent: int = 500
    threshold: float = 0.5
    margin: float = 0.1

    def __post_init__(self) -> None:
        if self.frequent < 0:
            raise HeadwayError(f"frequent is {self.frequent}: give at least 0")

    def why_not(self, texts: Sequence[EncodedText], longest: int | None) -> str | None:
        known = len(self.counts or _counts(texts))
        return None if known > self.frequent else f"more than {self.frequent} different tokens: they have {known}"

    def fitted(self, texts: Sequence[EncodedText]) -> RareWord:
        return replace(self, counts=_counts(texts)) if self.counts is None else self

    def candidates(self, texts: Sequence[EncodedText]) -> tuple[str, ...]:
        return CANDIDATES

    def statistics(self, batch: Batch) -> tuple[str | Statistic, ...]:
        return (MostAttendedRare(self._rare(batch), batch.words),)

    def evidence(self, batch: Batch, found: Statistics) -> Evidence:
        hits, sees, _ = found["attended rare tokens"]
        cases = self._cases(batch, sees)
        return Evidence((hits & cases[:, None]).sum(2), cases.sum(1)[:, None])

    def guesses(self, batch: Batch, found: Statistics, equal: Statistics) -> Tensor:
        _, sees, chance = found["attended rare tokens"]
        return chance.mul(self._cases(batch, sees)).sum(1)[:, None, None]

    def _cases(self, batch: Batch, sees: Tensor) -> Tensor:
        """[batch, n, candidates]"""
        return sees & batch.words[..., None]

    def _rare(self, batch: Batch) -> Tensor:
        """The rarest tokens, and the two rarest, [batch, 2, n]; none in texts whose rarest token is frequent."""
        counts = self.counts or {}
        falling = sorted(counts.values(), reverse=True)
        frequent = falling[self.frequent - 1] if self.frequent else math.inf
        rare = torch.zeros(len(batch.texts), len(CANDIDATES), batch.ids.shape[1], dtype=torch.bool)
        for row, text in enumerate(batch.texts):
            of = {id: counts.get(id, 0) for id, word in zip(text.ids, text.word_of, strict=True) if word >= 0}
            rising = sorted(of.values())
            for number in range(len(CANDIDATES)):
                most = rising[min(number, len(rising) - 1)]
                if rising[0] < frequent:
                    pairs = zip(text.ids, text.word_of, strict=True)
                    rare[row, number] = torch.tensor([word >= 0 and of[id] <= most for id, word in pairs])
        return rare.to(batch.device)


def _counts(texts: Sequence[EncodedText]) -> dict[int, int]:
    return dict(Counter(id for text in texts for id, word in zip(text.ids, text.word_of, strict=True) if word >= 0))
