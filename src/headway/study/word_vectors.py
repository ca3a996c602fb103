"""Compares the methods for word vectors on one text: their vectors, their cost, and a Transformer that reads them.

    results = compare("corpus.txt", out="headway-vectors")
    print(results.markdown())

The protocol is fixed before any result is seen. Each result is written to disk as soon as it is known.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from statistics import mean
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .._common.experiment import measure_each
from .._common.extras import need
from .._common.files import make_folder
from .._common.kinds import Kind
from .._common.progress import ProgressListener, Share, Tell, part_of
from .._common.store import Row
from .._common.words import is_alphabetic
from ..errors import HeadwayError, need_positive, unknown
from ..vectors import VECTORS, Vectors, Vocabulary, WordCorpus, Words, load, word_analogies, word_map, word_similarity
from ..vectors._evaluate import pairs_of
from ..vectors._text import has_short_words
from ._word_vectors_report import Comparison, protocol_of
from ._word_vectors_results import BASELINE, COLUMNS, PUBLISHED
from ._word_vectors_task import NextWord, build, inputs_of
from ._word_vectors_text import Texts, read
from .protocol import Training
from .store import Store
from .train import train

__all__ = ["Comparison", "Protocol", "chosen_methods", "compare", "make", "methods"]

KEYS = ("method", "seed", "length")
"""The fields that identify a row."""
REASON: Kind = {"reason": str}
FACT: Kind = (float, {"value": float, "used": (int, ...), "pairs": (int, ...)}, REASON, None, ...)
NEAR: Kind = ({str: (REASON, [[str, float]])}, None, ...)
ROW: Kind = {
    "method": str,
    "seed": int,
    "length": int,
    **dict.fromkeys((column.field for column in COLUMNS), FACT),
    "wordsim353": ({"value": float, "used": int, "pairs": int}, REASON, None, ...),
    "neighbours": NEAR,
    "unseen": NEAR,
    "map": ([[str, str, float, float]], REASON, None, ...),
    "trustworthiness": (float, REASON, None, ...),
}
"""What is read of a row."""
VERSION = 2
"""Changes whenever the same settings would give other numbers."""
BOTH = {"word2vec": {f"word2vec-{which}": {"architecture": which} for which in ("cbow", "skip-gram")}}
"""The methods that have several rows, and the options of each."""
SMALL_TEXT: dict[str, dict[str, Any]] = {
    "word2vec": {"epochs": 20},
    "fasttext": {"epochs": 20},
    "glove": {"x_max": 10.0},
}
"""Options in place of defaults that are meant for texts a thousand times as long."""
TESTS = ("wordsim353.tsv", "simlex999.txt", "questions-words.txt")
"""The test sets, which come with gensim."""
NEIGHBOURS = 5
"""Neighbours of a word."""
SENSES = {
    "river": (
        "they sat on the bank of the river and looked at the water",
        "the town lies on the south bank of the river near the sea",
        "the water of the river rose over the bank after the rain",
    ),
    "money": (
        "he took his money to the bank to pay the debt",
        "the bank gave the company money for the trade",
        "the government and the national bank control the money of the country",
    ),
}
"""Sentences with "bank" in each of two senses."""
GROUPS = {
    "countries": "france india china canada spain russia germany japan italy",
    "animals": "fish frogs birds dogs insects mammals pigs sheep horses",
    "numbers": "two three four five six seven eight nine ten",
    "months": "january february march april june july august september october",
    "elements": "carbon hydrogen sodium lithium gold potassium oxygen iron nitrogen",
    "family": "son mother father wife daughter sister brother husband parents",
    "body": "head hand skin brain blood legs eyes heart bones",
    "verbs": "make become take give find read know say write",
}
CHINESE_GROUPS = {
    "国家": "中国 美国 日本 英国 法国 德国 俄国 印度",
    "动物": "狗 猫 马 牛 羊 鸡 鱼 鸟 虎",
    "数字": "二 三 四 五 六 七 八 九 十",
    "家人": "父亲 母亲 父母 儿子 女儿 妻子 丈夫 兄弟",
    "身体": "头 手 眼 耳 口 心 血 骨",
    "自然": "山 水 风 雨 云 月 日 花 雪",
    "时间": "今天 明天 昨天 现在 今年 明年 去年 时间",
    "动词": "说 看 听 走 吃 想 写 买",
}
SHORT_SCRIPT = "Chinese or Japanese"
NOT_ENGLISH = "the words of this test are English, and the text is not"


@dataclass(frozen=True)
class Letters:
    """What is chosen from a text depending on its script: known words, and the fewest letters of other words.

    The map has the words of ``groups`` that are in the vocabulary, and the neighbours of ``words`` are shown. If the
    vocabulary has none of them, words of at least ``on_map`` and ``shown`` letters take their place. The unseen word
    has at least ``unseen`` letters. A word of at least ``misspelt`` letters is misspelt, by leaving out a letter in its
    middle.
    """

    groups: dict[str, str]
    words: tuple[str, ...]
    on_map: int
    shown: int
    unseen: int
    misspelt: int


LONG = Letters(GROUPS, ("france", "king", "water", "three"), on_map=3, shown=5, unseen=8, misspelt=8)
SHORT = Letters(CHINESE_GROUPS, ("中国", "朋友", "水", "三"), on_map=2, shown=2, unseen=2, misspelt=3)
"""``SHORT`` is for Chinese and Japanese, whose words have mostly one or two characters; ``LONG`` for others."""
FEWEST_OF_GROUP, FEWEST_ON_MAP = 3, 8
NO_ORDER = "every two words have the same cosine, so that no word is nearer than another"
FIT_WORK = {"bert": 12.0, PUBLISHED: 8.0, "glove": 3.0}
"""The time of a method relative to that of a Transformer's training, for the progress bar; 0.5 for the others."""


