"""Trains the documented models, measures their heads and writes the rows.

python -m headway.study.planted --out planted-heads.json
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...errors import HeadwayError
from ...inspection._table import DataTable
from ._heads import HELD_OUT, measure
from ._languages import LANGUAGES
from ._report import markdown, together
from ._training import TRAININGS, trained


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command's arguments."""
    parser = argparse.ArgumentParser("python -m headway.study.planted", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the JSON file of the rows")
    parser.add_argument("--languages", nargs="+", choices=list(LANGUAGES), default=list(LANGUAGES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--training", choices=list(TRAININGS), default="full")
    parser.add_argument("--sentences", type=int, default=1000, help="of each relation and split")
    return parser


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs the command, and returns its exit code: 0, or 2 with one line on stderr if the input is wrong."""
    asked = parser().parse_args(arguments)
    rows: DataTable = DataTable()
    try:
        for language in asked.languages:
            for seed in asked.seeds:
                rows += _measured(language, seed, asked)
                rows.json(asked.out)
    except HeadwayError as error:
        print(f"headway: {error}", file=sys.stderr)
        return 2
    for split in HELD_OUT:
        print(f"\nheld-out {split}\n\n{markdown(rows, split)}\n\n{together(rows, split)}")
    return 0


def _measured(language: str, seed: int, asked: argparse.Namespace) -> list[dict[str, Any]]:
    steps = TRAININGS[asked.training].steps

    def tell(text: str) -> None:
        print(f"\r{language}, seed {seed}: {text:<40}", end="", file=sys.stderr, flush=True)

    def went_on(step: int, loss: float) -> None:
        if step % 50 == 0:
            tell(f"step {step} of {steps}, {loss:.3f} bits")

    model = trained(language, seed, training=asked.training, watch=went_on)
    rows = measure(model, language, sentences=asked.sentences, watch=lambda relation: tell(f"heads: {relation}"))
    print(file=sys.stderr)
    return [{"language": language, "seed": seed, **row} for row in rows]


if __name__ == "__main__":
    raise SystemExit(run())
