"""GloVe of headway and skip-gram of gensim, learned in turn from one text: how good, and how fast."""

from __future__ import annotations

import datetime
import hashlib
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

import torch

from ..errors import HeadwayError
from ..extras import need
from ..vectors import Vectors, Word2Vec, Words
from ..vectors._evaluate import word_similarity
from ..vectors._text import WordCorpus
from ..vectors.glove import GloVe
from . import report
from .machine import where
from .rows import Row, Rows
from .run import Results, Watch
from .targets import Judged

GLOVE, SKIP_GRAM = "GloVe, headway", "skip-gram, gensim"

ALLOWED = 0.05
"""How far GloVe's Spearman may be below skip-gram's."""

EQUAL_TIME = 0
"""Epochs of a skip-gram that is given the time of the GloVe before it."""


@dataclass(frozen=True)
class VectorCase:
    """One way learned from one text.

    way       GLOVE or SKIP_GRAM
    text      its name and the beginning of its SHA-256
    options   of the way, by name, as (name, value)
    """

    file: ClassVar[str] = "vectors.jsonl"

    way: str
    text: str
    options: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", tuple((name, value) for name, value in self.options))

    def __str__(self) -> str:
        said = (f"{name} {'as long as GloVe' if _equal(name, value) else value}" for name, value in self.options)
        return f"{self.way}, {', '.join(said)}"

    def fields(self) -> dict[str, Any]:
        """The case as it stands in a row of results."""
        return asdict(self) | {"options": [list(option) for option in self.options]}


@dataclass(frozen=True)
class VectorPlan:
    """What is learned, in this order: each GloVe, a skip-gram of ``epochs``, one given the time of the first GloVe.

    glove      the options of each GloVe that differ from its defaults
    dim, min_count, seed    of all
    window, negative, epochs    of skip-gram

    Raises HeadwayError for options that a way refuses.
    """

    glove: tuple[dict[str, Any], ...] = ({}, {"x_max": 10.0})
    dim: int = 100
    min_count: int = 5
    seed: int = 0
    window: int = 5
    negative: int = 5
    epochs: int = 5

    def __post_init__(self) -> None:
        for case in self.cases(""):
            make(case, dict(case.options) | ({"epochs": 1} if _waits(case) else {}))

    def cases(self, text: str) -> list[VectorCase]:
        """In the order in which they run."""
        both = {"dim": self.dim, "min_count": self.min_count, "seed": self.seed}
        skip_gram = both | {"window": self.window, "negative": self.negative}
        ways = [(GLOVE, both | {"x_max": 100.0, "epochs": 50, "window": 10} | more) for more in self.glove]
        ways += [(SKIP_GRAM, skip_gram | {"epochs": epochs}) for epochs in (self.epochs, EQUAL_TIME)]
        return [VectorCase(way, text, tuple(options.items())) for way, options in ways]


@dataclass
class VectorResults(Results):
    """What was found of vectors."""

    @property
    def targets(self) -> list[Judged]:
        """None: ``verdicts`` judges each pair of rows."""
        return []


def bench_vectors(
    plan: VectorPlan,
    text: str | Path,
    out: str | Path,
    *,
    pairs: str | Path | None = None,
    fresh: bool = False,
    command: str = "headway bench --vectors",
    watch: Watch | None = None,
) -> VectorResults:
    """Learns the cases of a plan that are not in ``out`` yet, and writes vectors.jsonl and vectors.md there.

    text    UTF-8, one document on each line; no window reaches from one into the next
    pairs   pairs of words with people's judgement, WordSim-353 from gensim's own test data if None
    fresh   learns again what is there

    Raises HeadwayError for a text that cannot be read or has no words, where gensim is missing, and for an ``out`` that
    cannot be written to.
    """
    watch = watch or Watch()
    gensim = need("gensim", "bench of vectors")
    documents, name = _documents(Path(text))
    pairs = Path(pairs or need("gensim.test.utils", "WordSim-353").datapath("wordsim353.tsv"))
    here = {**where("vectors"), "gensim": gensim.__version__, "numpy": version("numpy"), "pairs": pairs.name}
    with Rows(out, here, fresh, VectorCase) as rows:
        cases = plan.cases(name)
        todo = [case for case in cases if not rows.has(case, 0)]
        watch.planned(rows.where, len(cases) - len(todo), len(cases))
        results = VectorResults(rows.here)
        try:
            if todo:
                watch.doing("reading the text")
                corpus = WordCorpus.of(documents, Words(), min_count=plan.min_count)
                for case in todo:
                    watch.doing(str(case))
                    options = dict(case.options)
                    if _waits(case):
                        options["epochs"] = epochs_of_equal_time(rows.here, cases)
                    found = learned(case, options, corpus, pairs, _telling(watch, str(case)))
                    row = rows.add(case, found, datetime.date.today().isoformat())
                    watch.measured(case, row)
        finally:
            order = {str(case.fields()): number for number, case in enumerate(cases)}
            results.rows = sorted(rows.here, key=lambda row: order.get(str(row["case"]), len(order)))
            if results.rows:
                report.save(rows.out / "vectors.md", markdown(results.rows, rows.where, command))
    return results


def make(case: VectorCase, options: dict[str, Any]) -> Vectors:
    """The way of a case, nothing learned yet; skip-gram with as many threads as torch has."""
    if case.way == GLOVE:
        return GloVe(**options)
    return Word2Vec(architecture="skip-gram", workers=torch.get_num_threads(), **options)


