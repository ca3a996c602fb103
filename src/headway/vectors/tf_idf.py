"""TF-IDF: counts of words, weighted by how few documents have the word."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._common.extras import need
from ..errors import HeadwayError
from ._documents import Documents
from ._text import Tokenizer


class TFIDF(Documents):
    """The matrix of TF-IDF weights of words in documents, computed by scikit-learn's TfidfTransformer.

        X[d, w] = tf(d, w)·idf(w), each row then divided by its norm
        tf      = the number of times that w occurs in d; 1 + ln of it if sublinear_tf
        idf     = ln((1 + N)/(1 + N_w)) + 1; ln(N/N_w) + 1 unless smooth_idf

    N is the number of documents, N_w of those that have the word. A word is a column and a document is a row, as in
    ``BagOfWords``; ``analogy`` raises HeadwayError. A new text is weighted by the idf of the corpus.

    Args:
        smooth_idf: whether idf is computed as if one more document had every word once.
        sublinear_tf: whether tf grows with the logarithm of the count.
        norm: the norm of a row: "l2", "l1", or None to leave rows as they are.
        min_count: words that occur less often are left out.
        max_words: only this many words are kept, the most frequent; all of them if None.
        tokenizer: cuts a text into tokens; ``Words()`` if None.

    Attributes:
        idf: float64 [words].

    Raises:
        HeadwayError: if norm is another name.

    References:
        Spärck Jones 1972; Salton and Buckley 1988.
    """

    name = "tf-idf"

    idf: Tensor

    def __init__(
        self,
        *,
        smooth_idf: bool = True,
        sublinear_tf: bool = False,
        norm: str | None = "l2",
        min_count: int = 1,
        max_words: int | None = None,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        super().__init__(min_count=min_count, max_words=max_words, tokenizer=tokenizer)
        if norm not in ("l1", "l2", None):
            raise HeadwayError(f"norm is {norm!r}: give 'l2', 'l1' or None")
        self.smooth_idf, self.sublinear_tf, self.norm = smooth_idf, sublinear_tf, norm

    def _transformer(self) -> Any:
        return need("sklearn.feature_extraction.text", self.name).TfidfTransformer(
            norm=self.norm, smooth_idf=self.smooth_idf, sublinear_tf=self.sublinear_tf
        )

    def _learn(self, counts: Any) -> None:
        self.idf = torch.from_numpy(self._transformer().fit(counts).idf_)

    def _weigh(self, counts: Any) -> Any:
        transformer = self._transformer()
        transformer.idf_ = self.idf.numpy()
        return transformer.transform(counts)

    def _tensors(self) -> dict[str, Tensor]:
        return super()._tensors() | {"idf": self.idf}

    def _restore(self, tensors: dict[str, Tensor]) -> None:
        super()._restore(tensors)
        idf = tensors.get("idf")
        if idf is None or tuple(idf.shape) != (len(self),):
            shape = None if idf is None else tuple(idf.shape)
            raise HeadwayError(f"idf has shape {shape} and there are {len(self)} words: the file is broken")
        self.idf = idf.double()