QUICK = {"steps": 150, "bert_steps": 500}
"""The settings of a quick comparison."""


@dataclass(frozen=True)
class Protocol:
    """The settings of a comparison, the same for all methods.

    Attributes:
        dim: the width of vectors, for methods that let one choose.
        min_count: the fewest occurrences of a word in the vocabulary.
        max_words: the most words in the vocabulary; the most frequent are kept.
        words: the words whose nearest neighbours are shown; some of the text if None.
        predicted: the number of words, the most frequent, in the Transformer's vocabulary.
        steps: training steps of the Transformer.
        batch: windows in a step.
        length: words in a window.
        learning_rate: the Transformer's highest learning rate.
        layers: its layers.
        width: its embed_dim.
        heads: its heads.
        bert_steps: training steps of the encoder; 5000 take about three minutes on two processor cores.
        encoder: the folder of a published encoder such as MiniLM, for a row of its own; none if None.
        quick: whether this is a quick comparison, which its report says.

    Raises:
        HeadwayError: if a size is below 1.
    """

    dim: int = 100
    min_count: int = 5
    max_words: int = 20_000
    words: tuple[str, ...] | None = None
    predicted: int = 3000
    steps: int = 600
    batch: int = 16
    length: int = 32
    learning_rate: float = 3e-3
    layers: int = 2
    width: int = 128
    heads: int = 4
    bert_steps: int = 5000
    encoder: str | None = None
    quick: bool = False

    def __post_init__(self) -> None:
        sizes = ("dim", "min_count", "max_words", "predicted", "steps", "batch", "length", "bert_steps")
        need_positive(**{name: getattr(self, name) for name in sizes})

    @property
    def training(self) -> Training:
        """The training of the Transformers."""
        return Training(self.steps, self.batch, self.length, self.learning_rate)


def methods(encoder: str | None = None) -> dict[str, tuple[str, dict[str, Any]]]:
    """Returns the rows of a comparison: for each the name in VECTORS, and the options that differ from defaults.

    Args:
        encoder: the folder of a published encoder, for a row of its own; none if None.
    """
    rows = {row: (name, options) for name in VECTORS for row, options in BOTH.get(name, {name: {}}).items()}
    return rows if encoder is None else {**rows, PUBLISHED: ("bert", {"path": encoder})}


