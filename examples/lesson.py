"""Shared by all lessons: the command line, two languages, tables, pictures, and tools for measuring.

A lesson is a script with three functions, in reading order:

    measure() -> Found          a frozen dataclass of numbers, lists and dictionaries
    tell(found, t) -> str       a description in words and tables; t("English", "中文") selects the language
    draw(found, t) -> Figure    the picture, or a dictionary of several: the first has the name "", and the file of
                                another ends with its name

A lesson whose training takes minutes has `train() -> Iterator[row]`: `--train` stores its rows in measured/, and
`measure` reads them. A lesson with a page that answers to the hand has `page_data() -> dict`: `--page` writes the page,
whose script in pages/ computes with these values.

`run` calls them. `make claims` runs all lessons and checks the documents' claims against their numbers.
"""

from __future__ import annotations

import argparse
import base64
import importlib
import io
import json
import os
import sys
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

import headway as hw
import pages
from headway._common.extras import need
from headway._common.files import atomic_write, need_file_place
from headway._common.language import of_environment
from headway._common.pictures import AMOUNT, BASELINE, COLOURS, INK, colour_bar, style
from headway._common.pictures import FAINT as FAINT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DOCS = Path(__file__).parents[1] / "docs"
LANGUAGES = {"en": "lessons", "zh": "zh-CN/lessons"}
"""The folder of the pictures of each language, within the folder of the documents."""

MEASURED = Path(__file__).parent / "measured"
"""The folder of the rows that lessons store, for training that takes minutes."""

LONGEST = 40
"""Words of a sentence that a page reads."""

DPI = 150
"""Pixels per inch of the pictures."""
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)))
"""Lines that can be told apart without colours."""

BLUE, ORANGE, GREEN, PINK, GOLD, SKY, PURPLE, BROWN = COLOURS
GREY = BASELINE

Text = Callable[[str, str], str]
"""t("English", "中文") returns one of the two."""


def english(en: str, zh: str) -> str:
    return en


def chinese(en: str, zh: str) -> str:
    return zh


SPEAK: dict[str, Text] = {"en": english, "zh": chinese}


def run(name: str, words: Sequence[str] | None = None) -> None:
    """Runs a lesson: measures, prints, and draws."""
    lesson: Any = sys.modules[name]
    stem = Path(lesson.__file__).stem
    own = f"lesson-{stem.split('_')[1]}.png"
    parser = argparse.ArgumentParser(prog=stem, description=lesson.__doc__.partition("\n")[0])
    parser.add_argument("--language", choices=LANGUAGES, help="of what is printed and drawn (default: by LANG)")
    parser.add_argument("--out", type=Path, metavar="FILE", help=f"for the picture (default: {own}, in this folder)")
    parser.add_argument("--found", type=Path, metavar="FILE", help="write the numbers here too, as JSON")
    parser.add_argument("--docs", action="store_true", help="draw into docs/, in both languages: for maintainers")
    if hasattr(lesson, "train"):
        rows = _measured_file(lesson.__file__).name
        parser.add_argument(
            "--train", action="store_true", help=f"measure again what takes minutes, into measured/{rows}"
        )
    if hasattr(lesson, "page_data"):
        parser.add_argument("--page", type=Path, metavar="FILE", help="write only the page that answers to the hand")
    if hasattr(lesson, "SENTENCES_EACH"):
        parser.add_argument(
            "--sentences",
            type=int,
            metavar="N",
            help=f"to measure with, of each kind (default: {lesson.SENTENCES_EACH}, as in docs/)",
        )
    chosen = parser.parse_args(words)
    if getattr(chosen, "page", None):
        _write_page(lesson, chosen.page, chosen.language)
        return
    chosen.language = chosen.language or of_environment()
    if chosen.found and not chosen.found.absolute().parent.is_dir():
        parser.error(f"--found {chosen.found}: give a file in a folder that exists")
    if chosen.out and chosen.out.suffix != ".png":
        parser.error(f"--out {chosen.out}: give a name that ends with .png")
    if chosen.docs and chosen.out:
        parser.error("--docs and --out: give one of them")
    if chosen.docs and getattr(chosen, "sentences", None):
        parser.error("--docs and --sentences: give one of them")
    if chosen.docs and (missing := lacking(getattr(lesson, "DRAWN_FROM", ()))):
        parser.error(f"--docs: without {missing[0]} the picture would be poorer than the one in docs: {missing[1]}")
    places = {chosen.language: chosen.out or Path(own)}
    if chosen.docs:
        places = {language: DOCS / folder / f"{picture_name(stem)}.png" for language, folder in LANGUAGES.items()}
    try:
        for place in places.values():
            need_file_place(place)
        for module in ("matplotlib", "zhplot"):  # before the measurements, not after them
            need(module, "a lesson", "lessons")
    except hw.HeadwayError as error:
        raise SystemExit(str(error)) from None

    torch.set_num_threads(1)  # the tensors are so small that more threads would be slower
    torch.manual_seed(0)
    if getattr(chosen, "train", False):
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in lesson.train()]
        with atomic_write(_measured_file(lesson.__file__)) as part:
            part.write_text("".join(lines), encoding="utf-8")
        torch.manual_seed(0)
    if getattr(chosen, "sentences", None):
        lesson.SENTENCES_EACH = chosen.sentences
    found = lesson.measure()
    print(lesson.tell(found, SPEAK[chosen.language]))
    if chosen.found:
        text = json.dumps(asdict(found), indent=1, ensure_ascii=False, allow_nan=False)
        chosen.found.write_text(text + "\n", encoding="utf-8")
    for language, place in places.items():
        with paper():
            for name, figure in _figures(lesson, found, language).items():
                file = place.with_stem(f"{place.stem}-{name}") if name else place
                with atomic_write(file) as part:
                    part.write_bytes(_png(figure))
                shown = os.path.relpath(file) if file.absolute().is_relative_to(Path.cwd()) else file
                print(SPEAK[chosen.language](f"drawn: {shown}", f"图：{shown}"))


