"""The report of ``word_vectors``: a table, its footnotes, conclusions and pictures."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from statistics import mean, stdev
from typing import Any

from .._common.experiment import Files
from .._common.language import listed, retold, said
from .._common.store import Row
from .._common.table import Cell, Table, signed
from .._common.templates import render
from ._word_vectors_picture import draw_map, draw_scores
from ._word_vectors_results import BASELINE, COLUMNS, PUBLISHED, Column, WordVectorResults
from ._word_vectors_text import DEFAULT_NAME
from .intervals import paired

RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
KNOWLEDGE = 6
"""Columns about the words themselves; a narrow terminal has a second table for the others."""


class Comparison(WordVectorResults):
    """The results of a comparison of methods, as a table and as a report.

    Args:
        rows: the rows.
        settings: the settings of the comparison.
        methods: the order of the methods.
    """

    def __init__(self, rows: Sequence[Row], settings: dict[str, Any], methods: Sequence[str]) -> None:
        super().__init__(rows, settings, methods)
        self.reasons: list[str] = []
        """Why there are dashes in the table, each once."""
        best = {column: self._best(column) for column in COLUMNS}
        self.table = Table(
            ["method", *(column.title for column in COLUMNS)],
            [[method, *(self._cell(method, column, best[column]) for column in COLUMNS)] for method in self.methods],
        )

    def _best(self, column: Column) -> float | None:
        means = {method: mean(values) for method in self.methods if (values := self.values(method, column.field))}
        if column.best is None or len(set(means.values())) < 2:
            return None
        return column.best(list(means.values()))

    def _cell(self, method: str, column: Column, best: float | None) -> Cell:
        values = self.values(method, column.field)
        fact = self.of(method)[0].get(column.field)
        if not values:
            return Cell("—" if fact is None else self._dash(fact["reason"]), "")
        scaled = [column.factor * value for value in values]
        text = signed(mean(scaled), f",.{column.digits}f")
        if len(scaled) > 1 and stdev(scaled) >= 0.5 * 10**-column.digits:
            text += f" ± {stdev(scaled):.{column.digits}f}"
        if isinstance(fact, dict) and "used" in fact:
            text += f" ({fact['used']:,})"
        return Cell(text, mean(scaled), best=mean(values) == best)

    def _dash(self, reason: str) -> str:
        """A dash with the number of the footnote that has the reason."""
        if reason not in self.reasons:
            self.reasons.append(reason)
        return "—" + _raised(self.reasons.index(reason) + 1)

    def parts(self) -> dict[str, Table]:
        """Returns the table in two parts, by title, for a terminal."""
        titles, rows = [said(title.text) for title in self.table.titles], self.table.rows
        known = [row[: KNOWLEDGE + 1] for row in rows if row[0].text != BASELINE]
        rest = [[row[0], *row[KNOWLEDGE + 1 :]] for row in rows]
        return {
            said("Words"): Table(titles[: KNOWLEDGE + 1], known),
            said("Sentences, cost, and a Transformer with these vectors"): Table(
                [titles[0], *titles[KNOWLEDGE + 1 :]], rest
            ),
        }

    def footnotes(self) -> list[str]:
        """Returns the reasons for the dashes in the table."""
        return [f"{number} {reason}" for number, reason in self.reasons_by_number().items()]

    def reasons_by_number(self) -> dict[str, str]:
        """Returns the reasons for the dashes in the table, by their raised numbers."""
        return {_raised(number): reason for number, reason in enumerate(self.reasons, 1)}

    # ---------------------------------------------------------------- words

    def neighbours(self) -> dict[str, dict[str, str]]:
        """Returns each method's nearest neighbours of each word."""
        return self._nearest("neighbours")

    def unseen(self) -> dict[str, dict[str, str]]:
        """Returns each method's nearest neighbours of a word that only the held-out documents have."""
        return self._nearest("unseen")

    def _nearest(self, field: str) -> dict[str, dict[str, str]]:
        nearest: dict[str, dict[str, str]] = {}
        for method in self.methods:
            for word, near in (self.of(method)[0].get(field) or {}).items():
                nearest.setdefault(word, {})[method] = _near(near)
        return nearest

    # ---------------------------------------------------------------- conclusions

    def conclusions(self) -> list[str]:
        """Returns the conclusions that the results support, in sentences."""
        return [sentence for find in (self._words, self._context, self._transformers) for sentence in find()]

    def _words(self) -> list[str]:
        ranking = self._ranking()
        if not ranking:
            return []
        (best, value), rest = ranking[0], ranking[1:]
        used = self.of(best)[0]["wordsim353"]["pairs"]
        error = 1 / math.sqrt(max(1, used - 3))
        ranked = f"{best} {signed(value, ',.3f')}"
        if rest:
            others = said(", ").join(f"{method} {signed(rho, ',.3f')}" for method, rho in rest)
            ranked = said("{best}, then {others}", best=ranked, others=others)
        return [
            said(
                "WordSim-353: {ranked}. A correlation over {pairs:,} pairs has a standard error of about {error:.2f}; "
                "smaller differences mean little.",
                ranked=ranked,
                pairs=used,
                error=error,
            )
        ]

    def _context(self) -> list[str]:
        cosines = {method: self.values(method, "other_sense") for method in self.methods}
        apart = [method for method, values in cosines.items() if values and mean(values) < 0.9999]
        same = [method for method, values in cosines.items() if values and method not in apart]
        sentences = []
        if same:
            sentences.append(said('For {methods}, "bank" has the same vector in every sentence.', methods=listed(same)))
        for method in apart:
            other, alike = (mean(self.values(method, field)) for field in ("other_sense", "same_sense"))
            verdict = "separates the senses" if alike > other else "does not separate the senses"
            sentences.append(
                said(
                    "For {method} it depends on the sentence: the cosine is {other:.2f} between senses and {alike:.2f} "
                    "within one, so that {method} {verdict} in these six sentences.",
                    method=method,
                    other=other,
                    alike=alike,
                    verdict=said(verdict),
                )
            )
        return sentences

    def _transformers(self) -> list[str]:
        base = self.by_seed(BASELINE, "nats_per_word")
        differences = (paired(method, BASELINE, self.by_seed(method, "nats_per_word"), base) for method in self.methods)
        against = {apart.a: apart for apart in differences if apart is not None and apart.a != BASELINE}
        if not against:
            return []
        ordered = sorted(against.values(), key=lambda apart: apart.mean)
        sentences = [
            said(
                "Held-out loss compared with the Transformer that learns its input ({loss:.3f}): {which} nats per "
                "word.",
                loss=mean(base.values()),
                which=said(", ").join(f"{apart.a} {apart.number()}" for apart in ordered),
            )
        ]
        if "one-hot" in against:
            sentences.append(
                said(
                    "One-hot vectors with a learned linear map are a learned embedding, the same model with other "
                    "initial values. The two differ by {difference}, so that differences of this size mean nothing.",
                    difference=against["one-hot"].number(),
                )
            )
        if len(self.seeds) == 1:
            sentences.append(
                said("There is one seed: use --seeds 3 to see how much these differences vary between seeds.")
            )
        return sentences

    def _ranking(self) -> list[tuple[str, float]]:
        means = [(method, mean(values)) for method in self.methods if (values := self.values(method, "wordsim353"))]
        return sorted(means, key=lambda pair: -pair[1])

    # ---------------------------------------------------------------- written

    def protocol(self) -> list[str]:
        """Returns the settings in sentences."""
        return protocol_of(self.settings, self.methods)

    def explained(self) -> list[str]:
        """Returns the meaning of each column."""
        wrong, right = self.settings["misspelt"] or ("a misspelt word", "the right one")
        meanings = []
        for column in COLUMNS:
            facts = [row[column.field] for row in self.rows if isinstance(row.get(column.field), dict)]
            pairs = max((fact.get("pairs", 0) for fact in facts), default=0)
            meanings.append(f"**{column.title}**: {column.means.format(pairs=pairs, wrong=wrong, right=right)}.")
        return meanings

    def markdown(self) -> str:
        """Returns the report in Markdown."""
        return render("vectors.md", comparison=self)

    def crossed(self, nearest: dict[str, dict[str, str]]) -> Table:
        """Returns a table of texts from ``nearest`` by word and method."""
        methods = [method for method in self.methods if any(method in its for its in nearest.values())]
        return Table(
            ["method", *nearest], [[method, *(its.get(method, "—") for its in nearest.values())] for method in methods]
        )

    def files(self) -> Files:
        """Returns the files of the report by name, each with the function that makes it."""
        return {
            "vectors.md": self.markdown,
            "vectors-scores.png": lambda: draw_scores(self),
            "vectors-map.png": lambda: draw_map(self),
        }