def chosen_methods(names: Sequence[str] | None, encoder: str | None = None) -> list[str]:
    """Returns the rows of some names; "word2vec" names both of its rows, "bert" also a published encoder.

    Args:
        names: names of rows or methods; all rows if None.
        encoder: the folder of a published encoder; none if None.

    Raises:
        HeadwayError: if a name is unknown, or there is none.
    """
    known = methods(encoder)
    if names is None:
        return list(known)
    chosen: list[str] = []
    for name in names:
        rows = [row for row, (method, _) in known.items() if name in (row, method)]
        if not rows:
            raise unknown("method", name, [*VECTORS, *known])
        chosen += rows
    if not chosen:
        raise HeadwayError(f"no method is given: there are {', '.join(known)}")
    return list(dict.fromkeys(chosen))


def make(row: str, protocol: Protocol, seed: int, folder: Path | None = None) -> Vectors:
    """Returns the vectors of a row, not fitted yet.

    Args:
        row: the name of the row.
        protocol: the settings.
        seed: the seed.
        folder: the folder of BERT's checkpoints; none if None.
    """
    name, own = methods(protocol.encoder)[row]
    kind = VECTORS[name]
    given: dict[str, Any] = {
        "dim": protocol.dim,
        "min_count": protocol.min_count,
        "max_words": protocol.max_words,
        "seed": seed,
        **own,
        **SMALL_TEXT.get(name, {}),
    }
    if row == "bert":
        given["steps"] = protocol.bert_steps
        given["num_heads"] = max(heads for heads in (1, 2, 4) if protocol.dim % heads == 0)
        given["out"] = folder
    known = kind().options
    return kind(**{option: value for option, value in given.items() if option in known})


def compare(
    corpus: str | Path | None = None,
    names: Sequence[str] | None = None,
    *,
    out: str | Path,
    protocol: Protocol | None = None,
    seeds: int = 1,
    watch: ProgressListener | None = None,
) -> Comparison:
    """Fits every method to the same documents, and measures its vectors and a Transformer that reads them.

    Args:
        corpus: a file of UTF-8 text with blank lines between documents; the sample of Wikipedia in gensim if None.
        names: names of methods; all of VECTORS if None.
        out: the folder for vectors and results, from which the same call resumes, or one with more methods or seeds.
        protocol: the settings; the defaults if None.
        seeds: the number of seeds.
        watch: receives the progress.

    Returns:
        The results.

    Raises:
        HeadwayError: before any work, if the text is too short or not text, a name is unknown, the folder has another
            comparison, or gensim or scikit-learn is missing.
    """
    protocol, watch = protocol or Protocol(), watch or ProgressListener()
    rows = chosen_methods(names, protocol.encoder)
    if seeds < 1:
        raise HeadwayError(f"seeds is {seeds}: give at least 1")
    for method in rows:
        make(method, protocol, 0)
    for package in ("gensim", "sklearn.manifold"):
        need(package, "comparing methods for word vectors")
    texts = read(corpus)
    bench = Bench(texts, protocol)
    settings = {
        "quick": protocol.quick,
        "corpus": texts.name,
        "sha256": texts.sha256,
        "documents": [len(texts.train), len(texts.held_out)],
        **{name: value for name, value in asdict(protocol).items() if name != "encoder"},
        **({} if protocol.encoder is None else {"encoder": Path(protocol.encoder).name}),
        **({"script": SHORT_SCRIPT, "chinese": Words().chinese} if bench.short else {}),
        "words": list(bench.words),
        "predicted": len(bench.vocabulary),
        "small_text": SMALL_TEXT,
        "unseen": bench.unseen,
        "misspelt": bench.misspelt and list(bench.misspelt),
        "lengths": [protocol.length],
        "version": VERSION,
    }
    with Store(out, KEYS, ROW) as store:
        store.agree(settings)
        jobs = {(method, seed): method for seed in range(seeds) for method in (*rows, BASELINE)}
        watch.planned(protocol_of(settings, rows), sum(map(store.has, jobs)), len(jobs))

        def row(job: tuple[str, int], tell: Tell) -> list[Row]:
            return [bench.row(*job, store, partial(tell, ""))]

        def work(job: tuple[str, int]) -> float:
            return 1.0 + (0.0 if job[0] == BASELINE else FIT_WORK.get(job[0], 0.5))

        measure_each(jobs, row, store, watch, has=store.has, work=work)
        return Comparison(store.rows_of(jobs), store.settings, [*rows, BASELINE])


