"""The loop of every training: it can be stopped at any moment, and resumes with the same result."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import HeadwayError
from .files import naming_checkpoint, read_checkpoint, write_checkpoint

__all__ = ["Companion", "Diverged", "Trained", "train"]

SECONDS_BETWEEN_CHECKPOINTS = 5.0
"""Seconds of training after which a checkpoint is written. An interruption can lose this much."""
SECONDS_OF_WRITING = 0.25
"""Seconds that writing one may take; if it takes k times as long, checkpoints are k times as far apart."""


class Diverged(HeadwayError):  # noqa: N818
    """Raised if a loss, a gradient or a parameter is not finite.

    Its attribute ``step`` is the number of the step, from 1. The model's checkpoint is one from before, without NaN.
    """

    def __init__(self, message: str, step: int) -> None:
        super().__init__(message)
        self.step = step


@dataclass(frozen=True)
class Trained:
    """The result of a training.

    Attributes:
        steps: steps.
        seconds: seconds in these steps.
        processor_seconds: seconds of processor time in these steps, of all threads, whatever else the machine did. On
            another device than a CPU these are the same as ``seconds``. NaN if a checkpoint of an earlier version was
            resumed, which does not have them.
        loss: the loss of the last batch.
    """

    steps: int
    seconds: float
    processor_seconds: float
    loss: float


class Companion:
    """Accompanies a training, such as an evaluation at regular steps.

    A training that resumes from a checkpoint repeats the steps after it, and calls ``after`` for each of them again.
    """

    def after(self, step: int, loss: float, seconds: float) -> None:
        """Is called after each step, before the checkpoint that has it.

        ``step`` is the number of steps that are done, ``loss`` that of the last one, and ``seconds`` the time of all.
        """

    def state_dict(self) -> dict[str, Any]:
        """Returns the state that a checkpoint holds, under names that are not the training's own."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes the ``state`` of a checkpoint, which has further entries."""


def train(
    model: nn.Module,
    loss: Callable[[Any, int], Tensor],
    optimizer: torch.optim.Optimizer,
    *,
    steps: int,
    rate: Callable[[int], float],
    clip: float,
    checkpoint: Path | None = None,
    companion: Companion | None = None,
    watch: Callable[[int, float], None] | None = None,
    dtype: torch.dtype | None = None,
    compile: bool = False,
    until: Callable[[int], bool] | None = None,
) -> Trained:
    """Trains a model in place, and resumes from the checkpoint if there is one; on a CPU with the same result.

    Args:
        model: the model.
        loss: returns the loss of a step, from 0, of the model that it is given, which is compiled if ``compile`` is
            true.
        optimizer: the optimizer of the model's parameters.
        steps: the number of steps.
        rate: maps a step, from 0, to the factor of the optimizer's learning rates.
        clip: the largest norm of all gradients together.
        checkpoint: the file of the training's state; nothing is written if None.
        companion: is called after each step; its state is part of the checkpoint.
        watch: is called after each step, and after its checkpoint, with the steps done and the loss.
        dtype: the dtype of autocast for the forward pass and the loss; none if None.
        compile: whether the model is called through ``torch.compile``. Checkpoints are those of the plain model.
        until: is asked after each step, with the steps done, whether the training ends there.

    Raises:
        Diverged: if a loss, a gradient or a parameter is not finite.
        HeadwayError: if the checkpoint is damaged or cannot be written.
    """
    companion = companion or Companion()
    rates = [group["lr"] for group in optimizer.param_groups]
    done, seconds, work, last = 0, 0.0, 0.0, math.nan
    if (state := read_checkpoint(checkpoint)) is not None:
        with naming_checkpoint(checkpoint):
            model.load_state_dict(state["model"])
            companion.load_state_dict(state)
            done, seconds, work, last = _progress(state)
            if until is not None and state["optimizer"] is None:
                steps = done
            if done < steps:
                _restore(optimizer, state["optimizer"]["state"])
    forward = torch.compile(model) if compile else model
    device = next(model.parameters()).device.type
    model.train()
    clock = time.process_time if device == "cpu" else time.perf_counter
    saved_at, pause = seconds, SECONDS_BETWEEN_CHECKPOINTS
    while done < steps:
        started, worked = time.perf_counter(), clock()
        for group, highest in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = highest * rate(done)
        with _autocast(device, dtype):
            value = loss(forward, done)
        optimizer.zero_grad(set_to_none=True)
        value.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), clip)
        last = float(value.detach())
        _need_finite(last, "loss", done, steps, optimizer)
        _need_finite(float(norm), "norm of the gradient", done, steps, optimizer)
        optimizer.step()
        done += 1
        seconds += time.perf_counter() - started
        work += clock() - worked
        if until is not None and until(done):
            steps = done
        due = done == steps or (checkpoint is not None and seconds - saved_at >= pause)
        if due:
            size = nn.utils.get_total_norm([parameter.detach() for parameter in model.parameters()])
            _need_finite(float(size), "norm of the parameters", done - 1, steps, optimizer)
        companion.after(done, last, seconds)
        if due and checkpoint is not None:
            started = time.perf_counter()
            write_checkpoint(
                checkpoint,
                {
                    **companion.state_dict(),
                    "step": done,
                    "seconds": seconds,
                    "processor_seconds": work,
                    "last_loss": last,
                    "model": model.state_dict(),
                    "optimizer": None if done == steps else optimizer.state_dict(),
                },
            )
            saved_at = seconds
            slowness = (time.perf_counter() - started) / SECONDS_OF_WRITING
            pause = SECONDS_BETWEEN_CHECKPOINTS * max(1.0, slowness)
        if watch is not None:
            watch(done, last)
    return Trained(steps, seconds, work, last)


