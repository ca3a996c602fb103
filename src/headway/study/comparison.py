"""Runs a comparison: which models are trained, in which order, and what is written when."""

from __future__ import annotations

import math
import platform
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from ..devices import device_named
from ..errors import HeadwayError, unknown
from ..models.recurrent import CELLS
from . import corpora, report
from .evaluate import TOKENS_AT_ONCE, predictions
from .heads import HeadWatch
from .memory import Peak
from .models import Sizes, build_recurrent, build_transformer, interpolated, kernel_used
from .protocol import Protocol, Training
from .results import Results
from .store import Store
from .tasks import LanguageModel, Recall, Task
from .train import Trained, train
from .watch import Row, Watch

DEFAULT_ENCODINGS = ("sinusoidal", "learned", "t5", "alibi", "rope", "none")
FEWEST_STEPS = 20
EQUAL_PARAMETERS = "{} (equal parameters)"
EQUAL_TIME = "{} (equal time)"


class Budget(NamedTuple):
    """What a comparison spends.

    Attributes:
        seeds: the number of seeds.
        steps: training steps of a language model.
        recall_steps: training steps of a model of the recall task.
    """

    seeds: int
    steps: int
    recall_steps: int


FULL = Budget(3, Protocol.steps, Protocol.recall_steps)
QUICK = Budget(1, 150, 0)


@dataclass(frozen=True)
class Candidate:
    """A model that is trained: with an encoding, or a recurrent baseline.

    Attributes:
        name: its name in checkpoints.
        rows: the names of its rows: the encoding and, for learned positions, its interpolated table.
        cell: the recurrent cell of a baseline.
        by_the_clock: whether the baseline is trained for the time of the median Transformer.
    """

    name: str
    rows: tuple[str, ...]
    cell: str | None = None
    by_the_clock: bool = False

    def build(self, row: str, sizes: Sizes, seed: int) -> nn.Module:
        """Builds the untrained model of one of its rows.

        Args:
            row: the name of the row.
            sizes: the sizes of the model.
            seed: the seed of the initial parameters.
        """
        if self.cell is not None:
            return build_recurrent(self.cell, sizes, seed)
        return build_transformer(row, sizes, seed)


def compare(
    corpus: str | Path | None = None,
    encodings: Sequence[str] = DEFAULT_ENCODINGS,
    *,
    baselines: Sequence[str] = ("lstm",),
    train_length: int = Protocol.train_length,
    lengths: Sequence[int] | None = None,
    seeds: int | None = None,
    layers: int = Protocol.layers,
    width: int = Protocol.width,
    heads: int = Protocol.heads,
    steps: int | None = None,
    minutes: float | None = None,
    batch: int = Protocol.batch,
    learning_rate: float = Protocol.learning_rate,
    recall_steps: int | None = None,
    evaluation_bytes: int = Protocol.evaluation_bytes,
    quick: bool = False,
    device: str = "auto",
    out: str | Path | None = None,
    watch: Watch | None = None,
) -> Results:
    """Trains a small Transformer for each encoding on a text, and measures it at the trained length and beyond.

    Args:
        corpus: a file of UTF-8 text; the topics of Python's manual if None.
        encodings: names as for ``headway.encoding``, "mine.py:Mine" among them.
        baselines: recurrent cells to compare with: "lstm" and "rnn".
        train_length: bytes in a training window.
        lengths: window lengths to measure at; 1, 2, 4 and 8 times train_length if None.
        seeds: the number of seeds; 3 if None. All encodings are trained with one seed before the next.
        layers: layers of each Transformer.
        width: its embed_dim.
        heads: its heads.
        steps: training steps of each model; 600 if neither steps nor minutes are given.
        minutes: in place of steps, the time for everything together, from which the steps are chosen once.
        batch: windows in a step.
        learning_rate: the highest learning rate.
        recall_steps: training steps of the recall task, 200 if None; 0 leaves it out.
        evaluation_bytes: held-out bytes that are predicted, the same at each length.
        quick: whether seeds, steps and recall_steps that are None are 1, 150 and 0, for a few minutes in all. The
            results say so, and a folder has either quick results or others.
        device: "cpu", "cuda" or "auto".
        out: the folder for results, pictures, the report and checkpoints, from which the same call resumes; nothing is
            kept if None.
        watch: receives the progress.

    Returns:
        The results.

    Raises:
        HeadwayError: before any training, if the text is too short or no text, an encoding is unknown, sizes do not
            fit,
            the device is not there, or an earlier run in the folder had other settings.
    """
    device = device_named(device)
    budget = QUICK if quick else FULL
    seeds = budget.seeds if seeds is None else seeds
    if seeds < 1:
        raise HeadwayError(f"seeds is {seeds}: give at least 1")
    if steps is not None and minutes is not None:
        raise HeadwayError(f"steps {steps} and minutes {minutes:g} are both given: give one of them")
    if minutes is not None and not minutes > 0:
        raise HeadwayError(f"minutes is {minutes:g}: give a number above 0")
    if lengths is None:
        lengths = [times * train_length for times in (1, 2, 4, 8)]
    Protocol("", "", train_length=train_length, lengths=tuple(lengths))
    text = corpora.load(corpus, train_length=train_length, longest=max(lengths))
    protocol = Protocol(
        text.name,
        text.sha256,
        train_length=train_length,
        lengths=tuple(sorted(set(lengths))),
        layers=layers,
        width=width,
        heads=heads,
        steps=budget.steps if steps is None else steps,
        minutes=minutes,
        batch=batch,
        learning_rate=learning_rate,
        recall_steps=budget.recall_steps if recall_steps is None else recall_steps,
        evaluation_bytes=evaluation_bytes,
        quick=quick,
        device=device,
    )
    candidates = _candidates(encodings, baselines, protocol)
    if out is None:
        with tempfile.TemporaryDirectory() as folder:
            results = _go(text, protocol, candidates, seeds, Path(folder), watch or Watch())
        return Results(results.rows, results.protocol)
    return _go(text, protocol, candidates, seeds, Path(out), watch or Watch())


