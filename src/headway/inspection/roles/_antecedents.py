"""Whether heads find antecedents: by a choice of two names, and among all words or mentions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from ..._common.words import spelling
from .._run import Statistics
from ..statistics import Statistic
from ..texts import AnnotatedText, Choice, EncodedText
from ._base import Batch
from ._words import BetweenWords, MostAttendedWord, words_of


class Cases(ABC):
    """The base of the kinds of cases of ``Coreferential``, those of a batch."""

    name: ClassVar[str]

    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    @staticmethod
    @abstractmethod
    def there(text: AnnotatedText) -> bool:
        """Whether a text has any."""

    @abstractmethod
    def statistic(self) -> Statistic:
        """The statistic that they are read from."""

    @abstractmethod
    def hits(self, statistics: Statistics) -> tuple[Tensor, Tensor]:
        """The hits of each head, [batch, H], and the cases, [batch]."""

    @abstractmethod
    def guesses(self, statistics: Statistics) -> Tensor:
        """The hits of guesses, [batch, 2]."""


# ---------------------------------------------------------------- names


def choices_of(text: AnnotatedText) -> list[Choice]:
    """The choices with a right name."""
    return [choice for choice in text.choices if choice.right is not None]


class WeightsOfChoices(NamedTuple):
    """The weights that mentions give to each of two others, [batch, H, choices]."""

    right: Tensor
    wrong: Tensor
    sees: Tensor
    """Whether the mention sees both, [batch, choices]."""


@dataclass(frozen=True, eq=False)
class Chosen(BetweenWords):
    """The weights of the choices, ``WeightsOfChoices``: the mean over words of the mention of the sum over the other's.

    The spans of words are [batch, choices, W], 1 for words with tokens and else 0.
    """

    name = "weights of choices"

    word_of: Tensor
    count: int
    mention: Tensor
    right: Tensor
    wrong: Tensor

    def reduced(self, weights: Tensor, sees: Tensor) -> WeightsOfChoices:
        mention, right, wrong = (x.to(weights.dtype) for x in (self.mention, self.right, self.wrong))
        mean = mention / mention.sum(-1, keepdim=True).clamp(min=1)
        given = mean[:, None] @ weights  # [batch, H, choices, W]
        seen = mention @ sees.to(weights.dtype)
        both = ((seen * right).sum(-1) > 0) & ((seen * wrong).sum(-1) > 0)
        return WeightsOfChoices((given * right[:, None]).sum(-1), (given * wrong[:, None]).sum(-1), both)


class OfNames(Cases):
    """A mention gives the right one of two names more weight. Guesses: the nearer name, and the longer one."""

    name = "right name"

    @staticmethod
    def there(text: AnnotatedText) -> bool:
        return bool(choices_of(text))

    @cached_property
    def _choices(self) -> list[list[Choice]]:
        return [choices_of(text.text) for text in self.batch.texts]

    def statistic(self) -> Statistic:
        word_of, count = words_of(self.batch)
        spans = torch.zeros(3, len(self._choices), max(map(len, self._choices)), count, device=word_of.device)
        for row, choices in enumerate(self._choices):
            for number, choice in enumerate(choices):
                for part, span in enumerate(choice):
                    assert span is not None  # since one of them is right
                    spans[part, row, number, span[0] : span[1]] = 1
        with_tokens = (word_of[..., None] == torch.arange(count, device=word_of.device)).any(1)
        return Chosen(word_of, count, *(spans * with_tokens[:, None]))

    def hits(self, statistics: Statistics) -> tuple[Tensor, Tensor]:
        right, wrong, sees = statistics[Chosen.name]
        return _won(right, wrong).mul(sees[:, None]).sum(-1), sees.sum(-1)

    def guesses(self, statistics: Statistics) -> Tensor:
        sees = statistics[Chosen.name].sees
        hits = torch.zeros(2, *sees.shape, device=sees.device)
        for row, (text, choices) in enumerate(zip(self.batch.texts, self._choices, strict=True)):
            for number, (mention, right, wrong) in enumerate(choices):
                assert right is not None
                start, *others = (text.text.words[span[0]][0] for span in (mention, right, wrong))
                away = torch.tensor([abs(other - start) for other in others])
                long = torch.tensor([sum(s <= word < e for word in text.word_of) for s, e in (right, wrong)])
                hits[0, row, number], hits[1, row, number] = _won(-away[0], -away[1]), _won(long[0], long[1])
        return hits.mul(sees).sum(-1).T


def _won(right: Tensor, wrong: Tensor) -> Tensor:
    """1 where right is larger, ½ where they are equal."""
    return (right > wrong).float() + 0.5 * (right == wrong).float()


# ---------------------------------------------------------------- mentions


class Antecedents(NamedTuple):
    """The head of a mention, the heads of its antecedents, and the words of two guesses; −1 for none."""

    head: int
    right: set[int]
    nearest: int
    same_word: int


def antecedents_of(text: AnnotatedText) -> list[Antecedents]:
    """The mentions that have antecedents: mentions of the same entity whose heads are earlier words."""
    heads = sorted({mention.head for mention in text.mentions})
    words = {head: spelling(text.word(head)).casefold() for head in heads}
    antecedents = []
    for mention in text.mentions:
        right = {one.head for one in text.mentions if one.entity == mention.entity and one.head < mention.head}
        if right:
            before = [head for head in heads if head < mention.head]
            same = [head for head in before if words[head] == words[mention.head]]
            antecedents.append(Antecedents(mention.head, right, before[-1], same[-1] if same else -1))
    return antecedents


class OfAllWords(Cases):
    """The word to which a mention's head gives most weight is the head of an antecedent."""

    name = "antecedent of all words"
    read: ClassVar[type[MostAttendedWord]] = MostAttendedWord

    @staticmethod
    def there(text: AnnotatedText) -> bool:
        return bool(antecedents_of(text))

    @cached_property
    def _mentions(self) -> list[list[Antecedents]]:
        return [antecedents_of(text.text) for text in self.batch.texts]

    def statistic(self) -> Statistic:
        return self.read(*words_of(self.batch))

    @cached_property
    def _indices(self) -> tuple[Tensor, ...]:
        """Row, head and guesses of each mention, and whether each word is right, [mentions, W]."""
        _, count = words_of(self.batch)
        flat = [(row, one) for row, mentions in enumerate(self._mentions) for one in mentions]
        right = torch.zeros(len(flat), count, dtype=torch.bool, device=self.batch.device)
        for number, (_, one) in enumerate(flat):
            right[number, list(one.right)] = True
        numbers = [(row, one.head, one.nearest, one.same_word) for row, one in flat]
        columns = torch.tensor(numbers, dtype=torch.int64, device=self.batch.device).reshape(-1, 4).unbind(1)
        return (*columns, right)

    def _cases(self, statistics: Statistics) -> tuple[Tensor, ...]:
        row, head, *_, right = self._indices
        return row, head, (statistics[self.read.name].sees[row, head] & right).any(-1), right

    def hits(self, statistics: Statistics) -> tuple[Tensor, Tensor]:
        row, head, cases, right = self._cases(statistics)
        word = statistics[self.read.name].word[row, :, head]  # [mentions, H]
        hit = right.gather(1, word.clamp(min=0)) & (word >= 0) & cases[:, None]
        return self._summed(row, hit), self._summed(row, cases[:, None])[:, 0]

    def guesses(self, statistics: Statistics) -> Tensor:
        row, _, cases, right = self._cases(statistics)
        word = torch.stack(self._indices[2:4], 1)
        return self._summed(row, right.gather(1, word.clamp(min=0)) & (word >= 0) & cases[:, None])

    def _summed(self, row: Tensor, of_mentions: Tensor) -> Tensor:
        sums = torch.zeros(len(self.batch.texts), of_mentions.shape[1], dtype=torch.float64, device=self.batch.device)
        return sums.index_add_(0, row, of_mentions.double())


@dataclass(frozen=True, eq=False)
class MostAttendedMention(MostAttendedWord):
    """The head of another mention to which each word gives most weight."""

    name = "most_attended_mention"


class OfAllMentions(OfAllWords):
    """The same, only of the heads of mentions."""

    name = "antecedent of all mentions"
    read = MostAttendedMention

    def statistic(self) -> Statistic:
        word_of, count = words_of(self.batch)
        among = torch.zeros(len(self.batch.texts), count, dtype=torch.bool, device=word_of.device)
        for row, text in enumerate(self.batch.texts):
            among[row, [mention.head for mention in text.text.mentions]] = True
        return self.read(word_of, count, among)


KINDS: tuple[type[Cases], ...] = (OfNames, OfAllWords, OfAllMentions)


def served(texts: Sequence[EncodedText]) -> tuple[str, ...]:
    """The kinds of cases for which the texts have annotation."""
    return tuple(kind.name for kind in KINDS if any(kind.there(text.text) for text in texts))
