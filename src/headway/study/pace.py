"""Estimates how long a comparison takes, from the speed of each model in a few steps."""

from __future__ import annotations

import heapq
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import torch

from .._common.engines import Report
from .._common.language import to_say
from .._common.training import Diverged
from .candidates import Candidate
from .corpora import Corpus
from .evaluate import predictions
from .models import ModelSizes
from .protocol import FixedProtocol
from .run import FIRST_SEED
from .tasks import LanguageModel, Recall
from .tasks.recall import TOKENS
from .train import thread_count, train

STEPS = 3
"""The steps that are timed, after one that is not."""
REPORT = 8.0
"""Seconds for the pictures and the report."""


@dataclass(frozen=True)
class Pace:
    """Seconds that one model takes for a training step and for a token that is measured, of each task."""

    step: float
    token: float
    recall_step: float = 0.0
    recall_token: float = 0.0


def measured(
    model: Candidate, tell: Report, state: Path, *, text: Corpus, protocol: FixedProtocol, threads: int | None = None
) -> Pace:
    """Measures the pace of a model in a few steps, and in one window of the longest length.

    A model whose training diverges in these steps takes no time. An engine can call this function, which reports and
    keeps nothing.

    Args:
        model: the model.
        tell: is not called.
        state: is not written.
        text: the text.
        protocol: the settings.
        threads: the threads to compute with; those of this process if None.
    """
    language = LanguageModel(text, protocol)

    def of(task: LanguageModel | Recall) -> tuple[float, float]:
        sizes = ModelSizes.of(protocol, task.name, task.vocabulary)
        built = model.build(model.rows[-1], sizes, FIRST_SEED).to(protocol.device)
        training = protocol.language(protocol.learning_rates[0]) if task is language else protocol.recall
        train(built, task, replace(training, steps=1), 0)
        step = train(built, task, replace(training, steps=STEPS), 0).seconds / STEPS
        window = torch.zeros(1, max(protocol.lengths), dtype=torch.int64)
        began = time.perf_counter()
        predictions(built, window, window, vocabulary=task.vocabulary)
        return step, (time.perf_counter() - began) / window.numel()

    with thread_count(threads):
        try:
            recall = of(Recall()) if protocol.recall_steps else (0.0, 0.0)
            return Pace(*of(language), *recall)
        except Diverged:
            return Pace(0.0, 0.0)


@dataclass(frozen=True)
class Work:
    """A planned training of a model, with the number of its learning ``rates`` and of the ``rows`` to measure.

    A model ``by_the_clock`` is trained for as long as the median Transformer, and only on the language.
    """

    name: str
    rows: int
    rates: int = 1
    by_the_clock: bool = False


def expected(
    works: Sequence[Work],
    paces: Mapping[str, Pace],
    language: LanguageModel,
    protocol: FixedProtocol,
    at_once: int = 1,
) -> dict[str, float]:
    """Returns the seconds that are expected for each part of a comparison, by the pace of each model.

    Models that are trained by the clock have the paces of their equals.

    Args:
        works: the models.
        paces: their paces, by names.
        language: the text.
        protocol: the settings.
        at_once: the trainings at once; the paces were measured with as many at once.
    """
    usual = median([paces[work.name].step for work in works if not work.by_the_clock] or [0.0])
    names = map(to_say, ("training", "trying learning rates", "measuring", "recall"))
    parts = dict.fromkeys(names, 0.0)
    recall_tokens = len(protocol.lengths) * max(TOKENS, 4 * max(protocol.lengths))
    first: list[float] = []
    last: list[float] = []
    for work in works:
        pace = paces[work.name]
        once = protocol.steps * (usual if work.by_the_clock else pace.step)
        its = {"training": once, "trying learning rates": (work.rates - 1) * once}
        its["measuring"] = work.rows * pace.token * language.measured_tokens
        if protocol.recall_steps and not work.by_the_clock:
            of_recall = protocol.recall_steps * pace.recall_step + work.rows * recall_tokens * pace.recall_token
            its["recall"] = of_recall
        parts = {name: seconds + its.get(name, 0.0) for name, seconds in parts.items()}
        (last if work.by_the_clock else first).append(sum(its.values()))
    together = sum(parts.values())
    factor = (_until_the_last(first, at_once) + _until_the_last(last, at_once)) / together if together else 1.0
    found = {name: seconds * factor for name, seconds in parts.items()} | {to_say("the report"): REPORT}
    return {part: seconds for part, seconds in found.items() if seconds}


def _until_the_last(seconds: Sequence[float], at_once: int) -> float:
    """The time until the last job is done, if each begins as soon as one of the workers is free."""
    free = [0.0] * at_once
    for one in seconds:
        heapq.heapreplace(free, free[0] + one)
    return max(free)