class Bench:
    """One text, and all measurements of vectors that are fitted to it.

    Raises:
        HeadwayError: if the documents have too few words for a window.
    """

    def __init__(self, texts: Texts, protocol: Protocol) -> None:
        self.texts, self.protocol = texts, protocol
        corpus = WordCorpus.of(texts.train, Words(), min_count=protocol.min_count, max_words=protocol.max_words)
        self.all = Vocabulary(corpus.words)
        self.short = has_short_words(corpus.words, corpus.counts)
        self.letters = SHORT if self.short else LONG
        self.vocabulary = Vocabulary(self.all.words[: protocol.predicted])
        self.task = NextWord(self.vocabulary, texts.train, texts.held_out)
        for what, ids in (("to learn from", self.task.train), ("held out", self.task.held_out)):
            if len(ids) <= protocol.length + 1:
                raise HeadwayError(
                    f"corpus {texts.name} has {len(ids)} words {what}: give more, or fewer than "
                    f"{protocol.length} words in a window"
                )
        self.new_words = Counter(word for text in texts.held_out for word in self.all.tokenizer(text))
        every = {group: words.split() for group, words in self.letters.groups.items()}
        known = {group: [word for word in words if word in self.all] for group, words in every.items()}
        self.groups = {group: words for group, words in known.items() if len(words) >= FEWEST_OF_GROUP}
        if not self.groups:
            self.groups = {"frequent words": self._frequent(48, self.letters.on_map)}

    @cached_property
    def words(self) -> tuple[str, ...]:
        """The words whose neighbours are shown."""
        if self.protocol.words is not None:
            return self.protocol.words
        known = tuple(word for word in self.letters.words if word in self.all)
        return known or tuple(self._frequent(4, self.letters.shown))

    @cached_property
    def unseen(self) -> str | None:
        """The most frequent long word of the held-out documents that the others do not have."""
        seen = {word for text in self.texts.train for word in self.all.tokenizer(text)}
        new = [word for word in self._written(self.new_words) if word not in seen and is_alphabetic(word)]
        long = [word for word in new if len(word) >= self.letters.unseen]
        return max(long, key=lambda word: (self.new_words[word], word), default=None)

    @cached_property
    def misspelt(self) -> tuple[str, str] | None:
        """The most frequent long word without its middle letter, and the word itself."""
        for word in self._frequent(50, self.letters.misspelt):
            wrong = word[: len(word) // 2] + word[len(word) // 2 + 1 :]
            if wrong not in self.all:
                return wrong, word
        return None

    def _frequent(self, count: int, letters: int) -> list[str]:
        return [word for word in self._written(self.all.words) if len(word) >= letters][:count]

    def _written(self, words: Iterable[str]) -> list[str]:
        """The words in the script of the text."""
        return [word for word in words if has_short_words([word]) or not self.short]

    # ---------------------------------------------------------------- a row of the results

    def row(self, method: str, seed: int, store: Store, tell: Share) -> Row:
        """Fits a method, measures its vectors, and trains the Transformer; returns a row of the results.

        Raises:
            HeadwayError: if the method fails; the message names it.
        """
        facts: Row = {"method": method, "seed": seed, "length": self.protocol.length}
        share, inputs = 0.0, None
        try:
            if method != BASELINE:
                work = FIT_WORK.get(method, 0.5)
                share = work / (1 + work)
                vectors = self._fitted(method, seed, store, part_of(tell, 0.0, share))
                facts |= self._measured(vectors) | self._size(method, seed, store)
                inputs = attempt(inputs_of, vectors, self.vocabulary)
            if not isinstance(inputs, dict):
                facts |= self._transformer(method, inputs, seed, store, part_of(tell, share, 1 - share))
            else:
                facts["nats_per_word"] = inputs
        except HeadwayError as error:
            raise HeadwayError(f"{method}: {error}; or leave it out, by --methods") from error
        return facts

    def _fitted(self, method: str, seed: int, store: Store, tell: Share) -> Vectors:
        path = self._path(method, seed, store)
        seconds = store.settings.setdefault("fit_seconds", {})
        name = path.name
        if path.exists() and name in seconds:
            return load(path)
        working = store.out / "checkpoints" / path.stem
        stopped_before = working.exists()
        make_folder(path.parent)
        began = time.perf_counter()
        vectors = make(method, self.protocol, seed, working).fit(self.texts.train, watch=tell)
        gone = round(time.perf_counter() - began, 1)
        vectors.save(path)
        seconds[name] = None if stopped_before else gone
        store.save_settings()
        return vectors

    def _path(self, method: str, seed: int, store: Store) -> Path:
        ending = "" if methods(self.protocol.encoder)[method][0] == "bert" else ".safetensors"
        return store.out / "vectors" / f"{method}-seed{seed}{ending}"

    def _size(self, method: str, seed: int, store: Store) -> Row:
        path = self._path(method, seed, store)
        files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
        seconds = store.settings["fit_seconds"][path.name]
        return {
            "bytes": sum(file.stat().st_size for file in files),
            "fit_seconds": {"reason": "the training was stopped and resumed later"} if seconds is None else seconds,
        }

    def _measured(self, vectors: Vectors) -> Row:
        known = [word for word in self.new_words if word in vectors]
        english = attempt if not self.short else lambda *_: {"reason": NOT_ENGLISH}
        same, other = _both(english(context, vectors))
        on_map = attempt(places, vectors, self.groups)
        return {
            "dim": vectors.dim,
            "vocabulary": len(vectors),
            "wordsim353": english(similarity, vectors, TESTS[0], self.all),
            "simlex999": english(similarity, vectors, TESTS[1], self.all),
            "analogies": english(analogies, vectors, TESTS[2]),
            "known": len(known) / len(self.new_words),
            "misspelt": attempt(misspelt, vectors, self.misspelt),
            "same_sense": same,
            "other_sense": other,
            **{field: on_map.get(field, on_map) for field in ("own_group", "map", "trustworthiness")},
            "neighbours": {word: attempt(nearest, vectors, word) for word in self.words},
            "unseen": {word: attempt(nearest, vectors, word) for word in [self.unseen] if word is not None},
        }

    def _transformer(self, method: str, inputs: Tensor | None, seed: int, store: Store, tell: Share) -> Row:
        p = self.protocol
        model = build(inputs, len(self.vocabulary), layers=p.layers, width=p.width, heads=p.heads, seed=seed)
        path = store.checkpoint(method, seed, self.task.name)
        trained = train(
            model, self.task, p.training, seed, checkpoint=path, watch=lambda step, loss: tell(step / p.steps)
        )
        return {
            **self.task.measure(model, p.length),
            "train_seconds": round(trained.seconds, 1),
            "parameters": model.num_parameters,
        }


def attempt(what: Callable[..., Any], *given: Any) -> Any:
    """Returns the result of a function, or the reason why there is none."""
    try:
        return what(*given)
    except HeadwayError as error:
        return {"reason": str(error)}


def test_set(name: str) -> str:
    """Returns the path of one of ``TESTS``, which come with gensim."""
    path: str = need("gensim.test.utils", "the test sets").datapath(name)
    return path


def similarity(vectors: Vectors, test: str, vocabulary: Vocabulary) -> Row:
    """Computes Spearman's correlation with human scores, over the pairs of words of a vocabulary.

    Methods with vectors for further words are therefore compared on the same pairs as the others. Pairs of a word with
    itself are left out. The row has the correlation, the number of its pairs, and the pairs of the test set that the
    vectors have.

    Raises:
        HeadwayError: if there is no such pair, or all cosines are the same.
    """
    pairs = [pair for pair in pairs_of(Path(test_set(test))) if pair[0].lower() != pair[1].lower()]
    shared = [(a, b, score) for a, b, score in pairs if a.lower() in vocabulary and b.lower() in vocabulary]
    if not shared:
        raise HeadwayError(f"none of the {len(pairs)} pairs of {test} has both of its words in the vocabulary")
    result = word_similarity(vectors, shared)
    if math.isnan(result.spearman):
        raise HeadwayError(NO_ORDER)
    return {"value": result.spearman, "pairs": result.used, "used": word_similarity(vectors, pairs).used}


def analogies(vectors: Vectors, test: str) -> Row:
    """Computes the share of right answers, and the number of questions that the vectors have."""
    result = word_analogies(vectors, test_set(test))
    return {"value": result.accuracy, "used": result.used}


def nearest(vectors: Vectors, word: str) -> list[tuple[str, float]]:
    """Returns the nearest neighbours of a word with their cosines."""
    return [(near, round(cosine, 4)) for near, cosine in vectors.most_similar(word, NEIGHBOURS)]


def misspelt(vectors: Vectors, pair: tuple[str, str] | None) -> float:
    """Returns the cosine of a misspelt word with the right one.

    Raises:
        HeadwayError: if the text has no such pair.
    """
    if pair is None:
        raise HeadwayError("no word of the text is long enough to be misspelt")
    return vectors.similarity(*pair)


def context(vectors: Vectors, word: str = "bank") -> tuple[float, float]:
    """Computes the mean cosines of a word's vectors in two sentences: of the same sense, and of different senses.

    Raises:
        HeadwayError: if the word is not in the vocabulary.
    """
    senses = []
    for sentences in SENSES.values():
        rows = [vectors.encode(text)[vectors.tokenizer(text).index(word)] for text in sentences]
        senses.append(F.normalize(torch.stack(rows), dim=1))
    if not all(rows.any() for rows in senses):
        raise HeadwayError(f"{word!r}, whose senses are compared, is not in the vocabulary")
    river, money = senses
    first, second = torch.triu_indices(len(river), len(river), 1)
    same = torch.cat([(rows @ rows.T)[first, second] for rows in senses])
    return float(same.mean()), float((river @ money.T).mean())


def places(vectors: Vectors, groups: dict[str, list[str]]) -> Row:
    """Maps groups of words to two dimensions by t-SNE, and computes the share whose nearest word is in their own group.

    The row has "map", the word, group and coordinates of each; "own_group", the share, or the reason why there is none;
    and "trustworthiness".

    Raises:
        HeadwayError: if fewer than 8 words have a vector, or every two of them have the same cosine.
    """
    words = [(word, group) for group, its in groups.items() for word in its if word in vectors]
    if len(words) < FEWEST_ON_MAP:
        raise HeadwayError(f"{len(words)} words of the map have a vector: there is nothing to draw")
    units = F.normalize(torch.stack([vectors.vector(word) for word, _ in words]), dim=1)
    apart = ~torch.eye(len(words), dtype=torch.bool)
    cosines = units @ units.T
    if float(cosines[apart].std()) < 1e-6:
        raise HeadwayError(NO_ORDER)
    made = word_map(vectors, {group: [word for word, its in words if its == group] for group in groups})
    points = [[*of, *at] for of, at in zip(words, made.points.numpy().round(3).tolist(), strict=True)]
    own: float | Row = {"reason": "the text has too few of the words that the map has groups of"}
    if len(groups) > 1:
        best = cosines.masked_fill(~apart, -2).argmax(1).tolist()
        own = mean(words[near][1] == group for near, (_, group) in zip(best, words, strict=True))
    return {"map": points, "own_group": own, "trustworthiness": made.trustworthiness}


def _both(result: Any) -> tuple[Any, Any]:
    """Two results, or the same reason for both."""
    return (result, result) if isinstance(result, dict) else result
