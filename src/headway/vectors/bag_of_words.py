"""Bag of words: a document is how often each word stands in it, and a word in which documents it stands, how often."""

from __future__ import annotations

from typing import Any

from ._documents import Documents


class BagOfWords(Documents):
    """The matrix of counts of words in documents, by scikit-learn's CountVectorizer.

        X[d, w] = how often word w stands in document d

        vectors = BagOfWords().fit(texts)
        vectors.vector("cat")                        # float32 [documents]: a column of X
        vectors.document("the cat sat")              # float32 [words]: the row of a text, old or new

    The matrix has two sides, and its vectors live in two spaces: a word is described by the documents that it stands
    in, a document by the words that stand in it. So dim is the number of documents, and ``document`` gives as many
    numbers as there are words; the order of the words is lost. Words are near, by ``most_similar``, where they stand
    in the same documents.

    ``analogy`` raises HeadwayError: the vectors are whole numbers from 0 up, and what is left of one without another
    says which documents have more of it, not how the words are related. Cite: Harris 1954; Salton et al. 1975.
    """

    name = "bag-of-words"

    def _learn(self, counts: Any) -> None:
        pass

    def _weigh(self, counts: Any) -> Any:
        return counts
