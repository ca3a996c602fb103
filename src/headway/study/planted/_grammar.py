"""Sentences from templates, in which exactly one word decides another."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ...errors import unknown

FARTHEST = 28
"""The largest distance between the two words of a link, without a {few} that stands between them after {fill}."""
FEW = 4
"""The most words of a {few}."""
SPLITS = ("train", "words", "templates")
"""What is trained on; trained templates with nouns that they never had; and templates that were never trained on."""


@dataclass(frozen=True)
class Relation:
    """A relation between a noun and the word that it decides.

    Each template has the noun as ``{noun}``, the word that it decides as ``{word}``, and between them ``{fill}``, whose
    length gives the drawn distance. ``{few}`` becomes up to four words; they are a part of that distance if they stand
    before ``{fill}``, and lengthen it if they stand after it. Any other name in braces becomes a word of that list of
    the language. The last template is held out, and so is a third of the nouns in each of the others.

    Attributes:
        name: the name.
        group: relations of one group never occur together in a sentence, since their nouns are of one kind.
        nouns: for each decided word, the nouns that decide it.
        templates: words and slots, with spaces between them.
    """

    name: str
    group: str
    nouns: Mapping[str, Sequence[str]]
    templates: Sequence[str]

    @cached_property
    def kind(self) -> list[str]:
        """The nouns, as many for each decided word."""
        return [noun for nouns in self.nouns.values() for noun in nouns]

    @cached_property
    def cases(self) -> dict[str, list[tuple[int, str, str]]]:
        """For each split, each (number of the template, noun, word that it decides) that it draws from."""
        last = len(self.templates) - 1
        cases: dict[str, list[tuple[int, str, str]]] = {split: [] for split in SPLITS}
        for template in range(last + 1):
            for word, nouns in self.nouns.items():
                for number, noun in enumerate(nouns):
                    split = "words" if (number + template) % 3 == 0 else "train"
                    cases["templates" if template == last else split].append((template, noun, word))
        return cases


@dataclass(frozen=True)
class Link:
    """A word of a sentence that another word decides.

    Attributes:
        relation: the name of the relation.
        word: the number of the decided word in the sentence.
        noun: the number of the word that decides it.
        template: the number of the template; −1 for a sentence from none.
    """

    relation: str
    word: int
    noun: int
    template: int = -1

    @property
    def offset(self) -> int:
        """The place of the noun, counted from the decided word."""
        return self.noun - self.word


@dataclass(frozen=True)
class Sentence:
    """A sentence.

    Attributes:
        words: its words, the punctuation among them.
        links: its links.
    """

    words: tuple[str, ...]
    links: tuple[Link, ...]

    @classmethod
    def of(cls, text: str, *links: Link) -> Sentence:
        """Returns the sentence of words with spaces between them.

        Args:
            text: the words.
            *links: its links.
        """
        return cls(tuple(text.split()), links)

    def link(self, relation: str) -> Link:
        """Returns the link of a relation, which the sentence has.

        Args:
            relation: the relation.
        """
        return next(link for link in self.links if link.relation == relation)


@dataclass(frozen=True)
class Language:
    """The words and templates of a language.

    Attributes:
        name: the name.
        relations: the relations.
        lists: the words for other slots of templates, by the name of the slot.
        fillers: phrases between the words of templates; ``{any}`` is a noun of any kind.
        neutral: nouns of no relation.
        between: the words between two clauses.
        stop: the word at the end.
        spaced: whether spaces stand between words.
        examples: the sentences of the source documents, and similar ones.
    """

    name: str
    relations: Sequence[Relation]
    lists: Mapping[str, Sequence[str]]
    fillers: Sequence[str]
    neutral: Sequence[str]
    between: Sequence[str]
    stop: str
    spaced: bool
    examples: Sequence[Sentence] = ()

    def relation(self, name: str) -> Relation:
        """Returns a relation.

        Args:
            name: its name.

        Raises:
            HeadwayError: if there is none of this name.
        """
        for relation in self.relations:
            if relation.name == name:
                return relation
        raise unknown("relation", name, [one.name for one in self.relations])

    @cached_property
    def any(self) -> list[str]:
        """Every noun, once."""
        return list(dict.fromkeys([*(noun for relation in self.relations for noun in relation.kind), *self.neutral]))

    @cached_property
    def words(self) -> list[str]:
        """Every word, once."""
        decided = [word for relation in self.relations for word in relation.nouns]
        listed = [word for words in self.lists.values() for word in words]
        written = [one for relation in self.relations for text in relation.templates for one in text.split()]
        written += [one for filler in self.fillers for one in filler.split()]
        plain = [one for one in written if not one.startswith("{")]
        return list(dict.fromkeys([*plain, *self.any, *decided, *listed, *self.between, self.stop]))

    def sentences(self, count: int, seed: int, split: str = "train", relation: str | None = None) -> list[Sentence]:
        """Draws sentences.

        Each sentence has a clause of one relation. Half of them have a second clause with a relation of another group,
        which is always of the training kind. The distance between the two words of a link is drawn evenly from the
        distances that its template allows. Other nouns are drawn evenly, half of them from those of the relation,
        whatever the noun of the link is.

        Args:
            count: the number of sentences.
            seed: the seed; the same sentences are drawn again.
            split: "train"; "words", where a noun never stood in its template in training; or "templates".
            relation: the relation of the clause that is of this split. Default: any.

        Raises:
            HeadwayError: for another split or relation.
        """
        if split not in SPLITS:
            raise unknown("split", split, SPLITS)
        drawn = random.Random(f"{self.name} {seed} {split} {relation}")
        wanted = None if relation is None else self.relation(relation)
        return [self._sentence(drawn, split, wanted) for _ in range(count)]

    def _sentence(self, drawn: random.Random, split: str, wanted: Relation | None) -> Sentence:
        first = wanted or drawn.choice(self.relations)
        clauses = [self._clause(drawn, first, split)]
        if drawn.random() < 0.5:
            second = drawn.choice([one for one in self.relations if one.group != first.group])
            clauses.append(self._clause(drawn, second, "train"))
            drawn.shuffle(clauses)
        words: list[str] = []
        links = []
        for clause, link in clauses:
            words += self.between if words else ()
            links.append(Link(link.relation, link.word + len(words), link.noun + len(words), link.template))
            words += clause
        return Sentence((*words, self.stop), tuple(links))

    def _clause(self, drawn: random.Random, relation: Relation, split: str) -> tuple[list[str], Link]:
        number, noun, word = drawn.choice(relation.cases[split])
        parts = relation.templates[number].split()
        ends = sorted((parts.index("{noun}"), parts.index("{word}")))
        between = parts[ends[0] + 1 : ends[1]]
        nearest = 1 + sum(part not in ("{fill}", "{few}") for part in between)
        free = drawn.randint(nearest, FARTHEST) - nearest  # words that {fill} and {few} divide between the ends
        words = self._fill(drawn, drawn.randint(0, FEW), relation)
        places = {}
        for place, part in enumerate(parts):
            inside = ends[0] < place < ends[1]
            if part == "{few}":
                count = drawn.randint(0, min(FEW, free) if inside else FEW)
                free -= count if inside else 0
                words += self._fill(drawn, count, relation)
            elif part == "{fill}":
                words += self._fill(drawn, free, relation)
            elif part in ("{noun}", "{word}"):
                places[part] = len(words)
                words.append(noun if part == "{noun}" else word)
            else:
                words.append(drawn.choice(self.lists[part[1:-1]]) if part.startswith("{") else part)
        return words, Link(relation.name, places["{word}"], places["{noun}"], number)

    def _fill(self, drawn: random.Random, count: int, relation: Relation) -> list[str]:
        """Yields phrases with a total number of words. Half of their nouns are of the relation's kind."""
        words: list[str] = []
        while len(words) < count:
            short = [phrase for phrase in self._phrases if len(phrase) <= count - len(words)]
            (phrase,) = drawn.choices(short, [len(phrase) ** 2 for phrase in short])  # nouns more often than adverbs
            nouns = self.any if drawn.random() < 0.5 else relation.kind
            words += [drawn.choice(nouns) if word == "{any}" else word for word in phrase]
        return words

    @cached_property
    def _phrases(self) -> list[list[str]]:
        return [filler.split() for filler in self.fillers]
