"""Bag of words: counts of words in documents."""

from __future__ import annotations

from typing import Any

from ._documents import Documents


class BagOfWords(Documents):
    """The matrix of counts of words in documents, computed by scikit-learn's CountVectorizer.

        X[d, w] = the number of times that word w occurs in document d

    A word is a column of X and a document is a row, so the two live in different spaces: dim is the number of
    documents, and ``document`` returns as many numbers as there are words. The order of words is lost. ``most_similar``
    finds words that occur in the same documents. ``analogy`` raises HeadwayError, because differences between
    counts of documents are not relations between words.

    Args:
        min_count: words that occur less often are left out.
        max_words: only this many words are kept, the most frequent; all of them if None.
        tokenizer: cuts a text into tokens; ``Words()`` if None.

    References:
        Harris 1954; Salton et al. 1975.

    Example:
        vectors = BagOfWords().fit(texts)
        vectors.vector("cat")                        # float32 [documents], a column of X
        vectors.document("the cat sat")              # float32 [words], the row of any text
    """

    name = "bag-of-words"

    def _learn(self, counts: Any) -> None:
        pass

    def _weigh(self, counts: Any) -> Any:
        return counts
