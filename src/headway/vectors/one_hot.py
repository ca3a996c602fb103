"""One-hot vectors."""

from __future__ import annotations

import torch
from torch import Tensor

from .._common.progress import Share
from ..errors import HeadwayError
from ._base import Vectors
from ._text import WordCorpus


class OneHot(Vectors):
    """Vectors with a one at the word's own number and zeros elsewhere.

        v(w)_i = 1 if i = w else 0

    dim is the number of words. All pairs of words are orthogonal, so ``most_similar`` and ``analogy`` raise
    HeadwayError. A linear map of these vectors is a lookup table: W·v(w) is the w-th column of W, which
    ``torch.nn.Embedding`` computes without the zeros.

    Args:
        min_count: words that occur less often are left out.
        max_words: only this many words are kept, the most frequent; all of them if None.
        tokenizer: cuts a text into tokens; ``Words()`` if None.
    """

    name = "one-hot"

    def _fit(self, corpus: WordCorpus, watch: Share) -> None:
        watch(1.0)

    @property
    def dim(self) -> int:
        return len(self.words)

    def rows(self, ids: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(ids, self.dim).float()

    def cosines(self, vectors: Tensor) -> Tensor:
        return torch.nn.functional.normalize(vectors, dim=1)

    def most_similar(self, word: str | Tensor, count: int = 10) -> list[tuple[str, float]]:
        """Refuses any ``word`` and ``count``, as all pairs of words are orthogonal.

        Raises:
            HeadwayError: always.
        """
        given = repr(word) if isinstance(word, str) else "another vector"
        raise HeadwayError(f"one-hot vectors are all at right angles, none is near to {given}: {INSTEAD}")

    def analogy(
        self, a: str, b: str, c: str, count: int = 10, *, keep_question: bool = False
    ) -> list[tuple[str, float]]:
        """Refuses any ``a``, ``b``, ``c``, ``count``, ``keep_question``: all pairs of words are orthogonal.

        Raises:
            HeadwayError: always.
        """
        raise HeadwayError(f"one-hot vectors hold no relation between {a!r}, {b!r} and {c!r}: {INSTEAD}")

    def _tensors(self) -> dict[str, Tensor]:
        return {}

    def _restore(self, tensors: dict[str, Tensor]) -> None:
        pass


INSTEAD = "fit word2vec, glove, fasttext or bert"
