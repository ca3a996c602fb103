"""The loop of every training: it resumes bit for bit, and stops before NaN reaches a parameter or a checkpoint."""

import itertools
import math
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway._common import training
from headway._common.files import read_checkpoint
from headway._common.training import Companion, Diverged, train
from headway.errors import HeadwayError

STEPS = 8


class StoppedError(Exception):
    pass


class Draws(Companion):
    """A companion with a state: a stream of random numbers, and a list of what it was told."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(0)
        self.told: list[tuple[int, float]] = []

    def after(self, step: int, loss: float, seconds: float) -> None:
        assert seconds > 0
        self.told.append((step, loss))

    def state_dict(self) -> dict[str, Any]:
        return {"draws": self.generator.get_state(), "told": self.told}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.set_state(state["draws"])
        self.told = state["told"]


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(7, 6), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 7))


def run(
    model: nn.Module,
    checkpoint: Path | None = None,
    *,
    spoilt: Callable[[Tensor, int], Tensor] = lambda loss, step: loss,
    steps: int = STEPS,
    learning_rate: float = 0.1,
    stop: int | None = None,
    **more: Any,
) -> tuple[training.Trained, Draws]:
    draws = Draws()

    def loss(forward: Any, step: int) -> Tensor:
        ids = torch.randint(7, (4, 5), generator=draws.generator)
        return spoilt(F.cross_entropy(forward(ids).flatten(0, 1).float(), (2 * ids % 7).flatten()), step)

    def watch(step: int, loss: float) -> None:
        if step == stop:
            raise StoppedError

    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    told = train(
        model,
        loss,
        optimizer,
        steps=steps,
        rate=lambda step: 1 - step / STEPS,
        clip=1.0,
        checkpoint=checkpoint,
        companion=draws,
        watch=watch,
        **more,
    )
    return told, draws


def equal(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def test_a_stopped_training_goes_on_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    path, whole = tmp_path / "model.pt", small()
    straight, told = run(whole)
    for stop in (2, 3, STEPS):
        with pytest.raises(StoppedError):
            run(small(), path, stop=stop)
        state = read_checkpoint(path)
        assert state is not None
        assert state["step"] == stop
        assert [step for step, _ in state["told"]] == list(range(1, stop + 1))
    resumed = small()
    finished, told_again = run(resumed, path)
    assert equal(whole, resumed)
    assert (finished.steps, finished.loss) == (straight.steps, straight.loss) == (STEPS, told.told[-1][1])
    assert told_again.told == told.told


def test_a_companion_knows_of_a_step_before_its_checkpoint_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, what it does after a step is lost by an end between the two."""
    monkeypatch.setattr(training, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)

    def stopped(path: Path, state: dict[str, Any]) -> None:
        assert state["told"][-1][0] == state["step"]
        raise StoppedError

    monkeypatch.setattr(training, "write_checkpoint", stopped)
    with pytest.raises(StoppedError):
        run(small(), tmp_path / "model.pt")


def test_checkpoints_that_take_long_to_write_are_far_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 0.5  # so that a step takes half a second, and a checkpoint too: twice SECONDS_OF_WRITING
        return now

    monkeypatch.setattr(training.time, "perf_counter", clock)
    monkeypatch.setattr(training, "write_checkpoint", lambda path, state: written.append(state["step"]))
    monkeypatch.setattr(training, "SECONDS_BETWEEN_CHECKPOINTS", 1.0)
    run(small(), tmp_path / "model.pt", steps=13)
    assert written == [2, 6, 10, 13]


SPOILT: dict[str, tuple[Callable[[Tensor, int], Tensor], str]] = {
    "loss": (lambda loss, step: loss * (math.nan if step == 5 else 1), "the loss is nan in step 6 of 8"),
    "gradient": (
        lambda loss, step: loss + 0 * (loss - loss).sqrt() if step == 5 else loss,
        "the norm of the gradient is nan in step 6 of 8",
    ),
}
"""Losses that are good until the sixth step, and what is said there."""


