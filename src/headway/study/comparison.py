"""Runs a comparison: which models are trained, in which order, and what is written when."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from .._common.devices import device_named
from .._common.store import reporting
from .._common.templates import need_reports
from ..errors import HeadwayError
from . import corpora, pace, report
from .candidates import Candidate, candidates
from .models import Sizes, automatic_device
from .pace import Pace, Work
from .protocol import Protocol
from .results import Results
from .run import FIRST_SEED, Run
from .store import ROW, Store
from .tasks import LanguageModel
from .tokenization import BYTES
from .watch import Watch

DEFAULT_ENCODINGS = ("sinusoidal", "learned", "t5", "alibi", "rope", "none")
FEWEST_STEPS = 20
STEPS_FOR_RECALL = 3
"""A model of the recall task has one training step for so many of a language model, unless recall_steps is given."""
BYTES_FOR_STEP = 28
"""Held-out bytes that are predicted for each training step, unless evaluation_bytes is given."""
MOST_BYTES = 2**16
MARGIN = 0.93
"""The share of the time given that is planned with."""


class Budget(NamedTuple):
    """What a comparison spends.

    Attributes:
        seeds: the number of seeds.
        steps: training steps of a language model.
        recall: whether there is a recall task.
    """

    seeds: int
    steps: int
    recall: bool


FULL = Budget(3, Protocol.steps, True)
QUICK = Budget(1, 150, False)


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
    learning_rate: float | None = None,
    learning_rates: Sequence[float] | None = None,
    tokenizer: str = BYTES,
    recall_steps: int | None = None,
    evaluation_bytes: int | None = None,
    quick: bool = False,
    device: str = "auto",
    dtype: str = "float32",
    compile: bool = False,
    out: str | Path | None = None,
    watch: Watch | None = None,
) -> Results:
    """Trains a small Transformer for each encoding on a text, and measures it at the trained length and beyond.

    Args:
        corpus: a file of UTF-8 text; the topics of Python's manual if None.
        encodings: names as for ``headway.encoding``, "mine.py:Mine" among them.
        baselines: recurrent cells to compare with: "lstm" and "rnn".
        train_length: tokens in a training window; a token is a byte unless there is a tokenizer.
        lengths: window lengths to measure at; 1, 2, 4 and 8 times train_length if None.
        seeds: the number of seeds; 3 if None. All encodings are trained with one seed before the next.
        layers: layers of each Transformer.
        width: its embed_dim.
        heads: its heads.
        steps: training steps of each model; 600 if neither steps nor minutes are given.
        minutes: in place of steps, the time for everything together, from which the steps are chosen once.
        batch: windows in a step.
        learning_rate: the highest learning rate, the same for all; 0.005 if None.
        learning_rates: in place of learning_rate, several that are tried with each model and the first seed; the one
            with the lowest loss on the validation part is used for all seeds of the model.
        tokenizer: "bytes"; "bpe:N" for byte-pair encoding of N tokens, trained on the training part; or a
            tokenizer.json, the folder of a model, or the id of one on the Hugging Face hub. Losses are per byte.
        recall_steps: training steps of the recall task; a third of steps if None; 0 leaves it out.
        evaluation_bytes: held-out bytes that are predicted, the same at each length; if None 28 for each training step,
            at least twice the longest window and at most 65,536.
        quick: whether seeds, steps and recall_steps that are None are 1, 150 and 0, for a few minutes in all. The
            results say so, and a folder has either quick results or others.
        device: "cpu", "cuda", or "auto" for CUDA if there is a GPU and a fused kernel trains every encoding there.
        dtype: "float32", or "bfloat16" to train under autocast.
        compile: whether the language models are trained through ``torch.compile``.
        out: the folder for results, pictures, the report and checkpoints, from which the same call resumes; nothing is
            kept if None.
        watch: receives the progress.

    Returns:
        The results.

    Raises:
        HeadwayError: before any training, if the text is too short or no text, an encoding is unknown, sizes do not
            fit, the device is not there, an earlier run in the folder had other settings, or what the report needs is
            not installed.
    """
    if out is not None:
        need_reports()
    place = device_named(device)
    budget = QUICK if quick else FULL
    seeds = budget.seeds if seeds is None else seeds
    if seeds < 1:
        raise HeadwayError(f"seeds is {seeds}: give at least 1")
    if steps is not None and minutes is not None:
        raise HeadwayError(f"steps {steps} and minutes {minutes:g} are both given: give one of them")
    if minutes is not None and not minutes > 0:
        raise HeadwayError(f"minutes is {minutes:g}: give a number above 0")
    if learning_rate is not None and learning_rates is not None:
        raise HeadwayError(f"learning_rate {learning_rate:g} and learning_rates are both given: give one of them")
    if learning_rates is None:
        learning_rates = Protocol.learning_rates if learning_rate is None else (learning_rate,)
    if lengths is None:
        lengths = [times * train_length for times in (1, 2, 4, 8)]
    longest = max(lengths, default=0)
    Protocol("", "", train_length=train_length, lengths=tuple(lengths))
    text = corpora.load(corpus, train_length=train_length, longest=longest, tokenizer=tokenizer)
    per_token = text.held_out.bytes_of(0, len(text.held_out)) / len(text.held_out)

    def of(steps: int) -> Protocol:
        """The settings with so many steps."""
        recall = recall_steps if recall_steps is not None else budget.recall * max(1, steps // STEPS_FOR_RECALL)
        measured = min(MOST_BYTES, max(BYTES_FOR_STEP * steps, round(2 * longest * per_token)))
        return Protocol(
            text.name,
            text.sha256,
            tokenizer=tokenizer,
            tokenizer_sha256=text.tokens.sha256,
            bytes_per_token=per_token,
            train_length=train_length,
            lengths=tuple(sorted(set(lengths))),
            layers=layers,
            width=width,
            heads=heads,
            steps=steps,
            minutes=minutes,
            batch=batch,
            learning_rates=tuple(dict.fromkeys(learning_rates)),
            recall_steps=recall,
            evaluation_bytes=measured if evaluation_bytes is None else evaluation_bytes,
            quick=quick,
            device=place,
            dtype=dtype,
            compile=compile,
        )

    protocol = of(budget.steps if steps is None else steps)
    models = candidates(encodings, baselines, protocol, text.tokens.vocabulary)
    watch = watch or Watch()
    if device == "auto" and place != "cpu":
        names = [model.name for model in models if model.cell is None]
        sizes = Sizes.of(protocol, "language_model", text.tokens.vocabulary)
        kernels_dtype = torch.bfloat16 if dtype == "bfloat16" else torch.float32
        place, why = automatic_device(names, sizes, batch, place, kernels_dtype)
        protocol = of(protocol.steps)
        watch.placed(place, why)
    comparison = _Comparison(text, of, protocol, models, seeds, watch)
    if out is None:
        with tempfile.TemporaryDirectory() as folder:
            results = comparison.go(Path(folder), reports=False)
        return Results(results.rows, results.protocol, settings=results.settings)
    return comparison.go(Path(out), reports=True)


class _Comparison:
    """A comparison whose settings are known, but for the number of steps if there is a time to choose it by."""

    def __init__(
        self,
        text: corpora.Corpus,
        of: Callable[[int], Protocol],
        protocol: Protocol,
        models: list[Candidate],
        seeds: int,
        watch: Watch,
    ) -> None:
        self.text, self.of, self.protocol, self.watch = text, of, protocol, watch
        self.models, self.seeds = models, seeds
        self.paces: dict[str, Pace] = {}

    def go(self, out: Path, reports: bool) -> Results:
        """Trains and measures what is not in the folder yet, and writes the report there if it is wanted."""
        with Store(out, kind=ROW) as store:
            if self.protocol.minutes is not None:
                steps = store.settings.get("steps") or self._steps_within(60 * self.protocol.minutes)
                self.protocol = self.of(steps)
            store.agree(self.protocol.settings())
            store.agree_on_sources([model.name for model in self.models])
            everything = [(seed, model) for seed in range(self.seeds) for model in self.models]
            missing = [
                (seed, model) for seed, model in everything if not all(store.has(row, seed) for row in model.rows)
            ]
            names = [row for model in self.models for row in model.rows]
            self.watch.planned(self.protocol, names, len(everything) - len(missing), len(everything))
            if missing:
                self.watch.expected(self._expected(self.protocol, missing))
                store.fact("counted", LanguageModel(self.text, self.protocol).counted)
            for seed, model in missing:
                rows = Run(self.text, self.protocol, model, seed, store, self.watch).rows()
                store.add(rows)
                self.watch.measured(rows)
            results = Results(store.rows, self.protocol, store.out, store.settings)
            if reports:
                with reporting(store.file):
                    report.write(results, store.out)
            return results

    def _expected(self, protocol: Protocol, missing: Sequence[tuple[int, Candidate]]) -> dict[str, float]:
        """The seconds for each part; the speed of each model is measured in its first call."""
        language = LanguageModel(self.text, protocol)
        several = len(protocol.learning_rates)
        works = []
        for seed, model in missing:
            if model.equal not in self.paces:
                build = partial(model.build, model.rows[-1], seed=FIRST_SEED)
                self.paces[model.equal] = pace.measured(build, language, protocol)
            tries = several if seed == FIRST_SEED and not model.by_the_clock else 1
            works.append(Work(model.equal, len(model.rows), tries, model.by_the_clock))
        return pace.expected(works, self.paces, language, protocol)

    def _steps_within(self, seconds: float) -> int:
        """The most steps with which everything takes at most so long."""
        trainings = [(seed, model) for seed in range(self.seeds) for model in self.models]
        gone = time.perf_counter()

        def needed(steps: int) -> float:
            return sum(self._expected(self.of(steps), trainings).values()) / MARGIN

        least = needed(FEWEST_STEPS)
        seconds -= time.perf_counter() - gone
        if least > seconds:
            enough = math.ceil(10 * (least + time.perf_counter() - gone) / 60) / 10
            raise HeadwayError(
                f"minutes {self.protocol.minutes:g} is too short for {len(self.models)} trainings with each of "
                f"{self.seeds} seeds: give at least {enough:g}, or fewer encodings, seeds or recall_steps"
            )
        low, high = FEWEST_STEPS, 2 * FEWEST_STEPS
        while needed(high) <= seconds:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if needed(middle) <= seconds else (low, middle)
        return low if low < 100 else low // 10 * 10
