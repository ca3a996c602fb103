"""The picture of ``extension``: perplexity by position, and relative to a model that restarts at its window."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .._common.pictures import BASELINE, COLOURS, INK, MARKERS, style
from ._extension_results import ExtensionResults
from .charts import GREY_DASHES, WIDE, FigureLayout, Line, Style, frame, name_lines, range_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKS: tuple[tuple[float, ...], ...] = (
    (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8),
    (1, 1.1, 1.2, 1.4, 1.6, 1.8, 2, 2.2, 2.5, 2.8, 3, 3.2, 3.5, 3.8, 4, 4.5, 5, 5.5, 6, 7, 8, 9),
)
"""The numbers that the perplexity axis may show, and their multiples by powers of ten; more where these are few."""
FEWEST = 4
HEIGHT = 7.0
FAR = 40.0
"""A method that differs from the restarted model by more per cent, on average, does not set the range of the axis."""


def draw(results: ExtensionResults, layout: FigureLayout = WIDE) -> Figure:
    """Draws perplexity by position, and below it the difference from the restarted model, with standard errors."""
    from matplotlib.figure import Figure

    look = _styles(results)
    said = results.settings
    count = "one window" if results.windows == 1 else f"{results.windows} windows"
    words = f"{said['model']} · factor {said['factor']:g} · {said['text']}, {count} of {results.length:,} tokens"
    with style([words, *results.methods], **{"font.size": 11}):
        figure = Figure(figsize=(layout.width, HEIGHT))
        edges = {"left": 0.12, "right": layout.right, "top": 0.885, "bottom": 0.085, "hspace": 0.1}
        restarted = "restarted" in results.methods
        all_axes = figure.subplots(1 + restarted, 1, sharex=True, squeeze=False, gridspec_kw=edges)[:, 0]
        _perplexity(all_axes[0], results, look)
        if restarted:
            _relative(all_axes[1], results, look)
        for axes in all_axes:
            axes.set_xlim(0, results.length * 1.01)
            if results.window < results.length:
                axes.axvline(results.window, color=INK, linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
        if results.window < results.length:
            all_axes[0].annotate(
                "end of the trained window", (results.window, 1), xycoords=("data", "axes fraction"), xytext=(0, 3),
                textcoords="offset points", ha="center", va="bottom", fontsize=9,
            )  # fmt: skip
        all_axes[-1].set_xlabel("position: tokens before it")
        title = "Perplexity beyond the trained window"
        figure.text(0.02, 0.97, title, fontsize=layout.title, fontweight="bold", va="center")
        figure.text(0.02, 0.94, words, fontsize=9.5, va="center")
        return figure


def _styles(results: ExtensionResults) -> dict[str, Style]:
    """Colours and markers of the methods; the unchanged and the restarted model are dashed."""
    look = {
        "none": Style(INK, GREY_DASHES[0], "s", hollow=True),
        "restarted": Style(BASELINE, GREY_DASHES[1], "s", hollow=True),
    }
    for number, name in enumerate(name for name in results.methods if name not in look):
        dashes = "-" if number < len(COLOURS) else (0, (6, 1, 1, 1))
        look[name] = Style(COLOURS[number % len(COLOURS)], dashes, MARKERS[number % len(MARKERS)])
    return look


def _perplexity(axes: Axes, results: ExtensionResults, look: dict[str, Style]) -> None:
    """All methods, on a logarithmic axis."""
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    lines = []
    for name in results.methods:
        x, nats = results.curve(name)
        bits = [loss / math.log(2) for loss in nats]
        lines.append(Line(name, x, bits, bits, bits, x[-1]))
    low, high = range_of(lines, "bits")
    axes.set_ylim(low, high)
    for line in lines:
        axes.plot(line.x, line.y, **look[line.name].options(1.5, 4), zorder=2 if look[line.name].hollow else 3)
    frame(axes, _ticks(results))
    for marks_of_ten in MARKS:
        marks = [mark * 10**power for power in range(6) for mark in marks_of_ten]
        marks = [mark for mark in marks if low <= math.log2(mark) <= high]
        if len(marks) >= FEWEST:
            break
    axes.yaxis.set_major_locator(FixedLocator([math.log2(mark) for mark in marks]))
    axes.yaxis.set_major_formatter(FixedFormatter([f"{mark:,g}" for mark in marks]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylabel("perplexity (log scale)")
    name_lines(axes, lines, look, low, high, form=lambda bits: f"{2**bits:,.0f}")


def _relative(axes: Axes, results: ExtensionResults, look: dict[str, Style]) -> None:
    """The methods that are not far away, each with the standard error over windows of text, side by side."""
    curves = {name: results.relative(name, "restarted") for name in results.methods if name != "restarted"}
    near = [name for name, (_, y, _) in curves.items() if abs(sum(y)) / len(y) <= FAR]
    apart = (curves[next(iter(curves))][0][0] * 2) * 0.11
    for number, name in enumerate(near):
        x, y, error = curves[name]
        shifted = [at + (number - (len(near) - 1) / 2) * apart for at in x]
        axes.errorbar(
            shifted, y, yerr=error if any(error) else None, fmt=look[name].marker, color=look[name].colour,
            markersize=4, elinewidth=1.1, capsize=0, label=name,
        )  # fmt: skip
    axes.axhline(0, **{**look["restarted"].options(1.5), "marker": ""}, label="restarted")
    frame(axes, _ticks(results))
    axes.set_ylabel("difference from restarted, %")
    handles, names = axes.get_legend_handles_labels()
    far = [name for name in curves if name not in near]
    title = "mean ± standard error\nover the windows" if results.windows > 1 else "one window:\nno standard error"
    legend = axes.legend(
        handles, names, loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0, fontsize=9.5, title=title,
        title_fontsize=8.5, alignment="left",
    )  # fmt: skip
    if far:
        text = "not shown, far off:\n" + "\n".join(far)
        axes.annotate(text, (1.04, 0), xycoords="axes fraction", fontsize=8.5, va="bottom", color=BASELINE)
    legend.set_in_layout(False)


def _ticks(results: ExtensionResults) -> list[int]:
    """Multiples of the window, or of its half if these are few."""
    step = results.window if results.length >= 4 * results.window else max(1, results.window // 2)
    step *= max(1, math.ceil(results.length / step / 8))
    return list(range(0, results.length + 1, step))
