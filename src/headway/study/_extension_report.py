"""The report of ``extension``: conclusions, protocol, table and picture."""

from __future__ import annotations

from .._common.experiment import Files
from .._common.table import Cell, Table
from .._common.templates import render
from ._extension_picture import draw
from ._extension_results import RESTARTED, ExtensionResults


class Extension(ExtensionResults):
    """The results of ``measure``: for each method and window of text, the mean loss of each part of the positions.

    Args:
        rows: a row for each method and window.
        settings: the settings of the measurement.
        methods: the order of the methods.
    """

    def conclusions(self) -> list[str]:
        """Returns the conclusions that the results support, in sentences."""
        if self.length <= self.window:
            return [f"No position lies beyond the window of {self.window:,}."]
        beyond = {name: self.perplexity(name, self.window, self.length)[0] for name in self.methods}
        inside = self.perplexity("none", 0, self.window)[0]
        sentences = [
            f"The unchanged model has a perplexity of {_number(beyond['none'])} beyond the window, and "
            f"{_number(inside)} within it."
        ]
        base = beyond.get(RESTARTED)
        ours = sorted((value, name) for name, value in beyond.items() if name not in ("none", RESTARTED))
        if base is not None:
            apart = [f"{name} {self.against(name, RESTARTED, self.window, self.length)}" for _, name in ours]
            said = ", ".join(apart)
            sentences.append(f"The restarted model has {_number(base)} beyond the window. Compared with that: {said}.")
        if ours:
            cost = [f"{name} {self.against(name, 'none', 0, self.window)}" for _, name in ours]
            sentences.append(f"Change within the window, compared with the unchanged model: {', '.join(cost)}.")
        if self.windows == 1:
            sentences.append(
                "There is one window of text: it is not known whether these differences hold for other texts."
            )
        return sentences

    def protocol(self) -> list[str]:
        """Returns the settings in sentences."""
        said = self.settings
        number = self.windows
        quick = ["A quick measurement, of few methods and a short text."] if said["quick"] else []
        return [
            *quick,
            f"{said['model']} ({said['dtype']}), trained for {self.window:,} tokens; factor {said['factor']:g}; no "
            "training.",
            f"{said['text']}: {number} window{'s' * (number > 1)} of {self.length:,} tokens, the same for all, read in "
            f"pieces of {self.window:,} with a cache.",
            "Perplexity is exp of the mean −ln p of the next token, by how many are known.",
        ]

    def table(self) -> Table:
        """Returns the perplexity of each method by position, and its standard error; the best of a column is marked."""
        titles = ["method", *(f"{a:,}–{b - 1:,}" for a, b in self.columns), "seconds"]
        values = {name: [self.perplexity(name, a, b) for a, b in self.columns] for name in self.methods}
        best = [min(row[column][0] for row in values.values()) for column in range(len(self.columns))]
        rows: list[list[str | Cell]] = []
        for name, row in values.items():
            cells = [
                Cell(_number(value, error), value, error, best=value == best[column])
                for column, (value, error) in enumerate(row)
            ]
            seconds = sum(one["seconds"] for one in self.rows if one["method"] == name)
            rows.append([name, *cells, Cell.of(seconds, ",.0f")])
        return Table(titles, rows)

    def markdown(self) -> str:
        """Returns the report in Markdown."""
        return render("extension.md", extension=self)

    def files(self) -> Files:
        """Returns the files of the report by name, with what makes each."""
        return {"extension.md": self.markdown, "extension.png": lambda: draw(self)}


def _number(value: float, error: float | None = None) -> str:
    """A perplexity and its error, with two decimals below 100."""
    digits = 2 if value < 100 else 0
    return f"{value:,.{digits}f}" + ("" if error is None else f" ± {error:,.{digits}f}")
