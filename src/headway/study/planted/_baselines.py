"""How well the words at fixed offsets, and the words in any order, predict a decided word."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence

from ._grammar import FARTHEST, FEW, Sentence

OFFSETS = [offset for offset in range(-FARTHEST - FEW, FARTHEST + FEW + 1) if offset]


def chance(train: Sequence[Sentence], held_out: Sequence[Sentence], relation: str) -> float:
    """Returns the share of cases in which the decided word is the most frequent one of training."""
    (word, _), *_ = Counter(word for word, _, _ in _cases(train, relation)).most_common(1)
    return _mean([word == decided for decided, _, _ in _cases(held_out, relation)])


def by_offset(
    train: Sequence[Sentence], held_out: Sequence[Sentence], relation: str, offsets: Sequence[int] = OFFSETS
) -> dict[int, float]:
    """Returns for each offset the share of cases in which the word there predicts the decided word.

    The word at the offset votes for the decided word that it most often came with in training; a word that never was
    there, and a place outside the sentence, for the most frequent one.
    """
    shares = {}
    for offset in offsets:
        votes: dict[str, Counter[str]] = defaultdict(Counter)
        for decided, place, words in _cases(train, relation):
            votes[_at(words, place + offset)][decided] += 1
            votes[""][decided] += 1
        winners = {word: counts.most_common(1)[0][0] for word, counts in votes.items()}
        shares[offset] = _mean(
            [
                winners.get(_at(words, place + offset), winners[""]) == decided
                for decided, place, words in _cases(held_out, relation)
            ]
        )
    return shares


def by_bag(train: Sequence[Sentence], held_out: Sequence[Sentence], relation: str) -> float:
    """Returns the share of cases in which the words of the sentence, in any order, predict the decided word.

    Naive Bayes over the words that occur, with a count of one added.
    """
    total: Counter[str] = Counter()
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for decided, place, words in _cases(train, relation):
        total[decided] += 1
        counts[decided].update({*words[:place], *words[place + 1 :]})
    hits = []
    for decided, place, words in _cases(held_out, relation):
        seen = {*words[:place], *words[place + 1 :]}
        scores = {
            word: math.log(count) + sum(math.log((counts[word][one] + 1) / (count + 2)) for one in seen)
            for word, count in total.items()
        }
        hits.append(max(scores, key=lambda word: scores[word]) == decided)
    return _mean(hits)


def linked_by_offset(sentences: Sequence[Sentence], relation: str) -> dict[int, float]:
    """Returns for each offset the share of cases in which the linked noun is there."""
    offsets = Counter(one.offset for sentence in sentences for one in sentence.links if one.relation == relation)
    return {offset: offsets[offset] / offsets.total() for offset in OFFSETS}


def _cases(sentences: Sequence[Sentence], relation: str) -> list[tuple[str, int, tuple[str, ...]]]:
    """The decided word, its place, and the words of each sentence that has the relation."""
    return [
        (sentence.words[link.word], link.word, sentence.words)
        for sentence in sentences
        for link in sentence.links
        if link.relation == relation
    ]


def _at(words: Sequence[str], place: int) -> str:
    return words[place] if 0 <= place < len(words) else ""


def _mean(hits: Sequence[bool]) -> float:
    return sum(hits) / len(hits)
