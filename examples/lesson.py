"""What the lessons share: two languages, tables of numbers, a picture for each language, one command line.

A lesson is a script with three functions, in the order in which to read them:

    measure() -> Found          a frozen dataclass of numbers, lists and dictionaries
    tell(found, t) -> str       what was found, in words and tables; t("English", "中文") chooses the language
    draw(found, t) -> Figure    the picture

`run` does the rest. `claims.py` asks the same `measure` functions what the source documents' claims are worth.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from headway.files import whole
from headway.study.charts import BASELINE, COLOURS, FAINT, INK

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DOCS = Path(__file__).parents[1] / "docs"
LANGUAGES = {"en": "lessons", "zh": "zh-CN/lessons"}
"""By language: where its pictures are, within the folder of the documents."""

BLUE, ORANGE, GREEN, PINK, GOLD, SKY, PURPLE, BROWN = COLOURS
GREY = BASELINE

Text = Callable[[str, str], str]
"""t("English", "中文") → the one of the two that is wanted."""


def english(en: str, zh: str) -> str:
    return en


def chinese(en: str, zh: str) -> str:
    return zh


SPEAK: dict[str, Text] = {"en": english, "zh": chinese}


class Lesson(Protocol):
    """The module of a lesson."""

    __doc__: str | None
    __file__: str | None

    def measure(self) -> Any: ...
    def tell(self, found: Any, t: Text) -> str: ...
    def draw(self, found: Any, t: Text) -> Figure: ...


def run(name: str, words: Sequence[str] | None = None) -> None:
    """What `python examples/<lesson>.py` does: measure, tell, draw in both languages."""
    lesson: Any = sys.modules[name]
    stem = Path(lesson.__file__).stem
    parser = argparse.ArgumentParser(prog=stem, description=lesson.__doc__.partition("\n")[0])
    parser.add_argument("--language", choices=LANGUAGES, default="en", help="of what is printed; pictures come in both")
    parser.add_argument("--out", type=Path, default=DOCS, metavar="FOLDER", help="for the pictures (default: docs)")
    parser.add_argument("--found", type=Path, metavar="FILE", help="write the numbers here too, as JSON")
    chosen = parser.parse_args(words)

    torch.set_num_threads(1)  # tensors are small here, and threads would wait for one another
    torch.manual_seed(0)
    found = lesson.measure()
    print(lesson.tell(found, SPEAK[chosen.language]))
    if chosen.found:
        chosen.found.write_text(json.dumps(asdict(found), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for language, folder in LANGUAGES.items():
        place = chosen.out / folder / f"{picture_name(stem)}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        with paper(), whole(place) as part:
            _save(lesson.draw(found, SPEAK[language]), part)
        shown = os.path.relpath(place) if place.is_relative_to(Path.cwd()) else place
        print(SPEAK[chosen.language](f"drawn: {shown}", f"图：{shown}"))


def _save(figure: Figure, path: Path) -> None:
    """A PNG of 256 colours: a third of the size, and nobody sees a difference."""
    from PIL import Image

    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=130)
    Image.open(drawn).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, format="PNG", optimize=True)


def data(name: str) -> Path | None:
    """A file of the folder $HEADWAY_DATA, which holds texts that headway does not bring, or None where it is not."""
    folder = os.environ.get("HEADWAY_DATA")
    file = Path(folder).expanduser() / name if folder else None
    return file if file and file.is_file() else None


def weights(name: str) -> Path | None:
    """The folder of a published model that `make weights` fetched, or None where it is not."""
    home = os.environ.get("HEADWAY_WEIGHTS") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "headway/weights"
    folder = Path(home).expanduser() / name
    return folder if (folder / "headway.json").is_file() else None


def picture_name(stem: str) -> str:
    """lesson_1_weighted_lookup → 1-weighted-lookup"""
    return stem.removeprefix("lesson_").replace("_", "-")


# ---------------------------------------------------------------- tables


def table(rows: Sequence[Sequence[object]], head: Sequence[str] = ()) -> str:
    """Columns in line, numbers to the right; a Chinese character is as wide as two others."""
    lines = [[cell if isinstance(cell, str) else f"{cell:.6g}" for cell in row] for row in rows]
    right = [all(not isinstance(row[i], str) for row in rows) for i in range(len(lines[0]))]
    everything = [list(head), *lines] if head else lines
    widths = [max(_width(row[i]) for row in everything) for i in range(len(lines[0]))]
    made = []
    for row in everything:
        cells = []
        for cell, width, numbers in zip(row, widths, right, strict=True):
            space = " " * (width - _width(cell))
            cells.append(space + cell if numbers else cell + space)
        made.append("  " + "  ".join(cells).rstrip())
    return "\n".join(made)


def _width(cell: str) -> int:
    return sum(1 + (unicodedata.east_asian_width(letter) in "WF") for letter in cell)


# ---------------------------------------------------------------- pictures


@contextmanager
def paper() -> Iterator[None]:
    """How every picture of the lessons looks; Chinese in the letters that the package zhplot carries."""
    from matplotlib import font_manager, rc_context

    font_manager.fontManager.addfont(str(files("zhplot") / "fonts" / "NotoSansSC-Regular.ttf"))
    look = {
        "font.family": ["DejaVu Sans", "Noto Sans SC"],
        "font.size": 9.5,
        "text.color": INK,
        "axes.labelcolor": INK,
        "axes.edgecolor": INK,
        "axes.titlesize": 10.5,
        "axes.titlelocation": "left",
        "axes.titlepad": 8,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.prop_cycle": f"cycler('color', {list(COLOURS)})",
        "axes.grid": False,
        "grid.color": FAINT,
        "xtick.color": INK,
        "ytick.color": INK,
        "legend.frameon": False,
        "legend.fontsize": 9,
        "lines.linewidth": 1.8,
        "image.cmap": "Blues",
        "figure.constrained_layout.use": True,
    }
    with rc_context(look):
        yield


def panels(count: int, *, height: float = 3.3, width: float = 9.6, **options: Any) -> tuple[Figure, Any]:
    """A figure with panels in a row, and its axes; ``options`` are those of ``Figure.subplots``."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    return figure, figure.subplots(1, count, squeeze=False, **options)[0]