def _go(
    text: corpora.Corpus,
    protocol: Protocol,
    candidates: list[Candidate],
    seeds: int,
    out: Path,
    watch: Watch,
) -> Results:
    with Store(out) as store:
        if protocol.minutes is not None:
            steps = store.settings.get("steps") or _steps_within(text, protocol, candidates, seeds)
            protocol = replace(protocol, steps=steps)
        store.agree(protocol.settings())
        store.agree_on_sources([candidate.name for candidate in candidates])
        everything = [(seed, candidate) for seed in range(seeds) for candidate in candidates]
        missing = [
            (seed, candidate)
            for seed, candidate in everything
            if not all(store.has(row, seed) for row in candidate.rows)
        ]
        names = [row for candidate in candidates for row in candidate.rows]
        watch.planned(protocol, names, len(everything) - len(missing), len(everything))
        for seed, candidate in missing:
            rows = _Run(text, protocol, candidate, seed, store, watch).rows()
            store.add(rows)
            watch.measured(rows)
        results = Results(store.rows, protocol, store.out)
        report.write(results, store.out)
        return results


class _Run:
    """One candidate with one seed."""

    def __init__(
        self,
        text: corpora.Corpus,
        protocol: Protocol,
        candidate: Candidate,
        seed: int,
        store: Store,
        watch: Watch,
    ) -> None:
        self.protocol, self.candidate, self.seed, self.store, self.watch = protocol, candidate, seed, store, watch
        self.language = LanguageModel(text, protocol)
        training = replace(protocol.language, steps=self._steps())
        plan: list[tuple[Task, Training]] = [(self.language, training)]
        if protocol.recall_steps and not candidate.by_the_clock:
            plan.append((Recall(), protocol.recall))
        self.plan = plan
        # Work is counted in tokens through one layer; a training step counts as three evaluations.
        self.work = [
            3 * what.steps * what.batch * what.length * (protocol.layers if task is self.language else 1)
            for task, what in plan
        ]
        self.measuring = self.language.measured_tokens * protocol.layers
        self.total = sum(self.work) + self.measuring

    def rows(self) -> list[Row]:
        """Trains and measures; returns a row for each name and length."""
        facts: dict[str, Any] = {}
        fields: dict[tuple[str, int], dict[str, Any]] = {}
        done = 0.0
        for (task, training), work in zip(self.plan, self.work, strict=True):
            language = task is self.language
            sizes = Sizes.of(self.protocol, task.name, task.vocabulary)
            peak = Peak(self.protocol.device)
            model = self._model(self.candidate.rows[0], sizes)

            heads = self._heads(model, training) if language and self.candidate.cell is None else None
            after_step = partial(self._after_step, heads, task, training, done, work)
            path = self.store.checkpoint(self.candidate.name, self.seed, task.name)
            trained = train(model, task, training, self.seed, checkpoint=path, watch=after_step)
            done += work
            for row in self.candidate.rows:
                self._tell(f"{task.name.replace('_', ' ')}, measuring", done)
                measured = self._measured(row, sizes, model, task)
                for length in measured:
                    fields.setdefault((row, length), {}).update(measured[length])
            if language:
                done += self.measuring
                facts = self._facts(model, sizes, training, trained, peak)
                facts["heads"] = None if heads is None else heads.summary()
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

    def _steps(self) -> int:
        if not self.candidate.by_the_clock:
            return self.protocol.steps
        rows = [row for row in self.store.rows if row["seed"] == self.seed]
        seconds = [row["train_seconds"] for row in rows if not row["baseline"]]
        alike = EQUAL_PARAMETERS.format(self.candidate.cell)
        pace = next(row["train_seconds"] / row["steps"] for row in rows if row["encoding"] == alike)
        steps = max(1, round(statistics.median(seconds) / pace)) if seconds else self.protocol.steps
        return self.store.equal_time_steps(self.candidate.name, self.seed, steps)

    def _model(self, row: str, sizes: Sizes) -> nn.Module:
        return self.candidate.build(row, sizes, self.seed).to(self.protocol.device)

    def _heads(self, model: nn.Module, training: Training) -> HeadWatch:
        windows, _ = self.language.batch(training, torch.Generator().manual_seed(0))  # the same for every seed
        windows = windows.to(self.protocol.device)
        return HeadWatch(model, self.store.head_log(self.candidate.name, self.seed), windows, training.steps)

    def _after_step(
        self,
        heads: HeadWatch | None,
        task: Task,
        training: Training,
        before: float,
        work: float,
        step: int,
        loss: float,
    ) -> None:
        if heads is not None:
            heads.after(step)
        doing = f"{task.name.replace('_', ' ')}, step {step:,} of {training.steps:,}, {loss:.2f} bits"
        self._tell(doing, before + work * step / training.steps)

    def _tell(self, doing: str, done: float) -> None:
        self.watch.went_on(self.candidate.name, self.seed, doing, min(1.0, done / self.total))

    def _measured(self, row: str, sizes: Sizes, trained: nn.Module, task: Task) -> dict[int, dict[str, Any]]:
        """What the trained model achieves at each length, with the encoding of this row."""
        model = trained
        if row != self.candidate.rows[0]:
            model = self._model(row, sizes)
            model.load_state_dict(trained.state_dict())
        found: dict[int, dict[str, Any]] = {}
        for length in self.protocol.lengths:
            try:
                found[length] = task.measure(model, length)
            except HeadwayError as error:
                if length <= self.protocol.train_length:
                    raise
                missing = "bits_per_byte" if task is self.language else "recall"
                found[length] = {missing: None, "reason": str(error)}
        return found

    def _facts(
        self, model: nn.Module, sizes: Sizes, training: Training, trained: Trained, peak: Peak
    ) -> dict[str, Any]:
        parameters = sum(parameter.numel() for parameter in model.parameters())
        cell = self.candidate.cell
        shared = sum(parameter.numel() for name, parameter in model.named_parameters() if ".encodings." not in name)
        return {
            "baseline": cell is not None,
            "train_length": self.protocol.train_length,
            "steps": trained.steps,
            "train_loss_bits": trained.loss if math.isfinite(trained.loss) else None,
            "train_seconds": trained.seconds,
            "tokens_per_second": training.batch * training.length * trained.steps / trained.seconds,
            "parameters": parameters,
            "encoding_parameters": parameters - shared,
            "kernel": f"torch {cell}"
            if cell is not None
            else kernel_used(self.candidate.name, sizes, training.batch, self.protocol.device),
            "peak_memory_bytes": peak.bytes(),
            "corpus": self.protocol.corpus,
            "corpus_sha256": self.protocol.corpus_sha256,
            "device": self.protocol.device,
            "threads": torch.get_num_threads(),
            "versions": _versions(),
        }


