"""What ``word_vectors`` measured: the numbers of each method and seed, and the columns that show them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .._common.experiment import Report
from .._common.store import Row

PUBLISHED = "bert-published"
BASELINE = "learned"
"""The Transformer that learns its input vectors: not a method, so that it has no other numbers."""


@dataclass(frozen=True)
class Column:
    """A column of the table: a field of the rows, and how its numbers are written.

    A field is a number, {"value": a number, "used": the number of cases}, or {"reason": why there is no number}.
    Numbers are multiplied by ``factor``. ``best`` selects the one that is marked; ``means`` is the explanation below
    the table.
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
        means="Spearman's correlation between cosines and people's judgements of relatedness (Finkelstein et al. "
        "2002), over the same pairs for all: the {pairs} whose words are in the vocabulary; in brackets, how many of "
        "the 353 the method has vectors for",
    ),
    Column(
        "SimLex-999", "simlex999", 3, best=max,
        means="the same for similarity (Hill et al. 2015), over {pairs} pairs; in brackets, of 999",
    ),
    Column(
        "analogies %", "analogies", 1, 100, best=max,
        means="right answers to “a is to b as c is to?” (Mikolov et al. 2013); in brackets, how many of the 19,544 "
        "questions the method has vectors for",
    ),
    Column(
        "own group %", "own_group", 0, 100, best=max,
        means="of the words on the map, the share whose nearest word is in the same group",
    ),
    Column(
        "known %", "known", 0, 100, best=max,
        means="of the different words in the held-out documents, the share that has a vector",
    ),
    Column("misspelt", "misspelt", best=max, means="the cosine of {wrong} and {right}"),
    Column("bank, other sense", "other_sense", means="the mean cosine of “bank” of a river and “bank” for money"),
    Column("bank, same sense", "same_sense", means="the mean cosine of “bank” in two sentences of the same sense"),
    Column("dim", "dim", 0, means="the number of dimensions"),
    Column("MB", "bytes", 1, 1e-6, best=min, means="the size of the saved vectors, in 10⁶ bytes"),
    Column("seconds", "fit_seconds", 1, best=min, means="the time to compute the vectors"),
    Column(
        "nats per word", "nats_per_word", 3, best=min,
        means="the held-out loss of a Transformer whose input is these vectors",
    ),
)  # fmt: skip


class WordVectorResults(Report):
    """The numbers of a comparison, in a row for each method and seed."""

    @property
    def seeds(self) -> list[int]:
        """The seeds that have rows."""
        return sorted({row["seed"] for row in self.rows})

    def of(self, method: str) -> list[Row]:
        """Returns the rows of a ``method``, by seed."""
        return sorted((row for row in self.rows if row["method"] == method), key=lambda row: row["seed"])

    def values(self, method: str, field: str) -> list[float]:
        """Returns a ``method``'s numbers of a ``field``, by seed; none if there are reasons instead."""
        return list(self.by_seed(method, field).values())

    def by_seed(self, method: str, field: str) -> dict[int, float]:
        """Returns a ``method``'s numbers of a ``field`` for each seed that has one."""
        numbers = {row["seed"]: _number(row.get(field)) for row in self.of(method)}
        return {seed: value for seed, value in numbers.items() if value is not None}


def _number(fact: Any) -> float | None:
    value = fact.get("value") if isinstance(fact, dict) else fact
    return None if value is None else float(value)