@pytest.mark.parametrize("what", SPOILT)
def test_what_is_not_finite_stops_before_the_optimizer_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(training, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    spoilt, said = SPOILT[what]
    path, model = tmp_path / "model.pt", small()
    with pytest.raises(Diverged, match=f"^{said}: give a learning rate below 0.1$") as raised:
        run(model, path, spoilt=spoilt)
    assert raised.value.step == 6
    assert isinstance(raised.value, HeadwayError)
    state = read_checkpoint(path)
    assert state is not None
    assert state["step"] == 5
    assert all(torch.equal(state["model"][name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize("seconds", [0.0, 1e9])  # a checkpoint after each step; at the end alone
def test_no_checkpoint_has_parameters_that_are_not_finite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """The loss and the gradient of the last step are finite, and the step is too long for float32."""
    monkeypatch.setattr(training, "SECONDS_BETWEEN_CHECKPOINTS", seconds)
    path = tmp_path / "model.pt"
    with pytest.raises(Diverged, match="the norm of the parameters is inf in step 1 of 1") as raised:
        run(small(), path, steps=1, learning_rate=3e37)
    assert raised.value.step == 1
    assert not path.exists()


def test_time_in_which_the_processor_does_something_else_is_not_its_time() -> None:
    model = small()
    model[0].register_forward_hook(lambda module, inputs, out: time.sleep(0.05))
    trained, _ = run(model, steps=3)
    assert trained.seconds >= 0.15
    assert 0 < trained.processor_seconds < trained.seconds - 0.1


def test_a_checkpoint_of_an_earlier_version_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no time of the processor."""
    monkeypatch.setattr(training, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    path, whole = tmp_path / "model.pt", small()
    run(whole)
    with pytest.raises(StoppedError):
        run(small(), path, stop=3)
    state = torch.load(path, weights_only=True)
    del state["processor_seconds"]
    torch.save(state, path)
    resumed = small()
    trained, _ = run(resumed, path)
    assert math.isnan(trained.processor_seconds)
    assert all(torch.equal(a, b) for a, b in zip(resumed.parameters(), whole.parameters(), strict=True))


def test_autocast_is_for_the_forward_pass_and_the_loss(tmp_path: Path) -> None:
    seen: list[torch.dtype] = []
    model = small()
    model[1].register_forward_hook(lambda module, inputs, out: seen.append(out.dtype))
    half, _ = run(model, tmp_path / "half.pt", dtype=torch.bfloat16, steps=2)
    assert seen == [torch.bfloat16] * 2
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert {parameter.grad.dtype for parameter in model.parameters() if parameter.grad is not None} == {torch.float32}
    full, _ = run(small(), steps=2)
    assert half.loss != full.loss
    assert half.loss == pytest.approx(full.loss, rel=0.02)


def test_a_compiled_training_has_the_checkpoint_of_the_plain_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    called: list[nn.Module] = []
    compiler = torch.compile

    def spied(model: nn.Module) -> Any:
        called.append(model)
        return compiler(model, backend="aot_eager")

    monkeypatch.setattr(torch, "compile", spied)
    path, model, plain = tmp_path / "model.pt", small(), small()
    with pytest.raises(StoppedError):
        run(model, path, stop=3, compile=True)
    assert called == [model]
    state = read_checkpoint(path)
    assert state is not None
    assert state["model"].keys() == plain.state_dict().keys()
    resumed = small()
    run(resumed, path, compile=True)
    run(plain)
    for a, b in zip(resumed.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b)


ONE = torch.tensor(1.0)
WRONG: dict[str, Any] = {
    "no state": [],
    "no model": {"model": None},
    "another model": {"model": {"weight": torch.zeros(2)}},
    "no steps": {"step": "9"},
    "steps before the first": {"step": -1},
    "no seconds": {"seconds": None},
    "no seconds of the processor": {"processor_seconds": None},
    "no loss": {"last_loss": None},
    "no optimizer": {"optimizer": None},
    "another optimizer": {"optimizer": {"state": {0: {"momentum": torch.zeros(2)}}}},
    "an optimizer of more": {"optimizer": {"state": {99: {}}}},
    "an optimizer of 10⁹ numbers": {
        "optimizer": {
            "state": {
                0: {"step": torch.tensor(1.0), **dict.fromkeys(("exp_avg", "exp_avg_sq"), torch.zeros(1).expand(10**9))}
            }
        }
    },
}


@pytest.mark.parametrize("case", WRONG)
def test_a_checkpoint_of_something_else_is_named(tmp_path: Path, case: str) -> None:
    """It is read by torch, and does not fit."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters())

    def go_on(steps: int) -> None:
        train(
            model, lambda model, step: model(torch.ones(3, 2)).square().mean(), optimizer, steps=steps,
            rate=lambda step: 1.0, clip=1.0, checkpoint=tmp_path / "state.pt",
        )  # fmt: skip

    go_on(2)
    state = {**torch.load(tmp_path / "state.pt", weights_only=True), "optimizer": optimizer.state_dict()}
    torch.save(state, tmp_path / "state.pt")
    go_on(3)
    torch.save({**state, **WRONG[case]} if WRONG[case] else [], tmp_path / "state.pt")
    with pytest.raises(HeadwayError, match=r"state.pt is damaged, or that of another training .*: delete it"):
        go_on(4)


def test_fast_checkpoints_are_no_nearer_and_a_resumed_training_keeps_its_pace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock on which a step takes a second, as does a checkpoint, a hundredth of what it may take."""
    clock, written = itertools.count(), []
    tick = SimpleNamespace(perf_counter=lambda: float(next(clock)), process_time=lambda: 0.0)
    monkeypatch.setattr(training, "time", tick)
    monkeypatch.setattr(training, "SECONDS_BETWEEN_CHECKPOINTS", 5.0)
    monkeypatch.setattr(training, "SECONDS_OF_WRITING", 100.0)
    write = training.write_checkpoint

    def noted(path: Path, state: dict[str, Any]) -> None:
        written.append(state["step"])
        write(path, state)

    monkeypatch.setattr(training, "write_checkpoint", noted)
    path = tmp_path / "state.pt"
    with pytest.raises(StoppedError):
        run(small(), path, steps=20, stop=10)
    run(small(), path, steps=20)
    assert written == [5, 10, 15, 20]
