"""The pictures of a comparison: loss by position in the window, loss by length, and recall by distance."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from .._common.pictures import (
    BASELINE,
    BASELINE_ON_DARK,
    COLOURS,
    FAINT,
    FAINT_ON_DARK,
    INK,
    INK_ON_DARK,
    MARKERS,
    ON_DARK,
    PAPER,
    PAPER_ON_DARK,
    style,
)
from ..errors import unknown
from .results import ComparisonResults

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GREY_DASHES = ((0, (5, 2)), (0, (1, 1.5)), (0, (5, 2, 1, 2)))
COUNTED_DASHES = ((0, (1, 1.6)), (0, (6, 1.5, 1, 1.5)))
"""The lines of n-gram models."""
CHARACTERS = 25
"""The most characters of a name that fit beside the axes."""
INCHES = 0.072
"""The width of a character of a name."""
FULL_WIDTH = 0x2E80
"""The first character of Chinese scripts, in which each is as wide as two others."""


@dataclass(frozen=True)
class FigureLayout:
    """The size of a picture in inches, the edges of its axes as shares of it, and the font size of its title."""

    width: float = 7.2
    height: float = 4.9
    left: float = 0.1
    right: float = 0.7
    top: float = 0.82
    bottom: float = 0.13
    title: float = 14.0

    def with_names(self, names: Iterable[str]) -> FigureLayout:
        """Returns the layout of a picture that is wider if one of the names beside its axes needs it.

        The axes keep their size.
        """
        longest = max((sum(1 + (ord(sign) >= FULL_WIDTH) for sign in name) for name in names), default=0)
        width = self.width + INCHES * max(0, longest - CHARACTERS)
        by = self.width / width
        return replace(self, width=width, left=self.left * by, right=self.right * by)


WIDE = FigureLayout()
NARROW = FigureLayout(width=4.7, height=5.0, left=0.14, right=0.53, top=0.79, bottom=0.125, title=13.0)
"""The layout for a phone."""

Say = Callable[[str, str], str]
"""say("English", "中文") returns one of the two."""
LANGUAGES: dict[str, Say] = {"en": lambda english, chinese: english, "zh": lambda english, chinese: chinese}
IN_CHINESE = {
    "bytes": "字节",
    "tokens": "词元",
    "(equal parameters)": "（参数相等）",
    "(equal time)": "（时间相等）",
    "interpolated": "插值",
}

TALLEST = 3.0
"""The most bits above the best that the y axis shows."""
APART = 0.5
"""A line whose highest point lies above those of most others by this share of their range does not set the range."""


@dataclass(frozen=True)
class Style:
    """The line of one encoding, the same in every picture; a ``hollow`` marker is white inside."""

    colour: str
    dashes: Any
    marker: str
    hollow: bool = False
    width: float = 1.9

    def options(self, width: float = 1.9, size: float = 5.0) -> dict[str, Any]:
        """Returns the arguments of ``plot`` for lines of at most ``width`` and markers of ``size`` points."""
        return {
            "color": self.colour,
            "linestyle": self.dashes,
            "linewidth": min(width, self.width),
            "marker": self.marker,
            "markersize": size,
            "markerfacecolor": PAPER if self.hollow else self.colour,
            "solid_capstyle": "round",
        }


@dataclass(frozen=True)
class Line:
    """One encoding in a picture: at each x the mean over seeds, the lowest and the highest.

    ``end`` is the longest window or distance that it was measured at.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    end: float


def styles(results: ComparisonResults) -> dict[str, Style]:
    """Returns the style of each line.

    An encoding has a colour and a marker, and its interpolated row dashes; baselines are grey, and n-gram models thin.
    """
    look: dict[str, Style] = {}
    colours, greys = 0, 0
    for name in results.names:
        row = results.any_row(name)
        if row["baseline"]:
            look[name] = Style(BASELINE, GREY_DASHES[greys % 3], "s^D"[greys % 3], hollow=True)
            greys += 1
        elif row["view_of"] in look:
            look[name] = Style(look[row["view_of"]].colour, (0, (4, 1.6)), look[row["view_of"]].marker, hollow=True)
        else:
            dashes = "-" if colours < len(COLOURS) else (0, (6, 1, 1, 1))
            look[name] = Style(COLOURS[colours % len(COLOURS)], dashes, MARKERS[colours % len(MARKERS)])
            colours += 1
    for number, name in enumerate(results.counted):
        look[name] = Style(INK, COUNTED_DASHES[number % 2], "", width=0.9)
    return look