def learned(
    case: VectorCase, options: dict[str, Any], corpus: WordCorpus, pairs: Path, tell: Callable[[float], None]
) -> Row:
    """The row of a case: its time from the words of the corpus to the vectors, and how good they are."""
    vectors = make(case, options)
    vectors._take(corpus.words, corpus.counts)
    began = time.perf_counter()
    vectors._fit(corpus, tell)
    seconds = time.perf_counter() - began
    found = word_similarity(vectors, pairs)
    return {
        "seconds": seconds,
        "epochs": options["epochs"],
        "tokens": len(corpus.ids),
        "words": len(corpus.words),
        "documents": len(corpus.ends),
        "words_a_second": len(corpus.ids) * options["epochs"] / seconds,
        "spearman": found.spearman,
        "used": found.used,
        "pairs": found.total,
    }


def epochs_of_equal_time(rows: list[Row], cases: list[VectorCase]) -> int:
    """How often skip-gram reads the text in the time that the first GloVe took, at least once."""
    found = {str(row["case"]): row for row in rows}
    glove, skip_gram = (
        found[str(next(case for case in cases if case.way == way).fields())] for way in (GLOVE, SKIP_GRAM)
    )
    return max(1, round(skip_gram["epochs"] * glove["seconds"] / skip_gram["seconds"]))


def line(row: Row) -> str:
    """What was found for a case, on one line."""
    return (
        f"Spearman {row['spearman']:.3f} on {row['used']} of {row['pairs']} pairs · {row['seconds']:.1f} s, "
        f"{row['epochs']} epochs, {row['words_a_second']:,.0f} words a second"
    )


def verdicts(rows: list[Row]) -> list[str]:
    """Each GloVe against each skip-gram: by how much its Spearman is above or below, and whether that is allowed."""
    said = []
    for ours in (row for row in rows if row["case"]["way"] == GLOVE):
        for theirs in (row for row in rows if row["case"]["way"] == SKIP_GRAM):
            apart = ours["spearman"] - theirs["spearman"]
            verdict = "met" if apart >= -ALLOWED else "missed"  # NaN is missed
            said.append(
                f"GloVe with x_max {_option(ours, 'x_max'):g} against {theirs['epochs']} epochs of skip-gram: "
                f"{apart:+.3f}, wanted ≥ −{ALLOWED}: {verdict}"
            )
    return said


def markdown(rows: list[Row], where: dict[str, Any], command: str) -> str:
    """The chapter of BENCHMARKS.md about vectors."""
    parts = ["## Word vectors, against gensim", f"```sh\n{command}\n```"]
    for text in dict.fromkeys(row["case"]["text"] for row in rows):
        some = [row for row in rows if row["case"]["text"] == text]
        parts += [_head(some, where, text), _table(some), "\n".join(f"- {said}" for said in verdicts(some))]
    return "\n\n".join(parts) + "\n"


def _head(rows: list[Row], where: dict[str, Any], text: str) -> str:
    one = rows[0]
    return (
        f"{report.measured(rows, where)} for either, torch {where['torch']}, gensim {where['gensim']}, headway "
        f"{where['headway']}. The text {text}: {one['documents']:,} documents, {one['tokens']:,} tokens of a "
        f"vocabulary of {one['words']:,} words, the same for either. Spearman's correlation on {where['pairs']}, over "
        "the pairs of which both words are in the vocabulary. Time from tokens to vectors, GloVe's counting and all "
        "epochs among it; words a second: tokens × epochs / time."
    )


def _table(rows: list[Row]) -> str:
    names = ["way", "options", "epochs", "Spearman", "pairs", "time, s", "words a second"]
    lines = []
    for row in rows:
        hidden = ("epochs", "min_count")
        options = ", ".join(f"{name} {value:g}" for name, value in row["case"]["options"] if name not in hidden)
        lines.append(
            [
                row["case"]["way"],
                options,
                f"{row['epochs']}",
                f"{row['spearman']:.3f}",
                f"{row['used']} of {row['pairs']}",
                f"{row['seconds']:.1f}",
                f"{row['words_a_second']:,.0f}",
            ]
        )
    return report.table(names, lines)


def _documents(path: Path) -> tuple[list[str], str]:
    """The lines of a file, empty ones left out; its name and the beginning of its SHA-256."""
    try:
        content = path.read_bytes()
        text = content.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise HeadwayError(f"{path} cannot be read ({error}): give a text in UTF-8, one document on a line") from None
    found = [line for line in text.split("\n") if line.strip()]
    return found, f"{path.name} ({hashlib.sha256(content).hexdigest()[:8]})"


def _option(row: Row, name: str) -> Any:
    return dict(row["case"]["options"])[name]


def _equal(name: str, value: Any) -> bool:
    return name == "epochs" and value == EQUAL_TIME


def _waits(case: VectorCase) -> bool:
    """Whether its epochs are known only when others have run."""
    return any(_equal(name, value) for name, value in case.options)


def _telling(watch: Watch, said: str) -> Callable[[float], None]:
    """Says each per cent once."""
    told = -1

    def tell(part: float) -> None:
        nonlocal told
        percent = math.floor(100 * part)
        if percent > told:
            told = percent
            watch.doing(f"{said}: {percent} %")

    return tell


PLAN = VectorPlan()
"""What BENCHMARKS.md shows."""
