"""Measures what docs/comparison.md shows, and writes its tables and pictures.

    python benchmarks/comparison.py shakespeare tinyshakespeare.txt
    python benchmarks/comparison.py chinese fortunes-zh.txt
    python benchmarks/comparison.py

Texts are given by names within the current folder, since their rows have the name. The first two train, keep the rows
of each model in benchmarks/results as they come, and resume from them after an interruption, or within a model from
``compare-NAME``; the third writes the page from the rows.

The settings were fixed by validation parts alone, on which no model is trained and from which no result is shown. The
rule of benchmarks/comparison_budget.py gave 1,000 steps on the topics of Python's manual. With these, and learning
rates of 0.004 to 0.016, the first seed of every encoding stayed above a 5-gram model on Shakespeare's validation part
(RoPE 2.341 and KERPLE 2.352 against 2.262 bits per byte), and 0.004 was the best rate for five of eight. So steps were
doubled, which is what three hours on two cores allow for both texts, and rates halved, for all models alike.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from page import between

from headway._common.files import atomic_write
from headway._common.pictures import save
from headway._common.store import Row
from headway.study import ComparisonResults, ProgressListener, charts, compare, tables

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "comparison.md"
TEXTS = ("shakespeare", "chinese")
SETTINGS = {
    "encodings": ("sinusoidal", "learned", "transformer-xl", "t5", "alibi", "kerple-log", "rope", "none"),
    "baselines": ("lstm",),
    "seeds": 3,
    "layers": 3,
    "width": 128,
    "heads": 4,
    "batch": 16,
    "steps": 2000,
    "learning_rates": (0.002, 0.004, 0.008),
    "evaluation_bytes": 2**16,
    "device": "cpu",
    "dtype": "bfloat16",
}
TABLES = {
    "losses": tables.losses,
    "sliding": tables.sliding,
    "learning-rates": tables.learning_rates,
    "costs": tables.costs,
}

PICTURES = (
    ("shakespeare", "loss-by-position.png", "en"),
    ("chinese", "loss-by-position-chinese.png", "en"),
)
"""Text, file and language of each picture."""
FILES = ("settings.json", "results.jsonl")


class Lines(ProgressListener):
    """Prints a line for each training, and keeps its rows.

    Args:
        out: the folder that the comparison writes.
        kept: the folder that keeps the rows.
    """

    def __init__(self, out: Path, kept: Path) -> None:
        self.out, self.kept = out, kept

    def expected(self, seconds: dict[str, float]) -> None:
        print("expected:", ", ".join(f"{part} {value / 60:.0f} min" for part, value in seconds.items()), flush=True)

    def measured(self, job: str, rows: list[Row]) -> None:
        print(rows[0]["encoding"], rows[0]["seed"], [row["bits_per_byte"] for row in rows], flush=True)
        copy(self.out, self.kept)


def copy(source: Path, target: Path) -> None:
    """Copies what a comparison resumes from."""
    target.mkdir(exist_ok=True)
    for file in FILES:
        with atomic_write(target / file) as part:
            shutil.copyfile(source / file, part)


def measure(name: str, text: str) -> None:
    """Trains what is missing, and keeps the rows."""
    out, kept = Path(f"compare-{name}"), HERE / "results" / f"comparison-{name}"
    if kept.is_dir() and not out.exists():
        copy(kept, out)
    compare(text, **SETTINGS, out=out, watch=Lines(out, kept))
    copy(out, kept)


def page(text: str) -> str:
    """Returns the page with the tables of the rows between its marks."""
    for name in TEXTS:
        results = ComparisonResults.load(HERE / "results" / f"comparison-{name}")
        for what, table in TABLES.items():
            text = between(text, f"{name} {what}", table(results).markdown())
        if name == TEXTS[0]:  # the task is the same beside every text
            text = between(text, "recall", tables.recall(results).markdown())
        said = "\n".join(f"- {sentence}" for sentence in results.conclusions())
        text = between(text, f"{name} conclusions", said)
    return text


def pictures() -> Iterator[Path]:
    """Draws the losses by position of each text; those of the Chinese text in Chinese too."""
    for name, file, language in PICTURES:
        results = ComparisonResults.load(HERE / "results" / f"comparison-{name}")
        save(charts.draw_by_position(results, language=language), PAGE.parent / file)
        yield PAGE.parent / file


def main(arguments: list[str]) -> None:
    """Measures one text, or writes the page."""
    if arguments:
        measure(*arguments)
        return
    with atomic_write(PAGE) as part:
        part.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(*pictures())


if __name__ == "__main__":
    main(sys.argv[1:])
