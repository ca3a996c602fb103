"""The picture of a benchmark: the share of the roof by length, for headway and torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .._common.pictures import BASELINE as GREY
from .._common.pictures import COLOURS, PAPER, style
from ..study.charts import frame
from .cases import DIRECTIONS
from .rows import Row
from .sides import DENSE, DENSE_GRADIENT, FLEX, OURS, SDPA
from .targets import gflops, share_of_roof

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE = COLOURS[:2]
SOLID: Any = "-"
DASHED: Any = (0, (4, 1.6))

LINES = (
    ("headway", "none", (OURS,), BLUE, SOLID, "o"),
    ("headway, T5's table", "t5", (OURS,), BLUE, DASHED, "o"),
    ("torch SDPA", "none", (SDPA,), ORANGE, SOLID, "s"),
    ("torch SDPA, dense bias", "t5", (DENSE, DENSE_GRADIENT), ORANGE, DASHED, "s"),
    ("FlexAttention, T5's table", "t5", (FLEX,), GREY, DASHED, "D"),
)
"""Name, encoding, sides (the first measured one is drawn), colour, dashes, marker."""

HEAD_DIM = 64


def draw(rows: Sequence[Row], title: str) -> Figure | None:
    """Draws a column of panels for each dtype and a row for each direction; None if there is nothing to draw."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    chosen = [
        row
        for row in rows
        if (row["case"]["kind"], row["case"]["mask"]) == ("attention", "none")
        and row["case"]["encoding"] in ("none", "t5")
    ]
    if not chosen:
        return None
    dims = {row["case"]["head_dim"] for row in chosen}
    head_dim = HEAD_DIM if HEAD_DIM in dims else min(dims)
    chosen = [row for row in chosen if row["case"]["head_dim"] == head_dim]
    dtypes = list(dict.fromkeys(row["case"]["dtype"] for row in chosen))
    directions = [name for name in DIRECTIONS if any(row["case"]["direction"] == name for row in chosen)]
    roof = any("roof_gflops" in row for row in chosen)
    with style([title], **{"font.size": 10.5}):
        height = 1.55 + 2.75 * len(directions)
        figure = Figure(figsize=(1.0 + 4.1 * len(dtypes), height))
        all_axes = figure.subplots(
            len(directions), len(dtypes), squeeze=False, sharex=True, sharey="row" if not roof else "all"
        )
        top = 1 - 1.2 / height
        figure.subplots_adjust(left=0.09, right=0.98, top=top, bottom=0.55 / height, hspace=0.28, wspace=0.08)
        for axes_of, direction in zip(all_axes, directions, strict=True):
            for axes, dtype in zip(axes_of, dtypes, strict=True):
                here = [r for r in chosen if (r["case"]["dtype"], r["case"]["direction"]) == (dtype, direction)]
                _panel(axes, here, share_of_roof if roof else gflops, roof)
                axes.set_title(f"{direction}, {dtype}", fontsize=10.5)
        for axes in all_axes[-1]:
            axes.set_xlabel("tokens")
        figure.text(0.02, 1 - 0.28 / height, title, fontsize=13, fontweight="bold", va="center")
        handles = [Line2D([], [], label=name, **_look(*look)) for name, _, _, *look in LINES]
        place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (0.01, 1 - 0.42 / height)}
        figure.legend(handles=handles, ncols=3, fontsize=9, handlelength=2.8, **place)
        return figure


def _look(colour: str, dashes: Any, marker: str) -> dict[str, Any]:
    """Draws hollow markers on a dashed line, so that a line that it covers stays visible."""
    inside = PAPER if dashes is DASHED else colour
    return {"color": colour, "linestyle": dashes, "marker": marker, "markersize": 4.5, "markerfacecolor": inside}


def _panel(axes: Axes, rows: Sequence[Row], value: Callable[[Row, str], float | None], roof: bool) -> None:
    lengths = sorted({row["case"]["n"] for row in rows})
    for _, encoding, sides, *look in LINES:
        points = {}
        for row in rows:
            side = next((side for side in sides if side in row["ms"]), None)
            reached = value(row, side) if side and row["case"]["encoding"] == encoding else None
            if reached is not None:
                points[row["case"]["n"]] = 100 * reached if roof else reached
        axes.plot(*zip(*sorted(points.items()), strict=True) if points else ((), ()), **_look(*look))
    axes.set_xscale("log", base=2)
    frame(axes, lengths)
    axes.set_ylim(0, max(104, 1.04 * axes.dataLim.ymax, axes.get_ylim()[1]) if roof else None)
    axes.set_ylabel("% of the roof" if roof else "GFLOP/s")
    axes.label_outer()
