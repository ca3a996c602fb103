"""Runs a comparison: which models are trained, in which order, and what is written when."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import partial
from inspect import signature
from operator import index
from pathlib import Path
from typing import Any

import torch

from .._common.devices import device_named
from .._common.engines import Report
from .._common.experiment import measure_each
from .._common.progress import ProgressListener, Telling, notebook_bar
from .._common.store import Row
from .._common.templates import need_reports
from ..errors import HeadwayError, wrong_argument
from . import corpora, pace, report
from .candidates import Candidate, candidates
from .models import ModelSizes, automatic_device
from .pace import Pace, Work
from .protocol import FixedProtocol, Protocol
from .results import ComparisonResults
from .run import FIRST_SEED, Run
from .store import ROW, Store
from .tasks import LanguageModel

DEFAULT_ENCODINGS = ("sinusoidal", "learned", "t5", "alibi", "rope", "none")
"""The encodings that are compared unless others are named."""
FEWEST_STEPS = 20
SEEDS, QUICK_SEEDS = 3, 1
MARGIN = 0.93
"""The share of the time given that is planned with."""
Job = tuple[int, Candidate]
"""A seed and a model."""


def compare(
    corpus: str | Path | None = None,
    encodings: Sequence[str] = DEFAULT_ENCODINGS,
    protocol: Protocol | None = None,
    *,
    baselines: Sequence[str] = ("lstm",),
    seeds: int | Sequence[int] | None = None,
    out: str | Path | None = None,
    watch: ProgressListener | None = None,
    **settings: Any,
) -> ComparisonResults:
    """Trains a small Transformer for each encoding on a text, and measures it at the trained length and beyond.

        compare("book.txt", ["rope", "alibi"], steps=300)

    Args:
        corpus: a file of UTF-8 text; the topics of Python's manual if None.
        encodings: names as for ``headway.encoding``, "mine.py:Mine" among them.
        protocol: the settings; the defaults of ``Protocol`` if None.
        baselines: recurrent cells to compare with: "lstm" and "rnn".
        seeds: the number of seeds, which are 0, 1, 2 …, or the seeds themselves, such as (3, 4, 5), which a folder gets
            in addition to those that it has; if None 3 seeds, or 1 if the protocol is quick. All encodings are trained
            with one seed before the next.
        out: the folder for results, pictures, the report and checkpoints, from which the same call resumes; nothing is
            kept if None. It has either quick results or others.
        watch: receives the progress; if None, a notebook shows a bar.
        **settings: fields of ``Protocol``, in place of those of ``protocol``.

    Returns:
        The results.

    Raises:
        WrongCallError: if there is no such argument and no such setting.
        HeadwayError: before any training, if the text is too short or no text, an encoding is unknown, sizes do not
            fit, both steps and minutes are given, the device is not there, an earlier run in the folder had other
            settings, or what the report needs is not installed.
    """
    if watch is None:
        with notebook_bar() as tell:
            return compare(
                corpus, encodings, protocol, baselines=baselines, seeds=seeds, out=out, watch=Telling(tell), **settings
            )
    if out is not None:
        need_reports()
    known = [*list(signature(compare).parameters)[:-1], *(field.name for field in fields(Protocol))]
    for name in settings:
        if name not in known:
            raise wrong_argument("compare", name, known)
    asked = replace(protocol or Protocol(), **settings)
    place = device_named(asked.device)
    chosen = _seeds(seeds, QUICK_SEEDS if asked.quick else SEEDS)
    if asked.steps is not None and asked.minutes is not None:
        raise HeadwayError(f"steps {asked.steps} and minutes {asked.minutes:g} are both given: give one of them")
    text = corpora.load(corpus, train_length=asked.train_length, longest=asked.longest, tokenizer=asked.tokenizer)
    of_text = partial(
        asked.fixed,
        text.name,
        text.sha256,
        tokenizer_sha256=text.tokens.sha256,
        bytes_per_token=text.held_out.bytes_of(0, len(text.held_out)) / len(text.held_out),
    )
    fixed = of_text(device=place)
    models = candidates(encodings, baselines, fixed, text.tokens.vocabulary)
    if asked.device == "auto" and place != "cpu":
        names = [model.name for model in models if model.cell is None]
        sizes = ModelSizes.of(fixed, "language_model", text.tokens.vocabulary)
        kernels_dtype = torch.bfloat16 if asked.dtype == "bfloat16" else torch.float32
        place, why = automatic_device(names, sizes, asked.batch, place, kernels_dtype)
        fixed = of_text(device=place)
        watch.noted(why)
    comparison = _Comparison(text, partial(of_text, device=place), fixed, models, chosen, watch)
    if out is None:
        with tempfile.TemporaryDirectory() as folder:
            results = comparison.go(Path(folder), reports=False)
        return ComparisonResults(results.rows, results.protocol, settings=results.settings)
    return comparison.go(Path(out), reports=True)


def _seeds(given: int | Sequence[int] | None, default: int) -> tuple[int, ...]:
    """The seeds that are meant. Raises HeadwayError if there are none, one is negative, or one is given twice."""
    if given is None or isinstance(given, int):
        count = default if given is None else given
        if count < 1:
            raise HeadwayError(f"seeds is {count}: give at least 1")
        return tuple(range(count))
    try:
        seeds = tuple(map(index, given))
    except TypeError:
        raise HeadwayError(f"seeds is {given!r}: give whole numbers, such as (3, 4, 5)") from None
    if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise HeadwayError(f"seeds is {list(seeds)}: give at least one, none below 0 and none twice")
    return seeds


class _Comparison:
    """A comparison whose settings are known, but for the number of steps if there is a time to choose it by."""

    def __init__(
        self,
        text: corpora.Corpus,
        of_text: Callable[..., FixedProtocol],
        protocol: FixedProtocol,
        models: list[Candidate],
        seeds: Sequence[int],
        watch: ProgressListener,
    ) -> None:
        self.text, self.of_text, self.protocol, self.watch = text, of_text, protocol, watch
        self.models, self.seeds = models, seeds
        self.paces: dict[str, Pace] = {}

    def go(self, out: Path, reports: bool) -> ComparisonResults:
        """Trains and measures what is not in the folder yet, and writes the report there if it is wanted."""
        with Store(out, kind=ROW) as store:
            if self.protocol.minutes is not None:
                steps = store.settings.get("steps") or self._steps_within(60 * self.protocol.minutes)
                self.protocol = self.of_text(steps=steps)
            store.agree(self.protocol.settings())
            store.agree_on_sources([model.name for model in self.models])
            jobs = {(seed, model): f"{model.name}, seed {seed}" for seed in self.seeds for model in self.models}

            def has(job: Job) -> bool:
                seed, model = job
                return all(store.has((row, seed)) for row in model.rows)

            def measure(job: Job, tell: Report) -> list[Row]:
                seed, model = job
                return Run(self.text, self.protocol, model, seed, store, tell).rows()

            missing = [job for job in jobs if not has(job)]
            self.watch.planned(self.protocol.text(), len(jobs) - len(missing), len(jobs))
            if missing:
                self.watch.expected(self._expected(self.protocol, missing))
                store.fact("counted", LanguageModel(self.text, self.protocol).counted)
            measure_each(jobs, measure, store, self.watch, has=has)
            results = ComparisonResults(store.rows, self.protocol, store.out, store.settings)
            if reports:
                report.write(results, store.out)
            return results

    def _expected(self, protocol: FixedProtocol, missing: Sequence[Job]) -> dict[str, float]:
        """The seconds for each part; the speed of each model is measured in its first call."""
        language = LanguageModel(self.text, protocol)
        several = len(protocol.learning_rates)
        works = []
        for seed, model in missing:
            if model.equal not in self.paces:
                build = partial(model.build, model.rows[-1], seed=FIRST_SEED)
                self.paces[model.equal] = pace.measured(build, language, protocol)
            tries = 1
            if several > 1 and not model.by_the_clock and seed == self.seeds[0]:
                # rates are tried with the first seed, even if it is not asked for
                tries = several + (seed != FIRST_SEED)
            works.append(Work(model.equal, len(model.rows), tries, model.by_the_clock))
        return pace.expected(works, self.paces, language, protocol)

    def _steps_within(self, seconds: float) -> int:
        """The most steps with which everything takes at most so long."""
        trainings = [(seed, model) for seed in self.seeds for model in self.models]
        gone = time.perf_counter()

        def needed(steps: int) -> float:
            return sum(self._expected(self.of_text(steps=steps), trainings).values()) / MARGIN

        least = needed(FEWEST_STEPS)
        seconds -= time.perf_counter() - gone
        if least > seconds:
            enough = math.ceil(10 * (least + time.perf_counter() - gone) / 60) / 10
            raise HeadwayError(
                f"minutes {self.protocol.minutes:g} is too short for {len(self.models)} trainings with each of "
                f"{len(self.seeds)} seeds: give at least {enough:g}, or fewer encodings, seeds or recall_steps"
            )
        low, high = FEWEST_STEPS, 2 * FEWEST_STEPS
        while needed(high) <= seconds:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if needed(middle) <= seconds else (low, middle)
        return low if low < 100 else low // 10 * 10
