"""What lesson 10 finds: learned vectors know kinds of words, and pieces of words find misspelt ones."""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

from lesson import SPEAK
from lesson_10_words import Found, tell

from .conftest import Learn


@pytest.mark.slow
def test_figures(learn: Learn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEADWAY_WEIGHTS", str(tmp_path / "none"))
    found = learn("lesson_10_words")
    assert found["queen"] is None
    assert found["bank"] is None
    assert found["one_hot_largest_cosine"] == 0
    assert found["dims"]["one-hot"] == found["vocabulary"]
    assert found["dims"]["word2vec"] == 48
    assert found["order_kept"] == 0
    for way in ("word2vec", "fasttext"):
        assert found["own_kind"][way] > 3 * found["chance"], way
    assert found["own_kind"]["tf-idf"] > 2 * found["chance"]  # counting documents relates words already
    assert found["misspelt_found"] > 0.25
    assert found["word2vec_knows_misspelt"] == 0
    assert found["example"][:2] == ["tupel", "tuple"]


@pytest.mark.parametrize("measured", ["queen", "bank"])
def test_only_what_was_not_measured_is_said_to_be_missing(measured: str) -> None:
    its = {"queen": [("queen", 0.7)], "queen_with_asked": [("king", 0.8)]}
    bank = {"same sense": 0.8, "other sense": 0.5}
    names = [one.name for one in fields(Found)]
    made = dict.fromkeys(names, 0.0) | {name: {"one-hot": 9} for name in ("dims", "own_kind")}
    made |= {"vocabulary": 9, "example": ("tupel", "tuple", 0.9), "queen": None, "queen_with_asked": None, "bank": None}
    found = Found(**made | (its if measured == "queen" else {"bank": bank}))
    lacks = "minilm" if measured == "queen" else "google-news"
    assert f'Not measured: {lacks}; make weights ARGS="{lacks}"' in tell(found, SPEAK["en"])
    assert f'没有测量 {lacks}：make weights ARGS="{lacks}"' in tell(found, SPEAK["zh"])


def test_published_models(learn: Learn, weights: Callable[[str], Path]) -> None:
    for name in ("google-news", "minilm"):
        weights(name)
    found = learn("lesson_10_words")
    assert found["queen"][0] == ["queen", pytest.approx(0.712, abs=1e-3)]
    assert found["queen_with_asked"][0][0] == "king"
    assert found["bank"]["same sense"] > found["bank"]["other sense"]
