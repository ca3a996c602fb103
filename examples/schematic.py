"""Schematics: boxes, matrices with their numbers, and arrows, on a sheet whose unit is an inch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from headway._common.pictures import BASELINE, FAINT, INK, PAPER, SIGNED
from lesson import page

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TINT = 0.25
"""How far a cell's colour may go from white, so that its number can be read."""

Point = tuple[float, float]


class Place(NamedTuple):
    """A rectangle of a sheet, by its upper left corner, with the points where arrows begin and end."""

    x: float
    y: float
    width: float
    height: float

    @property
    def left(self) -> Point:
        return self.x, self.y + self.height / 2

    @property
    def right(self) -> Point:
        return self.x + self.width, self.y + self.height / 2

    @property
    def top(self) -> Point:
        return self.x + self.width / 2, self.y

    @property
    def bottom(self) -> Point:
        return self.x + self.width / 2, self.y + self.height


def sheet(height: float) -> tuple[Figure, Axes]:
    """Returns a figure of the common width, and axes over all of it: inches from the upper left corner."""
    figure = page(height)
    figure.set_layout_engine("none")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, figure.get_figwidth()), ylim=(height, 0))
    axes.axis("off")
    return figure, axes


def write(axes: Axes, x: float, y: float, text: str, *, size: float = 9, align: str = "center", **look: object) -> None:
    """Writes a text whose middle, or with ``align`` whose left or right end, is at a point."""
    axes.text(x, y, text, ha=align, va="center", fontsize=size, **look)


def box(axes: Axes, place: Place, text: str, *, colour: str = INK, fill: str = PAPER, size: float = 9) -> Place:
    """Draws a rectangle with a text in it."""
    from matplotlib.patches import Rectangle

    x, y, width, height = place
    axes.add_patch(Rectangle((x, y), width, height, facecolor=fill, edgecolor=colour, linewidth=1.2))
    write(axes, x + width / 2, y + height / 2, text, size=size)
    return place


def numbers(
    axes: Axes,
    x: float,
    y: float,
    rows: Sequence[Sequence[float | None]],
    *,
    title: str = "",
    down: Sequence[str] = (),
    across: Sequence[str] = (),
    cell: Point = (0.4, 0.24),
    form: str = ".1f",
    size: float = 8.5,
    frame: str = INK,
    top: float | None = None,
) -> Place:
    """Draws a matrix with its numbers: red above 0, blue below, white at 0 and grey where there is none.

    ``down`` and ``across`` are the names of its rows and columns, on the left and above. The number ``top`` has the
    strongest colour: by default the largest of the matrix.
    """
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    width, height = cell
    top = top or max(abs(number) for row in rows for number in row if number is not None) or 1.0
    for i, row in enumerate(rows):
        for j, number in enumerate(row):
            colour = FAINT if number is None else colormaps[SIGNED](0.5 + TINT * number / top)
            corner = (x + j * width, y + i * height)
            axes.add_patch(Rectangle(corner, width, height, facecolor=colour, edgecolor=PAPER))
            if number is not None:
                text = f"{number:{form}}"
                text = text.lstrip("-") if float(text) == 0 else text.replace("-", "−")
                write(axes, corner[0] + width / 2, corner[1] + height / 2, text, size=size)
    place = Place(x, y, width * len(rows[0]), height * len(rows))
    thick = 0.8 if frame == INK else 2
    axes.add_patch(Rectangle(place[:2], place.width, place.height, fill=False, edgecolor=frame, linewidth=thick))
    for i, name in enumerate(down):
        write(axes, x - 0.06, y + (i + 0.5) * height, name, size=size, align="right")
    for j, name in enumerate(across):
        write(axes, x + (j + 0.5) * width, y - 0.11, name, size=size)
    if title:
        write(axes, x, y - (0.36 if across else 0.16), title, align="left")
    return place


def arrow(
    axes: Axes, start: Point, end: Point, *, colour: str = BASELINE, bend: float = 0.0, width: float = 1.4
) -> None:
    """Draws an arrow, straight or with a bend."""
    look = {"arrowstyle": "-|>", "color": colour, "linewidth": width, "shrinkA": 2, "shrinkB": 2, "mutation_scale": 11}
    axes.annotate("", end, start, arrowprops=look | {"connectionstyle": f"arc3,rad={bend}"})
