"""Makes the missing small models that come with headway. A stopped run is resumed.

python -m headway.study.planted.weights
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ....errors import HeadwayError
from .._article import ARTICLE
from .._chinese import CHINESE
from .._english import ENGLISH
from ._files import PACKAGE
from ._make import measure_again, pretrain

MODELS = ((CHINESE, 0), (ENGLISH, 0), (ARTICLE, 0), (ARTICLE, 1), (ARTICLE, 2))
"""The models of the package."""


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        "python -m headway.study.planted.weights", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--out", type=Path, default=PACKAGE, help="the folder of the files (default: the package's)")
    parser.add_argument("--measure", action="store_true", help="measure those that are there again, without training")
    return parser


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs the command, and returns its exit code.

    It is 0, or 2 with one line on stderr if no model meets the criteria or a file cannot be written.
    """
    asked = parser().parse_args(arguments)

    def tell(doing: str, share: float) -> None:
        bar = "█" * round(24 * share)
        print(f"\r{bar:·<24} {100 * share:3.0f} %  {doing:<50}", end="", file=sys.stderr, flush=True)

    try:
        for language, number in MODELS:
            make = measure_again if asked.measure else pretrain
            small = make(language, number, folder=asked.out, tell=tell)
            print("\r" + " " * 90 + "\r", end="", file=sys.stderr)
            print(f"{language.name} {number}: seed {small.seed}, after {len(small.rejected)} that lacked something")
            for seed, lacks in small.rejected.items():
                print(f"  seed {seed}: {'; '.join(lacks)}")
    except HeadwayError as error:
        print(f"\nheadway: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(run())
