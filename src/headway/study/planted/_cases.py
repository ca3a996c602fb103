"""Sentences of one relation as tensors, with the decided words masked, and how often a model is right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...masks import Padding
from ._grammar import Language, Sentence
from ._tokens import MASK, encoded, padded, vocabulary

AT_ONCE = 125
"""The cases of a batch."""


@dataclass(frozen=True)
class Cases:
    """Sentences of one relation, padded on the right.

    Attributes:
        relation: the name of the relation.
        written: ids as the sentences are written, int64 [cases, n].
        ids: the same with every decided word masked, those of other relations too.
        lengths: the tokens of each sentence, [cases].
        word: the place of the decided word among them, [cases].
        noun: the place of the noun that decides it, [cases].
    """

    relation: str
    written: Tensor
    ids: Tensor
    lengths: Tensor
    word: Tensor
    noun: Tensor

    @classmethod
    def of(cls, language: Language, sentences: Sequence[Sentence], relation: str) -> Cases:
        """Returns the cases of a relation in sentences that all have it.

        Args:
            language: the language.
            sentences: the sentences.
            relation: the relation.
        """
        written, lengths = padded(encoded(language, sentences))
        ids = written.clone()
        for row, sentence in enumerate(sentences):
            ids[row, [link.word + 1 for link in sentence.links]] = vocabulary(language)[MASK]
        links = [sentence.link(relation) for sentence in sentences]
        word, noun = (torch.tensor([getattr(link, end) + 1 for link in links]) for end in ("word", "noun"))
        return cls(relation, written, ids, lengths, word, noun)

    def batches(self) -> Iterator[Cases]:
        """Returns the cases in batches of sentences of like length, without needless padding."""
        for rows in self.lengths.argsort(stable=True).split(AT_ONCE):
            longest = int(self.lengths[rows].max())
            kept = (self.written[rows, :longest], self.ids[rows, :longest], self.lengths[rows])
            yield Cases(self.relation, *kept, self.word[rows], self.noun[rows])

    @property
    def padding(self) -> Padding:
        """The mask of the padding."""
        return Padding(self.lengths)

    @torch.no_grad()
    def right(self, model: nn.Module) -> Tensor:
        """Returns whether the most likely word is the decided one, bool [cases], in the order of ``batches``.

        Args:
            model: maps ids to logits, [cases, n, vocabulary], and takes ``mask``.
        """
        right = []
        for some in self.batches():
            rows = torch.arange(len(some.ids))
            likely = model(some.ids, mask=some.padding)[rows, some.word].argmax(-1)
            right.append(likely == some.written[rows, some.word])
        return torch.cat(right)
