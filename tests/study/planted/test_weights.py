"""The small models that come with headway: their criteria, measured again from their weights; and how they are made."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from headway._common.progress import nobody
from headway.errors import HeadwayError
from headway.inspection import ROLES, head_roles
from headway.study.planted import (
    CRITERIA,
    LANGUAGES,
    Criteria,
    Language,
    Link,
    Sentence,
    _criteria,
    _training,
    held_out_texts,
    pretrain,
    pretrained,
    tokenizer,
)
from headway.study.planted.weights import __main__, _files, _make
from headway.study.protocol import Training

models = pytest.mark.parametrize(
    ("language", "number"), __main__.MODELS, ids=[f"{language.name}-{number}" for language, number in __main__.MODELS]
)
PRONOUNS = ("subject pronoun", "object pronoun", "reference: pronoun")
ANYTHING = {"accuracy": 0.0, "found": 0.0, "weight": 0.0, "beside": 0.0, "astray": 1.0}
SHORT = Training(steps=5, batch=4, length=64, learning_rate=1e-3)


@models
def test_the_package_has_models_that_met_the_criteria(language: Language, number: int) -> None:
    small = pretrained(language, number)
    assert small.criteria == CRITERIA.as_dict()
    assert CRITERIA.lacks(small.measured, examples=number == 0) == []
    assert all(small.rejected.values())  # says why
    assert set(small.rejected) == set(range(small.seed - len(small.rejected), small.seed))
    assert {*small.roles.roles, *small.roles.not_measured} == set(ROLES)
    settings = _training.named_training(_make.TRAINING.get(language.name, "quick"))
    assert small.recipe == _make.recipe_of_model(language, settings), f"make the models again: {_files.MAKE}"


def test_all_files_together_are_small() -> None:
    files = sorted(_files.PACKAGE.glob("*.safetensors"))
    assert files == sorted(_files.file_of(*model, _files.PACKAGE) for model in __main__.MODELS)
    assert sum(file.stat().st_size for file in files) <= 2_000_000


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@models
@pytest.mark.parametrize("computed", ["one thread", "two threads", "float64"])
def test_the_documents_sentences(language: Language, number: int, computed: str, threads: None) -> None:
    """What the file says of the examples is what its weights give, on any machine."""
    small = pretrained(language, number)
    torch.set_num_threads(2 if computed == "two threads" else 1)
    model = small.model.double() if computed == "float64" else small.model
    again = _criteria.examples(model, language, small.measured["relations"])
    assert len(again) == len(small.measured["examples"]) >= 5
    for now, then in zip(again, small.measured["examples"], strict=True):
        assert now == {
            name: pytest.approx(value, abs=1e-4) if isinstance(value, float) else value for name, value in then.items()
        }
        if number == 0:
            assert min(now["weight"], now["weight_masked"]) >= (0.8 if abs(now["offset"]) > 1 else 0.5)
            assert now["astray"] <= 0.5 or now["relation"] not in PRONOUNS


@pytest.mark.slow
@pytest.mark.parametrize(
    "language", [language for language, number in __main__.MODELS if number == 0], ids=lambda one: one.name
)
def test_accuracy_and_roles(language: Language) -> None:
    small = pretrained(language)
    again = _criteria.measured(small.model, language)
    for relation, then in small.measured["relations"].items():
        now = again["relations"][relation]
        assert now["head"] == then["head"]
        for name in ("accuracy", "found"):
            assert now[name] == pytest.approx(then[name], abs=0.005)  # 2 or 3 of 500 sentences
    found, then = head_roles(small.model, held_out_texts(language)), small.roles
    assert found.roles == then.roles
    assert found.not_measured == then.not_measured
    for role in found.roles:
        for a, b in zip(found.role(role), then.role(role), strict=True):
            assert (a.candidate, a.layer, a.head, a.holds, a.cases) == (b.candidate, b.layer, b.head, b.holds, b.cases)
            figures = [(one.figure, one.low, one.high, one.baseline) for one in (a, b)]
            assert figures[0] == pytest.approx(figures[1], abs=0.01, nan_ok=True)


def test_it_came_from_16_bits() -> None:
    for tensor in pretrained("chinese").model.state_dict().values():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, tensor.half().float())


@pytest.fixture
def tiny(tiny_language: Language, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Language:
    """A language with an example, and trainings of a moment in a cache of their own."""
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(_training, "SENTENCES", 100)
    monkeypatch.setattr(_make, "TEXTS", 12)
    monkeypatch.setattr(_criteria, "SENTENCES", 20)
    return replace(tiny_language, examples=(Sentence.of("the cat woke up .", Link("verb", 2, 1)),))


def test_the_first_seed_that_meets_the_criteria_is_kept(
    tiny: Language, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = {seed: _make._tried(tiny, seed, SHORT, nobody)[1]["examples"][0]["likely"] for seed in range(3)}
    bound = max(trained.values())
    (first,) = (seed for seed, likely in trained.items() if likely >= bound)
    monkeypatch.setattr(_make, "CRITERIA", Criteria(**ANYTHING, likely=bound))
    told: list[float] = []
    small = pretrain(tiny, 0, training=SHORT, folder=tmp_path, tell=lambda doing, share: told.append(share))
    assert small.seed == first
    assert list(small.rejected) == list(range(first))
    assert all("likely" in lacks for (lacks,) in small.rejected.values())
    assert 0 <= min(told) <= max(told) <= 1
    assert pretrain(tiny, 1, training=SHORT, folder=tmp_path).seed == first + 1  # whatever it says of the example
    assert pretrained(tiny, 0, folder=tmp_path).measured == small.measured
    monkeypatch.setattr(_make, "trained", None)
    assert pretrain(tiny, 0, training=SHORT, folder=tmp_path).seed == first  # read, not trained


def test_a_model_of_other_words_is_made_again(tiny: Language, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_make, "CRITERIA", Criteria(**ANYTHING, likely=0.0))
    path = _files.file_of(tiny, 0, tmp_path)
    before = pretrain(tiny, training=SHORT, folder=tmp_path)
    other = replace(before, language=LANGUAGES["chinese"], recipe="of other words")
    _files.write(other, path)
    with pytest.raises(HeadwayError, match=r"its words are not those of the language 'tiny'\): delete it$"):
        pretrained(tiny, folder=tmp_path)
    assert pretrain(tiny, training=SHORT, folder=tmp_path).recipe == before.recipe
    path.write_bytes(b"damaged")
    with pytest.raises(HeadwayError, match="is damaged"):  # it may not be ours to replace
        pretrain(tiny, training=SHORT, folder=tmp_path)


def test_a_damaged_model_of_the_package_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_files, "PACKAGE", tmp_path)
    (tmp_path / "chinese-0.safetensors").write_bytes(b"damaged")
    for folder in (None, tmp_path):
        with pytest.raises(HeadwayError, match=f"delete it, and run {_files.MAKE}$"):
            pretrained("chinese", folder=folder)


def test_no_seed_meets_the_criteria(tiny: Language, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_make, "TRIES", 2)
    with pytest.raises(HeadwayError, match=r"none of the seeds 0 to 1 of 'tiny' meets the criteria \(verb: accuracy"):
        pretrain(tiny, training=SHORT, folder=tmp_path)
    assert not list(tmp_path.glob("*.safetensors"))
    with pytest.raises(HeadwayError, match=r"cannot be a folder, since .* is a file"):
        pretrain(tiny, training=SHORT, folder=Path(__file__) / "inside")


LIMIT = {"weight": 0.8, "weight_masked": 0.8, "astray": 0.5, "likely": 0.9}
MET: dict[str, Any] = {
    "relations": {"verb": {"accuracy": 0.95, "found": 0.6, "head": "1.0"}},
    "examples": [{"text": "a b", "word": "a", "relation": "subject pronoun", "offset": -2, **LIMIT}],
}


@pytest.mark.parametrize(
    ("part", "name", "value", "said"),
    [
        ("relations", "accuracy", 0.949, "verb: accuracy 0.949 < 0.95"),
        ("relations", "found", 0.59, "verb: found 0.590 < 0.6"),
        ("examples", "weight", 0.67, "a b (a): weight 0.670 < 0.8"),
        ("examples", "weight_masked", 0.67, "a b (a): weight_masked 0.670 < 0.8"),
        ("examples", "astray", 0.67, "a b (a): astray 0.670 > 0.5"),
        ("examples", "likely", 0.89, "a b (a): likely 0.890 < 0.9"),
    ],
)
def test_each_bound(part: str, name: str, value: float, said: str) -> None:
    assert CRITERIA.lacks(MET) == []
    place = {
        "relations": {"verb": {**MET["relations"]["verb"], name: value}},
        "examples": [{**MET["examples"][0], name: value}],
    }[part]
    assert CRITERIA.lacks({**MET, part: place}) == [said]


def test_only_pronouns_go_astray() -> None:
    assert CRITERIA.lacks({**MET, "examples": [{**MET["examples"][0], "relation": "verb", "astray": 1.0}]}) == []


def test_examples_may_not_count() -> None:
    assert CRITERIA.lacks({**MET, "examples": [{**MET["examples"][0], "likely": 0.0}]}, examples=False) == []


def test_the_bound_of_a_noun_right_beside() -> None:
    beside = {**MET["examples"][0], "offset": 1, "weight": 0.5, "weight_masked": 0.5}
    assert CRITERIA.lacks({**MET, "examples": [beside]}) == []
    assert CRITERIA.lacks({**MET, "examples": [beside | {"weight": 0.49}]}) == ["a b (a): weight 0.490 < 0.5"]


def test_weights_of_an_example_are_those_of_a_loop() -> None:
    """The rows of the file, from the model's own weights, read by hand."""
    import headway as hw

    small = pretrained("chinese")
    (row,) = [one for one in small.measured["examples"] if one["text"] == "小猫吃苹果因为它很甜。"]
    read = tokenizer(small.language).encode(row["text"])
    with torch.no_grad(), hw.capture(small.model, keep="weights") as seen:
        small.model(torch.tensor([read.ids]))
    it, apple, cat = (read.tokens.index(word) for word in ("它", "苹果", "小猫"))
    layer, head = small.head("object pronoun")
    assert (row["word"], row["noun"], row["head"]) == ("它", "苹果", f"{layer}.{head}")
    assert float(seen.weights(layer)[0, head, it, apple]) == pytest.approx(row["weight"], abs=1e-4)
    assert float(seen.weights(1)[0, :, it, cat].max()) == pytest.approx(row["astray"], abs=1e-4)


