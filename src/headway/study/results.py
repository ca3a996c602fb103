"""The results of a comparison, and the conclusions that they support."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import mean

from .._markdown import signed
from ..errors import HeadwayError
from .protocol import Protocol
from .store import read_rows
from .watch import Row

LEARNED_THE_TASK = 0.9
"""The share of right answers at the trained length from which misses at larger distances are counted."""


@dataclass(frozen=True)
class Difference:
    """The difference of two encodings in bits per byte, over the seeds that both have.

    Attributes:
        a: the first encoding.
        b: the second, whose bits per byte are subtracted.
        smallest: the smallest difference of a seed.
        largest: the largest difference of a seed.
        seeds: the number of seeds.
    """

    a: str
    b: str
    smallest: float
    largest: float
    seeds: int

    @property
    def separated(self) -> bool:
        """Whether there are two seeds or more, and the same encoding is better in all of them."""
        return self.seeds > 1 and (self.smallest > 0 or self.largest < 0)

    def __str__(self) -> str:
        if self.seeds == 1:
            return f"{self.a} − {self.b}: {signed(self.smallest, '+.4f')}"
        return f"{self.a} − {self.b}: {signed(self.smallest, '+.4f')} to {signed(self.largest, '+.4f')}"


class Results:
    """The rows of a comparison, one for each encoding, seed and length, and its protocol.

    Args:
        rows: the rows.
        protocol: the settings.
        out: the folder that they were read from, if any.
    """

    def __init__(self, rows: Sequence[Row], protocol: Protocol, out: Path | None = None) -> None:
        self.rows = list(rows)
        self.protocol = protocol
        self.out = out

    @classmethod
    def load(cls, out: str | Path) -> Results:
        """Reads the results in a folder that ``compare`` wrote.

        Args:
            out: the folder.

        Raises:
            HeadwayError: if it has none, or a file is damaged.
        """
        out = Path(out)
        settings = out / "settings.json"
        if not settings.exists():
            raise HeadwayError(f"{out} has no comparison: give the folder that headway compare wrote to")
        protocol = Protocol.from_settings(json.loads(settings.read_text()))
        return cls(read_rows(out / "results.jsonl"), protocol, out)

    def __repr__(self) -> str:
        return f"Results({len(self.encodings)} encodings, {len(self.seeds)} seeds, lengths {self.lengths})"

    # ------------------------------------------------------------ measurements

    @property
    def encodings(self) -> list[str]:
        """The names in the order in which they were measured, with baselines last."""
        names = list(dict.fromkeys(row["encoding"] for row in self.rows))
        return sorted(names, key=lambda name: self.any_row(name)["baseline"])

    @property
    def seeds(self) -> list[int]:
        """The seeds that have rows."""
        return sorted({row["seed"] for row in self.rows})

    @property
    def lengths(self) -> list[int]:
        """The lengths that have rows."""
        return sorted({row["length"] for row in self.rows})

    def any_row(self, encoding: str) -> Row:
        """Returns a row of this ``encoding``, for fields that are the same in all of them."""
        return next(row for row in self.rows if row["encoding"] == encoding)

    def by_seed(self, encoding: str, length: int, field: str = "bits_per_byte") -> dict[int, float]:
        """Returns a ``field`` of an ``encoding`` at a ``length`` for each seed that has it."""
        return {
            row["seed"]: row[field]
            for row in self.rows
            if (row["encoding"], row["length"]) == (encoding, length) and row.get(field) is not None
        }

    def mean(self, encoding: str, length: int, field: str = "bits_per_byte") -> float | None:
        """Returns the mean of a ``field`` over seeds; None if there is none, as beyond a table.

        ``encoding`` and ``length`` are those of the rows.
        """
        values = self.by_seed(encoding, length, field).values()
        return mean(values) if values else None

    # ------------------------------------------------------------ conclusions

    @property
    def trained_length(self) -> int:
        """The trained length, or the measured length that is nearest to it."""
        return min(self.lengths, key=lambda length: abs(length - self.protocol.train_length))

    @property
    def far_length(self) -> int:
        """The longest measured length up to four times the trained length."""
        return max(length for length in self.lengths if length <= max(4 * self.trained_length, self.lengths[0]))

    def ranking(self, length: int) -> list[tuple[float, str]]:
        """Returns the losses at a ``length`` with their encodings, best first.

        An interpolated row is included only if the encoding itself has no loss there.
        """
        found = {name: value for name in self.encodings if (value := self.mean(name, length)) is not None}
        seen_twice = [name for name in found if self.any_row(name)["view_of"] in found]
        return sorted((value, name) for name, value in found.items() if name not in seen_twice)

    def difference(self, a: str, b: str, length: int) -> Difference | None:
        """Returns the bits per byte of ``a`` less those of ``b`` at a ``length``; None if no seed has both."""
        first, second = self.by_seed(a, length), self.by_seed(b, length)
        apart = [first[seed] - second[seed] for seed in first.keys() & second.keys()]
        return Difference(a, b, min(apart), max(apart), len(apart)) if apart else None

    def not_separated(self, length: int) -> list[Difference]:
        """Returns the pairs of encodings that the seeds do not separate at a ``length``, the closest first."""
        names = [name for _, name in self.ranking(length)]
        pairs = [self.difference(a, b, length) for a, b in combinations(names, 2)]
        close = [pair for pair in pairs if pair is not None and not pair.separated]
        return sorted(close, key=lambda pair: abs(pair.smallest + pair.largest))

    def conclusions(self) -> list[str]:
        """Returns the conclusions that the results support, in sentences."""
        if not self.rows:
            return ["Nothing has been measured yet."]
        sentences = [self._best(self.trained_length, "the trained length")]
        if self.far_length != self.trained_length:
            sentences.append(self._best(self.far_length, _times(self.far_length, self.trained_length)))
            sentences += self._beyond()
        sentences += self._baselines()
        sentences += self._separation()
        sentences += self._recall()
        return sentences

    def _best(self, length: int, where: str) -> str:
        ranking = self.ranking(length)
        if not ranking:
            return f"At {where} ({length:,} bytes) nothing has a finite loss."
        value, best = ranking[0]
        over = "one seed" if len(self.seeds) == 1 else f"mean of {len(self.by_seed(best, length))} seeds"
        sentence = f"At {where} ({length:,} bytes) {best} is best: {value:.3f} bits per byte ({over})"
        if len(ranking) > 1:
            next_value, second = ranking[1]
            sentence += f"; next is {second} with {next_value:.3f}"
            pair = self.difference(best, second, length)
            if pair is not None and pair.seeds > 1:
                sentence += ", in every seed behind" if pair.separated else ", which the seeds cannot separate from it"
        encodings = [(value, name) for value, name in ranking if not self.any_row(name)["baseline"]]
        if encodings and encodings[0] not in ranking[:2]:
            sentence += f"; of the encodings {encodings[0][1]} with {encodings[0][0]:.3f}"
        return sentence + "."

    def _beyond(self) -> list[str]:
        near, far = self.trained_length, self.far_length
        changes = {}
        for name in self.encodings:
            first, last = self.mean(name, near), self.mean(name, far)
            if first is not None and last is not None:
                changes[name] = last - first
        held = [name for name, change in changes.items() if round(change, 3) <= 0]  # as the table shows it
        lost = {name: change for name, change in changes.items() if name not in held}
        sentences = []
        if held:
            sentences.append(f"No worse at {far:,} bytes than at {near:,}: {', '.join(held)}.")
        if lost:
            ordered = sorted(lost, key=lambda name: lost[name])
            said = ", ".join(f"{name} by {lost[name]:.3f}" for name in ordered)
            sentences.append(f"Worse at {far:,} bytes than at {near:,}: {said} bits per byte.")
        missing = [name for name in self.encodings if name not in changes]
        if missing:
            sentences.append(f"Without a number at {far:,} bytes: {', '.join(missing)}.")
        return sentences

    def _baselines(self) -> list[str]:
        sentences = []
        for name in self.encodings:
            if not self.any_row(name)["baseline"]:
                continue
            places: dict[str, list[str]] = {}
            for length in dict.fromkeys((self.trained_length, self.far_length)):
                place = self._place(name, length)
                if place is not None:
                    places.setdefault(place, []).append(f"{length:,}")
            sentences += [f"{name} {place} at {' and '.join(at)} bytes." for place, at in places.items()]
        return sentences

    def _place(self, name: str, length: int) -> str | None:
        """The rank of a baseline among the Transformers at this length, in words."""
        names = [other for _, other in self.ranking(length)]
        if name not in names:
            return None
        others = [other for other in names if other == name or not self.any_row(other)["baseline"]]
        before, behind = others[: others.index(name)], others[others.index(name) + 1 :]
        if not before:
            return "is better than every Transformer"
        if not behind:
            return "is behind every Transformer"
        return f"is better than {', '.join(behind)} and behind {', '.join(before)}"

    def _separation(self) -> list[str]:
        if len(self.seeds) == 1:
            return [
                "One seed separates nothing: any of these differences may be chance. Run with --seeds 3 to see "
                "which remain."
            ]
        sentences = []
        for length in dict.fromkeys((self.trained_length, self.far_length)):
            pairs = self.not_separated(length)
            seeds = f"the {len(self.seeds)} seeds"
            if pairs:
                listed = "; ".join(str(pair) for pair in pairs)
                sentences.append(
                    f"At {length:,} bytes {seeds} cannot separate (smallest to largest difference): {listed}."
                )
            else:
                sentences.append(f"At {length:,} bytes {seeds} separate every pair.")
        return sentences

    def _recall(self) -> list[str]:
        near, far = self.trained_length, self.lengths[-1]
        scores = {name: score for name in self.encodings if (score := self.mean(name, near, "recall")) is not None}
        if not scores:
            return []
        able = [name for name in scores if scores[name] >= LEARNED_THE_TASK]
        unable = [name for name in scores if name not in able]
        sentences = []
        there = {name: score for name in able if (score := self.mean(name, far, "recall")) is not None}
        if there and far != near:
            ordered = sorted(there, key=lambda name: -there[name])
            said = ", ".join(f"{name} {100 * there[name]:.0f} %" for name in ordered)
            sentences.append(f"Recall in sequences of {far:,}, of those that learned it at {near:,}: {said}.")
        if unable:
            said = ", ".join(f"{name} ({100 * scores[name]:.0f} %)" for name in unable)
            sentences.append(
                f"Recall was not learned in {self.protocol.recall_steps:,} steps by {said}: their misses "
                "at larger distances say nothing about distance."
            )
        return sentences


def _times(length: int, trained: int) -> str:
    return f"{length / trained:g}× the trained length"