def show(name: str, language: str = "en") -> Any:
    """Runs a lesson in a notebook, where its text and pictures appear, and returns its numbers."""
    from IPython.display import Image, display

    lesson: Any = importlib.import_module(name)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    found = lesson.measure()
    print(lesson.tell(found, SPEAK[language]))
    with paper():
        for figure in _figures(lesson, found, language).values():
            display(Image(_png(figure), width=figure.get_figwidth() * figure.dpi))
    return found


def _write_page(lesson: Any, path: Path, language: str | None) -> None:
    """Writes the page of a lesson, which is in both languages; it opens in one, or in that of the browser."""
    try:
        if path.suffix != ".html":
            raise hw.HeadwayError(f"--page {path}: give a name that ends with .html")
        need_file_place(path)
        pages.write(path, Path(lesson.__file__).stem, lesson.page_data(), language)
    except hw.HeadwayError as error:
        raise SystemExit(str(error)) from None
    print(SPEAK[language or of_environment()](f"written: {path}", f"已写入：{path}"))


def _figures(lesson: Any, found: Any, language: str) -> dict[str, Figure]:
    """Returns the pictures of a lesson by their names; the name of the first is ""."""
    drawn = lesson.draw(found, SPEAK[language])
    return drawn if isinstance(drawn, dict) else {"": drawn}


def _png(figure: Figure) -> bytes:
    """Returns a PNG of 256 colours, which has a third of the size and looks the same."""
    from PIL import Image

    drawn, reduced = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, dpi=DPI)
    Image.open(drawn).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(reduced, format="PNG", optimize=True)
    return reduced.getvalue()


def data(name: str) -> Path | None:
    """Returns a file of the folder $HEADWAY_DATA, for texts that headway does not include, or None if it is missing."""
    folder = os.environ.get("HEADWAY_DATA")
    file = Path(folder).expanduser() / name if folder else None
    return file if file and file.is_file() else None


def measured(lesson: str) -> list[dict[str, Any]]:
    """Returns the rows that a lesson, given by its ``__file__``, has stored with ``--train``."""
    return [json.loads(line) for line in _measured_file(lesson).read_text(encoding="utf-8").splitlines()]


