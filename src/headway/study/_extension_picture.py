"""The picture of ``extension``: perplexity by position, a line for each method."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .charts import (
    BASELINE,
    COLOURS,
    GREY_DASHES,
    INK,
    WIDE,
    Layout,
    Line,
    Style,
    frame,
    name_lines,
    range_of,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .extension import Extension

MARKS = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
"""The numbers that the perplexity axis may show, and their multiples by powers of ten."""


def draw(found: Extension, layout: Layout = WIDE) -> Figure:
    """Draws perplexity, on a logarithmic axis, by position; the axis ends at eight times the best."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    lines, look = [], {}
    colours = iter(COLOURS * 2)
    for name in found.methods:
        x, nats = found.curve(name)
        bits = [loss / math.log(2) for loss in nats]
        lines.append(Line(name, x, bits, bits, bits, x[-1]))
        plain = ("none", "restarted").index(name) if name in ("none", "restarted") else None
        look[name] = (
            Style(next(colours), "-", "o") if plain is None else Style((INK, BASELINE)[plain], GREY_DASHES[plain], "s")
        )
    with rc_context({"font.family": ["DejaVu Sans"], "font.size": 11}):
        figure = Figure(figsize=(layout.width, layout.height))
        figure.subplots_adjust(left=layout.left, right=layout.right, top=layout.top, bottom=layout.bottom)
        axes = figure.add_subplot()
        low, high = range_of(lines, "bits")
        axes.set_xlim(0, found.length * 1.01)
        axes.set_ylim(low, high)
        for line in lines:
            style = look[line.name]
            axes.plot(
                line.x, line.y, color=style.colour, linestyle=style.dashes, linewidth=1.9, marker=style.marker,
                markersize=3.5, zorder=2 if style.marker == "s" else 3, solid_capstyle="round",
            )  # fmt: skip
        frame(axes, _ticks(found))
        marks = [mark * 10**power for power in range(6) for mark in MARKS if low <= math.log2(mark * 10**power) <= high]
        axes.yaxis.set_major_locator(FixedLocator([math.log2(mark) for mark in marks]))
        axes.yaxis.set_major_formatter(FixedFormatter([f"{mark:,g}" for mark in marks]))
        axes.yaxis.set_minor_locator(NullLocator())
        if found.window < found.length:
            axes.axvline(found.window, color=INK, linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
            axes.annotate(
                "trained window", (found.window, 1), xycoords=("data", "axes fraction"), xytext=(0, 3),
                textcoords="offset points", ha="center", va="bottom", fontsize=9, color=INK,
            )  # fmt: skip
        name_lines(axes, lines, look, low, high)
        axes.set_xlabel("position", color=INK)
        said = found.settings
        figure.text(0.02, 0.955, "Reading further than the window", fontsize=layout.title, fontweight="bold",
                    color=INK, va="center")  # fmt: skip
        count = "one window" if found.windows == 1 else f"{found.windows} windows"
        words = f"perplexity · {said['model']} · factor {said['factor']:g} · {said['text']}, {count}"
        figure.text(0.02, 0.915, words, fontsize=9.5, color=INK, va="top")
        return figure


def _ticks(found: Extension) -> list[int]:
    """Multiples of the window, or of its half if these are few."""
    step = found.window if found.length >= 4 * found.window else max(1, found.window // 2)
    step *= max(1, math.ceil(found.length / step / 8))
    return list(range(0, found.length + 1, step))