def _candidates(encodings: Sequence[str], baselines: Sequence[str], protocol: Protocol) -> list[Candidate]:
    """The models to train; each encoding is built and called once, so that errors come before any training."""
    if not encodings and not baselines:
        raise HeadwayError("encodings is empty: give at least one, such as rope")
    sizes = Sizes.of(protocol, LanguageModel.name, LanguageModel.vocabulary)
    found: list[Candidate] = []
    for spec in dict.fromkeys(encodings):
        model = build_transformer(spec, sizes, 0)
        with torch.no_grad():
            model(torch.zeros(1, 2, dtype=torch.int64))
        kernel_used(spec, sizes, 1, "cpu")
        beyond = interpolated(spec, sizes) if max(protocol.lengths) > protocol.train_length else None
        found.append(Candidate(spec, (spec,) if beyond is None else (spec, beyond)))
    second_rows = {row for candidate in found for row in candidate.rows[1:]}
    found = [candidate for candidate in found if candidate.name not in second_rows]
    for cell in dict.fromkeys(baselines):
        if cell not in CELLS:
            raise unknown("baseline", cell, (*CELLS, "none"))
        build_recurrent(cell, sizes, 0)
        for name, by_the_clock in ((EQUAL_PARAMETERS, False), (EQUAL_TIME, True)):
            found.append(Candidate(name.format(cell), (name.format(cell),), cell, by_the_clock))
    return found