def _measured_file(lesson: str) -> Path:
    return MEASURED / f"{Path(lesson).stem}.jsonl"


def cache(name: str) -> Path:
    """Returns headway's folder of this name among the user's caches."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "headway" / name


def padded(rows: Sequence[Sequence[int]], fill: int) -> Tensor:
    """Returns [rows, most tokens]; shorter rows end with ``fill``."""
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=fill)


def weights(name: str) -> Path | None:
    """Returns the folder of a published model that `make weights` downloaded, or None if it is missing."""
    home = os.environ.get("HEADWAY_WEIGHTS") or cache("weights")
    folder = Path(home).expanduser() / name
    return folder if (folder / "headway.json").is_file() else None


def lacking(names: Sequence[str]) -> tuple[str, str] | None:
    """Returns the first of some weights and texts that is not on this machine, with how to get it, or None."""
    for name in names:
        if "." in name and data(name) is None:
            return name, "put it into the folder that HEADWAY_DATA names"
        if "." not in name and weights(name) is None:
            return f"the weights {name}", f"make weights ARGS={name}"
    return None


def picture_name(stem: str) -> str:
    """Returns "1-weighted-lookup" for "lesson_1_weighted_lookup"."""
    return stem.removeprefix("lesson_").replace("_", "-")


# ---------------------------------------------------------------- measuring


def one_head(rows: Sequence[Sequence[float]]) -> Tensor:
    """Returns a matrix as input of attention, [batch 1, head 1, rows, columns]."""
    return torch.tensor(rows, dtype=torch.float32)[None, None]


def frequencies(dim: int) -> Tensor:
    """Returns 10000^(−2c/dim) for the pairs c of dim dimensions, in radians per token, for sinusoids and rotations."""
    return 10000.0 ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)


def count(module: nn.Module) -> int:
    """Returns the number of parameters of a module."""
    return sum(parameter.numel() for parameter in module.parameters())


def descend(optimizer: torch.optim.Optimizer, loss: Tensor, longest: float | None = None) -> None:
    """Makes one training step, with the norm of the gradient clipped to ``longest``."""
    optimizer.zero_grad()
    loss.backward()
    if longest is not None:
        nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], longest)
    optimizer.step()


def least_seconds(calls: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """Returns the processor time of each call: the minimum over the rounds, after one to warm up.

    It is the minimum because other load on the machine can only add time.
    """
    rows = []
    for _ in range(rounds + 1):
        row = []
        for call in calls:
            begun = process_time()
            call()
            row.append(process_time() - begun)
        rows.append(row)
    return [min(taken) for taken in zip(*rows[1:], strict=True)]


def model_data(model: Any) -> dict[str, Any]:
    """Returns an encoder or decoder of headway as `read` of pages/page.js computes it."""
    attention = model.stack.blocks[0].attention
    return {
        "layers": len(model.stack.blocks),
        "heads": attention.num_heads,
        "width": model.embedding.embedding_dim,
        "scale": model.embedding.scale,
        "tensors": {name: tensor.flatten().tolist() for name, tensor in model.state_dict().items()},
    }


def halves(tensors: dict[str, Tensor]) -> dict[str, str]:
    """Returns tensors as base64 of 16 bits, which `decoded` of pages/page.js reads."""
    return {name: base64.b64encode(one.half().numpy().tobytes()).decode("ascii") for name, one in tensors.items()}


def planted_data(small: Any, words: dict[str, int]) -> dict[str, Any]:
    """Returns a small model that comes with headway, and its words, as the pages compute it; tensors have 16 bits."""
    model, (encoding,) = small.model, small.model.stack.encodings
    reach = torch.arange(2 * LONGEST + 1)
    nothing = torch.zeros(1, encoding.num_heads, len(reach), 1)
    # the logarithm of the weights of equal scores is the bias but for a constant, which a softmax does not see
    weights = hw.attention_weights(
        nothing[:, :, :1], nothing, nothing, encoding=encoding, q_positions=reach[LONGEST, None], k_positions=reach
    )
    return model_data(model) | {
        "words": sorted(words, key=lambda word: words[word]),
        "special": {name: words[f"[{name}]"] for name in ("CLS", "MASK", "UNK")},
        "spaced": small.language.spaced,
        "bias": weights[0, :, 0].double().log().tolist(),
        "tensors": halves(model.state_dict()),
    }


def handed(modules: Sequence[nn.Module], call: Callable[[], object]) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Returns the positional and keyword arguments that each module receives while ``call`` runs."""
    seen: dict[nn.Module, Any] = {}

    def watch(module: nn.Module, *words: Any) -> None:
        seen[module] = words

    hooks = [module.register_forward_pre_hook(watch, with_kwargs=True) for module in modules]
    try:
        call()
    finally:
        for hook in hooks:
            hook.remove()
    return [seen[module] for module in modules]


