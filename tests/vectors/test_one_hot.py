"""One-hot vectors: a one at the word's own place."""

import pytest
import torch
from sklearn.preprocessing import LabelBinarizer
from torch.utils.flop_counter import FlopCounterMode

from headway.errors import HeadwayError
from headway.vectors import OneHot

TEXTS = ["the cat sat on the mat", "the dog sat on the cat"]


@pytest.fixture
def vectors() -> OneHot:
    return OneHot().fit(TEXTS)


def test_against_scikit_learn(vectors: OneHot) -> None:
    tokens = ["the", "dog", "sat", "on", "a", "cat"]
    theirs = LabelBinarizer().fit(list(vectors.words))
    columns = [list(theirs.classes_).index(word) for word in vectors.words]
    assert torch.equal(vectors.encode(" ".join(tokens)), torch.from_numpy(theirs.transform(tokens)[:, columns]).float())


def test_every_two_words_are_at_right_angles(vectors: OneHot) -> None:
    everything = vectors.encode(" ".join(vectors.words))
    assert torch.equal(everything, torch.eye(len(vectors)))
    assert vectors.dim == len(vectors) == 6
    assert vectors.similarity("cat", "dog") == 0.0
    assert vectors.similarity("cat", "cat") == 1.0


def test_a_linear_map_behind_it_is_a_lookup(vectors: OneHot) -> None:
    weight = torch.randn(4, len(vectors))
    assert torch.equal(weight @ vectors.vector("dog"), weight[:, vectors.index["dog"]])


def test_fewer_numbers_than_words_make_less_work(vectors: OneHot) -> None:
    """A linear map of every word to 4 numbers multiplies in proportion to the numbers of a word's vector."""
    work = {}
    for dim in (len(vectors), 2):
        with FlopCounterMode(display=False) as counter:
            torch.randn(len(vectors), dim) @ torch.randn(dim, 4)
        work[dim] = counter.get_total_flops()
    assert work[len(vectors)] * 2 == work[2] * len(vectors)


def test_a_document_is_the_share_of_each_word(vectors: OneHot) -> None:
    document = vectors.document("the the cat xyzzy")
    assert document[vectors.index["the"]].item() == pytest.approx(2 / 3)
    assert document.sum().item() == pytest.approx(1)


def test_nothing_is_near_to_anything(vectors: OneHot) -> None:
    with pytest.raises(HeadwayError, match="right angles, none is near to 'cat': fit word2vec"):
        vectors.most_similar("cat")
    with pytest.raises(HeadwayError, match="none is near to another vector: fit word2vec"):
        vectors.most_similar(vectors.vector("cat"))
    with pytest.raises(HeadwayError, match="no relation between 'the', 'cat' and 'dog'"):
        vectors.analogy("the", "cat", "dog")


def test_an_embedding_too_large_is_refused(vectors: OneHot, monkeypatch: pytest.MonkeyPatch) -> None:
    assert vectors.embedding(["cat"] * 9).weight.shape == (10, 6)
    monkeypatch.setattr("headway.vectors._base.MOST_BYTES", 4 * 9 * 6 - 1)
    with pytest.raises(HeadwayError, match="the vectors of 9 words by 6 numbers take more than 8 GiB"):
        vectors.embedding(["cat"] * 9)
