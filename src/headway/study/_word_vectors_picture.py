"""The pictures of ``word_vectors``: the scores of each method, and the same words in two dimensions."""

from __future__ import annotations

import math
from statistics import mean
from typing import TYPE_CHECKING, Any

from .._markdown import signed
from ..pictures import BASELINE as GREY
from ..pictures import COLOURS, FAINT, INK, style
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
MARKERS = "osD^vP*X"
INCHES = 4.1
OFFSETS = ((0, 6), (0, -6), (5, 0), (-5, 0), (5, 5), (-5, 5), (5, -5), (-5, -5))
"""Places for the name of a point, in points from it; the first one that is free is used."""


def draw_scores(found: WordVectorResults) -> Figure:
    """Draws a dot for each method and score, the mean over seeds, with a line from the lowest to the highest."""
    from matplotlib.figure import Figure

    shown = [column for column in COLUMNS if column.field in SCORES]
    with style([*found.methods, found.settings["corpus"]]):
        height = 1.5 + 0.34 * len(found.methods)
        figure = Figure(figsize=(11.5, height + 0.2))
        grid = figure.subplots(1, len(shown), sharey=True)
        figure.subplots_adjust(left=0.15, right=0.985, top=1 - 0.95 / height, bottom=0.72 / height, wspace=0.12)
        for axes, column in zip(grid, shown, strict=True):
            _dots(axes, found, column)
        figure.text(
            0.012, 1 - 0.25 / height, "Words into vectors", fontsize=14, fontweight="bold", color=INK, va="center"
        )
        seeds = "one seed" if len(found.seeds) == 1 else f"mean and range of {len(found.seeds)} seeds"
        figure.text(
            0.012, 1 - 0.5 / height, f"{found.settings['corpus']} · {seeds}", fontsize=9, color=INK, va="center"
        )
        return figure


def _dots(axes: Axes, found: WordVectorResults, column: Column) -> None:
    place = {method: len(found.methods) - number for number, method in enumerate(found.methods)}
    scaled = {
        method: [column.factor * value for value in found.values(method, column.field)] for method in found.methods
    }
    everything = [value for values in scaled.values() for value in values] or [0.0, 1.0]
    low, high = min(everything), max(everything)
    if column.field != "nats_per_word":
        low = min(0.0, low)
    room = 0.1 * (high - low) or 0.1
    axes.set_xlim(low - room, high + 3.2 * room)
    axes.set_ylim(0.4, len(found.methods) + 0.6)
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


def draw_map(found: WordVectorResults) -> Figure:
    """Draws a panel for each method with the same words, coloured and shaped by their group."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    panels = [(method, row) for method in found.methods if isinstance((row := found.of(method)[0]).get("map"), list)]
    groups = list(dict.fromkeys(group for _, row in panels for _, group, *_ in row["map"]))
    across = max(1, min(len(panels), 4 if len(panels) in (4, 7, 8) else 3))
    down = max(1, math.ceil(len(panels) / across))
    width, height = INCHES * across, INCHES * down + 0.95
    with rc_context({"font.family": ["DejaVu Sans"], "font.size": 10}):
        figure = Figure(figsize=(width, height))
        grid = figure.subplots(down, across, squeeze=False)
        figure.subplots_adjust(left=0.01, right=0.99, bottom=0.008, top=1 - 1.15 / height, wspace=0.03, hspace=0.1)
        figure.text(
            0.012, 1 - 0.24 / height, "The same words in two dimensions, by t-SNE", fontsize=14, fontweight="bold",
            color=INK, va="center",
        )  # fmt: skip
        figure.text(
            0.012, 1 - 0.49 / height, f"{found.settings['corpus']} · in per cent: words whose nearest word, by cosine, "
            "is in their own group · names where there is room", fontsize=9, color=INK, va="center",
        )  # fmt: skip
        look = {group: (COLOURS[n % len(COLOURS)], MARKERS[n % len(MARKERS)]) for n, group in enumerate(groups)}
        figure.legend(
            [Line2D([], [], color=colour, marker=marker, linestyle="") for colour, marker in look.values()], groups,
            loc="upper left", bbox_to_anchor=(0.004, 1 - 0.56 / height), ncols=max(1, len(groups)), frameon=False,
            fontsize=9, handletextpad=0.1, columnspacing=1.2, labelcolor=[colour for colour, _ in look.values()],
        )  # fmt: skip
        for axes in grid.flat[len(panels) :]:
            axes.set_visible(False)
        for axes, (method, row) in zip(grid.flat, panels, strict=False):
            _panel(axes, method, row, look)
        return figure


def _panel(axes: Axes, method: str, row: dict[str, Any], look: dict[str, tuple[str, str]]) -> None:
    points = row["map"]
    own = row["own_group"]
    axes.set_title(method + ("" if isinstance(own, dict) else f" · {100 * own:.0f} %"), fontsize=10.5, color=INK, pad=4)
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_color(FAINT)
    xs, ys = [point[2] for point in points], [point[3] for point in points]
    for values, limit in ((xs, axes.set_xlim), (ys, axes.set_ylim)):
        room = 0.09 * (max(values) - min(values)) or 1.0
        limit(min(values) - room, max(values) + room)
    for _, group, x, y in points:
        colour, marker = look[group]
        axes.plot(x, y, marker, color=colour, markersize=4.5, markeredgewidth=0)
    _name(axes, points, look)


def _name(axes: Axes, points: list[list[Any]], look: dict[str, tuple[str, str]]) -> None:
    """Writes as many names as fit without touching each other or a point."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.transforms import Bbox

    figure = axes.get_figure(root=True)
    assert figure is not None
    canvas = FigureCanvasAgg(figure)
    axes.apply_aspect()
    scale = figure.dpi / 72
    dots = axes.transData.transform([[x, y] for _, _, x, y in points])
    taken = [Bbox.from_bounds(x - 2.5 * scale, y - 2.5 * scale, 5 * scale, 5 * scale) for x, y in dots]
    frame = axes.get_window_extent()
    for word, group, x, y in points:
        for right, up in OFFSETS:
            label = axes.annotate(
                word, (x, y), xytext=(right, up), textcoords="offset points", fontsize=7, color=look[group][0],
                ha=("center", "left", "right")[(right > 0) - (right < 0)],
                va=("center", "bottom", "top")[(up > 0) - (up < 0)] if right else "center",
            )  # fmt: skip
            box = label.get_window_extent(canvas.get_renderer())
            inside = frame.x0 < box.x0 and box.x1 < frame.x1 and frame.y0 < box.y0 and box.y1 < frame.y1
            if inside and not any(box.overlaps(other) for other in taken):
                taken.append(box)
                break
            label.remove()
