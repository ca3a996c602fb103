"""One-hot: a word is the number of its place in the vocabulary, written as a vector."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import HeadwayError
from ._base import Vectors
from ._text import Watch, WordCorpus


class OneHot(Vectors):
    """A one at the word's own place and zeros elsewhere.

        v(w)_i = 1 if i = w else 0

    dim is the number of words. Every two words are at right angles, so that nothing is near to anything:
    ``most_similar`` and ``analogy`` raise HeadwayError. A linear map behind it is a lookup table: W·v(w) is the w-th
    column of W, which is what ``torch.nn.Embedding`` computes without the zeros.
    """

    name = "one-hot"

    def _fit(self, corpus: WordCorpus, watch: Watch) -> None:
        watch(1.0)

    @property
    def dim(self) -> int:
        return len(self.words)

    def rows(self, ids: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(ids, self.dim).float()

    def cosines(self, vectors: Tensor) -> Tensor:
        return torch.nn.functional.normalize(vectors, dim=1)

    def most_similar(self, word: str | Tensor, count: int = 10) -> list[tuple[str, float]]:
        given = repr(word) if isinstance(word, str) else "another vector"
        raise HeadwayError(f"one-hot vectors are all at right angles, none is near to {given}: {INSTEAD}")

    def analogy(self, a: str, b: str, c: str, count: int = 10) -> list[tuple[str, float]]:
        raise HeadwayError(f"one-hot vectors hold no relation between {a!r}, {b!r} and {c!r}: {INSTEAD}")

    def _tensors(self) -> dict[str, Tensor]:
        return {}

    def _restore(self, tensors: dict[str, Tensor]) -> None:
        pass


INSTEAD = "fit word2vec, glove, fasttext or bert"
