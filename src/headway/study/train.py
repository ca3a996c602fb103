"""The training of a model for a task: schedule, batches and loss, the same for every encoding."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._common import training as loop
from .._common.training import Companion, Trained
from .models import parameter_groups
from .protocol import Training
from .tasks import Task


@contextmanager
def thread_count(count: int | None) -> Iterator[None]:
    """Computes with a number of threads in a ``with`` block; with as many as before if ``count`` is None.

    Small tensors are slower with more threads, and sums depend on their number.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(before if count is None else count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def schedule(step: int, training: Training) -> float:
    """Returns the learning rate at a step, counted from 0, as a share of the highest."""
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
    companion: Companion | None = None,
    watch: Callable[[int, float], None] | None = None,
    dtype: torch.dtype | None = None,
    compile: bool = False,
    rate: Callable[[int], float] | None = None,
    until: Callable[[int], bool] | None = None,
) -> Trained:
    """Trains a model in place, and resumes from the checkpoint if there is one, on a CPU with the same result.

    The model maps ids [batch, length] to logits [batch, length, vocabulary]. ``companion`` is called after each step,
    before its checkpoint, with the loss in nats; ``watch`` after that, with the steps done and the loss in bits. The
    forward pass and the loss are computed under autocast to ``dtype``, if it is not None. It returns the loss of the
    last batch in bits. If ``rate`` is given, it takes the place of ``schedule``. If ``until`` is given, it is called
    after each step and says whether the training ends there.

    Raises:
        Diverged: if a loss, a gradient or a parameter is not finite.
        HeadwayError: if the checkpoint is damaged or cannot be written.
    """
    device = next(model.parameters()).device
    optimizer = torch.optim.AdamW(
        parameter_groups(model, training.learning_rate, training.weight_decay),
        lr=training.learning_rate,
        betas=training.betas,
        fused=True,
    )

    def loss(forward: Any, step: int) -> Tensor:
        inputs, targets = task.step(training, seed, step)
        logits = forward(inputs.to(device))
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.to(device).flatten())

    trained = loop.train(
        model,
        loss,
        optimizer,
        steps=training.steps,
        rate=rate or (lambda step: schedule(step, training)),
        clip=training.clip,
        checkpoint=checkpoint,
        companion=companion,
        watch=None if watch is None else lambda step, nats: watch(step, nats / math.log(2)),
        dtype=dtype,
        compile=compile,
        until=until,
    )
    return replace(trained, loss=trained.loss / math.log(2))