def by_position(results: ComparisonResults) -> list[Line]:
    """Returns lines of bits per byte by the number of bytes before, in the window."""
    lines = []
    for name in results.names:
        losses: dict[float, list[float]] = {}
        end = 0
        for row in results.rows:
            if row["encoding"] == name:
                for fewest, most, bits in row.get("bits_by_position", []):
                    losses.setdefault((fewest + most) / 2, []).append(bits)
                    end = max(end, most)
        if losses:
            x = sorted(losses)
            lines.append(_line(name, x, [losses[at] for at in x], end))
    return lines


def by_length(results: ComparisonResults) -> list[Line]:
    """Returns lines of the bits per byte by the length of the window."""
    lines = []
    for name in results.names:
        losses = [(length, list(results.by_seed(name, length, "bits_per_byte").values())) for length in results.lengths]
        losses = [(length, values) for length, values in losses if values]
        if losses:
            lines.append(_line(name, [length for length, _ in losses], [values for _, values in losses]))
    return lines


def recall_by_distance(results: ComparisonResults) -> list[Line]:
    """Returns lines of the right answers, in per cent, by the distance of the card, in the longest sequences."""
    lines = []
    for name in results.names:
        rows = [row for row in results.rows if row["encoding"] == name and row.get("recall_by_distance")]
        if not rows:
            continue
        longest = max(row["length"] for row in rows)
        rows = [row for row in rows if row["length"] == longest]
        distances = [
            key for key in rows[0]["recall_by_distance"] if all(key in row["recall_by_distance"] for row in rows)
        ]
        runs = [[100 * row["recall_by_distance"][key] for row in rows] for key in distances]
        lines.append(_line(name, [int(key) for key in distances], runs))
    return lines


def _line(name: str, x: Sequence[float], runs: list[list[float]], end: float | None = None) -> Line:
    return Line(name, x, [mean(v) for v in runs], [min(v) for v in runs], [max(v) for v in runs], end or x[-1])


def draw_by_position(results: ComparisonResults, layout: FigureLayout = WIDE, language: str = "en") -> Figure:
    """Draws the loss by position in the window, with words in the ``language`` "en" or "zh"."""
    say = _say(language)
    unit = _translated(say, results.unit)
    title = say("Loss by position in the window", "窗口内各位置上的损失")
    x = say(f"position in the window: {unit} before it", f"在窗口中的位置：前面有多少{unit}")
    y = say("held-out bits per byte", "留出文本的损失（比特/字节）")
    ticks = _powers(1, results.lengths[-1])
    return _draw(results, layout, say, by_position(results), (title, x, y), bound="bits", ticks=ticks)


def draw_by_length(results: ComparisonResults, layout: FigureLayout = WIDE, language: str = "en") -> Figure:
    """Draws the loss by the length of the window, with words in the ``language`` "en" or "zh"."""
    say = _say(language)
    unit = _translated(say, results.unit)
    title = say("Loss by length, in separate windows", "各窗口长度上的损失（窗口互不重叠）")
    x = say(f"{unit} in the window", f"窗口中的{unit}数")
    y = say("held-out bits per byte", "留出文本的损失（比特/字节）")
    return _draw(results, layout, say, by_length(results), (title, x, y), bound="bits", ticks=results.lengths)


def draw_recall(results: ComparisonResults, layout: FigureLayout = WIDE, language: str = "en") -> Figure:
    """Draws recall by distance, with words in the ``language`` "en" or "zh"."""
    say, longest = _say(language), f"{results.lengths[-1]:,}"
    title = say(f"Recall in sequences of up to {longest}", f"长度至多 {longest} 的序列中的回忆")
    x = say("tokens since the card was shown", "卡片出现之后的词元数")
    y = say("right answers, %", "答对的比例（%）")
    return _draw(results, layout, say, recall_by_distance(results), (title, x, y), bound="per cent")


def _say(language: str) -> Say:
    if language not in LANGUAGES:
        raise unknown("language", language, LANGUAGES)
    return LANGUAGES[language]


def _translated(say: Say, name: str) -> str:
    chinese = name
    for english, its in IN_CHINESE.items():
        chinese = chinese.replace(f" {english}" if its.startswith("（") else english, its)
    return say(name, chinese)


