"""A comparison of encodings on tasks of symbols: small models learn short examples, and are measured on longer ones.

    found = suite.measure(["copy", "parity"], ["rope", "alibi"], out="suite")
    found.write("suite")

``SUITES`` are choices of tasks and encodings, and ``tasks`` has the tasks themselves.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .._common import processor
from .._common.engines import Engine, Processes, Report
from .._common.experiment import measure_each, need_share
from .._common.kinds import Kind
from .._common.language import chosen, said, speaking
from .._common.progress import ProgressListener, Telling, notebook_bar
from .._common.store import Row
from .._common.training import Companion, Diverged
from .._common.version import versions
from ..errors import HeadwayError, need_positive
from ._suite_report import SuiteResults
from .models import ModelSizes, build_transformer
from .protocol import Training
from .store import Store, checkpoint_path
from .tasks import SEQUENCE_TASKS, SequenceTask, sequence_task
from .train import schedule, thread_count, train

__all__ = ["SUITES", "Suite", "SuiteProtocol", "SuiteResults", "measure"]

KEYS = ("task", "encoding", "seed", "times")
"""The fields that identify a row. The last is a multiple of the trained length."""
ROW: Kind = {
    **dict.fromkeys(("task", "encoding"), str),
    **dict.fromkeys(("seed", "times", "length", "trained", "steps", "parameters", "threads"), int),
    **dict.fromkeys(("exact", "accuracy", "validation", "seconds"), (float, None)),
    "processor_seconds": (float, None, ...),
    "learned": bool,
    "by_depth": ([(float, None)], ...),
    "reason": (str, ...),
    "processor": (str, None),
    "versions": {str: str},
}
"""What is read of a row."""
VERSION = 2
"""Changes whenever the same settings would give other numbers."""
BETWEEN_VALIDATIONS = 50
COOLING = 0.25
"""The steps in which the learning rate falls to zero, as a part of those before."""


class Suite(NamedTuple):
    """A choice of tasks and encodings, the number of seeds, and the most steps of a training."""

    tasks: tuple[str, ...]
    encodings: tuple[str, ...]
    seeds: int
    steps: int


SUITES = {
    "quick": Suite(
        ("majority", "token-count", "sort"),
        ("none", "sinusoidal", "t5", "alibi", "rope", "randomized + sinusoidal"),
        1,
        6000,
    ),
    "paper": Suite(
        tuple(SEQUENCE_TASKS),
        (
            *("none", "sinusoidal", "learned", "shaw", "transformer-xl", "t5"),
            *("alibi", "kerple-log", "fire", "rope", "pope", "randomized + sinusoidal", "cope"),
        ),
        5,
        8000,
    ),
}
"""The suites by name."""


@dataclass(frozen=True)
class SuiteProtocol:
    """The settings of a suite, the same for all tasks and encodings.

    Attributes:
        steps: the most training steps of a model.
        enough: the exact match at the trained length with which a training ends, and with which a task is learned.
        layers: layers of each Transformer.
        width: width of each Transformer.
        heads: heads of each Transformer.
        batch: examples in a training step.
        learning_rate: the highest learning rate.
        times: the lengths to measure at, as multiples of the trained one.
    """

    steps: int = 8000
    enough: float = 0.99
    layers: int = 3
    width: int = 64
    heads: int = 4
    batch: int = 32
    learning_rate: float = 2e-3
    times: tuple[int, ...] = (1, 2, 4, 8)

    def training(self, task: SequenceTask) -> Training:
        """Returns how a model is trained for a ``task``."""
        return Training(self.steps, self.batch, task.trained, self.learning_rate)

    def sizes(self, task: SequenceTask) -> ModelSizes:
        """Returns the sizes of a model for a ``task``; tables of positions have those of the trained length."""
        return ModelSizes(task.vocabulary, self.layers, self.width, self.heads, task.tokens(task.trained))


class Job(NamedTuple):
    """A training: a task, an encoding and a seed."""

    task: str
    encoding: str
    seed: int


def measure(
    tasks: Sequence[str],
    encodings: Sequence[str],
    protocol: SuiteProtocol | None = None,
    *,
    seeds: Sequence[int] = (0,),
    out: str | Path | None = None,
    jobs: int = 1,
    engine: Engine | None = None,
    share: tuple[int, int] = (1, 1),
    watch: ProgressListener | None = None,
) -> SuiteResults:
    """Trains a small Transformer for each task, encoding and seed, and measures it at the trained length and beyond.

    The same call resumes from the folder, and so does one with more tasks, encodings or seeds.

    Args:
        tasks: names of ``SEQUENCE_TASKS``, or path.py:Class.
        encodings: names as for ``headway.encoding``.
        protocol: the settings; the defaults of ``SuiteProtocol`` if None.
        seeds: the seeds. All tasks and encodings are trained with one seed before the next.
        out: the folder of the results and checkpoints; nothing is kept if None.
        jobs: trainings at once, each in a process of its own. Results do not depend on it.
        engine: where the trainings run in place of processes of this machine; see ``headway.study.engines``.
        share: (i, n) runs only every n-th training, from the i-th on, so that n machines share the work, each with a
            folder of its own; ``merging.merge`` joins their results.
        watch: receives the progress; if None, a notebook shows a bar.

    Returns:
        The results.

    Raises:
        HeadwayError: before any training, if a task or an encoding is unknown, an encoding only places tokens, the
            share has no training, or the folder has other measurements.
    """
    same: dict[str, Any] = {"seeds": seeds, "jobs": jobs, "engine": engine, "share": share}
    if watch is None:
        with notebook_bar() as tell:
            return measure(tasks, encodings, protocol, out=out, watch=Telling(tell), **same)
    if out is None:
        with tempfile.TemporaryDirectory() as folder:
            return measure(tasks, encodings, protocol, out=folder, watch=watch, **same)
    protocol = protocol or SuiteProtocol()
    need_positive(jobs=jobs, steps=protocol.steps)
    if not tasks or not encodings or not seeds:
        raise HeadwayError("tasks, encodings and seeds may not be empty: give at least one of each")
    need_share(share)
    for name in tasks:
        task = sequence_task(name)
        for spec in encodings:
            model = build_transformer(spec, protocol.sizes(task), 0)
            if any(one.acts == {"locate"} for one in model.stack.encodings):
                raise HeadwayError(f"{spec} only places tokens, for another encoding to read: give '{spec} + rope'")
            with torch.no_grad():
                model(torch.zeros(1, 2, dtype=torch.int64))
    every = list(product(dict.fromkeys(seeds), dict.fromkeys(tasks), dict.fromkeys(encodings)))
    need_share(share, len(every))
    number, of = share
    settings = {**asdict(protocol), "times": list(protocol.times), "lengths": list(protocol.times), "version": VERSION}
    with Store(out, KEYS, ROW) as store:
        store.agree({"experiment": "suite", **settings})
        store.agree_on_sources([*encodings, *tasks])
        planned = {
            Job(task, spec, seed): f"{task}, {spec}, seed {seed}" for seed, task, spec in every[number - 1 :: of]
        }
        missing = sum(not store.has(job) for job in planned)
        results = SuiteResults(store.rows_of(planned), store.settings, list(dict.fromkeys(encodings)))
        watch.planned(results.protocol(), len(planned) - missing, len(planned))
        states = {job: checkpoint_path(store.out, f"{job.task} {job.encoding}", job.seed, "suite") for job in planned}
        work = partial(_measured, protocol=protocol, language=chosen())
        if engine is None and min(jobs, missing) > 1:
            engine = Processes(jobs)
        measure_each(planned, work, store, watch, has=store.has, engine=engine, states=states)
        return SuiteResults(store.rows_of(planned), store.settings, list(dict.fromkeys(encodings)))


class Cooling(Companion):
    """Ends a training once the validation is good enough: the learning rate falls to zero, and it is over.

    A good validation among many may be luck, and a high learning rate moves on from it: the training goes on as before
    if the validation is not good enough at the end.

    Args:
        training: the training, which ends at its last step at the latest.
        enough: the validation that is good enough.
        validate: returns the validation of the model now.
    """

    def __init__(self, training: Training, enough: float, validate: Callable[[], float]) -> None:
        self.training, self.enough, self.validate = training, enough, validate
        self.validation, self.begin, self.end = 0.0, training.steps, training.steps

    def after(self, step: int, loss: float, seconds: float) -> None:
        """Validates at regular steps; see ``Companion``."""
        if step % BETWEEN_VALIDATIONS == 0 and step < self.begin:
            self.validation = self.validate()
            if self.validation >= self.enough:
                self.begin, self.end = step, min(self.end, step + max(1, round(COOLING * step)))

    def rate(self, step: int) -> float:
        """Returns the learning rate at a ``step``, counted from 0, as a share of the highest."""
        left = 1.0 if step < self.begin else (self.end - step) / (self.end - self.begin)
        return left * schedule(step, self.training)

    def over(self, step: int) -> bool:
        """Returns whether the training ends after ``step`` steps."""
        last = self.training.steps
        if self.end <= step < last:
            self.validation = self.validate()
            if self.validation >= self.enough:
                return True
            self.begin = self.end = last
        return step >= last

    def state_dict(self) -> dict[str, Any]:
        """Returns when it ends; see ``Companion``."""
        return {"validation": self.validation, "cooling": (self.begin, self.end)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes it; see ``Companion``."""
        self.validation, (self.begin, self.end) = state["validation"], state["cooling"]


