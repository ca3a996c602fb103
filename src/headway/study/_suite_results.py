"""The results of ``suite``: which models learned a task, their longer lengths, and what the seeds separate."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from statistics import mean
from typing import NamedTuple

from .._common.store import Row
from .intervals import Interval, bootstrap, mean_and_half

FEWEST_SEEDS = 3
"""The fewest seeds with which two encodings can be separated."""


class Score(NamedTuple):
    """A mean over runs with its interval over seeds, which is None with fewer than two."""

    mean: float
    interval: Interval | None
    runs: int


class Pair(NamedTuple):
    """The difference of the scores of two encodings on a task, paired over the seeds with which both learned it."""

    task: str
    better: str
    worse: str
    difference: float
    interval: Interval | None
    half: float | None
    seeds: int

    @property
    def separated(self) -> bool:
        """Whether there are three seeds, and neither the bootstrap's nor Student's interval has 0.

        The bootstrap's alone excludes 0 whenever all differences have one sign, which three coins do 1 time in 4.
        """
        sure = self.interval is not None and self.interval.low > 0
        return self.seeds >= FEWEST_SEEDS and sure and self.half is not None and self.difference > self.half


class SuiteNumbers:
    """The rows of ``measure``, one for each task, encoding, seed and length.

    Scores of longer lengths are those of models that learned the trained length: the others say nothing about them.

    Args:
        rows: the rows.
        settings: the settings of the suite.
        encodings: the order of the encodings.
    """

    def __init__(self, rows: Sequence[Row], settings: Row, encodings: Sequence[str]) -> None:
        self.rows, self.settings = list(rows), settings
        self.encodings = [name for name in encodings if any(row["encoding"] == name for row in rows)]

    @property
    def tasks(self) -> list[str]:
        """The names of the tasks, in the order in which they were measured."""
        return list(dict.fromkeys(row["task"] for row in self.rows))

    @property
    def seeds(self) -> list[int]:
        """The seeds that have rows."""
        return sorted({row["seed"] for row in self.rows})

    @property
    def times(self) -> list[int]:
        """The lengths, as multiples of the trained one."""
        return list(self.settings["times"])

    @property
    def longer(self) -> list[int]:
        """Those of ``times`` that are beyond the trained length."""
        return [times for times in self.times if times > 1]

    def runs(self, task: str, encoding: str) -> dict[int, Row]:
        """Returns the rows of the trained length by seed, of a ``task`` with an ``encoding``."""
        return {
            row["seed"]: row for row in self.rows if (row["task"], row["encoding"], row["times"]) == (task, encoding, 1)
        }

    def learned(self, task: str, encoding: str) -> list[int]:
        """Returns the seeds with which a model of an ``encoding`` learned a ``task`` at the trained length."""
        return [seed for seed, row in self.runs(task, encoding).items() if row["learned"]]

    def by_seed(self, task: str, encoding: str, times: int, field: str = "exact") -> dict[int, float]:
        """Returns a ``field`` by seed at a multiple of the trained length of a ``task`` with an ``encoding``.

        Beyond the trained length it has the seeds with which the task was learned. Lengths that an encoding refuses
        have none.
        """
        wanted = self.runs(task, encoding) if times == 1 else self.learned(task, encoding)
        return {
            row["seed"]: row[field]
            for row in self.rows
            if (row["task"], row["encoding"], row["times"]) == (task, encoding, times)
            and row["seed"] in wanted
            and row.get(field) is not None
        }

    def score(self, task: str, encoding: str, times: int, field: str = "exact") -> Score | None:
        """Returns the mean of a ``field`` over seeds at a multiple of the trained length, of a ``task``."""
        values = list(self.by_seed(task, encoding, times, field).values())
        return Score(mean(values), bootstrap(values), len(values)) if values else None

    def right_tokens(self, task: str) -> dict[str, float]:
        """Returns the mean share of right tokens by encoding at the first longer length of a ``task``.

        It is empty if it equals the exact match, as where an answer is one token, or if there is no longer length.
        """
        if not self.longer:
            return {}
        shares, exact = (
            {name: found.mean for name in self.encodings if (found := self.score(task, name, self.longer[0], field))}
            for field in ("accuracy", "exact")
        )
        return {} if shares == exact else shares

    def beyond(self, task: str, encoding: str) -> dict[int, float]:
        """Returns the mean exact match over all lengths beyond the trained one, by seed; 0 counts where it refuses."""
        scores = [self.by_seed(task, encoding, times) for times in self.longer]
        learned = self.learned(task, encoding) if scores else []
        return {seed: mean(one.get(seed, 0.0) for one in scores) for seed in learned}

    def pairs(self, task: str) -> list[Pair]:
        """Returns the differences beyond the trained length of all pairs of encodings that learned a ``task``."""
        scores = {name: self.beyond(task, name) for name in self.encodings}
        found = []
        for a, b in combinations(self.encodings, 2):
            seeds = sorted(scores[a].keys() & scores[b].keys())
            if not seeds:
                continue
            apart = [scores[a][seed] - scores[b][seed] for seed in seeds]
            if mean(apart) < 0:
                a, b, apart = b, a, [-value for value in apart]
            found.append(Pair(task, a, b, mean(apart), bootstrap(apart), mean_and_half(apart)[1], len(apart)))
        return found

    def best_beyond(self, task: str) -> tuple[str, float] | None:
        """Returns the encoding with the highest mean beyond the trained length of a ``task``, if one learned it."""
        scores = {name: mean(its.values()) for name in self.encodings if (its := self.beyond(task, name))}
        return max(scores.items(), key=lambda item: item[1]) if scores else None