def _draw(
    results: ComparisonResults,
    layout: FigureLayout,
    say: Say,
    lines: list[Line],
    labels: tuple[str, str, str],
    *,
    bound: str,
    ticks: Sequence[int] | None = None,
) -> Figure:
    from matplotlib.figure import Figure

    title, x_label, y_label = labels
    look = styles(results)
    words = _subtitle(results, say)
    with style([title, *words, *results.names], **{"font.size": 11}):
        counted = results.counted if bound == "bits" else {}
        low, high = range_of(lines, bound, counted.values())
        named = [_translated(say, label(line, lines, high, say)) for line in lines]
        place = layout.with_names([*named, *counted])
        figure = Figure(figsize=(place.width, place.height))
        figure.subplots_adjust(left=place.left, right=place.right, top=place.top, bottom=place.bottom)
        axes = figure.add_subplot()
        end = max((max(line.x) for line in lines), default=2)
        start = min((min(line.x) for line in lines), default=1)
        axes.set_xscale("log", base=2)
        axes.set_xlim(start / 1.15, end * 1.08)
        axes.set_ylim(low, high)
        lines = lines + [_line(name, [start, end], [[bits]] * 2) for name, bits in counted.items()]
        for line in lines:
            own = look[line.name]
            axes.plot(line.x, line.y, **own.options(), zorder=3)
            if len(results.seeds) > 1:
                axes.fill_between(line.x, line.low, line.high, color=own.colour, alpha=0.14, linewidth=0)
        frame(axes, ticks or _powers(start, end))
        trained = results.protocol.train_length
        if start < trained < end:
            axes.axvline(trained, color=INK, linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
            axes.annotate(
                say("trained length", "训练长度"), (trained, 1), xycoords=("data", "axes fraction"), xytext=(0, 3),
                textcoords="offset points", ha="center", va="bottom", fontsize=9, color=INK,
            )  # fmt: skip
        name_lines(axes, lines, look, low, high, say=say)
        axes.set(xlabel=x_label, ylabel=y_label)
        figure.text(0.02, 0.955, title, fontsize=layout.title, fontweight="bold", color=INK, va="center")
        lower = "\n".join((" · ".join(words[:2]), " · ".join(words[2:]))) if layout is NARROW else " · ".join(words)
        figure.text(0.02, 0.915, lower, fontsize=9.5, color=INK, va="top", linespacing=1.4)
        return figure


def _subtitle(results: ComparisonResults, say: Say) -> list[str]:
    seeds, length = len(results.seeds), f"{results.protocol.train_length:,}"
    one, several = say("one seed", "一个种子"), say(f"mean and range of {seeds} seeds", f"{seeds} 个种子的平均与范围")
    unit = _translated(say, results.unit)
    trained = say(f"trained at {length} {unit}", f"训练长度 {length} {unit}")
    return [Path(results.protocol.corpus).name, trained, one if seeds == 1 else several]


def range_of(lines: list[Line], bound: str, others: Iterable[float] = ()) -> tuple[float, float]:
    """Returns the range of the y axis, which ``bound`` says has "bits" or "per cent"."""
    if bound == "per cent":
        return -3, 104
    # the first bytes of a window are hard to predict for every model, and would stretch the axis
    late = [[value for x, value in zip(line.x, line.y, strict=True) if x >= 4] or list(line.y) for line in lines]
    low = min(map(min, late), default=0.0)
    tops = sorted(min(max(values), low + TALLEST) for values in late) or [1.0]
    low, top = min([low, *others]), tops[-1]
    for number in range(len(tops) // 2 + 1, len(tops)):
        if tops[number] - tops[number - 1] > APART * (tops[number - 1] - low) > 0:
            top = tops[number - 1] + 0.25 * (tops[number - 1] - low)
            break
    top = max([top, *others])
    room = 0.05 * (top - low) or 0.1
    return low - room, top + room


def _powers(start: float, end: float) -> list[int]:
    powers = [2**k for k in range(40) if start <= 2**k <= end * 1.01]
    return powers if len(powers) <= 8 else powers[len(powers) % 2 :: 2]


def frame(axes: Axes, ticks: Sequence[int]) -> None:
    """Sets the axes: numbers at the ticks of the x axis, grid lines for the y axis, and no box."""
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    axes.xaxis.set_major_locator(FixedLocator(list(ticks)))
    axes.xaxis.set_major_formatter(FixedFormatter([f"{tick:,}" for tick in ticks]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(axis="y", color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(INK)
    axes.tick_params(axis="y", length=0, colors=INK)
    axes.tick_params(axis="x", colors=INK)


def name_lines(
    axes: Axes,
    lines: list[Line],
    look: dict[str, Style],
    low: float,
    high: float,
    form: Callable[[float], str] = "{:.3g}".format,
    say: Say = LANGUAGES["en"],
) -> None:
    """Writes each name beside the end of its line, moved apart if they would overlap.

    ``form`` writes the number at the end of a line that leaves the axis.
    """
    if not lines:
        return
    box = axes.get_window_extent()
    width, height = (72 * side / axes.get_figure(root=True).dpi for side in (box.width, box.height))  # type: ignore[union-attr]
    step = (high - low) * 12.5 / height  # points from name to name
    moved, begins, ends, name = (1 + points / width for points in (3, 9, 27, 33))
    wanted = sorted(((min(max(line.y[-1], low), high), line) for line in lines), key=lambda pair: pair[0])
    places: list[float] = []
    for y, _ in wanted:
        places.append(max(y, places[-1] + step) if places else y)
    # names that were moved above the axis are moved down again
    ceiling = high
    for number in range(len(places) - 1, -1, -1):
        places[number] = min(places[number], ceiling)
        ceiling = places[number] - step
    for place, (y, line) in zip(places, wanted, strict=True):
        own = look[line.name]
        moves = line.y[-1] <= high and not _stops_early(line, lines) and abs(place - y) > step / 4
        if moves:  # a thin line leads to the name
            axes.annotate(
                "", (line.x[-1], y), xytext=(moved, place), textcoords=("axes fraction", "data"), annotation_clip=False,
                arrowprops={"arrowstyle": "-", "color": own.colour, "linewidth": 0.7, "shrinkA": 0, "shrinkB": 3},
            )  # fmt: skip
        across = axes.get_yaxis_transform()
        axes.plot((begins, ends), (place, place), **own.options(1.6, 4.5), transform=across, clip_on=False)
        axes.annotate(
            _translated(say, label(line, lines, high, say, form)), (name, place), xycoords=("axes fraction", "data"),
            va="center", fontsize=9, annotation_clip=False,
        )  # fmt: skip


def label(
    line: Line,
    lines: Sequence[Line],
    high: float,
    say: Say = LANGUAGES["en"],
    form: Callable[[float], str] = "{:.3g}".format,
) -> str:
    """Returns the label beside the end of a line: its whole name, and where the line ends if not at the edge.

    Args:
        line: the line.
        lines: all lines.
        high: the upper end of the y axis.
        say: chooses the language.
        form: writes the number at the end of a line that leaves the axis.
    """
    name = line.name.replace('extend="interpolate"', "interpolated")
    file, _, rest = name.rpartition("/")
    name = rest if file and ".py" in rest else name
    if line.y[-1] > high:
        return f"{name} ↑ {form(line.y[-1])}"
    return name + (say(" (to {})", "（至 {}）").format(f"{line.end:,.0f}") if _stops_early(line, lines) else "")


def _stops_early(line: Line, lines: Sequence[Line]) -> bool:
    return line.x[-1] < max(other.x[-1] for other in lines) * 0.9


def svg(figure: Figure) -> str:
    """Returns a picture as SVG, for a page that sets its colours as CSS variables."""
    from matplotlib import rc_context

    buffer = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "headway"}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    for name, colour in names_of_colours().items():
        text = text.replace(colour, f"var(--{name})")
    return text


def css_colours(dark: bool) -> str:
    """Returns the CSS variables that ``svg`` refers to."""
    named = names_of_colours()
    if dark:
        others = (*ON_DARK, BASELINE_ON_DARK, INK_ON_DARK, FAINT_ON_DARK, PAPER_ON_DARK)
        named = dict(zip(named, others, strict=True))
    return " ".join(f"--{name}: {colour};" for name, colour in named.items())


def names_of_colours() -> dict[str, str]:
    """Returns the colours of the pictures by the names of their CSS variables."""
    series = {f"series-{number}": colour for number, colour in enumerate(COLOURS)}
    return {**series, "baseline": BASELINE, "ink": INK, "faint": FAINT, "paper": PAPER}
