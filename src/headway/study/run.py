"""The trainings of a comparison. Each is a function that depends only on its settings, so any process can call it.

A training reads and writes one file, its state, from which it continues. The process that started it writes everything
else: settings, rows, and the log of the heads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from .._common import processor
from .._common.engines import Report
from .._common.files import make_folder
from .._common.language import said, speaking
from .._common.training import Diverged, Trained
from .._common.version import versions
from ..errors import HeadwayError
from . import corpora
from .candidates import Candidate
from .heads import HeadWatch
from .memory import Peak
from .models import ModelSizes, kernel_used
from .protocol import FixedProtocol, Training
from .tasks import LanguageModel, Recall, Task
from .train import thread_count, train

FIRST_SEED = 0
"""The seed with which learning rates are tried."""
Fields = dict[tuple[str, int], dict[str, Any]]
"""What is measured of each row and length."""


class Job(NamedTuple):
    """A training: of a model, for a task, with one seed.

    Attributes:
        candidate: the model.
        task: "language_model" or "recall".
        seed: the seed.
        steps: the training steps.
        learning_rate: the highest learning rate.
        trial: whether this only tries the learning rate: the model is then measured only on the validation part.
    """

    candidate: Candidate
    task: str
    seed: int
    steps: int
    learning_rate: float
    trial: bool = False


@dataclass(frozen=True)
class Outcome:
    """The outcome of a training.

    Attributes:
        fields: the measurements, by row and length.
        facts: facts of the model and its training; for a trial, its loss and memory.
        head_log: the text of the log of its heads; None if there is none.
    """

    fields: Fields = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    head_log: str | None = None


def parts_of(job: Job, protocol: FixedProtocol, measured_tokens: int) -> tuple[int, int]:
    """Returns the work of a training and of its measurement, in tokens through one layer.

    A training step counts as three evaluations.

    Args:
        job: the training.
        protocol: the settings.
        measured_tokens: the tokens that go through a language model to measure it at every length.
    """
    if job.task == Recall.name:
        return 3 * job.steps * FixedProtocol.RECALL_BATCH * protocol.train_length, 0
    trained = 3 * job.steps * protocol.batch * protocol.train_length * protocol.layers
    return trained, 0 if job.trial else measured_tokens * protocol.layers


def outcome(
    job: Job,
    tell: Report,
    state: Path,
    *,
    text: corpora.Corpus,
    protocol: FixedProtocol,
    threads: int | None = None,
    language: str = "en",
) -> Outcome:
    """Trains and measures a model, from its ``state`` if there is one.

    Args:
        job: the training.
        tell: receives the progress.
        state: the file of the checkpoint.
        text: the text.
        protocol: the settings.
        threads: the threads to compute with; those of this process if None.
        language: the language of messages, since an engine may call this in another process.
    """
    with thread_count(threads), speaking(language):
        return _Run(job, tell, state, text, protocol).outcome()


class _Run:
    """A training that is under way."""

    def __init__(self, job: Job, tell: Report, state: Path, text: corpora.Corpus, protocol: FixedProtocol) -> None:
        self.job, self.tell, self.state, self.protocol = job, tell, state, protocol
        self.candidate, self.of_text = job.candidate, job.task == LanguageModel.name
        language = LanguageModel(text, protocol)
        self.task: Task = language if self.of_text else Recall()
        self.sizes = ModelSizes.of(protocol, self.task.name, self.task.vocabulary)
        self.dtype = torch.bfloat16 if self.of_text and protocol.dtype == "bfloat16" else None
        training, measuring = parts_of(job, protocol, language.measured_tokens)
        self.trained_share = training / (training + measuring)

    def outcome(self) -> Outcome:
        training = self.protocol.language(self.job.learning_rate) if self.of_text else self.protocol.recall
        training = Training(self.job.steps, training.batch, training.length, training.learning_rate)
        peak = Peak(self.protocol.device)
        model = self.candidate.build(self.candidate.rows[0], self.sizes, self.job.seed).to(self.protocol.device)
        heads = self._heads(model, training)
        trained, diverged = self._train(model, training, heads)
        most, log = peak.bytes(), None if heads is None else heads.text()
        if self.job.trial:
            loss = self.task.validate(model) if diverged is None else math.nan  # type: ignore[attr-defined]
            found = {"bits_per_byte": loss if math.isfinite(loss) else None, "peak_memory_bytes": most}
            return Outcome(facts=found, head_log=log)
        fields: Fields = {}
        for row in self.candidate.rows:
            self.tell(said("{task}, measuring", task=said(self.task.title)), self.trained_share)
            fields |= self._measured(row, model, diverged)
        facts = {}
        if self.of_text:
            facts = {**self._facts(model, trained, training), "peak_memory_bytes": most}
            facts["heads"] = None if heads is None else heads.summary()
        return Outcome(fields, facts, log)

    def _heads(self, model: nn.Module, training: Training) -> HeadWatch | None:
        """The writer of the log of heads, beside the state, for a Transformer that learns the text."""
        if not self.of_text or self.candidate.cell is not None:
            return None
        windows, _ = self.task.batch(training, torch.Generator().manual_seed(0))  # the same for every seed
        log = self.state.with_name(f"{self.state.name}.heads.jsonl")
        make_folder(log.parent)
        return HeadWatch(model, log, windows.to(self.protocol.device), training.steps)

    def _train(self, model: nn.Module, training: Training, heads: HeadWatch | None) -> tuple[Trained, Diverged | None]:
        """Trains the model in place; a training that diverges has steps, and no other numbers."""
        several = self.of_text and len(self.protocol.learning_rates) > 1
        doing = self.task.title + (f" at learning rate {training.learning_rate:g}" if several else "")
        try:
            trained = train(
                model,
                self.task,
                training,
                self.job.seed,
                checkpoint=self.state,
                companion=heads,
                watch=partial(self._after_step, doing),
                dtype=self.dtype,
                compile=self.of_text and self.protocol.compile,
            )
        except Diverged as error:
            return Trained(error.step - 1, math.nan, math.nan, math.nan), error
        return trained, None

    def _after_step(self, doing: str, step: int, loss: float) -> None:
        told = said(self.task.title)
        if doing != self.task.title:
            told = said("{task} at learning rate {rate:g}", task=told, rate=self.job.learning_rate)
        where = said(
            "{doing}, step {step:,} of {steps:,}, {loss:.2f} bits",
            doing=told,
            step=step,
            steps=self.job.steps,
            loss=loss,
        )
        share = self.trained_share * step / self.job.steps
        self.tell(where, share, {"step": step, f"loss, {doing}": loss})

    def _measured(self, row: str, model: nn.Module, diverged: Diverged | None) -> Fields:
        """What the model achieves at each length, with the encoding of a row."""
        missing = "bits_per_byte" if self.of_text else "recall"
        if diverged is not None:
            why = f"{self.task.title}: training diverged: {diverged}"
            return {(row, length): {missing: None, "reason": why} for length in self.protocol.lengths}
        measured = model
        if row != self.candidate.rows[0]:
            measured = self.candidate.build(row, self.sizes, self.job.seed).to(self.protocol.device)
            measured.load_state_dict(model.state_dict())
        fields: Fields = {}
        for length in self.protocol.lengths:
            try:
                fields[row, length] = self.task.measure(measured, length)
            except HeadwayError as error:
                if length <= self.protocol.train_length:
                    raise
                fields[row, length] = {missing: None, "reason": str(error)}
        return fields

    def _facts(self, model: nn.Module, trained: Trained, training: Training) -> dict[str, Any]:
        cell = self.candidate.cell
        parameters = sum(parameter.numel() for parameter in model.parameters())
        shared = sum(parameter.numel() for name, parameter in model.named_parameters() if ".encodings." not in name)
        kernel = f"torch {cell}"
        if cell is None:
            kernel = kernel_used(
                self.candidate.name, self.sizes, training.batch, self.protocol.device, self.dtype or torch.float32
            )
        seconds, work = (None if math.isnan(x) else x for x in (trained.seconds, trained.processor_seconds))
        tokens = training.batch * training.length * trained.steps
        return {
            "baseline": cell is not None,
            "train_length": self.protocol.train_length,
            "steps": trained.steps,
            "learning_rate": training.learning_rate,
            "train_loss_bits": trained.loss if math.isfinite(trained.loss) else None,
            "train_seconds": seconds,
            "processor_seconds": work,
            "tokens_per_second": None if seconds is None else tokens / seconds,
            "parameters": parameters,
            "encoding_parameters": parameters - shared,
            "kernel": kernel,
            "trained_dtype": self.protocol.dtype,
            "compiled": self.protocol.compile,
            "corpus": self.protocol.corpus,
            "corpus_sha256": self.protocol.corpus_sha256,
            "device": self.protocol.device,
            "threads": torch.get_num_threads(),
            "processor": processor.name(),
            "versions": versions(),
        }


def rows_of(
    candidate: Candidate, seed: int, outcomes: Sequence[Outcome], facts: Mapping[str, Any], lengths: Sequence[int]
) -> list[dict[str, Any]]:
    """Returns the rows of a model with one seed, one for each of its names and lengths.

    Args:
        candidate: the model.
        seed: the seed.
        outcomes: the outcomes of its trainings, the one for the text first.
        facts: further facts.
        lengths: the lengths.
    """
    rows = []
    for row in candidate.rows:
        for length in lengths:
            measured = [one.fields[row, length] for one in outcomes]
            reasons = list(dict.fromkeys(one["reason"] for one in measured if "reason" in one))
            fields = {name: value for one in measured for name, value in one.items()}
            fields |= {"reason": "; ".join(reasons)} if reasons else {}
            known = {name: value for one in outcomes for name, value in one.facts.items()}
            names = {"encoding": row, "seed": seed, "length": length}
            view_of = None if row == candidate.name else candidate.name
            rows.append({**names, "view_of": view_of, **_finite(fields), **known, **facts})
    return rows


def _finite(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields with None for numbers that are not finite, and a reason."""
    bad = [name for name, value in fields.items() if isinstance(value, float) and not math.isfinite(value)]
    if not bad:
        return fields
    cleaned = {name: None if name in bad else value for name, value in fields.items()}
    return {**cleaned, "bits_by_position": [], "reason": "the loss is not a finite number: training diverged"}
