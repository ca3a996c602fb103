"""The picture of a map of words, and names of points that do not overlap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .._common.fonts import drawable, fonts_for
from .._common.pictures import COLOURS, FAINT, INK, MARKERS, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 8.3, 6.6
RADII = (6.0, 10.0, 16.0, 23.0, 31.0, 40.0, 52.0)
"""Distances of a name from its point, in points of type; from the second on it has a line."""
DIRECTIONS = (90, 270, 0, 180, 45, 135, 315, 225, 20, 160, 340, 200, 70, 110, 290, 250)
"""Directions of a name from its point, in degrees; the first that is free is used."""
WITH_LINE = 9.0


def picture_of_map(points: Sequence[tuple[str, str, float, float]], title: str, facts: str) -> Figure:
    """Returns the picture of a map: a title, the facts below it, a legend of the groups, and named points.

    A point is (word, group, x, y).
    """
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(group for _, group, *_ in points))
    with style([title, *(word for word, *_ in points), *names]) as fonts:
        figure = Figure(figsize=(WIDTH, HEIGHT))
        legend = names != [""]
        head = 0.98 if legend else 0.72
        axes = figure.add_axes((0.012, 0.012, 0.976, 1 - (head + 0.02) / HEIGHT))
        look = looks(names)
        left_out = draw_points(axes, points, look, fonts, size=9)
        no_room = f" · {len(left_out)} name{'s have' if len(left_out) > 1 else ' has'} no room" if left_out else ""
        said: dict[str, Any] = {"ha": "left", "va": "center", "parse_math": False}
        own = fonts_for([title])
        weight = "bold" if len(own) == 1 else "normal"  # other fonts have one weight
        heading: dict[str, Any] = {"fontsize": 14, "fontweight": weight, "fontfamily": own}
        figure.text(0.014, 1 - 0.24 / HEIGHT, drawable(title, own), color=INK, **heading, **said)
        figure.text(0.014, 1 - 0.5 / HEIGHT, facts + no_room, fontsize=9, color=INK, **said)
        if legend:
            draw_legend(figure, look, 1 - 0.58 / HEIGHT, fonts)
    return figure


def looks(groups: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Returns a colour and a marker for each group."""
    return {group: (COLOURS[n % len(COLOURS)], MARKERS[n % len(MARKERS)]) for n, group in enumerate(groups)}


def draw_legend(figure: Figure, look: dict[str, tuple[str, str]], top: float, fonts: list[str]) -> None:
    """Draws the names of the groups in one line, whose upper edge is at ``top``."""
    from matplotlib.lines import Line2D

    figure.legend(
        [Line2D([], [], color=colour, marker=marker, linestyle="") for colour, marker in look.values()],
        [drawable(group, fonts) or "other words" for group in look],
        loc="upper left", bbox_to_anchor=(0.004, top), ncols=max(1, len(look)), frameon=False, fontsize=9,
        handletextpad=0.1, columnspacing=1.1, labelcolor=[colour for colour, _ in look.values()],
    )  # fmt: skip


def draw_points(
    axes: Axes,
    points: Sequence[tuple[str, str, float, float]],
    look: dict[str, tuple[str, str]],
    fonts: list[str],
    size: float,
) -> list[str]:
    """Draws words with their names, (word, group, x, y); returns the words whose names have no room.

    The limits of the axes are set, and the place of the axes in the figure must not change afterwards.
    """
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_color(FAINT)
    for values, limit in (([x for *_, x, _ in points], axes.set_xlim), ([y for *_, y in points], axes.set_ylim)):
        room = 0.09 * (max(values) - min(values)) or 1.0
        limit(min(values) - room, max(values) + room)
    for _, group, x, y in points:
        colour, marker = look[group]
        axes.plot(x, y, marker, color=colour, markersize=0.55 * size, markeredgewidth=0)
    return _name(axes, points, look, fonts, size)


def _name(
    axes: Axes,
    points: Sequence[tuple[str, str, float, float]],
    look: dict[str, tuple[str, str]],
    fonts: list[str],
    size: float,
) -> list[str]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.transforms import Bbox

    figure = axes.get_figure(root=True)
    assert figure is not None
    renderer = FigureCanvasAgg(figure).get_renderer()
    axes.apply_aspect()
    scale = figure.dpi / 72
    dots = axes.transData.transform([[x, y] for *_, x, y in points])
    half = 0.4 * size * scale
    taken = [Bbox.from_bounds(x - half, y - half, 2 * half, 2 * half) for x, y in dots]
    frame = axes.get_window_extent()
    left_out = []
    # the most crowded points first, while there is still a choice
    for number in sorted(range(len(points)), key=lambda n: _fourth(dots, n)):
        word, group, x, y = points[number]
        others = taken[:number] + taken[number + 1 :]
        look_of: dict[str, Any] = {"fontsize": size, "color": look[group][0], "parse_math": False}
        label = axes.text(x, y, drawable(word, fonts), **look_of)
        extent = label.get_window_extent(renderer)
        label.remove()
        for radius, angle in ((radius, angle) for radius in RADII for angle in DIRECTIONS):
            right, up = radius * math.cos(math.radians(angle)), radius * math.sin(math.radians(angle))
            across, down = _side(right, radius), _side(up, radius)
            left = dots[number][0] + right * scale - (0.5, 0.0, 1.0)[across] * extent.width
            bottom = dots[number][1] + up * scale - (0.5, 0.0, 1.0)[down] * extent.height
            box = Bbox.from_bounds(left, bottom, extent.width, extent.height)
            with_line = radius > WITH_LINE
            boxes = [box, *(_along(dots[number], right * scale, up * scale, half, Bbox) if with_line else [])]
            inside = frame.x0 < box.x0 and box.x1 < frame.x1 and frame.y0 < box.y0 and box.y1 < frame.y1
            if not inside or any(one.overlaps(other) for one in boxes for other in others):
                continue
            arrow = {
                "arrowstyle": "-",
                "color": look[group][0],
                "linewidth": 0.5,
                "shrinkA": 0.5,
                "shrinkB": 0.35 * size,
            }
            axes.annotate(
                drawable(word, fonts), (x, y), xytext=(right, up), textcoords="offset points",
                ha=("center", "left", "right")[across], va=("center", "bottom", "top")[down],
                arrowprops=arrow if with_line else None, **look_of,
            )  # fmt: skip
            taken += boxes
            break
        else:
            left_out.append(word)
    return left_out


def _along(dot: Any, right: float, up: float, start: float, box: Any) -> list[Any]:
    """Small boxes along the line from a point to its name."""
    steps = max(2, int(math.hypot(right, up) / 3))
    length = math.hypot(right, up)
    return [
        box.from_bounds(dot[0] + right * k / steps - 0.5, dot[1] + up * k / steps - 0.5, 1, 1)
        for k in range(1, steps)
        if length * k / steps > start
    ]


def _fourth(dots: Any, number: int) -> float:
    """The distance to the fourth nearest point, which is small where points are crowded."""
    distances = sorted(math.dist(dots[number], dot) for dot in dots)
    return distances[min(4, len(distances) - 1)]


def _side(offset: float, radius: float) -> int:
    """1 for a name on the right of its point or above it, −1 for the other side, 0 if neither."""
    return 0 if abs(offset) < 0.2 * radius else 1 if offset > 0 else -1
