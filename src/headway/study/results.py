"""The results of a comparison, and the conclusions that they support."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from statistics import mean
from typing import Any

from .._common.experiment import RESULTS
from .._common.files import from_json
from .._common.language import said, to_say
from .._common.store import Row, read_rows
from ..errors import HeadwayError
from ..positions._naming import unique_labels
from .intervals import LEVEL, Difference, holm, paired
from .protocol import FixedProtocol
from .store import KEYS, ROW

LEARNED_THE_TASK = 0.9
"""The share of right answers at the trained length from which misses at larger distances are counted."""
LISTED = 6
"""The most pairs that one sentence lists."""
UNEVEN = 1.5
"""The ratio of the times of a step between seeds from which the machine was too busy for them to mean much."""


class ComparisonResults:
    """The rows of a comparison, one for each encoding, seed and length, and its protocol.

    Args:
        rows: the rows.
        protocol: the settings that were fixed before any result was seen.
        out: the folder that they were read from, if any.
        settings: all settings of the folder; None reads them from ``out``, if there is one.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        protocol: FixedProtocol,
        out: Path | None = None,
        settings: dict[str, Any] | None = None,
    ) -> None:
        if settings is None:
            settings = {} if out is None else from_json((out / "settings.json").read_text())
        self.rows = list(rows)
        self.protocol = protocol
        self.out = out
        self.settings = {**protocol.settings(), **settings}

    @classmethod
    def load(cls, out: str | Path) -> ComparisonResults:
        """Reads the results in a folder that ``compare`` wrote.

        Args:
            out: the folder.

        Raises:
            HeadwayError: if it has none, or a file is damaged.
        """
        out = Path(out)
        path = out / "settings.json"
        if not path.exists():
            raise HeadwayError(f"{out} has no comparison: give the folder that headway compare wrote to")
        try:
            settings = from_json(path.read_text())
            protocol = FixedProtocol.from_settings(settings)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise HeadwayError(
                f"{path} is damaged, or that of other work ({error}): give the folder that headway compare wrote to"
            ) from None
        return cls(read_rows(out / RESULTS, KEYS, kind=ROW), protocol, out, settings)

    def labelled(self) -> ComparisonResults:
        """Returns the same results with the labels of encodings in place of their names, for tables and pictures.

        Two encodings with one label keep their names.
        """
        labels = unique_labels(self.encodings, self.baselines)
        rows = [
            {**row, **{key: labels.get(row[key], row[key]) for key in ("encoding", "view_of") if key in row}}
            for row in self.rows
        ]
        settings = {
            key: {labels.get(name, name): of for name, of in value.items()} if isinstance(value, dict) else value
            for key, value in self.settings.items()
        }
        return ComparisonResults(rows, self.protocol, self.out, settings)

    def __repr__(self) -> str:
        return f"ComparisonResults({len(self.names)} rows, {len(self.seeds)} seeds, lengths {self.lengths})"

    # ------------------------------------------------------------ measurements

    @property
    def names(self) -> list[str]:
        """The names of encodings and then of baselines, each in the order in which they were asked for."""
        return [*self.encodings, *self.baselines]

    @property
    def encodings(self) -> list[str]:
        """The names of encodings."""
        return list(dict.fromkeys(row["encoding"] for row in self.rows if not row["baseline"]))

    @property
    def baselines(self) -> list[str]:
        """The names of recurrent baselines."""
        return list(dict.fromkeys(row["encoding"] for row in self.rows if row["baseline"]))

    @property
    def seeds(self) -> list[int]:
        """The seeds that have rows."""
        return sorted({row["seed"] for row in self.rows})

    @property
    def lengths(self) -> list[int]:
        """The lengths that have rows."""
        return sorted({row["length"] for row in self.rows})

    @property
    def counted(self) -> dict[str, float]:
        """Bits per byte of n-gram models of the same text on the same held-out bytes, by name, the worst first."""
        losses: dict[str, float] = self.settings.get("counted", {})
        return dict(sorted(losses.items(), key=lambda item: -item[1]))

    @property
    def unit(self) -> str:
        """What lengths count, "bytes" or "tokens"; losses are in bits per byte in both cases."""
        return self.protocol.unit

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

    # ------------------------------------------------------------ comparisons

    @property
    def trained_length(self) -> int:
        """The trained length, or the measured length that is nearest to it."""
        return min(self.lengths, key=lambda length: abs(length - self.protocol.train_length))

    @property
    def far_length(self) -> int:
        """The longest measured length up to four times the trained length."""
        return max(length for length in self.lengths if length <= max(4 * self.trained_length, self.lengths[0]))

    @property
    def compared_lengths(self) -> list[int]:
        """The lengths at which differences are stated: the trained length and the far one."""
        return list(dict.fromkeys((self.trained_length, self.far_length)))

    @property
    def learned(self) -> list[str]:
        """The models that are below the worst n-gram model at the trained length; all, if nothing was counted.

        A model that counts pairs of symbols predicts better than the other models, so their order means nothing.
        """
        worst = next(iter(self.counted.values()), math.inf)
        losses = {name: self.mean(name, self.trained_length) for name in self.names}
        return [name for name, value in losses.items() if value is not None and value < worst]

    def ranking(self, length: int) -> list[tuple[float, str]]:
        """Returns the losses at a ``length`` of the encodings that have learned, with their names, best first.

        An interpolated row is included only if the encoding itself has no loss there.
        """
        learned = self.learned
        return self._ranked([name for name in self.encodings if name in learned], length)

    def _ranked(self, names: Sequence[str], length: int) -> list[tuple[float, str]]:
        losses = {name: value for name in names if (value := self.mean(name, length)) is not None}
        seen_twice = [name for name in losses if self.any_row(name)["view_of"] in losses]
        return sorted((value, name) for name, value in losses.items() if name not in seen_twice)

    def difference(self, a: str, b: str, length: int) -> Difference | None:
        """Returns the bits per byte of ``a`` less those of ``b`` at a ``length``; None if no seed has both."""
        return paired(a, b, self.by_seed(a, length), self.by_seed(b, length))

    def pairs(self, length: int) -> list[Difference]:
        """Returns the differences of all pairs of encodings at a ``length``; the first is before the second in rank."""
        pairs = [self.difference(a, b, length) for (_, a), (_, b) in combinations(self.ranking(length), 2)]
        return [pair for pair in pairs if pair is not None]

    def not_separated(self, length: int) -> list[Difference]:
        """Returns the pairs of encodings that the seeds do not separate at a ``length``, the closest first."""
        return sorted((pair for pair in self.pairs(length) if not pair.separated), key=lambda pair: abs(pair.mean))

    def tested(self, length: int) -> list[tuple[Difference, float]]:
        """Returns the pairs of encodings at a ``length`` with the p of each, corrected for all of them by Holm.

        Pairs of one seed, which have no p, are left out.
        """
        pairs = [(pair, pair.p) for pair in self.pairs(length) if pair.p is not None]
        corrected = holm([p for _, p in pairs])
        return [(pair, p) for (pair, _), p in zip(pairs, corrected, strict=True)]

    # ------------------------------------------------------------ conclusions

    def summary(self) -> list[str]:
        """Returns at most three sentences: the best at the trained length, the best beyond, what is not separated."""
        if not self.ranking(self.trained_length):
            return [self._best(self.trained_length)]
        sentences = [self._best(self.trained_length, brief=True)]
        if self.far_length != self.trained_length:
            sentences.append(self._best(self.far_length, brief=True))
        return [*sentences, self._separated_in_short()]

    def _separated_in_short(self) -> str:
        if len(self.seeds) == 1:
            return said("One seed separates nothing: any of these differences may be chance.")
        counts = [(len(self.pairs(length)), length) for length in self.compared_lengths if self.pairs(length)]
        if not counts:
            return said("There is no other encoding to compare with.")
        parts = [
            said("{close} of {pairs} pairs at {at:,}", close=len(self.not_separated(at)), pairs=pairs, at=at)
            for pairs, at in counts
        ]
        return said(
            "The {seeds} seeds do not separate {which} {unit}.",
            seeds=len(self.seeds),
            which=said(" and ").join(parts),
            unit=self._unit,
        )

    def conclusions(self) -> list[str]:
        """Returns the conclusions that the results support, in sentences."""
        if not self.rows:
            return [said("Nothing has been measured yet.")]
        return [
            one
            for headline, sentences in self.parts().items()
            for one in (said("{headline}.", headline=headline), *sentences)
        ]

    def parts(self) -> dict[str, list[str]]:
        """Returns the conclusions by the headline of their part: encodings first, recurrent baselines after them."""
        parts: dict[str, list[str]] = {}
        if self.encodings:
            headline = said("Encodings, trained for {steps} steps", steps=self._steps(self.encodings[0]))
            parts[headline] = self._of_encodings()
        if self.baselines:
            trained = "{name}, trained for {steps} steps"
            each = said("; ").join(said(trained, name=name, steps=self._steps(name)) for name in self.baselines)
            parts[said("Recurrent baselines: {each}", each=each)] = self._of_baselines()
        return parts

    def _of_encodings(self) -> list[str]:
        sentences = self._learned(self.encodings)
        sentences.append(self._best(self.trained_length))
        if self.far_length != self.trained_length:
            sentences.append(self._best(self.far_length))
            sentences += self._beyond(self.encodings)
        sentences += [*self._separation(), *self._learning_rates(self.encodings), *self._recall(self.encodings)]
        return [*sentences, *self._uneven(self.encodings)]

    def _of_baselines(self) -> list[str]:
        sentences = self._learned(self.baselines)
        sentences += [self._against_best(name, at) for name in self.baselines for at in self.compared_lengths]
        if self.far_length != self.trained_length:
            sentences += self._beyond(self.baselines)
        sentences += [*self._learning_rates(self.baselines), *self._recall(self.baselines)]
        return [*sentences, *self._uneven(self.baselines)]

    def _steps(self, name: str) -> str:
        """The training steps of a model; those of a baseline that is trained by time may differ between seeds."""
        steps = {row["steps"] for row in self.rows if row["encoding"] == name}
        return said(" to ").join(f"{count:,}" for count in dict.fromkeys((min(steps), max(steps))))

    def warnings(self) -> list[str]:
        """Returns the warnings before the summary: models that have learned little, and uneven times."""
        return [*self._learned(self.names), *self._uneven(self.names)]

    def _uneven(self, names: Sequence[str]) -> list[str]:
        """Models whose steps took uneven times between seeds, or that had uneven numbers of steps."""
        paces, steps = [], []
        places = {(row.get("processor"), row.get("device"), row.get("threads")) for row in self.rows}
        for name in names:
            taken = self.by_seed(name, self.trained_length, "steps")
            seconds = self.by_seed(name, self.trained_length, "train_seconds")
            ratio = _ratio([seconds[seed] / taken[seed] for seed in seconds if taken[seed]])
            if ratio > UNEVEN:
                paces.append(f"{name} {ratio:.1f}×")
            if _ratio([*taken.values()]) > UNEVEN:
                steps.append(said("{name} {steps} steps", name=name, steps=self._steps(name)))
        sentences = []
        if paces:
            why = "other work shared the machine" if len(places) == 1 else "machines differ, or other work shared them"
            sentences.append(
                said(
                    "The seconds of a step differ between seeds by more than {ratio:g}× ({paces}): {why}, and seconds "
                    "and tokens a second say little.",
                    ratio=UNEVEN,
                    paces=said(", ").join(paces),
                    why=said(why),
                )
            )
        if steps:
            sentences.append(
                said(
                    "Trained by time and not alike between seeds: {steps}. Their means say little.",
                    steps=said(", ").join(steps),
                )
            )
        return sentences

    def _learned(self, names: Sequence[str]) -> list[str]:
        """Which models are no better at the trained length than models that count the last few symbols."""
        ranked = self._ranked(names, self.trained_length)
        sentences, above = [], math.inf
        for (model, bits), verdict in zip(
            self.counted.items(),
            map(to_say, ("hardly learned and are not ranked", "learned little")),
            strict=False,
        ):
            those = [f"{name} {value:.3f}" for value, name in ranked if bits <= value < above]
            above = bits
            if those:
                sentences.append(
                    said(
                        "Not below a {model} model of the same text, counted ({bits:.3f} bits per byte), at {at}: "
                        "{those}. They have {verdict}: what is concluded on them is about early training.",
                        model=model,
                        bits=bits,
                        at=self._of_length(self.trained_length),
                        those=said(", ").join(those),
                        verdict=said(verdict),
                    )
                )
        missing = self._without_a_loss(names)
        if missing:
            sentences.append(
                said(
                    "Without a finite loss at {at}, since training diverged: {names}.",
                    at=self._of_length(self.trained_length),
                    names=said(", ").join(missing),
                )
            )
        if not sentences and ranked and self.counted and names in (self.encodings, self.names):
            model, bits = [*self.counted.items()][-1]
            kind = "encodings" if names == self.encodings else "models"
            sentences.append(
                said(
                    "All {kind} are below a {model} model of the same text, counted ({bits:.3f} bits per byte), at "
                    "{at}.",
                    kind=said(kind),
                    model=model,
                    bits=bits,
                    at=self._of_length(self.trained_length),
                )
            )
        return sentences

    @property
    def _unit(self) -> str:
        """The unit of lengths in sentences."""
        return said("bytes" if self.unit == "bytes" else "tokens")

    def _of_length(self, length: int) -> str:
        """A length with its unit."""
        return said("{length:,} {unit}", length=length, unit=self._unit)

    def _without_a_loss(self, names: Sequence[str]) -> list[str]:
        """The models that have no finite loss at the trained length in any seed."""
        return [name for name in names if self.mean(name, self.trained_length) is None]

    def _best(self, length: int, *, brief: bool = False) -> str:
        """The best encoding at a length and the next one; without their difference if ``brief``."""
        ranking = self.ranking(length)
        where = said("the trained length")
        if length != self.trained_length:
            where = said("{times:g}× the trained length", times=length / self.trained_length)
        at = said("At {where} ({length})", where=where, length=self._of_length(length))
        if not ranking:
            if not self._ranked(self.encodings, length):
                return said("{at} no encoding has a finite loss.", at=at)
            if {*self.encodings} & {*self.learned}:
                return said("{at} no encoding that has learned has a finite loss.", at=at)
            model = next(iter(self.counted))
            return said(
                "{at} none is ranked, since none is below a {model} model of the same text: train longer.",
                at=at,
                model=model,
            )
        value, best = ranking[0]
        seeds = len(self.by_seed(best, length))
        over = said("one seed") if seeds == 1 else said("mean of {count} seeds", count=seeds)
        sentence = said(
            "{at} {best} is best: {value:.3f} bits per byte ({over})", at=at, best=best, value=value, over=over
        )
        if len(ranking) > 1:
            next_value, second = ranking[1]
            sentence += said("; next is {second} with {value:.3f}", second=second, value=next_value)
            pair = self.difference(best, second, length)
            if pair is not None:
                if pair.seeds > 1 and not pair.separated:
                    sentence += said(", which the seeds do not separate from it")
                sentence += "" if brief else said("; ") + str(pair)
        return sentence + said(".")

    def _against_best(self, name: str, length: int) -> str:
        """How a baseline compares with the best encoding."""
        at = said("At {length} {name}", length=self._of_length(length), name=name)
        value, ranking = self.mean(name, length), self.ranking(length)
        pair = self.difference(name, ranking[0][1], length) if ranking else None
        if value is None or pair is None:
            return said("{at} cannot be compared with an encoding.", at=at)
        every = "every encoding that has learned" if {*self.encodings} - {*self.learned} else "every encoding"
        verdict = said("is not better than the best encoding")
        if pair.mean < 0:
            verdict = said("is better than {every}", every=said(every))
        if pair.seeds > 1 and not pair.separated:
            verdict = said("is not separated from the best encoding")
        return said("{at}, with {value:.3f}, {verdict}; {pair}.", at=at, value=value, verdict=verdict, pair=pair)

    def _beyond(self, names: Sequence[str]) -> list[str]:
        near, far = self.trained_length, self.far_length
        changes = [paired(name, "", self.by_seed(name, far), self.by_seed(name, near)) for name in names]
        known = sorted((change for change in changes if change is not None), key=lambda change: change.mean)
        sorts = {
            to_say("Better at {far} than at {near:,}, in bits per byte: {which}."): [
                change for change in known if change.mean < 0 and _counts(change)
            ],
            to_say("Worse at {far} than at {near:,}, in bits per byte: {which}."): [
                change for change in known if change.mean > 0 and _counts(change)
            ],
            to_say("Not shown to be better or worse at {far} than at {near:,}, in bits per byte: {which}."): [
                change for change in known if not _counts(change)
            ],
        }
        at = self._of_length(far)
        sentences = [
            said(sentence, far=at, near=near, which=said(", ").join(f"{one.a} {one.number()}" for one in some))
            for sentence, some in sorts.items()
            if some
        ]
        unknown = [name for name, change in zip(names, changes, strict=True) if change is None]
        missing = [name for name in unknown if name not in self._without_a_loss(names)]
        if missing:
            sentences.append(said("Without a number at {at}: {names}.", at=at, names=said(", ").join(missing)))
        return sentences

    def _separation(self) -> list[str]:
        if len(self.seeds) == 1:
            return [
                said(
                    "One seed separates nothing and has no intervals: any of these differences may be chance. Run with "
                    "--seeds 3 to see which remain."
                )
            ]
        sentences, most = [], 0
        for length in self.compared_lengths:
            pairs, close = self.pairs(length), self.not_separated(length)
            most = max(most, len(pairs))
            if not pairs:
                continue
            at = said("At {length} the {seeds} seeds", length=self._of_length(length), seeds=len(self.seeds))
            if not close:
                sentences.append(said("{at} separate every pair of encodings.", at=at))
                continue
            more = ""
            if len(close) > LISTED:
                more = said("; and {count} more, in the table of differences", count=len(close) - LISTED)
            sentences.append(
                said(
                    "{at} do not separate {close} of {pairs} pairs of encodings: {which}{more}.",
                    at=at,
                    close=len(close),
                    pairs=len(pairs),
                    which=said("; ").join(map(str, close[:LISTED])),
                    more=more,
                )
            )
        sentences.append(
            said(
                "Intervals are those of Student's t for the mean of the differences of the seeds; a pair is separated "
                "if its interval excludes 0."
            )
        )
        if most > 1:
            sentences.append(
                said(
                    "Each interval is at {level:g} % by itself and not jointly: of {pairs} pairs that do not differ, "
                    "{wrong:.1f} would be separated by chance, on average.",
                    level=100 * LEVEL,
                    pairs=most,
                    wrong=(1 - LEVEL) * most,
                )
            )
            jointly = [
                said(
                    "{count} of {pairs} pairs at {at}",
                    count=sum(p < 1 - LEVEL for _, p in tested),
                    pairs=len(tested),
                    at=self._of_length(length),
                )
                for length in self.compared_lengths
                if (tested := self.tested(length))
            ]
            if jointly:
                sentences.append(
                    said(
                        "Jointly, with Holm's correction of the t tests of all pairs of a length, p is below "
                        "{p:.2g} for {which}.",
                        p=1 - LEVEL,
                        which=said(" and ").join(jointly),
                    )
                )
        return sentences

    def learning_rates(self, name: str) -> dict[float, float | None]:
        """Returns the learning rates that were tried for a model ``name``, with the validation loss of each.

        The loss is in bits per byte at the trained length; it is None if the training diverged. Results in which one
        rate was given for all have none.
        """
        tried: dict[str, float | None] = self.any_row(name)["learning_rates"]
        return dict(sorted((float(rate), bits) for rate, bits in tried.items()))

    def _learning_rates(self, names: Sequence[str]) -> list[str]:
        """Names models whose chosen learning rate is the lowest or highest that was tried."""
        at_edge = []
        for name in names:
            tried, chosen = [*self.learning_rates(name)], self.any_row(name)["learning_rate"]
            if len(tried) > 1 and chosen in (tried[0], tried[-1]) and self.any_row(name)["view_of"] is None:
                edge = "{name} ({rate:g}, the lowest)" if chosen == tried[0] else "{name} ({rate:g}, the highest)"
                at_edge.append(said(edge, name=name, rate=chosen))
        if not at_edge:
            return []
        return [
            said(
                "The chosen learning rate is at the edge of those tried for {which}: a rate beyond it may be better.",
                which=said(", ").join(at_edge),
            )
        ]

    def _recall(self, names: Sequence[str]) -> list[str]:
        near, far = self.trained_length, self.lengths[-1]
        scores = {name: score for name in names if (score := self.mean(name, near, "recall")) is not None}
        if not scores:
            return []
        able = [name for name in scores if scores[name] >= LEARNED_THE_TASK]
        unable = [name for name in scores if name not in able]
        sentences = []
        there = {name: score for name in able if (score := self.mean(name, far, "recall")) is not None}
        if there and far != near:
            ordered = sorted(there, key=lambda name: -there[name])
            sentences.append(
                said(
                    "Recall in sequences of {far:,}, of those that learned it at {near:,}: {which}.",
                    far=far,
                    near=near,
                    which=said(", ").join(f"{name} {100 * there[name]:.0f} %" for name in ordered),
                )
            )
        if unable:
            sentences.append(
                said(
                    "Recall was not learned in {steps:,} steps by {which}: their misses at larger distances say "
                    "nothing about distance.",
                    steps=self.protocol.recall_steps,
                    which=said(", ").join(f"{name} ({100 * scores[name]:.0f} %)" for name in unable),
                )
            )
        return sentences


def _counts(change: Difference) -> bool:
    """Whether a change is stated with its direction: by its interval, or with one seed by its sign."""
    return change.separated or (change.half is None and change.mean != 0)


def _ratio(values: Sequence[float]) -> float:
    """The largest value by the smallest; 1 for fewer than two."""
    return max(values) / min(values) if len(values) > 1 and min(values) > 0 else 1.0
