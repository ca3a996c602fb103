"""What lesson 10 finds: learned vectors know kinds of words, and pieces of words find misspelt ones."""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

from lesson import SPEAK
from lesson_10_words import QUESTION, ROLES, SEXES, Found, planted_text, questions, tell

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
    assert found["planted"]["planted"]["kept"] > 0.9  # the relation is in the vectors
    assert found["planted"]["at random"]["left out"] > 0.9  # and right answers do not show it
    assert found["planted"]["at random"]["kept"] < 0.2
    assert found["planted_queen"]["planted"]["kept"] >= 4
    assert found["planted_queen"]["at random"]["kept"] <= 1
    if its := found["fortunes"]:
        assert its["counts"] == {"男人": 3, "国王": 1, "女人": 10, "女王": 1}
        assert its["known"] == ["女人"]
        assert "女王" not in its["answers"]
        assert min(its["place of the queen"]) > 1000
        assert its["stable"] == sorted(its["stable"])  # the more frequent a word, the more stable its neighbours
        assert its["stable"][0] < 0.05
        assert its["stable"][-1] > 0.5
        assert its["own subject"] > 0.9


def test_the_text_of_templates_has_what_is_planted_and_nothing_more() -> None:
    """Of a person, the planted text has only the person's own sex, the control both, and the roles are the same."""
    roles = {role.replace("{}", "").strip() for its in ROLES.values() for role in its}
    for of_their_sex in (True, False):
        sexes: dict[str, set[int]] = {person: set() for pair in ROLES for person in pair.split()}
        text = planted_text(0, of_their_sex)
        assert len(text) == 2000
        for sentence in text:
            (person,) = (word for word in sentence.split() if word in sexes)
            said = [sex for sex, its in enumerate(SEXES) if sentence in {one.format(person) for one in its}]
            assert said or sentence.removeprefix(person).strip() in roles
            sexes[person].update(said)
        for pair in ROLES:
            for sex, person in enumerate(pair.split()):
                assert sexes[person] == ({sex} if of_their_sex else {0, 1})


def test_questions_are_of_two_pairs_from_man_to_woman() -> None:
    asked = list(questions())
    assert len(asked) == 56
    assert (*QUESTION, "女王") in asked


@pytest.mark.parametrize("measured", ["queen", "bank"])
def test_only_what_was_not_measured_is_said_to_be_missing(measured: str) -> None:
    its = {"queen": [("queen", 0.7)], "queen_with_asked": [("king", 0.8)]}
    bank = {"same sense": 0.8, "other sense": 0.5}
    names = [one.name for one in fields(Found)]
    made = dict.fromkeys(names, 0.0) | {name: {"one-hot": 9} for name in ("dims", "own_kind")}
    made |= {"vocabulary": 9, "example": ("tupel", "tuple", 0.9), "queen": None, "queen_with_asked": None, "bank": None}
    share = {text: {"left out": 1, "kept": 0} for text in ("planted", "at random")}
    made |= {"planted": share, "planted_queen": share, "fortunes": None}
    found = Found(**made | (its if measured == "queen" else {"bank": bank}))
    lacks = "minilm" if measured == "queen" else "google-news"
    assert f'Not measured: {lacks}; make weights ARGS="{lacks}"' in tell(found, SPEAK["en"])
    assert f'没有测量 {lacks}：make weights ARGS="{lacks}"' in tell(found, SPEAK["zh"])


@pytest.mark.slow
def test_published_models(learn: Learn, weights: Callable[[str], Path]) -> None:
    for name in ("google-news", "minilm"):
        weights(name)
    found = learn("lesson_10_words")
    assert found["queen"][0] == ["queen", pytest.approx(0.712, abs=1e-3)]
    assert found["queen_with_asked"][0][0] == "king"
    assert found["bank"]["same sense"] > found["bank"]["other sense"]
