"""Syntactic heads: attention along dependency relations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from ...errors import HeadwayError
from .._run import Statistics
from ..statistics import Statistic
from ..texts import AnnotatedText, EncodedText
from ._base import Batch, Evidence, Role
from ._words import MostAttendedWord, words_of

OFFSETS = tuple(d for d in range(-5, 6) if d)
PLACES = (0, 1, 2)
"""Words of a text that are guessed for all others: in a causal model, heads that keep to the first tokens find some."""
LEFT_OUT = ("punct", "root", "")


class _Arc(NamedTuple):
    """A link from the word that attends to the word that it should attend to, with its relation."""

    row: int
    attender: int
    other: int
    candidate: int


@dataclass(frozen=True, eq=False)
class Syntactic(Role):
    """A head whose most attended word is the one that a dependency relation connects.

        figure(r) = share of the arcs of relation r from a to b with argmax over other words w of W[h,a,w] = b

    W are the weights between words (Clark et al.): the mean over the tokens of a of the sum over those of b. Each
    relation counts in both directions: "det → governor" for determiners that attend to their governor, "governor → det"
    for the reverse. Only arcs whose attending word can see the other word count; in a causal model this is the later
    word. ``arcs`` returns the number of all arcs. Words without tokens do not count. The guesses are fixed offsets, in
    words, and each of the first three words of the text.

    Args:
        relations: the relations. Default: all in the texts but "punct".
        subtypes: whether "nsubj:pass" is a relation of its own; else it counts as "nsubj".
        offsets: those that are guessed.
        threshold: the least figure.
        margin: the least distance from the best guess, as by Voita et al., who guess offsets.

    Raises:
        HeadwayError: if offsets is empty.

    References:
        Clark et al. 2019, "What Does BERT Look At? An Analysis of BERT's Attention", section 4.2; Voita et al. 2019,
        "Analyzing Multi-Head Self-Attention", section 5.2.
    """

    name: ClassVar[str] = "syntactic"

    relations: tuple[str, ...] | None = None
    subtypes: bool = False
    offsets: tuple[int, ...] = OFFSETS
    threshold: float = 0.0
    margin: float = 0.1

    def __post_init__(self) -> None:
        if not self.offsets:
            raise HeadwayError("offsets is empty: give the offsets that are guessed, such as (-1, 1)")

    def why_not(self, texts: Sequence[EncodedText], longest: int | None) -> str | None:
        return None if any(text.text.relations for text in texts) else "dependency relations: read a CoNLL-U file"

    def fitted(self, texts: Sequence[EncodedText]) -> Syntactic:
        if self.relations is not None:
            return self
        counts = Counter(relation for text in texts for _, _, relation in self._relations_of(text.text))
        return replace(self, relations=tuple(name for name, _ in counts.most_common() if name not in LEFT_OUT))

    def candidates(self, texts: Sequence[EncodedText]) -> tuple[str, ...]:
        names = self.fitted(texts).relations or ()
        return tuple(each for name in names for each in (f"{name} → governor", f"governor → {name}"))

    def arcs(self, texts: Sequence[EncodedText]) -> dict[str, int]:
        """Returns the number of arcs of each candidate in texts, seen or not: cases / arcs is the coverage.

        Args:
            texts: the texts; the cases of a finding are those of the texts 1, 3, 5, …
        """
        role = self.fitted(texts)
        counts = Counter(arc.candidate for arc in role._arcs([text.text for text in texts]))
        return {name: counts[i] for i, name in enumerate(role.candidates(texts))}

    def statistics(self, batch: Batch) -> tuple[str | Statistic, ...]:
        return (MostAttendedWord(*words_of(batch)),)

    def evidence(self, batch: Batch, found: Statistics) -> Evidence:
        word, sees = found["most_attended_word"]
        row, attender, other, candidate = self._indices(batch)
        cases = sees[row, attender, other]
        hits = word[row, :, attender] == other[:, None]
        return Evidence(self._summed(batch, row, candidate, hits), self._summed(batch, row, candidate, cases[:, None]))

    def guesses(self, batch: Batch, found: Statistics, equal: Statistics) -> Tensor:
        row, attender, other, candidate = self._indices(batch)
        cases = found["most_attended_word"].sees[row, attender, other]
        offsets, places = (torch.tensor(x, device=batch.device) for x in (self.offsets, PLACES))
        guessed = torch.cat([(other - attender)[:, None] == offsets, other[:, None] == places], 1)
        hits = guessed & cases[:, None]
        return self._summed(batch, row, candidate, hits)[:, None]

    def _summed(self, batch: Batch, row: Tensor, candidate: Tensor, of_arcs: Tensor) -> Tensor:
        """Of each arc, [arcs, x], the sums over the arcs of a text and a candidate, [batch, x, candidates]."""
        count = len(self.candidates(batch.texts))
        sums = torch.zeros(len(batch.texts), count, of_arcs.shape[1], dtype=torch.float64, device=batch.device)
        return sums.index_put_((row, candidate), of_arcs.double(), accumulate=True).transpose(1, 2)

    def _indices(self, batch: Batch) -> tuple[Tensor, ...]:
        arcs = list(self._arcs([text.text for text in batch.texts]))
        return torch.tensor(arcs, dtype=torch.int64, device=batch.device).reshape(-1, 4).unbind(1)

    def _arcs(self, texts: Sequence[AnnotatedText]) -> Iterator[_Arc]:
        number = {name: 2 * i for i, name in enumerate(self.relations or ())}
        for row, text in enumerate(texts):
            for word, governor, relation in self._relations_of(text):
                if relation in number:
                    yield _Arc(row, word, governor, number[relation])
                    yield _Arc(row, governor, word, number[relation] + 1)

    def _relations_of(self, text: AnnotatedText) -> Iterator[tuple[int, int, str]]:
        """Each word that has a governor, the governor, and the relation."""
        for word, (governor, relation) in enumerate(zip(text.governors, text.relations, strict=True)):
            if governor >= 0:
                yield word, governor, relation if self.subtypes else relation.partition(":")[0]
