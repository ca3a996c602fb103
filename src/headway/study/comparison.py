"""Runs a comparison: decides which models to train, in which order, and what to write when."""

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
from typing import Any, NamedTuple

import torch

from .._common.devices import device_named
from .._common.engines import Engine, Here, Processes, processors
from .._common.experiment import need_share
from .._common.language import chosen
from .._common.progress import ProgressListener, Telling, nobody, notebook_bar
from .._common.templates import need_reports
from ..errors import HeadwayError, need_positive, wrong_argument
from . import corpora, pace, report
from .candidates import Candidate, candidates
from .models import ModelSizes, automatic_device
from .pace import Pace, Work
from .protocol import FixedProtocol, Protocol
from .results import ComparisonResults
from .run import FIRST_SEED, outcome
from .store import ROW, Store
from .tasks import LanguageModel
from .trainings import Planned, Trainings, need_one_clock

DEFAULT_ENCODINGS = ("sinusoidal", "learned", "t5", "alibi", "rope", "none")
"""The encodings that are compared unless others are named."""
FEWEST_STEPS = 20
SEEDS, QUICK_SEEDS = 3, 1
MARGIN = 0.93
"""The share of the time given that is planned with."""
LONG = 60.0
"""Seconds from which on a comparison trains several models at once, unless ``jobs`` says otherwise."""


