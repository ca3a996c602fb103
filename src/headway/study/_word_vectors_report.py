"""The report of ``word_vectors``: one table, its footnotes, what may be read off, and the pictures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from .._markdown import bullets, signed, table
from ._word_vectors_picture import draw_map, draw_scores
from ._word_vectors_results import BASELINE, COLUMNS, PUBLISHED, Column, WordVectorResults
from ._word_vectors_text import DEFAULT_NAME
from .charts import png
from .watch import Row

RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
KNOWLEDGE = 6
"""So many columns say what vectors know of words by themselves; the terminal breaks the table behind them."""


class Comparison(WordVectorResults):
    """The results of a comparison of ways, as a table and as a report."""

    def __init__(self, rows: Sequence[Row], settings: dict[str, Any], ways: Sequence[str]) -> None:
        super().__init__(rows, settings, ways)
        self.reasons: list[str] = []
        """Why there are dashes in the table, each once."""
        best = {column: self._best(column) for column in COLUMNS}
        self.titles = ["way", *(column.title for column in COLUMNS)]
        self.lines = [[way, *(self._cell(way, column, best[column]) for column in COLUMNS)] for way in self.ways]

    def _best(self, column: Column) -> float | None:
        means = {way: mean(found) for way in self.ways if (found := self.values(way, column.field))}
        if column.best is None or len(set(means.values())) < 2:
            return None
        return column.best(list(means.values()))

    def _cell(self, way: str, column: Column, best: float | None) -> str:
        found = self.values(way, column.field)
        if not found:
            fact = self.of(way)[0].get(column.field)
            return "—" if fact is None else self._dash(fact["reason"])
        scaled = [column.factor * value for value in found]
        text = signed(mean(scaled), f",.{column.digits}f")
        if len(scaled) > 1 and stdev(scaled) >= 0.5 * 10**-column.digits:
            text += f" ± {stdev(scaled):.{column.digits}f}"
        text = f"**{text}**" if mean(found) == best else text
        fact = self.of(way)[0][column.field]
        return text + (f" ({fact['used']:,})" if isinstance(fact, dict) and "used" in fact else "")

    def _dash(self, reason: str) -> str:
        """A dash, and the number of the footnote that says why."""
        if reason not in self.reasons:
            self.reasons.append(reason)
        return "—" + _raised(self.reasons.index(reason) + 1)

    def parts(self) -> list[tuple[str, list[list[str]]]]:
        """The table in two, each with its title and its lines, for a terminal that is not wide enough for it."""
        both = [self.titles, *self.lines]
        knows = [line[: KNOWLEDGE + 1] for line in both]
        rest = [[line[0], *line[KNOWLEDGE + 1 :]] for line in both]
        knows = [line for line in knows if line[0] != BASELINE]
        return [("What they know of words", knows), ("Sentences, costs, and a Transformer that reads them", rest)]

    def footnotes(self) -> list[str]:
        """Why there are dashes in the table."""
        return [f"{_raised(number)} {reason}" for number, reason in enumerate(self.reasons, 1)]

    # ---------------------------------------------------------------- words

    def neighbours(self) -> dict[str, dict[str, str]]:
        """For each word that was asked, what every way has next to it."""
        found: dict[str, dict[str, str]] = {}
        for way in self.ways:
            for word, near in (self.of(way)[0].get("neighbours") or {}).items():
                found.setdefault(word, {})[way] = _near(near)
        return found

    def unseen(self) -> dict[str, dict[str, str]]:
        """The same for a word that the documents held out have and the others do not."""
        found: dict[str, dict[str, str]] = {}
        for way in self.ways:
            for word, near in (self.of(way)[0].get("unseen") or {}).items():
                found.setdefault(word, {})[way] = _near(near)
        return found

    # ---------------------------------------------------------------- what may be read off

    def conclusions(self) -> list[str]:
        """What may be read off, and nothing more."""
        return [sentence for find in (self._words, self._context, self._transformers) for sentence in find()]

    def _words(self) -> list[str]:
        ranking = self._ranking("wordsim353", max)
        if not ranking:
            return []
        (best, value), rest = ranking[0], ranking[1:]
        used = self.of(best)[0]["wordsim353"]["pairs"]
        error = 1 / math.sqrt(max(1, used - 3))
        others = ", ".join(f"{way} {signed(rho, ',.3f')}" for way, rho in rest)
        said = f"WordSim-353: {best} {signed(value, ',.3f')}" + (f", then {others}" if rest else "") + "."
        return [
            f"{said} A correlation over {used:,} pairs has a standard error of about {error:.2f}; smaller "
            "differences say little."
        ]

    def _context(self) -> list[str]:
        found = {way: self.values(way, "other_sense") for way in self.ways}
        apart = [way for way, values in found.items() if values and mean(values) < 0.9999]
        same = [way for way, values in found.items() if values and way not in apart]
        said = []
        if same:
            said.append(f'"bank" is one vector in every sentence for {_and(same)}.')
        for way in apart:
            other, alike = (mean(self.values(way, field)) for field in ("other_sense", "same_sense"))
            verdict = "tells the senses apart" if alike > other else "does not tell the senses apart"
            said.append(
                f"For {way} it differs by sentence: cosine {other:.2f} across the senses, {alike:.2f} within one, so "
                f"it {verdict} in these six sentences."
            )
        return said

    def _transformers(self) -> list[str]:
        ranking = self._ranking("nats_per_word", min)
        base = self.values(BASELINE, "nats_per_word")
        if not ranking or not base:
            return []
        against = [(way, value - mean(base)) for way, value in ranking if way != BASELINE]
        listed = ", ".join(f"{way} {signed(apart, '+,.3f')}" for way, apart in against)
        said = [
            f"Held-out loss against the Transformer that learns its input ({mean(base):.3f}): {listed} nats per word."
        ]
        if "one-hot" in dict(against):
            apart = abs(dict(against)["one-hot"])
            said.append(
                "One-hot vectors through a learned map are a learned embedding, the same model with other first "
                f"values; these two are {apart:.3f} apart, and differences of that size say nothing."
            )
        if len(self.seeds) == 1:
            said.append("One seed: how far these differences hold for others is not known; --seeds 3 would say.")
        return said

    def _ranking(self, field: str, best: Callable[[Sequence[float]], float]) -> list[tuple[str, float]]:
        found = [(way, mean(values)) for way in self.ways if (values := self.values(way, field))]
        return sorted(found, key=lambda pair: pair[1], reverse=best is max)

    # ---------------------------------------------------------------- written

    def protocol(self) -> list[str]:
        """What was done, fixed before any result was seen."""
        return protocol_of(self.settings, self.ways)

    def explained(self) -> list[str]:
        """What the columns are."""
        wrong, right = self.settings["misspelt"] or ("a misspelt word", "the right one")
        said = []
        for column in COLUMNS:
            facts = [row[column.field] for row in self.rows if isinstance(row.get(column.field), dict)]
            pairs = max((fact.get("pairs", 0) for fact in facts), default=0)
            said.append(f"**{column.title}**: {column.means.format(pairs=pairs, wrong=wrong, right=right)}.")
        return said

    def markdown(self) -> str:
        """The report, with its pictures beside it."""
        parts = [
            "# Words into vectors",
            bullets(self.protocol()),
            table(self.titles, self.lines),
            "\\\n".join(self.footnotes()),
            bullets(self.explained()),
            "![Scores](vectors-scores.png)",
            "## Nearest words",
            self._crossed(self.neighbours()),
            "## A word never seen",
            self._crossed(self.unseen()),
            "## The same words in two dimensions",
            "t-SNE of vectors of length one. Distances between groups that lie far apart mean nothing.",
            "![Maps](vectors-map.png)",
            "## What may be read off",
            bullets(self.conclusions()),
        ]
        return "\n\n".join(part for part in parts if part) + "\n"

    def _crossed(self, found: dict[str, dict[str, str]]) -> str:
        ways = [way for way in self.ways if any(way in its for its in found.values())]
        return table(["way", *found], [[way, *(its.get(way, "—") for its in found.values())] for way in ways])

    def write(self, out: str | Path) -> None:
        """vectors.md, vectors-scores.png and vectors-map.png, into a folder."""
        Path(out, "vectors.md").write_text(self.markdown(), encoding="utf-8")
        png(draw_scores(self), Path(out, "vectors-scores.png"))
        png(draw_map(self), Path(out, "vectors-map.png"))


def protocol_of(said: dict[str, Any], ways: Sequence[str]) -> list[str]:
    """The settings in sentences."""
    train, held_out = said["documents"]
    is_default = said["corpus"] == DEFAULT_NAME
    sentences = [
        f"Text: {said['corpus']}, sha256 {said['sha256'][:16]}…; of every ten documents the last is held out, "
        f"{held_out:,} in all, and the ways are fitted to the other {train:,}."
        + (" Documents are paragraphs; those of one article may be on both sides." if is_default else ""),
        "The same tokenizer (words in small letters) and the same vocabulary for all: words that occur at least "
        f"{said['min_count']} times, {said['max_words']:,} at most. {said['dim']} numbers in a vector, where a way "
        "lets one choose. All else is each way's default, but for what follows.",
    ]
    set_for_it = [
        f"{name} {option} = {value:g}"
        for name, options in said["small_text"].items()
        if any(way.startswith(name) for way in ways)
        for option, value in options.items()
    ]
    if set_for_it:
        sentences.append(
            f"Set for a small text, since defaults are meant for one a thousand times as long: {', '.join(set_for_it)}."
        )
    if "bert" in ways:
        sentences.append(
            f"bert is an encoder trained on this text alone, for {said['bert_steps']:,} steps, its share of the time "
            "whatever comes of it. As one vector for a word it gives the mean over the word's occurrences: "
            "its vectors in a sentence see the words that follow, and no model that predicts those may read them."
        )
    if "encoder" in said and PUBLISHED in ways:
        sentences.append(
            f"{PUBLISHED} is the encoder {said['encoder']}, which others trained on far more text; as one vector for a "
            "word it gives the mean over the word's occurrences in this one."
        )
    sentences.append(
        f"Transformer: causal, {said['layers']} layers, {said['width']} wide, {said['heads']} heads, rotary positions, "
        f"predicting the next of the {said['predicted']:,} most frequent words by a head of its own. Its input are "
        "the vectors, brought to length one, less their mean, frozen, and a learned linear map of them; the baseline "
        f"learns its input. {said['steps']:,} steps of {said['batch']} windows of {said['length']} words, AdamW, "
        f"learning rate {said['learning_rate']:g}, the same windows and first values for all in a seed. Other words "
        "are read as zeros and not asked."
    )
    return sentences


def _raised(number: int) -> str:
    return str(number).translate(RAISED)


def _near(near: Any) -> str:
    if isinstance(near, dict):
        return f"— ({near['reason'].split(':')[0]})"
    return ", ".join(word for word, _ in near)


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
