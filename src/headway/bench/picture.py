"""The picture of a benchmark: the share of the roof by length, for headway and torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..study.charts import BASELINE as GREY
from ..study.charts import COLOURS, INK, frame
from .cases import DIRECTIONS
from .rows import Row
from .sides import DENSE, DENSE_GRADIENT, FLEX, OURS, SDPA
from .targets import gflops, share_of_roof

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE, ORANGE = COLOURS[:2]
SOLID: Any = "-"
DASHED: Any = (0, (4, 1.6))

LINES = (
    ("headway", "none", (OURS,), BLUE, SOLID),
    ("headway, T5's table", "t5", (OURS,), BLUE, DASHED),
    ("torch SDPA", "none", (SDPA,), ORANGE, SOLID),
    ("torch SDPA, dense bias", "t5", (DENSE, DENSE_GRADIENT), ORANGE, DASHED),
    ("FlexAttention, T5's table", "t5", (FLEX,), GREY, DASHED),
)
"""Name, encoding, the sides of which the first one measured is drawn, colour, dashes."""

HEAD_DIM = 64


def draw(rows: Sequence[Row], title: str, path: Path) -> bool:
    """Saves the picture, with a column for each dtype and a row of panels for each direction.

    Args:
        rows: the rows.
        title: the title.
        path: the file.

    Returns:
        Whether there was anything to draw.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    chosen = [
        row
        for row in rows
        if (row["case"]["kind"], row["case"]["mask"]) == ("attention", "none")
        and row["case"]["encoding"] in ("none", "t5")
    ]
    if not chosen:
        return False
    dims = {row["case"]["head_dim"] for row in chosen}
    head_dim = HEAD_DIM if HEAD_DIM in dims else min(dims)
    chosen = [row for row in chosen if row["case"]["head_dim"] == head_dim]
    dtypes = list(dict.fromkeys(row["case"]["dtype"] for row in chosen))
    directions = [name for name in DIRECTIONS if any(row["case"]["direction"] == name for row in chosen)]
    roof = any("roof_gflops" in row for row in chosen)
    with rc_context({"font.family": ["DejaVu Sans"], "font.size": 10.5}):
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
                axes.set_title(f"{direction}, {dtype}", loc="left", fontsize=10.5, color=INK)
        for axes in all_axes[-1]:
            axes.set_xlabel("tokens", color=INK)
        figure.text(0.02, 1 - 0.28 / height, title, fontsize=13, fontweight="bold", color=INK, va="center")
        handles = [Line2D([], [], color=c, linestyle=d, label=n, **_marker(d)) for n, _, _, c, d in LINES]
        figure.legend(
            handles=handles,
            loc="upper left",
            bbox_to_anchor=(0.01, 1 - 0.42 / height),
            ncols=3,
            frameon=False,
            fontsize=9,
            labelcolor=INK,
        )
        figure.savefig(path, dpi=160, facecolor="white")
    return True


def _marker(dashes: Any) -> dict[str, Any]:
    """Markers are hollow on a dashed line, so that they are visible where it covers another."""
    return {"marker": "o", "markersize": 4.5, "markerfacecolor": "white" if dashes is DASHED else None}


def _panel(axes: Axes, rows: Sequence[Row], value: Callable[[Row, str], float | None], roof: bool) -> None:
    lengths = sorted({row["case"]["n"] for row in rows})
    for _, encoding, sides, colour, dashes in LINES:
        points = {}
        for row in rows:
            side = next((side for side in sides if side in row["ms"]), None)
            reached = value(row, side) if side and row["case"]["encoding"] == encoding else None
            if reached is not None:
                points[row["case"]["n"]] = 100 * reached if roof else reached
        axes.plot(
            *zip(*sorted(points.items()), strict=True) if points else ((), ()),
            color=colour,
            linestyle=dashes,
            **_marker(dashes),
        )
    axes.set_xscale("log", base=2)
    frame(axes, lengths)
    axes.set_ylim(0, 104 if roof else None)
    axes.set_ylabel("% of the roof" if roof else "GFLOP/s", color=INK)
    axes.label_outer()
