"""A picture of what heads do over the steps of a training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._common.pictures import DASHES, need_format, save, style
from ..errors import HeadwayError
from ._head_log import read_head_log

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLES = {
    "normalized_entropy": "entropy / ln(keys seen)",
    "first": "weight of the first token",
    "sink": "weight of learned sinks",
    "previous_token": "weight of the previous token",
    "induction": "weight of the induction key",
}


def plot_head_log(
    log: str | Path | Sequence[dict[str, Any]], *, out: str | Path | None = None, title: str = ""
) -> Figure:
    """Draws what each head does over the steps of a training: a line for each head, coloured by its layer.

    Columns without a number, and sinks that take nothing, are left out.

    Args:
        log: the file of a ``HeadLog``, or the rows that ``read_head_log`` returns.
        out: a file for the picture, in the format that its name ends with. Default: none.
        title: a title.

    Returns:
        The picture.

    Raises:
        HeadwayError: if matplotlib is not installed, the log is empty or damaged, or the file cannot be written.
    """
    need_format(out)
    rows = read_head_log(log) if isinstance(log, (str, Path)) else list(log)
    if not rows:
        raise HeadwayError(f"{log if isinstance(log, (str, Path)) else 'log'} has no steps: log some first")
    shown = [name for name in TITLES if any(_counts(row[name], name) for row in rows)]
    layers = list(dict.fromkeys(row["layer"] for row in rows))
    from matplotlib.figure import Figure

    with style([title, *layers]):
        wide = 2 if len(shown) > 1 else 1
        down = -(-len(shown) // wide)
        figure = Figure(figsize=(4.2 * wide + 1.6, 2.6 * down + 0.5), layout="constrained")
        grid = figure.subplots(down, wide, sharex=True, squeeze=False)
        for place, axes in enumerate(grid.flat):
            if place < len(shown):
                _draw(axes, rows, layers, shown[place])
                axes.tick_params(labelbottom=place + wide >= len(shown))
            else:
                axes.axis("off")
        _name_layers(figure, layers)
        figure.supxlabel("training steps", fontsize=10)
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    if out is not None:
        save(figure, out)
    return figure


def _counts(value: float, name: str) -> bool:
    return not math.isnan(value) and (name != "sink" or value > 0)


def _draw(axes: Axes, rows: Sequence[dict[str, Any]], layers: list[str], name: str) -> None:
    heads = dict.fromkeys((row["layer"], row["head"]) for row in rows)
    for layer, head in heads:
        mine = [row for row in rows if (row["layer"], row["head"]) == (layer, head)]
        look = _look(layers.index(layer), len(layers))
        steps, values = [row["step"] for row in mine], [row[name] for row in mine]
        axes.plot(steps, values, **look, linewidth=1.3, marker="o" if len(mine) == 1 else "")
    axes.set_ylabel(TITLES[name])
    axes.set_ylim(0, max(1.0 if name == "normalized_entropy" else 0.1, 1.05 * _largest(rows, name)))
    axes.margins(x=0.02)
    axes.grid(axis="y", linewidth=0.6)


def _largest(rows: Sequence[dict[str, Any]], name: str) -> float:
    return max(row[name] for row in rows if not math.isnan(row[name]))


def _look(number: int, count: int) -> dict[str, Any]:
    """Dark for the first layer, light for the last; neighbours have other dashes too."""
    from matplotlib import colormaps

    return {"color": colormaps["viridis"](0.78 * number / max(1, count - 1)), "linestyle": DASHES[number % len(DASHES)]}


def _name_layers(figure: Figure, layers: list[str]) -> None:
    """Adds a legend of the layers; of many layers, only some."""
    from matplotlib.lines import Line2D

    step = -(-len(layers) // 8)
    named = sorted({*range(0, len(layers), step), len(layers) - 1})
    lines = [Line2D([], [], **_look(number, len(layers)), linewidth=2) for number in named]
    names = [f"layer {number}" for number in named]
    figure.legend(lines, names, loc="outside right upper", fontsize=9, handlelength=2.8)
