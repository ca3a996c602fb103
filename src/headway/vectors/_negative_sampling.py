"""Skip-gram and CBOW with negative sampling, which word2vec and fastText share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .._common.progress import Share
from ..errors import HeadwayError, need_positive
from ._base import MatrixVectors
from ._text import Tokenizer, WordCorpus

ARCHITECTURES = {"skip-gram": 1, "cbow": 0}
LONGEST = 10_000
"""The most words of a sentence; gensim silently drops the rest."""


class NegativeSampling(MatrixVectors):
    """Vectors learned by gensim, by skip-gram or CBOW with negative sampling.

    A subclass makes gensim's model out of ``_settings`` and trains it by ``_learn``.
    """

    def __init__(
        self,
        *,
        dim: int = 100,
        window: int = 5,
        architecture: str = "skip-gram",
        negative: int = 5,
        epochs: int = 5,
        min_count: int = 5,
        max_words: int | None = None,
        subsample: float = 1e-3,
        learning_rate: float = 0.025,
        seed: int = 0,
        workers: int = 1,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        super().__init__(min_count=min_count, max_words=max_words, tokenizer=tokenizer)
        if architecture not in ARCHITECTURES:
            raise HeadwayError(f"architecture is {architecture!r}: give 'skip-gram' or 'cbow'")
        need_positive(dim=dim, window=window, negative=negative, epochs=epochs, workers=workers)
        if not 0 <= subsample < 1:
            raise HeadwayError(f"subsample is {subsample}: give a share of all words such as 0.001, or 0 to keep all")
        if not 0 < learning_rate <= 1:
            raise HeadwayError(f"learning_rate is {learning_rate}: give more than 0, at most 1, such as 0.025")
        if not 0 <= seed < 2**32:
            raise HeadwayError(f"seed is {seed}: give 0 … {2**32 - 1}")
        self._dim, self.window, self.architecture, self.negative = dim, window, architecture, negative
        self.epochs, self.subsample, self.learning_rate = epochs, subsample, learning_rate
        self.seed, self.workers = seed, workers

    def _settings(self) -> dict[str, Any]:
        """Returns the options under gensim's names, for a vocabulary that exists in its order."""
        return {
            "vector_size": self.dim,
            "window": self.window,
            "sg": ARCHITECTURES[self.architecture],
            "negative": self.negative,
            "sample": self.subsample,
            "alpha": self.learning_rate,
            "seed": self.seed,
            "workers": self.workers,
            "min_count": 1,
            "sorted_vocab": 0,
        }

    def _learn(self, model: Any, corpus: WordCorpus, watch: Share) -> None:
        """Trains gensim's model, whose vocabulary has been built."""
        pieces = _Pieces(corpus, self.epochs, watch)
        try:
            model.train(pieces, total_words=len(corpus.ids), epochs=self.epochs)
        finally:
            pieces.over = True  # otherwise gensim's threads go on after Ctrl-C
        if pieces.error is not None:
            raise pieces.error
        watch(1.0)


class _Pieces:
    """The corpus for gensim, which reads it once in every epoch: lists of at most 10,000 words."""

    def __init__(self, corpus: WordCorpus, epochs: int, watch: Share) -> None:
        self.corpus, self.watch = corpus, watch
        self.done, self.all = 0, epochs * len(corpus.ids)
        self.over = False
        self.error: BaseException | None = None

    def __iter__(self) -> Iterator[list[str]]:
        """Yields the lists, in a thread of gensim, which would hang if an error were raised."""
        words, told = self.corpus.words, self.done
        for document in self.corpus.documents():
            for piece in document.split(LONGEST):
                if self.over:
                    return
                yield [words[number] for number in piece.tolist()]
                self.done += len(piece)
                if self.done - told >= LONGEST:
                    told = self.done
                    try:
                        self.watch(self.done / self.all)
                    except BaseException as error:
                        self.error, self.over = error, True


def frequencies(corpus: WordCorpus) -> dict[str, int]:
    """How often each word occurs, in the order of the vocabulary."""
    return dict(zip(corpus.words, corpus.counts.tolist(), strict=True))
