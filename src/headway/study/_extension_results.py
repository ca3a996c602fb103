"""What ``extension`` measured: mean losses by position, perplexities, and their differences with standard errors."""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import mean, stdev

from .._common.experiment import Report
from .._common.table import signed

RESTARTED = "restarted"
"""The baseline: the model unchanged, with an empty cache at the start of each window."""


class ExtensionResults(Report):
    """The numbers of ``measure``: for each method and window of text, the mean loss of each part of the positions."""

    @property
    def window(self) -> int:
        """The trained window."""
        return int(self.settings["window"])

    @property
    def length(self) -> int:
        """The tokens of a window of text."""
        return int(self.settings["lengths"][0])

    @property
    def windows(self) -> int:
        """The number of windows of text."""
        return len({row["window"] for row in self.rows})

    @property
    def columns(self) -> list[tuple[int, int]]:
        """The ranges of positions in the table: both halves of the window, then up to each doubling of it."""
        edges = [0, self.window // 2, self.window]
        while edges[-1] < self.length:
            edges.append(2 * edges[-1])
        return list(pairwise([*(edge for edge in edges if edge < self.length), self.length]))

    def nats(self, method: str, first: int, last: int) -> list[float]:
        """Returns a ``method``'s mean loss at the positions ``first`` … ``last`` − 1, for each window of text."""
        losses = []
        for row in sorted(self.rows, key=lambda row: row["window"]):
            if row["method"] == method:
                parts = zip(pairwise(row["edges"]), row["nats"], strict=True)
                inside = [(b - a, loss) for (a, b), loss in parts if first <= a and b <= last]
                losses.append(sum(n * loss for n, loss in inside) / sum(n for n, _ in inside))
        return losses

    def perplexity(self, method: str, first: int, last: int) -> tuple[float, float | None]:
        """Returns exp of a ``method``'s mean loss at the positions ``first`` … ``last`` − 1, and its standard error.

        The error is over windows of text; None if there is only one.
        """
        losses = self.nats(method, first, last)
        value = math.exp(mean(losses))
        return value, value * stdev(losses) / math.sqrt(len(losses)) if len(losses) > 1 else None

    def against(self, method: str, other: str, first: int, last: int) -> str:
        """Returns the relative difference of perplexity between ``method`` and ``other``, in per cent, as text.

        It covers the positions ``first`` … ``last`` − 1. With several windows of text, their standard error follows.
        """
        apart = [a - b for a, b in zip(self.nats(method, first, last), self.nats(other, first, last), strict=True)]
        ratio = math.exp(mean(apart))
        said = signed(100 * (ratio - 1), "+.1f")
        if len(apart) > 1:
            said += f" ± {100 * ratio * stdev(apart) / math.sqrt(len(apart)):.1f}"
        return f"{said} %"

    def curve(self, method: str) -> tuple[list[float], list[float]]:
        """Returns the middle of each part of the positions, and a ``method``'s mean loss there, in nats."""
        row = next(row for row in self.rows if row["method"] == method)
        middle = [(a + b) / 2 for a, b in pairwise(row["edges"])]
        return middle, [mean(self.nats(method, a, b)) for a, b in pairwise(row["edges"])]

    def relative(self, method: str, other: str) -> tuple[list[float], list[float], list[float]]:
        """Returns the perplexity of ``method`` relative to ``other`` in each part of the positions, in per cent.

        Three lists: the middle of each part, 100·(PPL_method/PPL_other − 1), and its standard error over the windows of
        text, 0 if there is one.
        """
        row = next(row for row in self.rows if row["method"] == method)
        middle, relative, errors = [], [], []
        for a, b in pairwise(row["edges"]):
            apart = [x - y for x, y in zip(self.nats(method, a, b), self.nats(other, a, b), strict=True)]
            ratio = math.exp(mean(apart))
            middle.append((a + b) / 2)
            relative.append(100 * (ratio - 1))
            errors.append(100 * ratio * stdev(apart) / math.sqrt(len(apart)) if len(apart) > 1 else 0.0)
        return middle, relative, errors
