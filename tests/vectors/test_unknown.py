"""Words without a vector: all of them named, each with the spellings that the vocabulary has."""

import pickle

import pytest
import torch

from headway.errors import HeadwayError
from headway.vectors import OneHot, Pretrained, UnknownWordError, Word2Vec
from headway.vectors._unknown import nearest_spellings

WORDS = ["the", "king", "king's", "queen", "kin", "Paris", "水果", "苹果", "水"]


@pytest.mark.parametrize(
    ("word", "spellings"),
    [
        ("kign", ["kin", "king", "king's"]),
        ("KING", ["king", "kin", "king's"]),
        ("paris", ["Paris"]),
        ("果", ["水果", "苹果"]),
        ("水苹", ["水", "水果", "苹果"]),
        ("zzz", []),
    ],
)
def test_spellings_by_hand(word: str, spellings: list[str]) -> None:
    assert nearest_spellings(word, WORDS, 3) == spellings


def test_an_error_names_all_unknown_words() -> None:
    vectors = Pretrained.of(WORDS, torch.randn(len(WORDS), 4))
    with pytest.raises(UnknownWordError) as raised:
        vectors.analogy("kign", "queen", "zzz")
    assert raised.value.words == ("kign", "zzz")
    said = str(raised.value)
    assert "'kign' and 'zzz' were never seen among the 9 of the vocabulary" in said
    assert "spelt like 'kign': 'kin' and 'king' and \"king's\"; fasttext and bert" in said
    again = pickle.loads(pickle.dumps(raised.value))
    assert isinstance(again, HeadwayError)
    assert str(again) == said


def test_an_error_costs_no_comparison_until_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that skips unknown words must not compare each with the whole vocabulary."""
    vectors = OneHot().fit(["the cat"])

    def never(*_: object) -> list[str]:
        raise AssertionError

    monkeypatch.setattr("headway.vectors._base.nearest_spellings", never)
    with pytest.raises(UnknownWordError):
        vectors.vector("dog")


def test_without_vectors_the_error_says_so_first() -> None:
    with pytest.raises(HeadwayError, match="Word2Vec has no vectors yet"):
        Word2Vec().analogy("a", "b", "c")