def _progress(state: dict[str, Any]) -> tuple[int, float, float, float]:
    """The steps of a checkpoint, their seconds, the processor's of these, and the last loss."""
    step, work = state["step"], state.get("processor_seconds", math.nan)  # earlier versions have none
    numbers = [state["seconds"], work, state["last_loss"]]
    if type(step) is not int or step < 0 or any(type(number) is not float for number in numbers):
        raise ValueError(f"step {step!r}; seconds, processor_seconds and last_loss {numbers!r}")
    return step, state["seconds"], work, state["last_loss"]


def _restore(optimizer: torch.optim.Optimizer, state: dict[int, dict[str, Any]]) -> None:
    """Gives an optimizer the state of its parameters; it keeps its own settings, which are the same."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    wanted = _after_one_step(optimizer)
    for number, held in state.items():
        shapes = {name: parameters[number].shape if shaped else () for name, shaped in wanted.items()}
        if {name: x.shape if isinstance(x, Tensor) else None for name, x in held.items()} != shapes:
            raise ValueError(f"the optimizer's state of parameter {number} does not fit it")
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _after_one_step(optimizer: torch.optim.Optimizer) -> dict[str, bool]:
    """What such an optimizer keeps of a parameter, and whether it has the parameter's shape."""
    kind, parameter = type(optimizer), nn.Parameter(torch.zeros(2))
    known = signature(kind).parameters
    parameter.grad = torch.zeros(2)
    fresh = kind([parameter], **{name: value for name, value in optimizer.defaults.items() if name in known})
    fresh.step()
    return {name: bool(value.ndim) for name, value in fresh.state[parameter].items()}


def _autocast(device: str, dtype: torch.dtype | None) -> AbstractContextManager[Any]:
    return nullcontext() if dtype is None else torch.autocast(device, dtype)


def _need_finite(value: float, what: str, step: int, steps: int, optimizer: torch.optim.Optimizer) -> None:
    if not math.isfinite(value):
        raise Diverged(
            f"the {what} is {value} in step {step + 1:,} of {steps:,}: give a learning rate below "
            f"{optimizer.defaults['lr']:g}",
            step + 1,
        )