# ---------------------------------------------------------------- tables


def table(rows: Sequence[Sequence[object]], head: Sequence[str] = (), digits: int = 6) -> str:
    """Formats a table with aligned columns, numbers to the right; a Chinese character is as wide as two others.

    Args:
        rows: the cells.
        head: the titles of the columns.
        digits: significant digits of floats.
    """
    lines = [[_cell(cell, digits) for cell in row] for row in rows]
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


def _cell(cell: object, digits: int) -> str:
    return f"{float(f'{cell:.{digits}g}'):g}" if isinstance(cell, float) else str(cell)


def _width(cell: str) -> int:
    return sum(1 + (unicodedata.east_asian_width(letter) in "WF") for letter in cell)


# ---------------------------------------------------------------- pictures


@contextmanager
def paper() -> Iterator[None]:
    """Sets the style of the pictures, with a font that has Chinese characters."""
    look = {
        "axes.titlesize": 11,
        "axes.titlepad": 8,
        "axes.prop_cycle": f"cycler('color', {list(COLOURS)})",
        "legend.fontsize": 9.5,
        "lines.linewidth": 1.8,
        "image.cmap": AMOUNT,
        "figure.constrained_layout.use": True,
    }
    with style("中", **look):
        yield


def page(height: float) -> Figure:
    """Returns an empty figure of the common width; the height is in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(9.2, height))


def panels(count: int, *, height: float = 3.3, **options: Any) -> tuple[Figure, Any]:
    """Returns a figure with panels in a row and its axes; ``options`` are those of ``Figure.subplots``."""
    figure = page(height)
    return figure, figure.subplots(1, count, squeeze=False, **options)[0]


def matrix(
    axes: Axes,
    rows: Sequence[Sequence[float]],
    down: Sequence[str],
    across: Sequence[str],
    *,
    top: float = 1.0,
    says: Callable[[int, int], str] | None = None,
    size: float = 8.0,
    rotation: float = 0.0,
    bar: str = "",
    bar_of: Any = None,
) -> None:
    """Draws a matrix from 0 (white) to ``top`` (dark blue), with names of rows and columns and the cells' texts.

    With ``bar``, which says what the numbers are, it has the bar of its colours.
    """
    image = axes.imshow(rows, vmin=0, vmax=top, aspect="auto")
    axes.spines[:].set_visible(False)
    if bar:
        colour_bar(image, axes if bar_of is None else bar_of, bar, aspect=30)
    axes.set_yticks(range(len(down)), down, fontsize=size)
    axes.set_xticks(range(len(across)), across, fontsize=size, rotation=rotation)
    axes.tick_params(length=0)
    if says:
        for i, row in enumerate(rows):
            for j, number in enumerate(row):
                colour = "white" if number > 0.55 * top else INK
                axes.text(j, i, says(i, j), ha="center", va="center", fontsize=size, color=colour)


def percents(axes: Axes, end: float) -> None:
    """Labels the horizontal axis with shares in per cent, from 0 to ``end``."""
    axes.set(xlim=(0, end), xticks=[0, 0.5, 1], xticklabels=["0", "50%", "100%"])


def double(axes: Axes, values: Sequence[int], label: str) -> None:
    """Makes the horizontal axis logarithmic, with a tick at each value."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(values, [str(value) for value in values])
    axes.minorticks_off()
    axes.set_xlabel(label)
