"""Training that can be stopped at any moment and goes on as if it had not been."""

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
"""Seconds of training that a kill may cost."""


@dataclass(frozen=True)
class Trained:
    """What training took."""

    steps: int
    seconds: float
    loss: float
    """of the last batch, in bits"""


def schedule(step: int, training: Training) -> float:
    """The share of the learning rate at a step: up in a line, down in a cosine."""
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
    """Trains a model in place; with a checkpoint it goes on where that one stands, bit for bit on a CPU.

    watch is told the steps done and the latest loss in bits, after each step.
    """
    optimizer = torch.optim.AdamW(
        parameter_groups(model, training.learning_rate, training.weight_decay),
        lr=training.learning_rate,
        betas=training.betas,
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