def test_what_cannot_be_read_is_one_line(tiny: Language, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HeadwayError, match="no language 'german': give one of chinese, english"):
        pretrained("german")
    with pytest.raises(HeadwayError, match=r"there is no .*tiny-0\.safetensors: train one with pretrain"):
        pretrained(tiny)
    path = tmp_path / "chinese-0.safetensors"
    path.write_bytes(_files.file_of(LANGUAGES["chinese"], 0, _files.PACKAGE).read_bytes()[:1000])
    with pytest.raises(HeadwayError, match=r"chinese-0\.safetensors is damaged or of another version"):
        pretrained("chinese", folder=tmp_path)
    path.write_bytes(_files.file_of(LANGUAGES["english"], 0, _files.PACKAGE).read_bytes())
    with pytest.raises(HeadwayError, match="its words are not those of the language 'chinese'"):
        pretrained("chinese", folder=tmp_path)
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(HeadwayError, match=r"reading a small model needs safetensors: .*\[checkpoints\]"):
        pretrained("chinese")


def test_the_command_makes_what_is_missing(
    tiny: Language, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(__main__, "MODELS", ((tiny, 0),))
    monkeypatch.setitem(_training.TRAININGS, "quick", SHORT)
    monkeypatch.setattr(_make, "CRITERIA", Criteria(**ANYTHING, likely=0.0))
    assert __main__.run(["--out", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert out == "tiny 0: seed 0, after 0 that lacked something\n"
    assert "training a small tiny model, seed 0" in err
    monkeypatch.setattr(_make, "CRITERIA", Criteria())
    monkeypatch.setattr(_make, "TRIES", 1)
    assert __main__.run(["--out", str(tmp_path)]) == 2
    assert "none of the seeds 0 to 0" in capsys.readouterr().err


def test_roles_of_some_names() -> None:
    roles = pretrained("chinese").roles
    some = roles.only(["rare_word", "sink"])
    assert some.roles == ("sink",)
    assert list(some.not_measured) == ["rare_word"]
    figures = [[one.figure for one in found.role("sink")] for found in (some, roles)]
    assert figures[0] == pytest.approx(figures[1], nan_ok=True)
    with pytest.raises(HeadwayError, match=r"roles is empty: give one or more of .*syntactic"):
        roles.only([])
