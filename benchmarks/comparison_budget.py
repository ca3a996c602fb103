"""Chooses the training steps of docs/comparison.md by a rule, on the validation part of a text.

    python benchmarks/comparison_budget.py               # the topics of Python's manual
    python benchmarks/comparison_budget.py corpus.txt

The rule was fixed before any result was seen: of 1,000, 2,000, 4,000 and 8,000 steps the fewest with which, of RoPE and
ALiBi, the better loss on the validation part at the trained length is below that of a 5-gram model, and the last tenth
of the steps lowers that loss by less than 1 %. At first it was applied to the topics alone, where
1,000 steps are enough. Of the texts of the page, the Chinese one fulfils it with neither 1,000 nor 2,000 steps;
comparison.py says which number was taken. Models are trained under bfloat16 autocast, as those of the page: on the
processor of its table a step takes 0.6 times as long as in float32. The rows go to
benchmarks/results/comparison-budget.jsonl; trainings that are there are not run again.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import torch
from torch import nn

from headway._common.lines import append_lines, read_lines
from headway._common.training import Companion
from headway.study import corpora
from headway.study.models import ModelSizes, build_transformer
from headway.study.ngrams import ngram_bits
from headway.study.protocol import Protocol
from headway.study.tasks import LanguageModel
from headway.study.train import train

ROWS = Path(__file__).parent / "results" / "comparison-budget.jsonl"
STEPS = (1000, 2000, 4000, 8000)
ENCODINGS = ("rope", "alibi")
LENGTHS = (128, 256, 512, 1024)
LEAST_GAIN = 0.01


class AtNineTenths(Companion):
    """Measures the loss on the validation part when nine tenths of the steps are done."""

    def __init__(self, model: nn.Module, task: LanguageModel, steps: int) -> None:
        self.model, self.task, self.step = model, task, steps * 9 // 10
        self.bits = math.nan

    def after(self, step: int, loss: float, seconds: float) -> None:
        if step == self.step:
            self.bits = self.task.validate(self.model)


def row(text: corpora.Corpus, spec: str, steps: int) -> dict[str, object]:
    """Trains one model, and measures it on the validation part."""
    settings = {"layers": 3, "width": 128, "heads": 4, "batch": 16, "learning_rates": (0.002,)}
    asked = Protocol(lengths=LENGTHS, steps=steps, evaluation_bytes=2**16, **settings)
    protocol = asked.fixed(text.name, text.sha256)
    task = LanguageModel(text, protocol)
    model = build_transformer(spec, ModelSizes.of(protocol, task.name, task.vocabulary), 0)
    companion = AtNineTenths(model, task, steps)
    trained = train(model, task, protocol.language(0.002), 0, companion=companion, dtype=torch.bfloat16)
    part = text.validation.ids
    return {
        "encoding": spec,
        "steps": steps,
        "five_gram": float(ngram_bits(text.train.ids, part, 5, task.vocabulary).mean()),
        "at_nine_tenths": companion.bits,
        "at_the_end": task.validate(model),
        "train_loss_bits": trained.loss,
        "seconds": round(trained.seconds),
        "threads": torch.get_num_threads(),
        "corpus_sha256": text.sha256,
    }


def enough(rows: list[dict[str, object]]) -> bool:
    """Whether the better of these rows, of the same number of steps, fulfils the rule."""
    best = min(rows, key=lambda one: one["at_the_end"])
    gain = 1 - best["at_the_end"] / best["at_nine_tenths"]
    return best["at_the_end"] < best["five_gram"] and gain < LEAST_GAIN


def main(path: str | None = None) -> None:
    """Measures until a number of steps is enough."""
    text = corpora.load(path, train_length=LENGTHS[0], longest=LENGTHS[-1])
    known = [
        one for one in read_lines(ROWS, "delete that line to measure it again") if one["corpus_sha256"] == text.sha256
    ]
    for steps in STEPS:
        for spec in ENCODINGS:
            if not any((one["encoding"], one["steps"]) == (spec, steps) for one in known):
                known.append(row(text, spec, steps))
                append_lines(ROWS, known[-1:])
                print(known[-1], flush=True)
        if enough([one for one in known if one["steps"] == steps]):
            print(f"{steps:,} steps are enough")
            return
    print("None of these numbers of steps is enough")


if __name__ == "__main__":
    main(*sys.argv[1:])
