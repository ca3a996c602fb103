"""Measures what docs/comparison.md shows, and writes its tables and pictures.

    python benchmarks/comparison.py shakespeare tinyshakespeare.txt
    python benchmarks/comparison.py chinese fortunes-zh.txt
    python benchmarks/comparison.py

The first two train, resume from ``compare-NAME`` after an interruption, and keep the rows in benchmarks/results; the
third writes the page from the rows. The settings were fixed before any result on these texts was seen. The steps are
those that benchmarks/comparison_budget.py chose, and the learning rates those around the best of RoPE and ALiBi on the
same text: with 0.002, 0.004 and 0.008 RoPE came to 1.875, 1.848 and 1.844 bits per byte on its validation part, ALiBi
to 1.973, 1.921 and 1.904.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from page import between

from headway.files import atomic_write
from headway.pictures import save
from headway.study import Results, charts, compare, tables
from headway.study.watch import Row, Watch

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
    "steps": 1000,
    "learning_rates": (0.004, 0.008, 0.016),
    "evaluation_bytes": 2**16,
    "device": "cpu",
    "dtype": "bfloat16",
}
TABLES = {
    "losses": tables.losses,
    "sliding": tables.sliding,
    "recall": tables.recall,
    "learning-rates": tables.learning_rates,
    "costs": tables.costs,
}


class Lines(Watch):
    """Prints a line for each training."""

    def expected(self, seconds: dict[str, float]) -> None:
        print("expected:", ", ".join(f"{part} {value / 60:.0f} min" for part, value in seconds.items()), flush=True)

    def measured(self, rows: list[Row]) -> None:
        print(rows[0]["encoding"], rows[0]["seed"], [row["bits_per_byte"] for row in rows], flush=True)


def measure(name: str, text: str) -> None:
    """Trains what is missing, and keeps the rows."""
    results = compare(text, **SETTINGS, out=f"compare-{name}", watch=Lines())
    assert results.out is not None
    kept = HERE / "results" / f"comparison-{name}"
    kept.mkdir(exist_ok=True)
    for file in ("settings.json", "results.jsonl"):
        shutil.copy(results.out / file, kept / file)


def page(text: str) -> str:
    """Returns the page with the tables of the rows between its marks."""
    for name in TEXTS:
        results = Results.load(HERE / "results" / f"comparison-{name}")
        for what, table in TABLES.items():
            text = between(text, f"{name} {what}", table(results).markdown())
        said = "\n".join(f"- {sentence}" for sentence in results.conclusions())
        text = between(text, f"{name} conclusions", said)
    return text


def pictures() -> Iterator[Path]:
    """Draws the losses by position of each text."""
    for name in TEXTS:
        results = Results.load(HERE / "results" / f"comparison-{name}")
        path = PAGE.parent / ("loss-by-position.png" if name == TEXTS[0] else f"loss-by-position-{name}.png")
        save(charts.draw_by_position(results), path)
        yield path


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
