"""One training of a comparison: a model with one seed, from its learning rate to the rows of the results."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from .._common import processor
from .._common.engines import Report
from .._common.language import said
from .._common.store import Row
from .._common.training import Diverged, Trained
from .._common.version import versions
from ..errors import HeadwayError
from . import corpora
from .candidates import Candidate
from .heads import HeadWatch
from .memory import Peak
from .models import ModelSizes, kernel_used
from .protocol import FixedProtocol, Training
from .store import Store
from .tasks import LanguageModel, Recall, Task
from .train import train

FIRST_SEED = 0
"""The seed with which learning rates are tried."""


class Model(NamedTuple):
    """A trained model, its sizes, and what the training came to.

    ``heads`` says what its heads do at the end; None if that is not known. ``peak`` is the most memory in use while it
    was trained, in bytes. ``diverged`` is the error if the training stopped with it.
    """

    model: nn.Module
    sizes: ModelSizes
    trained: Trained
    heads: dict[str, float | None] | None
    peak: int
    diverged: Diverged | None


class Run:
    """One candidate with one seed; a training that was stopped resumes from the folder of the store."""

    def __init__(
        self,
        text: corpora.Corpus,
        protocol: FixedProtocol,
        candidate: Candidate,
        seed: int,
        store: Store,
        tell: Report,
    ) -> None:
        self.protocol, self.candidate, self.seed, self.store, self.tell = protocol, candidate, seed, store, tell
        self.language = LanguageModel(text, protocol)
        self.steps = self._steps()
        self.dtype = torch.bfloat16 if protocol.dtype == "bfloat16" else None
        tried = store.tried(candidate.equal)
        self.left = [rate for rate in protocol.learning_rates if f"{rate:g}" not in tried] if self._tries else []
        # Work is counted in tokens through one layer; a training step counts as three evaluations.
        tokens = 3 * protocol.batch * protocol.train_length
        self.training = tokens * self.steps * protocol.layers
        self.measuring = self.language.measured_tokens * protocol.layers
        self.recalling = 3 * protocol.recall_steps * FixedProtocol.RECALL_BATCH * protocol.train_length
        if candidate.by_the_clock:
            self.recalling = 0
        again = seed > 0 or not self._tries  # the first seed has been trained with the chosen rate when it was tried
        self.total = self.training * (len(self.left) + again) + self.measuring + self.recalling
        self.done = 0.0

    def rows(self) -> list[Row]:
        """Trains and measures; returns a row for each name and length."""
        fields: dict[tuple[str, int], dict[str, Any]] = {}
        rate = self._learning_rate()
        training = replace(self.protocol.language(rate), steps=self.steps)
        language = self._trained(self.language, training, self.seed)
        facts = self._facts(language, training)
        self._measure(language, self.language, fields)
        self.done += self.measuring
        if self.recalling:
            recall = Recall()
            self._measure(self._trained(recall, self.protocol.recall, self.seed), recall, fields)
        return [
            {
                "encoding": row,
                "seed": self.seed,
                "length": length,
                "view_of": None if row == self.candidate.name else self.candidate.name,
                **_finite(fields[row, length]),
                **facts,
            }
            for row in self.candidate.rows
            for length in self.protocol.lengths
        ]

    @property
    def _tries(self) -> bool:
        """Whether learning rates are tried with this model."""
        return len(self.protocol.learning_rates) > 1 and not self.candidate.by_the_clock

    def _learning_rate(self) -> float:
        """The one whose model has the lowest loss on the validation part with the first seed; tried now if needed."""
        rates = self.protocol.learning_rates
        if len(rates) == 1:
            return rates[0]
        for rate in self.left:
            trained = self._trained(self.language, replace(self.protocol.language(rate), steps=self.steps), FIRST_SEED)
            loss = self.language.validate(trained.model) if trained.diverged is None else math.nan
            facts = {"bits_per_byte": loss if math.isfinite(loss) else None, "peak_memory_bytes": trained.peak}
            self.store.add_tried(self.candidate.name, f"{rate:g}", facts)
        tried = self.store.tried(self.candidate.equal)
        return min(rates, key=lambda rate: (_or_infinite(tried[f"{rate:g}"]["bits_per_byte"]), rate))

    def _trained(self, task: Task, training: Training, seed: int) -> Model:
        """The model of the candidate, trained on a task; it resumes from its checkpoint."""
        language = task is self.language
        sizes = ModelSizes.of(self.protocol, task.name, task.vocabulary)
        name, rate = self.candidate.name, f"{training.learning_rate:g}"
        several = language and len(self.protocol.learning_rates) > 1
        checkpoint = self.store.checkpoint(name, seed, task.name, rate if several else None)
        finished = several and seed == FIRST_SEED and rate in self.store.tried(name)
        work = 0 if finished else self.training if language else self.recalling
        peak = Peak(self.protocol.device)
        model = self.candidate.build(self.candidate.rows[0], sizes, seed).to(self.protocol.device)
        heads = None
        if language and self.candidate.cell is None:
            windows, _ = self.language.batch(training, torch.Generator().manual_seed(0))  # the same for every seed
            log = self.store.head_log(name, seed, rate if several else None)
            heads = HeadWatch(model, log, windows.to(self.protocol.device), training.steps)
        doing = task.title + (f" at learning rate {rate}" if several else "")
        after_step = partial(self._after_step, task, doing, training, work)
        compiled = language and self.protocol.compile
        diverged = None
        try:
            trained = train(
                model,
                task,
                training,
                seed,
                checkpoint=checkpoint,
                companion=heads,
                watch=after_step,
                dtype=self.dtype if language else None,
                compile=compiled,
            )
        except Diverged as error:
            diverged, trained = error, Trained(error.step - 1, math.nan, math.nan, math.nan)
        self.done += work
        most = self.store.tried(name)[rate]["peak_memory_bytes"] if finished else peak.bytes()
        return Model(model, sizes, trained, None if heads is None else heads.summary(), most, diverged)

    def _measure(self, trained: Model, task: Task, fields: dict[tuple[str, int], dict[str, Any]]) -> None:
        """Adds what the model achieves at each length to the fields of each row."""
        for row in self.candidate.rows:
            self._tell(said("{task}, measuring", task=said(task.title)), self.done)
            measured = self._measured(row, trained, task)
            for length, new in measured.items():
                known = fields.setdefault((row, length), {})
                reasons = [one["reason"] for one in (known, new) if "reason" in one]
                known.update(new, **({"reason": "; ".join(dict.fromkeys(reasons))} if reasons else {}))

    def _steps(self) -> int:
        if not self.candidate.by_the_clock:
            return self.protocol.steps
        rows = [row for row in self.store.rows if row["seed"] == self.seed and row["train_seconds"]]
        # trainings of earlier versions have no time of the processor
        time = "processor_seconds" if all(row.get("processor_seconds") for row in rows) else "train_seconds"
        seconds = [row[time] for row in rows if not row["baseline"]]
        alike = self.candidate.equal
        pace = next((row[time] / row["steps"] for row in rows if row["encoding"] == alike), None)
        steps = max(1, round(statistics.median(seconds) / pace)) if seconds and pace else self.protocol.steps
        return self.store.equal_time_steps(self.candidate.name, self.seed, steps)

    def _after_step(
        self,
        task: Task,
        doing: str,
        training: Training,
        work: float,
        step: int,
        loss: float,
    ) -> None:
        told = said(task.title)
        if doing != task.title:
            told = said("{task} at learning rate {rate:g}", task=told, rate=training.learning_rate)
        where = said(
            "{doing}, step {step:,} of {steps:,}, {loss:.2f} bits",
            doing=told,
            step=step,
            steps=training.steps,
            loss=loss,
        )
        self._tell(where, self.done + work * step / training.steps, {"step": step, f"loss, {doing}": loss})

    def _tell(self, doing: str, done: float, numbers: Mapping[str, float] | None = None) -> None:
        self.tell(doing, min(1.0, done / self.total), numbers)

    def _measured(self, row: str, trained: Model, task: Task) -> dict[int, dict[str, Any]]:
        """What the trained model achieves at each length, with the encoding of this row."""
        missing = "bits_per_byte" if task is self.language else "recall"
        if trained.diverged is not None:
            why = f"{task.title}: training diverged: {trained.diverged}"
            return {length: {missing: None, "reason": why} for length in self.protocol.lengths}
        model = trained.model
        if row != self.candidate.rows[0]:
            model = self.candidate.build(row, trained.sizes, self.seed).to(self.protocol.device)
            model.load_state_dict(trained.model.state_dict())
        measured: dict[int, dict[str, Any]] = {}
        for length in self.protocol.lengths:
            try:
                measured[length] = task.measure(model, length)
            except HeadwayError as error:
                if length <= self.protocol.train_length:
                    raise
                measured[length] = {missing: None, "reason": str(error)}
        return measured

    def _facts(self, result: Model, training: Training) -> dict[str, Any]:
        model, trained, cell = result.model, result.trained, self.candidate.cell
        parameters = sum(parameter.numel() for parameter in model.parameters())
        shared = sum(parameter.numel() for name, parameter in model.named_parameters() if ".encodings." not in name)
        kernel = f"torch {cell}"
        if cell is None:
            kernel = kernel_used(
                self.candidate.name, result.sizes, training.batch, self.protocol.device, self.dtype or torch.float32
            )
        seconds, work = (None if math.isnan(x) else x for x in (trained.seconds, trained.processor_seconds))
        tokens = training.batch * training.length * trained.steps
        tried = self.store.tried(self.candidate.equal) if len(self.protocol.learning_rates) > 1 else {}
        return {
            "baseline": cell is not None,
            "train_length": self.protocol.train_length,
            "steps": trained.steps,
            "learning_rate": training.learning_rate,
            "learning_rates": {rate: facts["bits_per_byte"] for rate, facts in tried.items()},
            "train_loss_bits": trained.loss if math.isfinite(trained.loss) else None,
            "train_seconds": seconds,
            "processor_seconds": work,
            "tokens_per_second": None if seconds is None else tokens / seconds,
            "parameters": parameters,
            "encoding_parameters": parameters - shared,
            "kernel": kernel,
            "trained_dtype": self.protocol.dtype,
            "compiled": self.protocol.compile,
            "peak_memory_bytes": result.peak,
            "heads": result.heads,
            "corpus": self.protocol.corpus,
            "corpus_sha256": self.protocol.corpus_sha256,
            "device": self.protocol.device,
            "threads": torch.get_num_threads(),
            "processor": processor.name(),
            "versions": versions(),
        }


def _or_infinite(value: float | None) -> float:
    return math.inf if value is None else value


def _finite(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields with None for numbers that are not finite, and a reason."""
    bad = [name for name, value in fields.items() if isinstance(value, float) and not math.isfinite(value)]
    if not bad:
        return fields
    cleaned = {name: None if name in bad else value for name, value in fields.items()}
    return {**cleaned, "bits_by_position": [], "reason": "the loss is not a finite number: training diverged"}
