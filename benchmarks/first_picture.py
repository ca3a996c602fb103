"""Draws the first picture of both READMEs from stored rows: `python benchmarks/first_picture.py`.

On the left, the exact match by length on one task of symbols; on the right, the loss by position on a text. An encoding
has one colour on both sides.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

import suite

from headway._common.files import from_json
from headway._common.pictures import BASELINE, COLOURS, FAINT, INK, MARKERS, save, style
from headway._common.store import read_rows
from headway.study import ComparisonResults, FixedProtocol
from headway.study.charts import Style, by_position, frame, range_of
from headway.study.store import KEYS, ROW
from headway.study.tasks import sequence_task

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROOT = Path(__file__).parents[1]
PICTURES = {"en": ROOT / "docs" / "encodings-by-length.png", "zh": ROOT / "docs" / "zh-CN" / "encodings-by-length.png"}
TEXTS = {"en": ("comparison-shakespeare", "Shakespeare"), "zh": ("comparison-chinese", "中文语录")}
TASK = "majority"
ASKED = ("Are there more ones than zeros? Right answers, %", "1 比 0 多吗？答对的比例（%）")
ENCODINGS = ("rope", "alibi", "t5", "none", "sinusoidal", "randomized + sinusoidal")
LOOK = {name: Style(COLOURS[number], "-", MARKERS[number]) for number, name in enumerate(ENCODINGS)}
IN_CHINESE = {
    "none": "none（不用编码）",
    "sinusoidal": "sinusoidal（正弦）",
    "randomized + sinusoidal": "randomized + sinusoidal（随机位置）",
}
Say = Callable[[str, str], str]


def main() -> None:
    for language, path in PICTURES.items():
        save(draw(language), path)


def draw(language: str) -> Figure:
    """Returns the picture in a language."""
    from matplotlib.figure import Figure

    def say(english: str, chinese: str) -> str:
        return chinese if language == "zh" else english

    folder, text = TEXTS[language]
    with style([say("", "中文")], **{"font.size": 11}):
        figure = Figure(figsize=(9.6, 4.7))
        figure.subplots_adjust(left=0.06, right=0.965, top=0.83, bottom=0.245, wspace=0.16)
        left, right = figure.subplots(1, 2)
        of_task(left, say)
        of_text(right, folder, text, say)
        names = [IN_CHINESE.get(name, name) if language == "zh" else name for name in ENCODINGS]
        handles = [line_of(name, label) for name, label in zip(ENCODINGS, names, strict=True)]
        figure.legend(handles=handles, loc="lower center", ncol=3, fontsize=10.5, columnspacing=2.5, borderaxespad=0.2)
        return figure


def line_of(name: str, label: str) -> object:
    """The line of an encoding in the legend."""
    from matplotlib.lines import Line2D

    return Line2D([], [], label=label, **LOOK[name].options(2.2, 6))


def of_task(axes: Axes, say: Say) -> None:
    """Draws the exact match of models that learned the task."""
    results, task = suite.load(), sequence_task(TASK)
    lengths = [times * task.trained for times in results.times]
    axes.set_xscale("log", base=2)
    axes.set_xlim(lengths[0] / 1.25, lengths[-1] * 1.25)
    guessing = [100 * task.chance(length) for length in lengths]
    axes.set_ylim(min(guessing) - 6, 102)
    axes.plot(lengths, guessing, color=BASELINE, linewidth=1.2, linestyle=(0, (1, 1.5)), zorder=2)
    axes.annotate(
        say("guessing", "猜测"),
        (lengths[-1], guessing[-1]),
        xytext=(0, -4),
        textcoords="offset points",
        ha="right",
        va="top",
        fontsize=9.5,
        color=BASELINE,
    )
    shown = [name for name in ENCODINGS if results.learned(TASK, name)]
    for number, name in enumerate(shown):
        aside = 2 ** (0.05 * (number - (len(shown) - 1) / 2))  # lines of equal numbers lie side by side
        seeds = results.learned(TASK, name)
        scores = {
            times: mean(values)
            for times in results.times
            if (values := [one for seed, one in results.by_seed(TASK, name, times).items() if seed in seeds])
        }
        x = [times * task.trained * aside for times in scores]
        axes.plot(x, [100 * score for score in scores.values()], **LOOK[name].options(2.2, 6), zorder=3)
    frame(axes, lengths)
    beyond(axes, task.trained, say)
    axes.set_xlabel(say(f"{task.counts} in the input", "输入中的符号数"))
    heading(
        axes,
        say("Does a learned rule hold for longer inputs?", "学到的规则对更长的输入还成立吗？"),
        say(*ASKED),
    )


def of_text(axes: Axes, folder: str, text: str, say: Say) -> None:
    """Draws the loss by the number of bytes before, in the window."""
    place = ROOT / "benchmarks" / "results" / folder
    protocol = FixedProtocol.from_settings(from_json((place / "settings.json").read_text(encoding="utf-8")))
    results = ComparisonResults(read_rows(place / "results.jsonl", KEYS, kind=ROW), protocol)
    lines = [line for line in by_position(results) if line.name in ENCODINGS]
    axes.set_xscale("log", base=2)
    axes.set_xlim(4, protocol.lengths[-1])
    low, high = range_of(lines, "bits")
    axes.set_ylim(low, high + 0.1 * (high - low))
    for line in lines:
        axes.plot(line.x, line.y, **LOOK[line.name].options(2.2, 6), zorder=3)
    frame(axes, [4, 16, protocol.train_length, protocol.lengths[-1]])
    beyond(axes, protocol.train_length, say)
    axes.set_xlabel(say("bytes of context before the predicted one", "预测之前的字节数"))
    heading(
        axes,
        say("Does more context help on a text?", "更多的上文对文本有帮助吗？"),
        say(f"{text}: bits per byte, lower is better", f"{text}：比特/字节，越低越好"),
    )


def beyond(axes: Axes, trained: int, say: Say) -> None:
    """Marks what is longer than trained."""
    axes.axvspan(trained, axes.get_xlim()[1], color=FAINT, alpha=0.35, linewidth=0, zorder=0)
    axes.axvline(trained, color=INK, linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
    axes.annotate(
        say("longer than trained →", "比训练时更长 →"),
        (trained, 1),
        xycoords=("data", "axes fraction"),
        xytext=(4, 2),
        textcoords="offset points",
        va="bottom",
        fontsize=9.5,
        color=INK,
    )


def heading(axes: Axes, title: str, subtitle: str) -> None:
    """Writes a title, and in smaller letters what is drawn."""
    axes.annotate(
        title,
        (0, 1),
        xycoords="axes fraction",
        xytext=(0, 37),
        textcoords="offset points",
        fontsize=12.5,
        fontweight="bold",
    )
    axes.annotate(subtitle, (0, 1), xycoords="axes fraction", xytext=(0, 21), textcoords="offset points", fontsize=10.5)


if __name__ == "__main__":
    main()
