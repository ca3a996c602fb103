"""What every picture must be: named axes, bars for colour maps, no letters over letters, all letters there."""

from __future__ import annotations

import warnings
from itertools import combinations
from typing import Any

TOUCH = 1.0
"""Pixels by which the boxes of two texts may overlap."""
SAME_LINE = 0.35
"""The share of the height of the lower of two texts that may overlap: boxes have room above and below the letters."""


def faults(figure: Any) -> list[str]:
    """Draws a figure and returns what is wrong with it, in sentences."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        figure.draw_without_rendering()
        canvas.draw()  # as pictures.save does: a constrained layout settles in the second pass
    texts = [(text, box) for text, box in _texts(figure, canvas.get_renderer()) if box.width and box.height]
    found = [str(warning.message) for warning in caught]
    found += _without_a_name(figure)
    found += _without_a_bar(figure)
    found += [
        f"{a.get_text()!r} and {b.get_text()!r} overlap" for (a, x), (b, y) in combinations(texts, 2) if _over(x, y)
    ]
    width, height = figure.bbox.width, figure.bbox.height
    for text, box in texts:
        if box.x0 < -TOUCH or box.y0 < -TOUCH or box.x1 > width + TOUCH or box.y1 > height + TOUCH:
            found.append(f"{text.get_text()!r} lies outside of the figure")
    return found


def boxes(figure: Any) -> list[str]:
    """Returns what is said of letters that no font of a figure has. It is drawn without pixels and without a layout."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    figure.set_layout_engine("none")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        figure.draw_without_rendering()
    return [said for said in (str(warning.message) for warning in caught) if "Glyph" in said or "missing" in said]


def _texts(figure: Any, renderer: Any) -> list[tuple[Any, Any]]:
    """The texts that can be seen, with their boxes; of tick labels those within the limits of their axis."""
    from matplotlib.text import Text

    ticks: dict[Any, bool] = {}
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            room = 1e-9 * (high - low)
            for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
                inside = low - room <= tick.get_loc() <= high + room and axis.get_visible() and axes.axison
                ticks[tick.label1] = inside and tick.label1.get_visible()
                ticks[tick.label2] = inside and tick.label2.get_visible()
    found = []
    for text in figure.findobj(Text):
        shown = ticks.get(text, text.get_visible()) and text.get_text().strip()
        if shown and (text.axes is None or text.axes.get_visible()) and _is_shown(text):
            found.append((text, Text.get_window_extent(text, renderer)))
    return found


def _is_shown(text: Any) -> bool:
    """Whether the axes of a label or title show it."""
    axes = text.axes
    if axes is None or axes.axison:
        return True
    return text not in (axes.xaxis.label, axes.yaxis.label)


def _over(a: Any, b: Any) -> bool:
    across = min(a.x1, b.x1) - max(a.x0, b.x0)
    down = min(a.y1, b.y1) - max(a.y0, b.y0)
    return across > TOUCH and down > max(TOUCH, SAME_LINE * min(a.height, b.height))


def _without_a_name(figure: Any) -> list[str]:
    """The axes that show numbers and do not say of what: neither themselves nor the figure around them."""
    found = []
    for axes in figure.axes:
        if not axes.get_visible() or not axes.axison or hasattr(axes, "_colorbar"):
            continue
        around = _around(axes.get_figure(root=False))
        for letter, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
            texts = [tick.label1.get_text() for tick in axis.get_major_ticks() if tick.label1.get_visible()]
            numbers = any(text.lstrip("−-+")[:1].isdigit() or "mathdefault" in text for text in texts)
            named = axis.label.get_text() or any(getattr(one, f"get_sup{letter}label")() for one in around)
            if axis.get_visible() and numbers and not named:
                title = axes.get_title("left") or axes.get_title()
                found.append(f"the {letter} axis of {title!r} has no name")
    return found


def _around(figure: Any) -> list[Any]:
    """A figure, and those of which it is a part."""
    return [figure, *(_around(figure._parent) if hasattr(figure, "_parent") else [])]


def _without_a_bar(figure: Any) -> list[str]:
    """The colour maps without a bar, unless each cell has its number."""
    bars = [axes._colorbar.mappable for axes in figure.axes if hasattr(axes, "_colorbar")]
    keys = {(bar.cmap.name, bar.norm.vmin, bar.norm.vmax) for bar in bars}
    found = []
    for axes in figure.axes:
        if hasattr(axes, "_colorbar"):
            continue
        for image in axes.images:
            shape = image.get_array().shape
            written = len(axes.texts) >= shape[0] * shape[1]
            is_map = len(shape) == 2 and not written
            if is_map and (image.cmap.name, image.norm.vmin, image.norm.vmax) not in keys:
                found.append(f"the colours of {axes.get_title('left') or axes.get_title()!r} have no bar")
    return found
