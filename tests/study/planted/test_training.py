"""Batches, and models that are trained once and then read."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from headway._common import training
from headway._common.files import read_checkpoint
from headway.errors import HeadwayError
from headway.study.planted import LANGUAGES, Language, PlantedWords, _training, tokenizer, trained
from headway.study.planted._tokens import MASK, vocabulary
from headway.study.protocol import Training

SHORT = Training(steps=5, batch=4, length=64, learning_rate=1e-3)


class StoppedError(Exception):
    pass


@pytest.fixture(autouse=True)
def few_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_training, "SENTENCES", 200)


def models_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/model.pt"))


def test_what_stands_in_place_of_a_decided_word_tells_nothing(tiny_language: Language) -> None:
    task = PlantedWords(tiny_language, tiny_language.sentences(500, 0))
    ids = vocabulary(tiny_language)
    shown, masked = {word: torch.zeros(2) for word in ("woke", "flew")}, torch.zeros(2)
    for step in range(300):
        inputs, targets = task.step(Training(1, 32, 64, 1e-3), 0, step)
        decided = targets != -100
        assert set(targets[decided].tolist()) <= {ids[word] for word in ("woke", "flew", "home", "school")}
        masked += torch.tensor([float((inputs[decided] == ids[MASK]).sum()), float(decided.sum())])
        for number, truth in enumerate(("woke", "flew")):
            for word, counts in shown.items():
                counts[number] += ((inputs == ids[word]) & (targets == ids[truth])).sum()
        assert not (inputs[~decided] == ids[MASK]).any()
    assert masked[0] / masked[1] == pytest.approx(0.8, abs=0.02)
    right, wrong = (float(counts[0] / counts.sum()) for counts in shown.values())
    assert right == pytest.approx(wrong, abs=0.1)


def test_a_batch_depends_on_seed_and_step(tiny_language: Language) -> None:
    task = PlantedWords(tiny_language, tiny_language.sentences(100, 0))
    first, again, other = (task.step(SHORT, seed, 3)[0] for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert first.shape != other.shape or not torch.equal(first, other)


def test_a_model_is_trained_once_and_then_read(tmp_path: Path) -> None:
    steps: list[int] = []

    def watch(step: int, loss: float) -> None:
        steps.append(step)

    first = trained("chinese", training=SHORT, folder=tmp_path, watch=watch)
    again = trained("chinese", training=SHORT, folder=tmp_path, watch=watch)
    assert steps == [1, 2, 3, 4, 5]
    assert not again.training
    for name, value in first.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])
    ids = torch.tensor([tokenizer(LANGUAGES["chinese"]).encode("小猫很可爱，它在睡觉。").ids])
    assert first(ids).shape == (1, 9, len(vocabulary(LANGUAGES["chinese"])))
    assert torch.equal(first(ids), again(ids))
    assert not list(tmp_path.glob("*/*.part"))


def test_a_stopped_training_goes_on_bit_for_bit(
    tiny_language: Language, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)

    def stop(step: int, loss: float) -> None:
        if step == 2:
            raise StoppedError

    with pytest.raises(StoppedError):
        trained(tiny_language, training=SHORT, folder=tmp_path / "stopped", watch=stop)
    (path,) = models_in(tmp_path / "stopped")
    assert read_checkpoint(path)["step"] == 2  # type: ignore[index]
    gone_on = trained(tiny_language, training=SHORT, folder=tmp_path / "stopped").state_dict()
    whole = trained(tiny_language, training=SHORT, folder=tmp_path / "whole").state_dict()
    assert all(torch.equal(gone_on[name], whole[name]) for name in whole)


def test_models_of_other_settings_are_kept_apart(
    tiny_language: Language, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path))
    trained(tiny_language, training=SHORT)
    trained(tiny_language, 1, training=SHORT)
    trained(tiny_language, training=Training(steps=4, batch=4, length=64, learning_rate=1e-3))
    trained(tiny_language, training=Training(steps=5, batch=4, length=64, learning_rate=2e-3))
    trained(replace(tiny_language, neutral=("sea",)), training=SHORT)
    monkeypatch.setattr(_training, "MASKED", 0.7)
    trained(tiny_language, training=SHORT)
    assert len(models_in(tmp_path / "planted")) == 6


def test_training_learns(tiny_language: Language, tmp_path: Path) -> None:
    losses: list[float] = []
    trained(tiny_language, training=Training(60, 16, 64, 5e-3), folder=tmp_path, watch=lambda step, x: losses.append(x))
    assert losses[0] > 3
    assert losses[-1] < 1.6  # which of two words it is takes 1 bit


def test_measured_accuracy(tiny_language: Language, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_training, "MEASURED", 20)
    found = PlantedWords(tiny_language, tiny_language.sentences(10, 0)).measure(_training.build(tiny_language, 0), 64)
    assert found.keys() == {"verb", "place"}
    assert all(0 <= share <= 1 for share in found.values())


def test_bad_input(tiny_language: Language, tmp_path: Path) -> None:
    with pytest.raises(HeadwayError, match="no language 'german': give one of chinese, english"):
        trained("german")
    with pytest.raises(HeadwayError, match="training is 'long': give 'full' or 'quick', or a Training"):
        trained("chinese", training="long")
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(HeadwayError, match=r"cannot be written to .*: name another folder in HEADWAY_CACHE"):
        trained(tiny_language, training=SHORT, folder=file)


def test_one_process_at_a_time_trains_a_model(tiny_language: Language, tmp_path: Path) -> None:
    def second(step: int, loss: float) -> None:
        if step == SHORT.steps:
            return  # it is there
        with pytest.raises(HeadwayError, match=r"in use by another training: wait for it"):
            trained(tiny_language, training=SHORT, folder=tmp_path)

    trained(tiny_language, training=SHORT, folder=tmp_path, watch=second)


def test_a_damaged_model_is_named(tiny_language: Language, tmp_path: Path) -> None:
    trained(tiny_language, training=SHORT, folder=tmp_path)
    (path,) = models_in(tmp_path)
    path.write_bytes(b"no model")
    with pytest.raises(HeadwayError, match=r"model\.pt cannot be read .*: delete it"):
        trained(tiny_language, training=SHORT, folder=tmp_path)