@thread_count(1)  # so that results do not depend on ``jobs``
def _measured(job: Job, tell: Report, state: Path, *, protocol: SuiteProtocol, language: str) -> list[Row]:
    """Trains a model, from its checkpoint ``state`` if there is one, and returns its rows, one for each length.

    The progress is told in a language, since an engine may run this in another process.
    """
    task = sequence_task(job.task)
    training = protocol.training(task)
    model = build_transformer(job.encoding, protocol.sizes(task), job.seed)
    cooling = Cooling(training, protocol.enough, lambda: task.validate(model))

    def after_step(step: int, loss: float) -> None:
        with speaking(language):
            doing = said(
                "step {step:,} of at most {steps:,}, {loss:.2f} bits", step=step, steps=training.steps, loss=loss
            )
        tell(doing, step / training.steps, {"step": step, "loss": loss, "validation": cooling.validation})

    reason = None
    validation = 0.0
    seconds: float | None = None
    work: float | None = None
    with torch.random.fork_rng(devices=[]):
        try:
            trained = train(
                model,
                task,
                training,
                job.seed,
                checkpoint=state,
                companion=cooling,
                watch=after_step,
                rate=cooling.rate,
                until=cooling.over,
            )
            steps, validation = trained.steps, task.confirm(model)
            seconds = round(trained.seconds, 2)
            if not math.isnan(trained.processor_seconds):  # NaN after resuming from an earlier version's checkpoint
                work = round(trained.processor_seconds, 2)
        except Diverged as error:
            steps, reason = error.step - 1, f"training diverged: {error}"
    facts = {
        "trained": task.trained,
        "validation": validation,
        "learned": validation >= protocol.enough,
        "steps": steps,
        "seconds": seconds,
        "processor_seconds": work,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "threads": torch.get_num_threads(),
        "processor": processor.name(),
        "versions": versions(),
    }
    rows = []
    for times in protocol.times:
        measured = {"exact": None, "accuracy": None, "reason": reason}
        if reason is None:
            try:
                measured = task.measure(model, times * task.trained)
            except HeadwayError as error:
                if times == 1:
                    raise
                measured |= {"reason": str(error)}
        numbers = {name: value for name, value in measured.items() if name != "reason" or value is not None}
        rows.append({**job._asdict(), "times": times, "length": times * task.trained, **numbers, **facts})
    return rows
