"""Bag of words and TF-IDF: columns and rows of one matrix, against scikit-learn and the formulas written in loops."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from gensim.test.utils import datapath
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer

from headway.errors import HeadwayError
from headway.vectors import TFIDF, BagOfWords, OneHot, Words

LEE = Path(datapath("lee_background.cor")).read_text().splitlines()[:60]
TINY = ["the cat sat on the mat", "", "the dog saw the cat", "dogs xyz"]
WEIGHTS: list[dict[str, Any]] = [
    {},
    {"norm": None},
    {"norm": "l1", "smooth_idf": False},
    {"sublinear_tf": True, "norm": "l2"},
]


def by_our_words(theirs: Any, vectors: Any) -> torch.Tensor:
    """scikit-learn's matrix with its columns in the order of our vocabulary."""
    matrix = torch.from_numpy(theirs.fit_transform(LEE).toarray()).double()
    return matrix[:, [theirs.vocabulary_[word] for word in vectors.words]]


def test_counts_against_scikit_learn() -> None:
    vectors = BagOfWords().fit(LEE)
    expected = by_our_words(CountVectorizer(analyzer=Words()), vectors)
    assert torch.equal(vectors.rows(torch.arange(len(vectors))).T.double(), expected)


@pytest.mark.parametrize("options", WEIGHTS, ids=str)
def test_weights_against_scikit_learn(options: dict[str, Any]) -> None:
    vectors = TFIDF(**options).fit(LEE)
    expected = by_our_words(TfidfVectorizer(analyzer=Words(), **options), vectors)
    torch.testing.assert_close(vectors.rows(torch.arange(len(vectors))).T.double(), expected, rtol=1e-7, atol=0)


def test_counts_by_loops() -> None:
    vectors = BagOfWords().fit(TINY)
    assert vectors.dim == 4  # documents, the empty one too
    for word in vectors.words:
        assert vectors.vector(word).tolist() == [text.split().count(word) for text in TINY]
    text = "the mat and the cat"
    assert vectors.document(text).tolist() == [text.split().count(word) for word in vectors.words]


@pytest.mark.parametrize("options", WEIGHTS, ids=str)
def test_weights_by_the_formula(options: dict[str, Any]) -> None:
    vectors = TFIDF(**options).fit(TINY)
    smooth, sublinear, norm = options.get("smooth_idf", True), options.get("sublinear_tf"), options.get("norm", "l2")
    for text in [*TINY, "the mat and the cat"]:
        row = []
        for word in vectors.words:
            tf = float(text.split().count(word))
            tf = 1 + math.log(tf) if sublinear and tf else tf
            having = sum(word in other.split() for other in TINY)
            more = 1 if smooth else 0
            row.append(tf * (math.log((len(TINY) + more) / (having + more)) + 1))
        length = {"l1": sum(row), "l2": math.hypot(*row), None: 1.0}[norm] or 1.0
        assert vectors.document(text).tolist() == pytest.approx([weight / length for weight in row], abs=1e-6)


@pytest.mark.parametrize("kind", [BagOfWords, TFIDF])
def test_rows_of_the_corpus_are_documents(kind: type[BagOfWords]) -> None:
    vectors = kind(min_count=2, max_words=300).fit(LEE)
    rows = vectors.rows(torch.arange(len(vectors))).T
    for number in (0, 7, 59):
        torch.testing.assert_close(vectors.document(LEE[number]), rows[number], rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", [BagOfWords, TFIDF])
def test_the_two_spaces(kind: type[BagOfWords]) -> None:
    vectors = kind().fit(LEE)
    assert vectors.vector("the").shape == (60,)
    assert vectors.encode("the cat").shape == (2, 60)
    assert vectors.document("the cat").shape == (len(vectors),)
    assert vectors.document("").abs().sum() == 0


def test_words_of_the_same_documents_are_near() -> None:
    vectors = BagOfWords().fit(["salt pepper salt", "pepper salt", "king queen", "queen king king"])
    assert vectors.most_similar("salt", 1) == [("pepper", pytest.approx(3 / math.sqrt(5 * 2)))]
    assert vectors.similarity("salt", "king") == 0
    assert vectors.similarity("king", "queen") == pytest.approx((1 * 1 + 2 * 1) / math.sqrt((1 + 4) * (1 + 1)))


@pytest.mark.parametrize("kind", [BagOfWords, TFIDF])
def test_an_analogy_is_refused(kind: type[BagOfWords]) -> None:
    with pytest.raises(HeadwayError, match=f"{kind.name} says in which documents 'the', 'cat' and 'mat' stand"):
        kind().fit(TINY).analogy("the", "cat", "mat")


def test_the_matrix_stays_sparse() -> None:
    vectors = BagOfWords().fit(LEE)
    stored = Counter((n, token) for n, text in enumerate(LEE) for token in Words()(text))
    assert vectors.matrix.nnz == len(stored)
    assert sum(tensor.numel() for tensor in vectors._tensors().values()) == 2 * len(stored) + len(LEE) + 1


@pytest.mark.parametrize("norm", ["max", "L2", 2])
def test_another_norm_is_refused(norm: Any) -> None:
    with pytest.raises(HeadwayError, match=f"norm is {norm!r}: give 'l2', 'l1' or None"):
        TFIDF(norm=norm)


@pytest.mark.parametrize("change", ["indptr", "indices", "data", "outside", "backwards", "short", "idf"])
def test_broken_files_are_refused(change: str) -> None:
    vectors = TFIDF().fit(TINY)
    tensors = {name: tensor.clone() for name, tensor in vectors._tensors().items()}
    if change == "outside":
        tensors["indices"][0] = len(vectors)
    elif change == "backwards":
        tensors["indptr"][1] = -1
    elif change == "short":
        tensors["data"] = tensors["data"][:-1]
    elif change == "idf":
        tensors["idf"] = tensors["idf"][:-1]
    else:
        del tensors[change]
    back = TFIDF()
    back._take(vectors.words, vectors.counts)
    with pytest.raises(HeadwayError, match="the file is broken"):
        back._restore(tensors)


def test_dim_of_what_was_never_fitted() -> None:
    assert OneHot().dim == 0
    with pytest.raises(HeadwayError, match="BagOfWords has no vectors yet"):
        _ = BagOfWords().dim
