"""How long a comparison takes: the speed of each model in a few steps, and from it the time of each part."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import torch
from torch import nn

from .._common.language import to_say
from .._common.training import Diverged
from .evaluate import predictions
from .models import ModelSizes
from .protocol import FixedProtocol
from .tasks import LanguageModel, Recall
from .tasks.recall import TOKENS
from .train import train

STEPS = 3
"""The steps that are timed, after one that is not."""
REPORT = 8.0
"""Seconds for the pictures and the report."""

Build = Callable[[ModelSizes], nn.Module]


@dataclass(frozen=True)
class Pace:
    """Seconds that one model takes for a training step and for a token that is measured, of each task."""

    step: float
    token: float
    recall_step: float = 0.0
    recall_token: float = 0.0


def measured(build: Build, language: LanguageModel, protocol: FixedProtocol) -> Pace:
    """Measures the pace of a model in a few steps, and in one window of the longest length.

    A model whose training diverges in them takes no time.
    """

    def of(task: LanguageModel | Recall) -> tuple[float, float]:
        model = build(ModelSizes.of(protocol, task.name, task.vocabulary)).to(protocol.device)
        training = protocol.language(protocol.learning_rates[0]) if task is language else protocol.recall
        train(model, task, replace(training, steps=1), 0)
        step = train(model, task, replace(training, steps=STEPS), 0).seconds / STEPS
        window = torch.zeros(1, max(protocol.lengths), dtype=torch.int64)
        began = time.perf_counter()
        predictions(model, window, window, vocabulary=task.vocabulary)
        return step, (time.perf_counter() - began) / window.numel()

    try:
        recall = of(Recall()) if protocol.recall_steps else (0.0, 0.0)
        return Pace(*of(language), *recall)
    except Diverged:
        return Pace(0.0, 0.0)


@dataclass(frozen=True)
class Work:
    """A training that is to be done, of a model whose ``rows`` are measured, with so many learning ``rates``.

    A model ``by_the_clock`` is trained for as long as the median Transformer, and on the language alone.
    """

    name: str
    rows: int
    rates: int = 1
    by_the_clock: bool = False


def expected(
    works: Sequence[Work], paces: Mapping[str, Pace], language: LanguageModel, protocol: FixedProtocol
) -> dict[str, float]:
    """Returns the seconds that are expected for each part of a comparison, by the pace of each model.

    Models that are trained by the clock have the paces of their equals.
    """
    usual = median([paces[work.name].step for work in works if not work.by_the_clock] or [0.0])
    names = map(to_say, ("training", "trying learning rates", "measuring", "recall", "the report"))
    parts = dict.fromkeys(names, 0.0) | {"the report": REPORT}
    recall_tokens = len(protocol.lengths) * max(TOKENS, 4 * max(protocol.lengths))
    for work in works:
        pace = paces[work.name]
        once = protocol.steps * (usual if work.by_the_clock else pace.step)
        parts["training"] += once
        parts["trying learning rates"] += (work.rates - 1) * once
        parts["measuring"] += work.rows * pace.token * language.measured_tokens
        if protocol.recall_steps and not work.by_the_clock:
            of_recall = protocol.recall_steps * pace.recall_step + work.rows * recall_tokens * pace.recall_token
            parts["recall"] += of_recall
    return {part: seconds for part, seconds in parts.items() if seconds}
