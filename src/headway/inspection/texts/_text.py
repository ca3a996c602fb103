"""Texts with words and annotation, and what a model reads of them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import NamedTuple

from ..._common.words import Span
from ...errors import HeadwayError

NOT_ANNOTATED = -2


class Mention(NamedTuple):
    """Words that stand for a person or a thing.

    Attributes:
        start: the first of its words.
        stop: the one after its last word.
        entity: the number of the person or thing that it stands for; mentions of one entity have the same number.
        head: the word of the mention that the others depend on.
    """

    start: int
    stop: int
    entity: int
    head: int


class Choice(NamedTuple):
    """A mention, such as a pronoun, and two others, such as names, one of which stands for the same entity.

    Attributes:
        mention: its span of words.
        right: the span of the one that stands for the same entity; None if neither does.
        wrong: the span of the other.
    """

    mention: Span
    right: Span | None
    wrong: Span


@dataclass(frozen=True)
class AnnotatedText:
    """A text, its words, and their annotation.

    Everything but the text and its words may be left out. The annotation of words has one entry for each of them.

    Args:
        text: the text.
        words: start and stop of each word in the text, in characters; they do not overlap, and rise. A word may be
            empty, such as one of two that are written as one: it gets no token.
        sentences: the number of the sentence of each word.
        governors: of each word, the index of the word that it depends on; −1 for a root, −2 if that is not known.
        relations: the name of that relation.
        tags: universal parts of speech.
        mentions: the mentions of people and things.
        choices: mentions with two possible antecedents.
        name: its name in messages, such as "en_pud-ud-test.conllu, sentence 12".

    Raises:
        HeadwayError: if a span or an index does not lie in the text, or an annotation has too few or too many entries.
    """

    text: str
    words: tuple[Span, ...]
    sentences: tuple[int, ...] = ()
    governors: tuple[int, ...] = ()
    relations: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    mentions: tuple[Mention, ...] = ()
    choices: tuple[Choice, ...] = ()
    name: str = ""

    def __post_init__(self) -> None:
        stop = 0
        for i, (first, last) in enumerate(self.words):
            if not stop <= first <= last <= len(self.text):
                raise HeadwayError(
                    f"{self.called} has word {i} at {first} to {last}: give words that lie in its {len(self.text)} "
                    f"characters, each after the one before, which ends at {stop}"
                )
            stop = last
        n = len(self.words)
        for name in ("sentences", "governors", "relations", "tags"):
            if len(getattr(self, name)) not in (0, n):
                raise HeadwayError(
                    f"{self.called} has {n} words and {name} of {len(getattr(self, name))}: give one for each word, or "
                    "none"
                )
        if len(self.governors) != len(self.relations):
            raise HeadwayError(f"{self.called} has only governors or only relations: give both or neither")
        if any(after < before for before, after in itertools.pairwise(self.sentences)):
            raise HeadwayError(f"{self.called} has sentences whose numbers fall: give them in the order of the words")
        for i, governor in enumerate(self.governors):
            if not NOT_ANNOTATED <= governor < n or governor == i:
                raise HeadwayError(
                    f"{self.called} has governor {governor} of word {i}: give another of its {n} words, from 0 on, −1 "
                    "for a root, or −2 if it is not known"
                )
        for mention in self.mentions:
            start, stop, _, head = mention
            if not 0 <= start <= head < stop <= n:
                raise HeadwayError(f"{self.called} has {mention}: give spans in its {n} words, with the head in them")
        for choice in self.choices:
            spans = [span for span in choice if span is not None]
            if choice.wrong is None or not all(0 <= start < stop <= n for start, stop in spans):
                raise HeadwayError(f"{self.called} has {choice}: give spans in its {n} words")

    @property
    def called(self) -> str:
        """What messages call it: its name, else how it begins."""
        start = " ".join(self.text[:40].split())
        return self.name or f"the text {start + '…' if len(self.text) > 40 else start!r}"

    def word(self, index: int) -> str:
        """Returns a word as written.

        Args:
            index: which of the words.
        """
        start, stop = self.words[index]
        return self.text[start:stop]

    def __len__(self) -> int:
        return len(self.words)


@dataclass(frozen=True)
class EncodedText:
    """What a model reads of a text, made by ``encode``.

    Args:
        ids: the numbers of the tokens.
        tokens: the tokens as people would read them.
        word_of: the word of each token; −1 for tokens of no word, such as those that the model adds ([CLS], <s>).
        text: the text.
        spans: start and stop of each token in the text, in characters; empty spans for tokens that the model adds.
            None of them if they are not known.

    Raises:
        HeadwayError: if these have different lengths, or a word or a character does not exist.
    """

    ids: tuple[int, ...]
    tokens: tuple[str, ...]
    word_of: tuple[int, ...]
    text: AnnotatedText
    spans: tuple[Span, ...] = ()

    def __post_init__(self) -> None:
        if not len(self.ids) == len(self.tokens) == len(self.word_of):
            raise HeadwayError(
                f"{self.text.called} has {len(self.ids)} ids, {len(self.tokens)} tokens and words of "
                f"{len(self.word_of)}: give one of each for each token"
            )
        if any(not -1 <= word < len(self.text) for word in self.word_of):
            raise HeadwayError(f"{self.text.called} has tokens of words that it does not have: give −1 for no word")
        if len(self.spans) not in (0, len(self.ids)):
            raise HeadwayError(
                f"{self.text.called} has {len(self.ids)} tokens and {len(self.spans)} spans: give one for each, or none"
            )
        length = len(self.text.text)
        beyond = next((span for span in self.spans if not 0 <= span[0] <= span[1] <= length), None)
        if beyond is not None:
            raise HeadwayError(f"{self.text.called} has a token at {beyond}: give spans in its {length} characters")

    @property
    def without_tokens(self) -> tuple[int, ...]:
        """The words that have no token of their own."""
        return tuple(sorted({*range(len(self.text))} - {*self.word_of}))

    def __len__(self) -> int:
        return len(self.ids)
