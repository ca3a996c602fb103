"""The base class of bag of words and TF-IDF, on the matrix of words in documents."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .._common.extras import need
from .._common.progress import Share
from ..errors import HeadwayError
from ._base import Vectors
from ._text import WordCorpus


class Documents(Vectors):
    """Base class of the methods in which a word is a column and a document a row of one sparse matrix.

    ``matrix`` is scipy's, float32 [documents, words], by columns. A subclass defines ``_learn``, which reads the counts
    of a corpus, and ``_weigh``, which turns counts into weights.
    """

    matrix: Any

    @abstractmethod
    def _learn(self, counts: Any) -> None:
        """Computes the inputs of ``_weigh`` from the counts of a corpus, float64 [documents, words]."""

    @abstractmethod
    def _weigh(self, counts: Any) -> Any:
        """Weighs the counts of each document, [n, words] → [n, words], in scipy's sparse matrices."""

    def _fit(self, corpus: WordCorpus, watch: Share) -> None:
        text, numpy = need("sklearn.feature_extraction.text", self.name), need("numpy", self.name)
        # the tokenizer has been applied: a document is the list of its words that are in the vocabulary
        counter = text.CountVectorizer(analyzer=list, vocabulary=self.words, dtype=numpy.float64)
        counts = counter.transform(_documents(corpus, watch))
        self._learn(counts)
        self._set(self._weigh(counts))
        watch(1.0)

    def _set(self, matrix: Any) -> None:
        sparse = need("scipy.sparse", self.name)
        self.matrix = sparse.csc_array(matrix, dtype=need("numpy", self.name).float32)
        self._sizes = torch.from_numpy(sparse.linalg.norm(self.matrix.astype("float64"), axis=0)).float()

    @property
    def dim(self) -> int:
        self._need_fitted()
        documents: int = self.matrix.shape[0]
        return documents

    def rows(self, ids: Tensor) -> Tensor:
        return torch.from_numpy(self.matrix[:, ids.numpy()].toarray()).T.contiguous()

    def document(self, text: str) -> Tensor:
        """Returns the row of a text, which need not be one of the corpus.

        Args:
            text: any text; words outside the vocabulary are left out.

        Returns:
            float32 [words].
        """
        self._need_fitted()
        sparse = need("scipy.sparse", self.name)
        ids = [self.index[token] for token in self.tokenizer(text) if token in self.index]
        counts = torch.tensor(ids, dtype=torch.int64).bincount(minlength=len(self)).double()
        return torch.from_numpy(self._weigh(sparse.csr_array(counts[None].numpy())).toarray()[0]).float()

    def cosines(self, vectors: Tensor) -> Tensor:
        units = torch.nn.functional.normalize(vectors, dim=1)
        return torch.from_numpy(self.matrix.T @ units.T.numpy()).T / self._sizes

    def analogy(
        self, a: str, b: str, c: str, count: int = 10, *, keep_question: bool = False
    ) -> list[tuple[str, float]]:
        """Refuses any ``a``, ``b``, ``c``, ``count``, ``keep_question``: counts hold no relations between words.

        Raises:
            HeadwayError: always.
        """
        raise HeadwayError(
            f"{self.name} says in which documents {a!r}, {b!r} and {c!r} stand, and the differences are not "
            "relations: fit word2vec, glove or fasttext"
        )

    def _tensors(self) -> dict[str, Tensor]:
        matrix = self.matrix.tocsr()
        return {name: torch.from_numpy(getattr(matrix, name)) for name in PIECES}

    def _restore(self, tensors: dict[str, Tensor]) -> None:
        if missing := [name for name in PIECES if name not in tensors or tensors[name].ndim != 1]:
            raise HeadwayError(f"the matrix of documents lacks {' and '.join(missing)}: the file is broken")
        sparse = need("scipy.sparse", self.name)
        starts, columns, values = (tensors[name].numpy() for name in PIECES)
        try:
            matrix = sparse.csr_array((values, columns, starts), shape=(len(starts) - 1, len(self)))
            matrix.check_format(full_check=True)
        except (ValueError, TypeError) as error:
            raise HeadwayError(f"the matrix of documents does not fit together ({error}): the file is broken") from None
        self._set(matrix)


PIECES = ("indptr", "indices", "data")
"""The arrays of a matrix in compressed rows, by scipy's names: the start of each row, the columns, the values."""


def _documents(corpus: WordCorpus, watch: Share) -> Iterator[list[str]]:
    for done, document in enumerate(corpus.documents()):
        watch(done / len(corpus.ends))
        yield [corpus.words[number] for number in document.tolist()]