def _steps_within(text: corpora.Corpus, protocol: Protocol, candidates: list[Candidate], seeds: int) -> int:
    """The steps with which everything takes at most the minutes given, by the speed of a few steps of each model."""
    assert protocol.minutes is not None
    began = time.perf_counter()
    language, recall = LanguageModel(text, protocol), Recall()
    sizes = Sizes.of(protocol, language.name, language.vocabulary)
    few = replace(protocol.language, steps=4)
    per_step: list[float] = []
    fixed = 0.0
    longest = max(protocol.lengths)
    windows = torch.zeros(max(1, TOKENS_AT_ONCE // longest), longest, dtype=torch.int64)
    for candidate in candidates:
        if candidate.by_the_clock:
            per_step.append(statistics.median(per_step))
            continue
        model = candidate.build(candidate.rows[-1], sizes, 0).to(protocol.device)
        train(model, language, replace(few, steps=1), 0)
        per_step.append(train(model, language, few, 0).seconds / few.steps)
        started = time.perf_counter()
        predictions(model, windows, windows)
        fixed += (time.perf_counter() - started) * language.measured_tokens / windows.numel() * len(candidate.rows)
        if protocol.recall_steps:
            small = Sizes.of(protocol, recall.name, recall.vocabulary)
            model = candidate.build(candidate.rows[-1], small, 0).to(protocol.device)
            short = replace(protocol.recall, steps=2)
            fixed += train(model, recall, short, 0).seconds / short.steps * protocol.recall_steps
    reserve = 10 + time.perf_counter() - began
    left = 0.93 * 60 * protocol.minutes - reserve - seeds * fixed
    steps = int(left / (seeds * sum(per_step)))
    if steps < FEWEST_STEPS:
        least = (reserve + seeds * (fixed + FEWEST_STEPS * sum(per_step))) / (0.93 * 60)
        raise HeadwayError(
            f"minutes {protocol.minutes:g} is too short for {len(candidates)} trainings with each of {seeds} "
            f"seeds: give at least {math.ceil(10 * least) / 10:g}, or fewer encodings, seeds or recall_steps"
        )
    return steps if steps < 100 else steps // 10 * 10


def _finite(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields with None for numbers that are not finite, and a reason."""
    bad = [name for name, value in fields.items() if isinstance(value, float) and not math.isfinite(value)]
    if not bad:
        return fields
    cleaned = {name: None if name in bad else value for name, value in fields.items()}
    return {**cleaned, "bits_by_position": [], "reason": "the loss is not a finite number: training diverged"}


def _versions() -> dict[str, str]:
    from .. import __version__

    return {"headway": __version__, "torch": torch.__version__, "python": platform.python_version()}
