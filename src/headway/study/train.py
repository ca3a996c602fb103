"""Training that can be stopped at any moment and resumed with the same result."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from ..files import read_checkpoint, write_checkpoint
from .models import parameter_groups
from .protocol import Training
from .tasks import Task

SECONDS_BETWEEN_CHECKPOINTS = 5.0
"""Seconds of training after which a checkpoint is written."""


@dataclass(frozen=True)
class Trained:
    """The result of a training.

    Attributes:
        steps: steps.
        seconds: seconds in these steps.
        loss: the loss of the last batch, in bits.
    """

    steps: int
    seconds: float
    loss: float


def schedule(step: int, training: Training) -> float:
    """Returns the learning rate at a step, as a share of the highest.

    Args:
        step: the step, from 0.
        training: the training.
    """
    if step < training.warmup:
        return (step + 1) / training.warmup
    part = (step - training.warmup) / max(1, training.steps - training.warmup)
    return 0.5 + 0.5 * math.cos(math.pi * part)


def train(
    model: nn.Module,
    task: Task,
    training: Training,
    seed: int,
    *,
    checkpoint: Path | None = None,
    watch: Callable[[int, float], None] | None = None,
) -> Trained:
    """Trains a model in place, and resumes from the checkpoint if there is one; on a CPU with the same result.

    Args:
        model: maps ids [batch, length] to logits [batch, length, vocabulary].
        task: makes the batches.
        training: the settings.
        seed: the seed of the batches.
        checkpoint: the file of the training's state; nothing is written if None.
        watch: is called after each step with the steps done and the loss in bits.

    Raises:
        HeadwayError: if the checkpoint is damaged or cannot be written.
    """
    optimizer = torch.optim.AdamW(
        parameter_groups(model, training.learning_rate, training.weight_decay),
        lr=training.learning_rate,
        betas=training.betas,
        fused=True,
    )
    rates = [group["lr"] for group in optimizer.param_groups]
    done, seconds, loss = 0, 0.0, math.nan
    state = read_checkpoint(checkpoint)
    if state is not None:
        model.load_state_dict(state["model"])
        done, seconds, loss = state["step"], state["seconds"], state["loss"]
        if done < training.steps:
            optimizer.load_state_dict(state["optimizer"])
    device = next(model.parameters()).device
    model.train()
    saved_at = seconds
    while done < training.steps:
        started = time.perf_counter()
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * schedule(done, training)
        inputs, targets = task.step(training, seed, done)
        logits = model(inputs.to(device))
        nats = F.cross_entropy(logits.flatten(0, 1).float(), targets.to(device).flatten())
        optimizer.zero_grad(set_to_none=True)
        nats.backward()
        nn.utils.clip_grad_norm_(model.parameters(), training.clip)
        optimizer.step()
        loss = float(nats.detach()) / math.log(2)
        done += 1
        seconds += time.perf_counter() - started
        if checkpoint is not None and (seconds - saved_at >= SECONDS_BETWEEN_CHECKPOINTS or done == training.steps):
            finished = done == training.steps
            write_checkpoint(
                checkpoint,
                {
                    "step": done,
                    "seconds": seconds,
                    "loss": loss,
                    "model": model.state_dict(),
                    "optimizer": None if finished else optimizer.state_dict(),
                },
            )
            saved_at = seconds
        if watch is not None:
            watch(done, loss)
    return Trained(training.steps, seconds, loss)
