"""The pictures of ``word_vectors``: the scores of each method, and the same words in two dimensions."""

from __future__ import annotations

import math
from statistics import mean
from typing import TYPE_CHECKING, Any

from .._common.pictures import BASELINE as GREY
from .._common.pictures import COLOURS, FAINT, INK, style
from .._common.table import signed
from ..vectors._map_picture import draw_legend, draw_points, looks
from ._word_vectors_results import BASELINE, COLUMNS, Column, WordVectorResults

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SCORES = ("wordsim353", "simlex999", "analogies", "own_group", "nats_per_word")
UNITS = {
    "wordsim353": "rank correlation",
    "simlex999": "rank correlation",
    "analogies": "right, %",
    "own_group": "words, %",
    "nats_per_word": "nats",
}
"""What is on the axis of each score."""
PANEL = 4.15
"""The width and height of a panel of the map, in inches; two of them fill a page of 830 pixels."""


def draw_scores(results: WordVectorResults) -> Figure:
    """Draws a dot for each method and score, the mean over seeds, with a line from the lowest to the highest."""
    from matplotlib.figure import Figure

    shown = [column for column in COLUMNS if column.field in SCORES]
    with style([*results.methods, results.settings["corpus"]]):
        height = 1.5 + 0.34 * len(results.methods)
        figure = Figure(figsize=(11.5, height + 0.2))
        grid = figure.subplots(1, len(shown), sharey=True)
        figure.subplots_adjust(left=0.15, right=0.985, top=1 - 0.95 / height, bottom=0.72 / height, wspace=0.12)
        for axes, column in zip(grid, shown, strict=True):
            _dots(axes, results, column)
        title: dict[str, Any] = {"fontsize": 14, "fontweight": "bold", "fontfamily": "DejaVu Sans"}
        figure.text(0.012, 1 - 0.25 / height, "Words into vectors", color=INK, va="center", **title)
        seeds = "one seed" if len(results.seeds) == 1 else f"mean and range of {len(results.seeds)} seeds"
        figure.text(
            0.012, 1 - 0.5 / height, f"{results.settings['corpus']} · {seeds}", fontsize=9, color=INK, va="center"
        )
        return figure


def _dots(axes: Axes, results: WordVectorResults, column: Column) -> None:
    place = {method: len(results.methods) - number for number, method in enumerate(results.methods)}
    scaled = {
        method: [column.factor * value for value in results.values(method, column.field)] for method in results.methods
    }
    everything = [value for values in scaled.values() for value in values] or [0.0, 1.0]
    low, high = min(everything), max(everything)
    if column.field != "nats_per_word":
        low = min(0.0, low)
    room = 0.1 * (high - low) or 0.1
    axes.set_xlim(low - room, high + 3.2 * room)
    axes.set_ylim(0.4, len(results.methods) + 0.6)
    best = column.best(list(map(mean, filter(None, scaled.values())))) if column.best and any(scaled.values()) else None
    for method, values in scaled.items():
        colour = GREY if method == BASELINE else COLOURS[0]
        axes.axhline(place[method], color=FAINT, linewidth=0.8, zorder=0)
        if not values:
            if method != BASELINE:
                axes.annotate("—", (low, place[method]), ha="center", va="center", color=INK, backgroundcolor="white")
            continue
        axes.plot([min(values), max(values)], [place[method]] * 2, color=colour, linewidth=2, solid_capstyle="round")
        axes.plot(mean(values), place[method], "s" if method == BASELINE else "o", color=colour, markersize=7)
        axes.annotate(
            signed(mean(values), f".{min(column.digits, 2)}f"), (max(values), place[method]), xytext=(7, 0),
            textcoords="offset points", va="center", fontsize=8.5, color=INK,
            fontweight="bold" if mean(values) == best else "normal",
            bbox={"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none"},
        )  # fmt: skip
    axes.set_yticks(list(place.values()), list(place))
    better = "lower is better" if column.best is min else "higher is better"
    axes.set_title(column.title, fontsize=10, fontweight="bold", pad=4)
    axes.set_xlabel(f"{UNITS[column.field]}\n{better}", fontsize=8.5)
    axes.tick_params(axis="both", length=0, labelsize=9)
    axes.locator_params(axis="x", nbins=4)
    if not any(scaled.values()):
        axes.set_xticks([])
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)


def draw_map(results: WordVectorResults) -> Figure:
    """Draws a panel for each method with the same words, coloured and shaped by their group, two side by side."""
    from matplotlib.figure import Figure

    panels = [
        (method, row) for method in results.methods if isinstance((row := results.of(method)[0]).get("map"), list)
    ]
    groups = list(dict.fromkeys(group for _, row in panels for _, group, *_ in row["map"]))
    down = max(1, math.ceil(len(panels) / 2))
    height = PANEL * down + 1.1
    words = [word for _, row in panels for word, *_ in row["map"]]
    with style([*groups, *words, results.settings["corpus"]]) as fonts:
        figure = Figure(figsize=(2 * PANEL, height))
        grid = figure.subplots(down, 2, squeeze=False)
        figure.subplots_adjust(
            left=0.01, right=0.99, bottom=0.05 / height, top=1 - 1.2 / height, wspace=0.03, hspace=0.09
        )
        figure.text(
            0.012, 1 - 0.24 / height, "The same words in two dimensions, by t-SNE", fontsize=14, fontweight="bold",
            fontfamily="DejaVu Sans", color=INK, va="center",
        )  # fmt: skip
        look = looks(groups)
        draw_legend(figure, look, 1 - 0.58 / height, fonts)
        for axes in grid.flat[len(panels) :]:
            axes.set_visible(False)
        left_out = 0
        for axes, (method, row) in zip(grid.flat, panels, strict=False):
            axes.set_title(_title(method, row), fontsize=10, color=INK, pad=4)
            left_out += len(draw_points(axes, [tuple(point) for point in row["map"]], look, fonts, size=7))
        no_room = f" · {left_out} names have no room" if left_out else ""
        said = (
            f"{results.settings['corpus']} · %: words whose nearest is of their own group · trustworthiness: at most 1"
        )
        figure.text(
            0.012, 1 - 0.49 / height, said + no_room, fontsize=9, color=INK, va="center", parse_math=False
        )  # fmt: skip
        return figure


def _title(method: str, row: dict[str, Any]) -> str:
    own, trust = row["own_group"], row.get("trustworthiness")
    return " · ".join(
        [
            method,
            *([] if isinstance(own, dict) else [f"{100 * own:.0f} %"]),
            *([] if not isinstance(trust, float) else [f"trustworthiness {trust:.2f}"]),
        ]
    )
