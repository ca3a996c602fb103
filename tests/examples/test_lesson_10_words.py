"""What lesson 10 finds: learned vectors know kinds of words, and pieces of words find misspelt ones."""

from collections.abc import Callable
from pathlib import Path

import pytest

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


def test_published_models(learn: Learn, weights: Callable[[str], Path]) -> None:
    for name in ("google-news", "minilm"):
        weights(name)
    found = learn("lesson_10_words")
    assert found["queen"][0] == ["queen", pytest.approx(0.712, abs=1e-3)]
    assert found["queen_with_asked"][0][0] == "king"
    assert found["bank"]["same sense"] > found["bank"]["other sense"]