def compare(
    corpus: str | Path | None = None,
    encodings: Sequence[str] = DEFAULT_ENCODINGS,
    protocol: Protocol | None = None,
    *,
    baselines: Sequence[str] = ("lstm",),
    seeds: int | Sequence[int] | None = None,
    out: str | Path | None = None,
    jobs: int | None = 1,
    engine: Engine | None = None,
    share: tuple[int, int] = (1, 1),
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
        seeds: the number of seeds, which are 0, 1, 2 …, or the seeds themselves, such as (3, 4, 5). Seeds
            are added to those that the folder has. If None, 3 seeds, or 1 if the protocol is quick. All encodings are
            trained with one seed before the next.
        out: the folder for results, pictures, the report and checkpoints, from which the same call resumes. If None,
            nothing is kept. A folder cannot hold both quick and other results.
        jobs: trainings at once, each in a process of its own. They divide the threads of this process among them, and
            the GPUs if the device is "cuda". If None, as many as there are processors, or GPUs, if the work takes more
            than a minute.
        engine: where the trainings run in place of processes of this machine; see ``headway.study.engines``. Each has
            one thread there.
        share: (i, n) trains only every n-th model, from the i-th on, so n machines can share the work, each with a
            folder of its own; ``merging.merge`` joins their results.
        watch: receives the progress; if None, a notebook shows a bar.
        **settings: fields of ``Protocol``, in place of those of ``protocol``.

    Returns:
        The results.

    Raises:
        WrongCallError: if there is no such argument and no such setting.
        HeadwayError: before any training, if the text is too short or not text, an encoding is unknown, sizes do not
            fit, both steps and minutes are given, the device does not exist, an earlier run in the folder had other
            settings, a package that the report needs is not installed, or different machines would share a baseline of
            equal time or minutes.
    """
    if watch is None:
        with notebook_bar() as tell:
            same: dict[str, Any] = {"baselines": baselines, "seeds": seeds, "out": out, **settings}
            same |= {"jobs": jobs, "engine": engine, "share": share}
            return compare(corpus, encodings, protocol, watch=Telling(tell), **same)
    if out is not None:
        need_reports()
    known = [*list(signature(compare).parameters)[:-1], *(field.name for field in fields(Protocol))]
    for name in settings:
        if name not in known:
            raise wrong_argument("compare", name, known)
    asked = replace(protocol or Protocol(), **settings)
    need_share(share)
    if jobs is not None:
        need_positive(jobs=jobs)
    place = "cpu" if engine is not None and asked.device == "auto" else device_named(asked.device)
    drawn = _seeds(seeds, QUICK_SEEDS if asked.quick else SEEDS)
    if asked.steps is not None and asked.minutes is not None:
        raise HeadwayError(f"steps {asked.steps} and minutes {asked.minutes:g} are both given: give one of them")
    apart = "engine" if engine is not None else "share" if share[1] > 1 else None
    if apart is not None and asked.minutes is not None:
        raise HeadwayError(
            f"minutes {asked.minutes:g} are measured on this machine, and {apart} uses others: give steps"
        )
    if apart is not None and baselines:
        raise HeadwayError(
            f"baselines are also trained for as long as the encodings, and with {apart} machines may differ: give "
            "--baselines none"
        )
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
    where = _Where(jobs, engine, share, torch.cuda.device_count() if place == "cuda" else 0)
    comparison = _Comparison(text, partial(of_text, device=place), fixed, models, drawn, watch, where)
    if out is None:
        with tempfile.TemporaryDirectory() as folder:
            results = comparison.go(Path(folder), reports=False)
        return ComparisonResults(results.rows, results.protocol, settings=results.settings)
    return comparison.go(Path(out), reports=True)


class _Where(NamedTuple):
    """Where trainings run: ``jobs`` at once, an engine that is given, the share of this machine, and its GPUs."""

    jobs: int | None
    engine: Engine | None
    share: tuple[int, int]
    gpus: int


class _Pool(NamedTuple):
    """An engine, how many trainings it does at once, and the threads of each; those of this process if None."""

    engine: Engine
    at_once: int = 1
    threads: int | None = None


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
    """A comparison whose settings are known, except the number of steps if a time limit determines it."""

    def __init__(
        self,
        text: corpora.Corpus,
        of_text: Callable[..., FixedProtocol],
        protocol: FixedProtocol,
        models: list[Candidate],
        seeds: Sequence[int],
        watch: ProgressListener,
        where: _Where,
    ) -> None:
        self.text, self.of_text, self.protocol, self.watch = text, of_text, protocol, watch
        self.models, self.where = models, where
        every = [Planned(seed, model) for seed in seeds for model in models]
        number, of = where.share
        need_share(where.share, len(every))
        self.planned, self.seeds = every[number - 1 :: of], seeds
        self.pool = _Pool(Here())
        self.paces: dict[str, Pace] = {}

    def go(self, out: Path, reports: bool) -> ComparisonResults:
        """Trains and measures the models that are not in the folder yet, and writes the report there if asked to."""
        with Store(out, kind=ROW) as store:
            minutes = self.protocol.minutes
            if minutes is not None:
                steps = store.settings.get("steps")
                if steps is None:
                    self._choose_pool(self.planned, 60 * minutes)
                    steps = self._steps_within(60 * minutes)
                self.protocol = self.of_text(steps=steps)
            store.agree(self.protocol.settings())
            store.agree_on_sources([model.name for model in self.models])
            missing = [one for one in self.planned if not all(store.has((row, one.seed)) for row in one.model.rows)]
            need_one_clock(missing, store.rows)
            done = len(self.planned) - len(missing)
            self.watch.planned(self.protocol.text(), done, len(self.planned))
            if missing:
                self._prepare(missing)
                language = LanguageModel(self.text, self.protocol)
                store.fact("counted", language.counted)
                all_of = Trainings(
                    missing, self.models, self.protocol, language.measured_tokens, store, self.watch, done
                )
                made = partial(
                    outcome,
                    text=self.text,
                    protocol=self.protocol,
                    threads=self.pool.threads,
                    language=chosen(),
                )
                all_of.run(self.pool.engine, made)
            store.arrange([(row, one.seed) for one in self.planned for row in one.model.rows])
            results = ComparisonResults(store.rows, self.protocol, store.out, store.settings)
            if reports:
                report.write(results, store.out)
            return results

    def _prepare(self, missing: Sequence[Planned]) -> None:
        """Chooses where to train, and tells the expected time, except for machines whose speed is not known."""
        if self.where.engine is not None:
            self.pool = _Pool(self.where.engine, threads=1)
            return
        if self.where.jobs is not None or self.protocol.minutes is not None:
            self._choose_pool(missing, 60 * (self.protocol.minutes or 0.0))
        else:
            self._choose_pool(missing, sum(self._expected(self.protocol, missing).values()))
        self.watch.expected(self._expected(self.protocol, missing))

    def _choose_pool(self, missing: Sequence[Planned], seconds: float) -> None:
        """Chooses how many trainings run at once, for work that takes this many seconds by itself."""
        jobs = self.where.jobs
        if jobs is None:
            cpu = self.protocol.device == "cpu"
            jobs = (processors() if cpu else max(1, self.where.gpus)) if seconds > LONG else 1
        jobs = min(jobs, len(missing))
        pool = _Pool(Here())
        if jobs > 1:
            pool = _Pool(Processes(jobs, self.where.gpus), jobs, max(1, torch.get_num_threads() // jobs))
        if pool[1:] != self.pool[1:]:
            self.pool, self.paces = pool, {}

    def _expected(self, protocol: FixedProtocol, missing: Sequence[Planned]) -> dict[str, float]:
        """The seconds for each part; the speed of each model is measured in its first call."""
        language = LanguageModel(self.text, protocol)
        several = len(protocol.learning_rates)
        wanted: dict[str, Candidate] = {}
        for one in missing:
            if one.model.equal not in self.paces:
                wanted.setdefault(one.model.equal, one.model)

        def measured(model: Candidate, found: Pace) -> None:
            self.paces[model.equal] = found

        if wanted:
            work = partial(pace.measured, text=self.text, protocol=protocol, threads=self.pool.threads)
            self.pool.engine.run({model: Path() for model in wanted.values()}, work, told=nobody, finished=measured)
        works = []
        for seed, model in missing:
            tries = 1
            if several > 1 and not model.by_the_clock and seed == self.seeds[0]:
                # rates are tried with the first seed, even if it is not asked for
                tries = several + (seed != FIRST_SEED)
            works.append(Work(model.equal, len(model.rows), tries, model.by_the_clock))
        return pace.expected(works, self.paces, language, protocol, self.pool.at_once)

    def _steps_within(self, seconds: float) -> int:
        """Returns the most steps with which everything takes at most a given time."""
        gone = time.perf_counter()

        def needed(steps: int) -> float:
            return sum(self._expected(self.of_text(steps=steps), self.planned).values()) / MARGIN

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