def protocol_of(of: dict[str, Any], methods: Sequence[str]) -> list[str]:
    """Returns the settings in sentences."""
    train, held_out = of["documents"]
    text = said(
        "Text: {corpus}, sha256 {hash}…; the last of every ten documents is held out, {held_out:,} in all, and the "
        "methods are fitted to the other {train:,}.",
        corpus=of["corpus"],
        hash=of["sha256"][:16],
        held_out=held_out,
        train=train,
    )
    if of["corpus"] == DEFAULT_NAME:
        text += said(" Documents are paragraphs; those of one article may be in both parts.")
    sentences = [
        text,
        said(
            "All methods have the same tokenizer (words in lower case) and the same vocabulary: words that occur at "
            "least {least} times, at most {most:,}. Vectors have {dim} dimensions if the method lets one choose. All "
            "other options have their default values, with the following exceptions.",
            least=of["min_count"],
            most=of["max_words"],
            dim=of["dim"],
        ),
    ]
    set_for_it = [
        f"{name} {option} = {value:g}"
        for name, options in of["small_text"].items()
        if any(method.startswith(name) for method in methods)
        for option, value in options.items()
    ]
    if set_for_it:
        sentences.append(
            said(
                "Options for a small text, since the defaults are for one a thousand times as long: {options}.",
                options=said(", ").join(set_for_it),
            )
        )
    if of["quick"]:
        sentences.insert(0, said("A quick comparison, with few training steps: differences may turn with more."))
    if "script" in of:
        cut = "words by jieba" if of["chinese"] == "words" else "single characters, as jieba is not installed"
        sentences.append(
            said(
                "The text is {script}, whose words are short: Chinese is cut into {cut}, fasttext has min_n = 1, and "
                "the tests whose words are English are left out.",
                script=said(of["script"]),
                cut=said(cut),
            )
        )
    if "bert" in methods:
        sentences.append(
            said(
                "bert is an encoder trained on this text alone, for {steps:,} steps, which bounds its time whatever "
                "the result. Its one vector for a word is the mean over the word's occurrences, because its vectors in "
                "a sentence depend on the words that follow, which a model that predicts them must not read.",
                steps=of["bert_steps"],
            )
        )
    if "encoder" in of and PUBLISHED in methods:
        sentences.append(
            said(
                "{name} is the encoder {encoder}, which others trained on far more text. Its one vector for a word is "
                "the mean over the word's occurrences in this text.",
                name=PUBLISHED,
                encoder=of["encoder"],
            )
        )
    sentences.append(
        said(
            "Transformer: causal, {layers} layers of width {width}, {heads} heads, rotary positions. It predicts the "
            "next of the {predicted:,} most frequent words with an output layer of its own. Its input is the vectors, "
            "scaled to length one, minus their mean, frozen, and a learned linear map of them; the baseline learns its "
            "input. {steps:,} steps of {batch} windows of {length} words, AdamW, learning rate {rate:g}; in a seed, "
            "all have the same windows and the same initial values. Other words are read as zeros and not predicted.",
            layers=of["layers"],
            width=of["width"],
            heads=of["heads"],
            predicted=of["predicted"],
            steps=of["steps"],
            batch=of["batch"],
            length=of["length"],
            rate=of["learning_rate"],
        )
    )
    return sentences


def _raised(number: int) -> str:
    return str(number).translate(RAISED)


def _near(near: Any) -> str:
    if isinstance(near, dict):
        return f"— ({re.split('[:：]', retold(near['reason']))[0]})"
    return ", ".join(word for word, _ in near)
