"""The report of ``extension``: conclusions, protocol, table and picture."""

from __future__ import annotations

from .._common.experiment import Files
from .._common.language import said
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
            return [said("No position lies beyond the window of {window:,}.", window=self.window)]
        beyond = {name: self.perplexity(name, self.window, self.length)[0] for name in self.methods}
        inside = self.perplexity("none", 0, self.window)[0]
        sentences = [
            said(
                "The unchanged model has a perplexity of {beyond} beyond the window, and {inside} within it.",
                beyond=_number(beyond["none"]),
                inside=_number(inside),
            )
        ]
        base = beyond.get(RESTARTED)
        ours = sorted((value, name) for name, value in beyond.items() if name not in ("none", RESTARTED))
        if base is not None:
            apart = [f"{name} {self.against(name, RESTARTED, self.window, self.length)}" for _, name in ours]
            restarted = "The restarted model has {base} beyond the window. Compared with that: {which}."
            sentences.append(said(restarted, base=_number(base), which=said(", ").join(apart)))
        if ours:
            cost = [f"{name} {self.against(name, 'none', 0, self.window)}" for _, name in ours]
            change = "Change within the window, compared with the unchanged model: {which}."
            sentences.append(said(change, which=said(", ").join(cost)))
        if self.windows == 1:
            sentences.append(
                said("There is one window of text: it is not known whether these differences hold for other texts.")
            )
        return sentences

    def protocol(self) -> list[str]:
        """Returns the settings in sentences."""
        of = self.settings
        windows = said("{count} window", count=1) if self.windows == 1 else said("{count} windows", count=self.windows)
        return [
            *([said("A quick measurement, of few methods and a short text.")] if of["quick"] else []),
            said(
                "{model} ({dtype}), trained for {window:,} tokens; factor {factor:g}; no training.",
                model=of["model"],
                dtype=of["dtype"],
                window=self.window,
                factor=of["factor"],
            ),
            said(
                "{text}: {windows} of {length:,} tokens, the same for all, read in pieces of {window:,} with a cache.",
                text=of["text"],
                windows=windows,
                length=self.length,
                window=self.window,
            ),
            said("Perplexity is exp of the mean −ln p of the next token, by how many are known."),
        ]

    def table(self) -> Table:
        """Returns the perplexity of each method by position, and its standard error; the best of a column is marked."""
        titles = [said("method"), *(f"{a:,}–{b - 1:,}" for a, b in self.columns), said("seconds")]
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
        """Returns the files of the report by name, each with the function that makes it."""
        return {"extension.md": self.markdown, "extension.png": lambda: draw(self)}


def _number(value: float, error: float | None = None) -> str:
    """A perplexity and its error, with two decimals below 100."""
    digits = 2 if value < 100 else 0
    return f"{value:,.{digits}f}" + ("" if error is None else f" ± {error:,.{digits}f}")
