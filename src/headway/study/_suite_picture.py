"""The picture of ``suite``: exact match by length, an axis for each task, and all names below."""

from __future__ import annotations

import math
from statistics import mean
from textwrap import wrap
from typing import TYPE_CHECKING

from .._common.pictures import COLOURS, FAINT, INK, MARKERS, style
from ._suite_results import SuiteNumbers
from .charts import Style, frame
from .tasks import sequence_task

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

ACROSS = 3
SIDE = 2.6
"""Inches of an axis with its numbers."""
CHARACTERS = 92
"""The characters that a line of the legend has room for."""


def draw(results: SuiteNumbers) -> Figure:
    """Draws the exact match of the models that learned each task, with the range of the seeds."""
    from matplotlib.figure import Figure

    look = {
        name: Style(
            COLOURS[number % len(COLOURS)],
            "-" if number < len(COLOURS) else (0, (6, 1, 1, 1)),
            MARKERS[number % len(MARKERS)],
        )
        for number, name in enumerate(results.encodings)
    }
    across = min(ACROSS, len(results.tasks))
    down = math.ceil(len(results.tasks) / ACROSS)
    longest = max(map(len, results.encodings))
    columns = max(1, min(len(results.encodings), CHARACTERS * across // ACROSS // (longest + 6)))
    legend = 0.22 * math.ceil(len(results.encodings) / columns) + 0.1
    width, height = max(5.2, SIDE * across), SIDE * down + legend + 0.95
    seeds = "one seed" if len(results.seeds) == 1 else f"mean and range of {len(results.seeds)} seeds"
    with style([*results.tasks, *results.encodings], **{"font.size": 10}):
        figure = Figure(figsize=(width, height))
        figure.subplots_adjust(
            left=0.6 / width,
            right=1 - 0.15 / width,
            top=1 - 0.95 / height,
            bottom=(legend + 0.5) / height,
            hspace=0.5,
            wspace=0.18,
        )
        grid = figure.subplots(down, across, squeeze=False, sharey=True)
        for axes, task in zip(grid.flat, results.tasks, strict=False):
            _task(axes, results, task, look)
        for axes in list(grid.flat)[len(results.tasks) :]:
            axes.set_visible(False)
        for row in grid:
            row[0].set_ylabel("right answers, %")
        keys = [_handle(look[name], name) for name in results.encodings]
        figure.legend(handles=keys, loc="lower center", ncol=columns, fontsize=9, borderaxespad=0.3)
        left = 0.12 / width
        figure.text(left, 1 - 0.24 / height, "Exact match by length", fontsize=13, fontweight="bold", va="center")
        said = f"{seeds}; only models that learned the trained length, at the dotted line"
        figure.text(left, 1 - 0.5 / height, said, fontsize=9, va="center")
        return figure


def _handle(look: Style, name: str) -> Line2D:
    from matplotlib.lines import Line2D

    return Line2D([], [], label=name, **look.options())


def _task(axes: Axes, results: SuiteNumbers, task: str, look: dict[str, Style]) -> None:
    """The lines of one task; those of equal numbers lie side by side."""
    trained = sequence_task(task).trained
    ticks = [times * trained for times in results.times]
    axes.set_xscale("log", base=2)
    axes.set_xlim(ticks[0] / 1.3, ticks[-1] * 1.3)
    axes.set_ylim(-4, 104)
    frame(axes, ticks)
    axes.axvline(trained, color=INK, linewidth=0.9, linestyle=(0, (1, 2)), zorder=1)
    shown = [name for name in results.encodings if results.learned(task, name)]
    for number, name in enumerate(shown):
        aside = 2 ** (0.045 * (number - (len(shown) - 1) / 2))
        learned = set(results.learned(task, name))
        x, y, low, high = [], [], [], []
        for times in results.times:
            its = results.by_seed(task, name, times)
            values = [100 * value for seed, value in its.items() if seed in learned]
            if values:
                x.append(times * trained * aside)
                y.append(mean(values))
                low.append(min(values))
                high.append(max(values))
        axes.plot(x, y, **look[name].options(1.6, 4.5), zorder=3)
        axes.vlines(x, low, high, color=look[name].colour, linewidth=1.0, zorder=2)
    never = sum(bool(results.runs(task, name)) for name in results.encodings) - len(shown)
    axes.set_title("\n".join(wrap(task, 26)), fontsize=10, fontweight="bold", loc="left")
    if never:
        said = "no model learned it" if not shown else f"{never} did not learn it"
        axes.text(0.98, 0.96, said, transform=axes.transAxes, ha="right", va="top", fontsize=8, bbox=_PAPER)
    axes.set_xlabel(sequence_task(task).counts, fontsize=9)


_PAPER = {"facecolor": "white", "edgecolor": FAINT, "linewidth": 0.5, "pad": 2}
