"""Runs all trainings of a comparison on an engine, those that depend on others after these."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from .._common import processor
from .._common.engines import Engine
from .._common.files import write_text
from .._common.progress import ProgressListener
from .._common.store import Row
from ..errors import HeadwayError
from .candidates import Candidate
from .protocol import FixedProtocol
from .run import FIRST_SEED, Job, Outcome, parts_of, rows_of
from .store import Store
from .tasks import LanguageModel, Recall


class Planned(NamedTuple):
    """A model with one seed."""

    seed: int
    model: Candidate

    @property
    def title(self) -> str:
        """The name that progress shows while it is trained."""
        return f"{self.model.name}, seed {self.seed}"


class Trainings:
    """Trains the models that have no rows yet, and writes their rows to a store.

    It first tries the learning rates, if there are several. Then it trains all models whose steps are known, and last
    the baselines that are trained for as much time as the others took.

    Args:
        missing: the models.
        models: all models.
        protocol: the settings.
        measured_tokens: the tokens that go through a language model to measure it.
        store: receives the rows and the trials.
        watch: receives the progress.
        done: how many models have rows already.
    """

    def __init__(
        self,
        missing: Sequence[Planned],
        models: Sequence[Candidate],
        protocol: FixedProtocol,
        measured_tokens: int,
        store: Store,
        watch: ProgressListener,
        done: int,
    ) -> None:
        self.missing, self.models, self.protocol, self.store, self.watch = missing, models, protocol, store, watch
        self.total, self.done = done + len(missing), done
        self.several = len(protocol.learning_rates) > 1
        self._work = partial(parts_of, protocol=protocol, measured_tokens=measured_tokens)
        self._outcomes: dict[Planned, dict[str, Outcome]] = {one: {} for one in missing}
        self._reached: dict[Planned, dict[Job, float]] = {one: {} for one in missing}
        self._trials = self._rates_to_try()

    def run(self, engine: Engine, work: Callable[..., Outcome]) -> None:
        """Trains them on an engine, to which ``work`` is sent."""
        with engine.connected():
            self._run(engine, work, self._trials)
            for by_the_clock in (False, True):
                now = [one for one in self.missing if one.model.by_the_clock == by_the_clock]
                self._run(engine, work, {job: one for one in now for job in self._jobs(one)})

    def _run(self, engine: Engine, work: Callable[..., Outcome], owners: Mapping[Job, Planned]) -> None:
        def told(job: Job, doing: str, share: float, numbers: Mapping[str, float] | None = None) -> None:
            one = owners[job]
            if numbers:
                self.watch.logged(one.title, numbers)
            self._reached[one][job] = share * self._part(one, job)
            self._progressed(one, f": {doing}" if doing else "")

        def finished(job: Job, outcome: Outcome) -> None:
            one = owners[job]
            self._reached[one][job] = self._part(one, job)
            self._keep(job, outcome)
            rows = [] if job.trial else self._rows(one, job, outcome)
            if rows:
                self.store.add(rows)
                del self._reached[one]
                self.done += 1
                self._progressed(one)
                self.watch.measured(one.title, rows)

        if owners:
            engine.run({job: self._state(job) for job in owners}, work, told=told, finished=finished)

    def _rates_to_try(self) -> dict[Job, Planned]:
        """The learning rates to try, each with the model to whose progress it belongs."""
        known = {model.name: model for model in self.models}
        owners: dict[str, Planned] = {}
        for one in self.missing if self.several else ():
            owners.setdefault(one.model.equal, one)
        return {
            Job(known[name], LanguageModel.name, FIRST_SEED, self.protocol.steps, rate, trial=True): one
            for name, one in owners.items()
            for rate in self.protocol.learning_rates
            if f"{rate:g}" not in self.store.tried(name)
        }

    def _jobs(self, one: Planned) -> list[Job]:
        """The trainings of a model, that for the text first."""
        steps = self._equal_steps(one) if one.model.by_the_clock else self.protocol.steps
        return self._jobs_with(one, steps, self._learning_rate(one.model))

    def _jobs_with(self, one: Planned, steps: int, rate: float) -> list[Job]:
        jobs = [Job(one.model, LanguageModel.name, one.seed, steps, rate)]
        if self.protocol.recall_steps and not one.model.by_the_clock:
            training = self.protocol.recall
            jobs.append(Job(one.model, Recall.name, one.seed, training.steps, training.learning_rate))
        return jobs

    def _part(self, one: Planned, job: Job) -> float:
        """The part of a model's work that a training is; each baseline counts as trained for the usual steps."""
        jobs = [trial for trial, its in self._trials.items() if its == one]
        jobs += self._jobs_with(one, self.protocol.steps, self.protocol.learning_rates[0])
        works = {(each.task, each.trial): sum(self._work(each)) for each in jobs}
        return works[job.task, job.trial] / sum(sum(self._work(each)) for each in jobs)

    def _progressed(self, one: Planned, doing: str = "") -> None:
        under_way = sum(sum(parts.values()) for parts in self._reached.values())
        self.watch.progressed(one.title + doing, min(1.0, (self.done + under_way) / self.total))

    def _learning_rate(self, model: Candidate) -> float:
        """The one whose model has the lowest loss on the validation part with the first seed."""
        rates = self.protocol.learning_rates
        if not self.several:
            return rates[0]
        tried = self.store.tried(model.equal)
        return min(rates, key=lambda rate: (_or_infinite(tried[f"{rate:g}"]["bits_per_byte"]), rate))

    def _equal_steps(self, one: Planned) -> int:
        """The steps that take a baseline as much time as the median Transformer took with its seed."""
        rows = [row for row in self.store.rows if row["seed"] == one.seed and row["train_seconds"]]
        # trainings of earlier versions have no time of the processor
        time = "processor_seconds" if all(row.get("processor_seconds") for row in rows) else "train_seconds"
        seconds = [row[time] for row in rows if not row["baseline"]]
        pace = next((row[time] / row["steps"] for row in rows if row["encoding"] == one.model.equal), None)
        steps = max(1, round(statistics.median(seconds) / pace)) if seconds and pace else self.protocol.steps
        return self.store.equal_time_steps(one.model.name, one.seed, steps)

    def _rate_in_name(self, job: Job) -> str | None:
        """The learning rate in the names of a training's files, if several are tried."""
        return f"{job.learning_rate:g}" if self.several and job.task == LanguageModel.name else None

    def _state(self, job: Job) -> Path:
        """The file of a training's state; the trial of a learning rate uses the file of the training with this rate."""
        return self.store.checkpoint(job.candidate.name, job.seed, job.task, self._rate_in_name(job))

    def _keep(self, job: Job, outcome: Outcome) -> None:
        """Writes the facts of an outcome to the store."""
        name, rate = job.candidate.name, self._rate_in_name(job)
        if outcome.head_log:
            write_text(self.store.head_log(name, job.seed, rate), outcome.head_log)
        if job.trial:
            self.store.add_tried(name, f"{job.learning_rate:g}", outcome.facts)

    def _rows(self, one: Planned, job: Job, outcome: Outcome) -> list[Row]:
        """The rows of a model; none before all of its trainings are done."""
        found = self._outcomes[one]
        found[job.task] = outcome
        wanted = [each.task for each in self._jobs_with(one, 1, 1.0)]
        if len(found) < len(wanted):
            return []
        tried = self.store.tried(one.model.equal) if self.several else {}
        facts: dict[str, Any] = {"learning_rates": {rate: its["bits_per_byte"] for rate, its in tried.items()}}
        rate = f"{found[LanguageModel.name].facts['learning_rate']:g}"
        if self.several and one.seed == FIRST_SEED and not one.model.by_the_clock:  # it was trained by its trial
            facts["peak_memory_bytes"] = tried[rate]["peak_memory_bytes"]
        return rows_of(one.model, one.seed, [found[name] for name in wanted], facts, self.protocol.lengths)


def need_one_clock(missing: Sequence[Planned], rows: Sequence[Row]) -> None:
    """Checks that a baseline is trained for the time of models that this processor trained.

    Args:
        missing: the models to train.
        rows: the rows of the others.

    Raises:
        HeadwayError: if another processor trained one of them.
    """
    for one in missing:
        if one.model.by_the_clock:
            its = {row.get("processor") or "" for row in rows if row["seed"] == one.seed} - {"", processor.name()}
            if its:
                raise HeadwayError(
                    f"{one.model.name} is trained for as long as the encodings, and {min(its)} trained those of seed "
                    f"{one.seed}: give --baselines none, or go on there"
                )


def _or_infinite(value: float | None) -> float:
    return math.inf if value is None else value
