"""Pretrained vectors, from a file or a matrix."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from .._common.progress import Share
from ..errors import HeadwayError
from ._base import MatrixVectors
from ._text import Tokenizer, WordCorpus, Words


class Pretrained(MatrixVectors):
    """Words and their vectors, found by any method.

    ``counts`` is None. Unless a tokenizer is given, texts are read in lower case, or unchanged if more than one word
    in ten has a capital.

    Args:
        min_count: not used.
        max_words: not used.
        tokenizer: cuts a text into tokens; ``Words()`` if None.

    Example:
        vectors = headway.vectors.load("glove.6B.300d.txt")
        vectors = Pretrained.of(["cat", "dog"], matrix)
    """

    name = "pretrained"

    @classmethod
    def of(cls, words: Sequence[str], matrix: Tensor, tokenizer: Tokenizer | None = None) -> Self:
        """Makes vectors of words and the rows of a matrix.

        Args:
            words: the words, each once.
            matrix: their vectors, [words, dim].
            tokenizer: cuts a text into tokens; chosen by the capitals of the words if None.

        Raises:
            HeadwayError: if a word is given twice, or the matrix has another shape or no numbers.
        """
        made = cls(tokenizer=tokenizer or tokenizer_of(words))
        made._take(words)
        matrix = torch.as_tensor(matrix)
        if len(set(made.words)) < len(made.words):
            twice = next(word for place, word in enumerate(made.words) if made.index[word] != place)
            raise HeadwayError(f"the word {twice!r} stands twice among the words: give each once")
        if matrix.ndim != 2 or matrix.shape[0] != len(made.words) or not matrix.numel():
            raise HeadwayError(
                f"the matrix has shape {tuple(matrix.shape)} for {len(made.words)} words: give [words, dim]"
            )
        made._set(matrix.float())
        return made

    @property
    def options(self) -> dict[str, Any]:
        return {}

    def fit(self, texts: Iterable[str], *, watch: Share | None = None) -> Self:
        """Refuses any ``texts`` and ``watch``, as these vectors are given.

        Raises:
            HeadwayError: always.
        """
        raise HeadwayError("vectors from a file cannot be fitted: fit word2vec, glove or fasttext")

    def _fit(self, corpus: WordCorpus, watch: Share) -> None:
        raise NotImplementedError


def tokenizer_of(words: Sequence[str]) -> Words:
    """The tokenizer for these words: in small letters unless more than one in ten has a capital."""
    return Words(lower=10 * sum(word != word.lower() for word in words) <= len(words))
