from pathlib import Path
from typing import Any

import pytest
import torch

from headway._common import training as loop
from headway._common.files import read_checkpoint
from headway.errors import HeadwayError
from headway.study import corpora, heads, train
from headway.study.heads import HeadWatch
from headway.study.models import ModelSizes, build_transformer
from headway.study.protocol import FixedProtocol, Training
from headway.study.tasks import LanguageModel


class StoppedError(Exception):
    pass


def trained(
    text_file: Path, protocol: FixedProtocol, checkpoint: Path | None, stop: int | None = None
) -> torch.nn.Module:
    task = LanguageModel(corpora.load(text_file, train_length=16, longest=32), protocol)
    model = build_transformer("t5", ModelSizes.of(protocol, task.name, task.vocabulary), 0)

    def watch(step: int, loss: float) -> None:
        if step == stop:
            raise StoppedError

    train.train(model, task, protocol.language(5e-3), 0, checkpoint=checkpoint, watch=watch)
    return model


def test_training_that_was_stopped_goes_on_bit_for_bit(
    text_file: Path, protocol: FixedProtocol, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    path = tmp_path / "checkpoints" / "model.pt"
    for stop in (2, 5):
        with pytest.raises(StoppedError):
            trained(text_file, protocol, path, stop)
        assert read_checkpoint(path)["step"] == stop  # type: ignore[index]
    gone_on = trained(text_file, protocol, path).state_dict()
    whole = trained(text_file, protocol, None).state_dict()
    assert all(torch.equal(gone_on[name], whole[name]) for name in whole)


def test_a_finished_training_is_only_read(text_file: Path, protocol: FixedProtocol, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    first = trained(text_file, protocol, path).state_dict()
    again = trained(text_file, protocol, path, stop=1).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert read_checkpoint(path)["optimizer"] is None  # type: ignore[index]


def test_training_lowers_the_loss(text_file: Path, protocol: FixedProtocol) -> None:
    losses = []
    task = LanguageModel(corpora.load(text_file, train_length=16, longest=32), protocol)
    model = build_transformer("none", ModelSizes.of(protocol, task.name, task.vocabulary), 0)
    training = Training(steps=60, batch=8, length=16, learning_rate=1e-2)
    train.train(model, task, training, 0, watch=lambda step, loss: losses.append(loss))
    assert losses[-1] < losses[0] - 2


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(b"not a checkpoint")
    with pytest.raises(HeadwayError, match=r"model\.pt cannot be read .* delete it"):
        read_checkpoint(path)


def test_the_learning_rate_rises_and_falls() -> None:
    training = Training(steps=100, batch=1, length=1, learning_rate=1.0)
    rates = [train.schedule(step, training) for step in range(100)]
    assert training.warmup == 10
    assert rates[9] == 1
    assert rates[:10] == sorted(rates[:10])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] < 0.001


@pytest.mark.parametrize("switch", [{"dtype": torch.bfloat16}, {"compile": True}], ids=["bfloat16", "compiled"])
def test_switches_of_the_forward_pass(
    text_file: Path, protocol: FixedProtocol, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, switch: dict[str, Any]
) -> None:
    """The model learns as without them, its log of heads included, and its checkpoint is one of the plain model."""
    compiler = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model: compiler(model, backend="aot_eager"))
    monkeypatch.setattr(heads, "STEPS", 3)
    task = LanguageModel(corpora.load(text_file, train_length=16, longest=32), protocol)
    windows, _ = task.step(protocol.language(5e-3), 0, 0)
    found = []
    for more in ({}, switch):
        model = build_transformer("t5", ModelSizes.of(protocol, task.name, task.vocabulary), 0)
        log = HeadWatch(model, tmp_path / f"{len(more)}.jsonl", windows, protocol.steps)
        path = tmp_path / f"{len(more)}.pt"
        told = train.train(model, task, protocol.language(5e-3), 0, checkpoint=path, companion=log, **more)
        found.append((told.loss, task.measure(model, 16)["bits_per_byte"], log.summary()["induction"]))  # type: ignore[index]
        fresh = build_transformer("t5", ModelSizes.of(protocol, task.name, task.vocabulary), 0)
        fresh.load_state_dict(read_checkpoint(path)["model"])  # type: ignore[index]
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), fresh.parameters(), strict=True))
    assert found[1] == pytest.approx(found[0], rel=0.05)
    assert (found[1][0] != found[0][0]) == ("dtype" in switch)
