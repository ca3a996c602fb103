"""What ``word_vectors`` measured: the numbers of each way and seed, and the columns that show them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .watch import Row

PUBLISHED = "bert-published"
BASELINE = "learned"
"""The Transformer that learns its input vectors along with the rest: no way by itself, it has no other numbers."""


@dataclass(frozen=True)
class Column:
    """A column of the table: the field of a row of the results, and how its numbers are written.

    A field is a number, or {"value": a number, "used": of how many}, or {"reason": why there is none}.
    """

    title: str
    field: str
    digits: int = 2
    factor: float = 1.0
    best: Callable[[Sequence[float]], float] | None = None
    means: str = ""


COLUMNS = (
    Column(
        "WordSim-353", "wordsim353", 3, best=max,
        means="Spearman's correlation of cosines with how related people found pairs of words (Finkelstein et al. "
        "2002), over the same pairs for all: {pairs} whose words are in the vocabulary; in brackets how many of the "
        "353 the way could answer",
    ),
    Column(
        "SimLex-999", "simlex999", 3, best=max,
        means="the same with how alike they found them (Hill et al. 2015), over {pairs} pairs; in brackets of 999",
    ),
    Column(
        "analogies %", "analogies", 1, 100, best=max,
        means="right answers to “a is to b as c is to?” (Mikolov et al. 2013); in brackets the questions of 19,544 "
        "that could be asked",
    ),
    Column(
        "own group %", "own_group", 0, 100, best=max,
        means="of the words on the map, those whose nearest word is in their own group",
    ),
    Column(
        "known %", "known", 0, 100, best=max,
        means="of the different words in the documents held out, those that have a vector",
    ),
    Column("misspelt", "misspelt", best=max, means="the cosine of {wrong} with {right}"),
    Column("bank, other sense", "other_sense", means="the mean cosine of “bank” by a river with “bank” and money"),
    Column("bank, same sense", "same_sense", means="that of “bank” in two sentences of the same sense"),
    Column("dim", "dim", 0, means="numbers in a vector"),
    Column("MB", "bytes", 1, 1e-6, best=min, means="what is saved, in 10⁶ bytes"),
    Column("seconds", "fit_seconds", 1, best=min, means="to come by the vectors"),
    Column(
        "nats per word", "nats_per_word", 3, best=min,
        means="the held-out loss of a Transformer that reads these vectors",
    ),
)  # fmt: skip


class WordVectorResults:
    """The rows of a comparison, one for each way and seed, in the order of ``ways``."""

    def __init__(self, rows: Sequence[Row], settings: dict[str, Any], ways: Sequence[str]) -> None:
        self.rows, self.settings = list(rows), settings
        self.ways = [way for way in ways if any(row["encoding"] == way for row in rows)]
        self.seeds = sorted({row["seed"] for row in rows})

    def of(self, way: str) -> list[Row]:
        """The rows of a way, seed by seed."""
        return sorted((row for row in self.rows if row["encoding"] == way), key=lambda row: row["seed"])

    def values(self, way: str, field: str) -> list[float]:
        """The numbers of a field, seed by seed; none where there are reasons instead."""
        found = [_number(row.get(field)) for row in self.of(way)]
        return [value for value in found if value is not None]


def _number(fact: Any) -> float | None:
    value = fact.get("value") if isinstance(fact, dict) else fact
    return None if value is None else float(value)
