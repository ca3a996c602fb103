"""Code that all pictures share: one palette, the style with fonts for every script, colour bars, and saving."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import HeadwayError
from .extras import need
from .files import atomic_write
from .fonts import fonts_for

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#c4609a", "#e0a000", "#56b4e9", "#5b2a86", "#6b3a2e")
"""The colours of Okabe and Ito, some darker for white paper, and two more; the colour-blind can tell all apart."""
ON_DARK = ("#4ba6e0", "#ff8a3d", "#2fc79b", "#e8a0c8", "#f0c800", "#8fd0f5", "#b98adb", "#c99a8e")
"""The same on a dark page."""
MARKERS = "osD^vPX*"
"""A marker for each colour, so that lines can be told apart without colours too."""

DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)))
"""Lines of one kind that stand side by side, such as layers or heads, can be told apart by these."""

BASELINE, BASELINE_ON_DARK = "#6b7280", "#9ca3af"
INK, INK_ON_DARK = "#1f2430", "#e6e8ee"
FAINT, FAINT_ON_DARK = "#d9dce3", "#3a404d"
PAPER, PAPER_ON_DARK = "#ffffff", "#14171d"
HIDDEN = "#eceef2"
"""A cell of a map that has no number."""

AMOUNT, SIGNED = "Blues", "RdBu_r"
"""The colour maps of numbers from 0 on, and of numbers of both signs: red is positive, white is 0."""


@contextmanager
def style(texts: Iterable[str] = (), **look: Any) -> Iterator[list[str]]:
    """Sets the style of a picture that is drawn inside, and yields fonts that have every letter of its texts.

    ``texts`` are the texts of the picture that are not headway's: tokens, names of files, words. ``look`` has further
    settings of matplotlib, such as ``font={"size": 11}``.

    Raises:
        HeadwayError: if matplotlib is not installed.
    """
    fonts = fonts_for(texts)
    from matplotlib import rc_context

    common: Any = {
        "font.family": fonts,
        "font.size": 10,
        "text.color": INK,
        "axes.labelcolor": INK,
        "axes.edgecolor": INK,
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "axes.formatter.use_mathtext": False,
        "grid.color": FAINT,
        "xtick.color": INK,
        "ytick.color": INK,
        "legend.frameon": False,
        "legend.labelcolor": INK,
        "figure.facecolor": PAPER,
        "savefig.facecolor": PAPER,
    }
    with rc_context(common | look):
        yield fonts


def colour_bar(image: Any, axes: Any, label: str, **options: Any) -> Any:
    """Adds the bar of a colour map to ``axes``, one or several, and returns it.

    ``label`` says what the numbers are, with their unit; ``options`` are those of ``Figure.colorbar``.
    """
    drawn = image.axes.get_figure(root=True).colorbar(image, ax=axes, **{"shrink": 0.9, "pad": 0.03, **options})
    drawn.set_label(label)
    drawn.outline.set_visible(False)
    drawn.ax.tick_params(length=2)
    return drawn


def need_format(out: str | Path | None) -> None:
    """Raises HeadwayError for the name of a file that is not a picture, and if matplotlib is not installed."""
    need("matplotlib", "a picture", extra="plot")
    from matplotlib.backend_bases import FigureCanvasBase

    if out is not None and Path(out).suffix[1:].lower() not in FigureCanvasBase.get_supported_filetypes():
        raise HeadwayError(f"out is {str(out)!r}: give a name that ends with .png, .svg or .pdf")


def save(figure: Figure, out: str | Path, dpi: int = 160) -> None:
    """Writes a picture to a file in the format of its ending; ``dpi`` is the number of pixels per inch of a PNG."""
    path = Path(out)
    with atomic_write(path) as part, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # fonts_for has warned already, once for a script
        figure.draw_without_rendering()  # a constrained layout settles in the second pass
        figure.savefig(part, format=path.suffix[1:].lower(), dpi=dpi, facecolor=PAPER)
