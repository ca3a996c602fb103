"""Lesson 14: translation, English into Chinese.

The encoder–decoder of lesson 9 on natural sentences: messages of free programs, such as git and the GNU tools, and
their Chinese translations (``catalogues.py``). Both languages are cut into sub-words by one byte-pair encoding, so that
no word is unknown. The model is trained to give the next token of the translation, and then writes translations of
messages that it has not seen, each token the most likely one.

The model (``translator.py``) is compared with two translators without a neural network, made from the same pairs:

    word by word      each English word becomes the Chinese word that IBM Model 1 gives the highest probability
    nearest message   the stored translation of the most similar message, by the cosine of TF-IDF vectors

The scores are BLEU, the share of n-grams of 1 to 4 characters that the reference has too, and chrF, the same idea by
precision and recall of 1 to 6 characters. Both are computed by sacrebleu.

Protocol, fixed before any result: the sizes, steps and rates of ``translator.py``, one seed, the last parameters, and
one run on the held-out part at the end. The validation part only serves for the printed course of the loss. `make
translation` trains, up to an hour on 2 cores, resumes if it was interrupted, and stores the scores in measured/, which
this lesson reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch

import catalogues
from catalogues import Pair
from headway._common.extras import need
from lesson import (
    BLUE,
    GREY,
    ORANGE,
    SPEAK,
    Text,
    matrix,
    measured,
    page,
    run,
    table,
)
from translator import learned, pieces

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OURS = (
    "The file could not be opened because the disk is full.",
    "The disk is full because the file could not be opened.",
    "Please enter the name of the new folder.",
    "This version does not support files larger than two gigabytes.",
    "Do you want to delete all selected images?",
    "The connection to the server was closed before the download was complete.",
    "The cat is sitting on the table.",
)
"""Sentences of our own. The first is drawn; the second has the same words; the last is about something else."""

SIMILAR = (0.0, 0.3, 0.5, 0.7, 1.01)
"""The bounds of the classes of held-out messages by their cosine with the most similar message of the training."""


# ---------------------------------------------------------------- two translators without a network

ENGLISH_WORDS = re.compile(rf"{catalogues.DIRECTIVE.pattern}|[A-Za-z]+|\S")
CHINESE_WORDS = re.compile(rf"{catalogues.DIRECTIVE.pattern}|{catalogues.CHINESE.pattern}+|[A-Za-z]+|\S")


def words(text: str) -> list[str]:
    """Splits an English text into lowercase words, placeholders and signs."""
    return ENGLISH_WORDS.findall(text.lower())


def chinese_words(text: str) -> list[str]:
    """Splits a Chinese text likewise, its Chinese characters into words by jieba."""
    import jieba

    jieba.setLogLevel("ERROR")
    parts = CHINESE_WORDS.findall(text)
    return [word for part in parts for word in (jieba.lcut(part) if catalogues.CHINESE.match(part) else [part])]


def dictionary(pairs: Sequence[tuple[list[str], list[str]]], rounds: int = 10) -> dict[str, str]:
    """Returns the most probable Chinese word of each English word, by IBM Model 1.

        t(c|e) ← Σ over pairs of t(c|e) / Σ_e′ t(c|e′), divided by its sum over c

    e′ are the English words of the pair and an empty one, for Chinese words that come from none.

    References:
        Brown et al. 1993, The Mathematics of Statistical Machine Translation.
    """
    import numpy as np

    numbers: dict[str, int] = {"": 0}
    chinese: dict[str, int] = {}
    links, place = [], 0
    for sources, targets in pairs:
        rows = [0, *(numbers.setdefault(word, len(numbers)) for word in sources)]
        for word in targets:
            column = chinese.setdefault(word, len(chinese))
            links += [(row, column, place) for row in rows]
            place += 1
    row, column, place_of = np.array(links).T
    entries, entry = np.unique(row * len(chinese) + column, return_inverse=True)
    t = np.ones(len(entries))
    of_entry = entries // len(chinese)
    for _ in range(rounds):
        shares = t[entry] / np.bincount(place_of, t[entry])[place_of]
        t = np.bincount(entry, shares)
        t /= np.bincount(of_entry, t)[of_entry]
    best = {}
    names, chinese_names = list(numbers), list(chinese)
    for i in np.argsort(t, kind="stable"):  # the last one stays
        best[names[of_entry[i]]] = chinese_names[entries[i] % len(chinese)]
    return best


def word_by_word(training_pairs: Sequence[Pair], texts: Sequence[str]) -> list[str]:
    """Translates each word by the dictionary, in the order of the source; a word that is not in it stays."""
    best = dictionary([(words(english), chinese_words(chinese)) for english, chinese in training_pairs])
    return [" ".join(best.get(word, word) for word in words(text)) for text in texts]


def nearest(training_pairs: Sequence[Pair], texts: Sequence[str]) -> tuple[list[str], list[float]]:
    """Returns the translation of the most similar message of the training, and the similarity, for each text.

    It is the cosine of TF-IDF vectors of words and pairs of words.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    def terms(text: str) -> list[str]:
        found = words(text)
        return [*found, *map(" ".join, pairwise(found))]

    vectors = TfidfVectorizer(analyzer=terms)
    known = vectors.fit_transform([pair.english for pair in training_pairs])
    cosines = vectors.transform(texts) @ known.T
    best = cosines.argmax(1).A1
    return [training_pairs[i].chinese for i in best], [float(cosines[row, i]) for row, i in enumerate(best)]


# ---------------------------------------------------------------- scores


def scores(made: Sequence[str], wanted: Sequence[str]) -> dict[str, Any]:
    """Returns BLEU and chrF of all translations together, 0 … 100, and the share of those that are the reference.

    ``bleu_range`` is the 95 % range of BLEU when the messages are drawn again with replacement, 1,000 times.
    """
    from sacrebleu.metrics import BLEU, CHRF

    bleu = BLEU(tokenize="zh")
    found = bleu.corpus_score(list(made), [list(wanted)], n_bootstrap=1000)
    return {
        "bleu": round(found.score, 2),
        "bleu_range": round(found._ci, 2),
        "chrf": round(CHRF().corpus_score(list(made), [list(wanted)]).score, 2),
        "exact": round(sum(one == other for one, other in zip(made, wanted, strict=True)) / len(made), 4),
    }


def train() -> Iterator[dict[str, Any]]:
    """Trains, translates the held-out part, and yields what is found."""
    for module in ("debian", "jieba", "polib", "rich", "sacrebleu", "sklearn", "tokenizers"):
        need(module, "the training", "lessons")  # before it, not after an hour
    packages = catalogues.fetch()
    pairs = catalogues.read(packages)
    parts = catalogues.split(pairs)
    translator, course = learned(parts)
    yield course

    texts, wanted = ([pair[side] for pair in parts.held_out] for side in range(2))
    stored, cosines = nearest(parts.training, texts)
    systems = {
        "model": translator.translate(texts),
        "shuffled": translator.translate(texts, shuffled=True),
        "words": word_by_word(parts.training, texts),
        "nearest": stored,
    }
    classes = [[i for i, cosine in enumerate(cosines) if low <= cosine < high] for low, high in pairwise(SIMILAR)]
    known = {pair.chinese for pair in parts.training}
    yield {
        "row": "data",
        "packages": len(packages),
        "pairs": len(pairs),
        **{name: len(part) for name, part in parts._asdict().items()},
        "known_chinese": sum(chinese in known for chinese in wanted),
        "classes": [len(rows) for rows in classes],
    }
    for name, made in systems.items():
        by_class = [scores([made[i] for i in rows], [wanted[i] for i in rows])["bleu"] for rows in classes]
        yield {"row": "scores", "system": name, **scores(made, wanted), "bleu_by_class": by_class}

    keys = {catalogues.key(pair.english) for pair in pairs}
    for text, made in zip(OURS, translator.translate(OURS), strict=True):
        yield {"row": "ours", "english": text, "chinese": made, "known": catalogues.key(text) in keys}
    target = translator.translate(OURS[:1])[0]
    yield {
        "row": "attention",
        "source": pieces(translator.tokenizer, OURS[0]),
        "target": [*pieces(translator.tokenizer, target), "<end>"],
        "weights": translator.cross_attention(OURS[0], target),
    }


# ---------------------------------------------------------------- the lesson


@dataclass(frozen=True)
class Found:
    """What the training stored. Scores are by the names of ``systems``."""

    training: dict[str, Any]  # date, processor, steps' time, course of the validation loss
    data: dict[str, Any]  # pairs of each part, and of each class of similarity
    bleu: dict[str, float]
    bleu_range: dict[str, float]  # ±, 95 %
    chrf: dict[str, float]
    exact: dict[str, float]  # the share of translations that are the reference
    bleu_by_class: dict[str, list[float]]
    ours: list[list[str]]  # our sentences and their translations
    known: int  # of these, those that are among the pairs
    source: list[str]  # tokens of OURS[0]
    target: list[str]  # tokens of its translation, and the end
    weights: list[list[list[float]]]  # mean over the heads of each layer's cross-attention, [layer][query][key]


def measure() -> Found:
    rows = measured(__file__)

    def of(kind: str) -> list[dict[str, Any]]:
        return [row for row in rows if row["row"] == kind]

    def by_system(what: str) -> dict[str, Any]:
        return {row["system"]: row[what] for row in of("scores")}

    (course,), (data,), (attention,) = of("training"), of("data"), of("attention")
    return Found(
        training=course,
        data=data,
        bleu=by_system("bleu"),
        bleu_range=by_system("bleu_range"),
        chrf=by_system("chrf"),
        exact=by_system("exact"),
        bleu_by_class=by_system("bleu_by_class"),
        ours=[[row["english"], row["chinese"]] for row in of("ours")],
        known=sum(row["known"] for row in of("ours")),
        source=attention["source"],
        target=attention["target"],
        weights=torch.tensor(attention["weights"]).mean(1).tolist(),
    )


def page_data() -> dict[str, Any]:
    found = measure()
    (attention,) = [row for row in measured(__file__) if row["row"] == "attention"]
    en, zh = SPEAK.values()
    return {
        "title": ["Lesson 14: from the source to the translation", "第 14 课：从原文到译文"],
        "source": found.source,
        "target": found.target,
        "weights": attention["weights"],
        "classes": list(zip(classes(en), classes(zh), strict=True)),
        "sizes": found.data["classes"],
        "systems": {name: [called, systems(zh)[name]] for name, called in systems(en).items()},
        "bleu": {name: found.bleu_by_class[name] for name in systems(en)},
        "overall": found.bleu,
        "ours": found.ours,
    }


def systems(t: Text) -> dict[str, str]:
    return {
        "model": t("Transformer", "Transformer"),
        "shuffled": t("the same, source shuffled", "同一模型，原文打乱"),
        "nearest": t("nearest message", "最相似的消息"),
        "words": t("word by word", "逐词翻译"),
    }


def classes(t: Text) -> list[str]:
    """Returns the names of the classes of similarity."""
    names = [f"{low:g}–{high:g}" for low, high in pairwise(SIMILAR[1:-1])]
    lowest, highest = SIMILAR[1], SIMILAR[-2]
    return [t(f"below {lowest:g}", f"{lowest:g} 以下"), *names, t(f"{highest:g} and more", f"{highest:g} 以上")]


def tell(found: Found, t: Text) -> str:
    data, course = found.data, found.training
    named = systems(t)
    rows = [
        [named[name], f"{found.bleu[name]:.1f} ± {found.bleu_range[name]:.1f}", f"{found.chrf[name]:.1f}",
         f"{found.exact[name]:.1%}", *(f"{bleu:.1f}" for bleu in found.bleu_by_class[name])]
        for name in named
    ]  # fmt: skip
    head = [f"{name} ({size})" for name, size in zip(classes(t), data["classes"], strict=True)]
    return "\n".join(
        [
            t(
                f"{data['pairs']:,} pairs of {data['packages']} packages: {data['training']:,} for training, "
                f"{data['validation']:,} for validation, {data['held_out']:,} held out, with messages of at least "
                f"{catalogues.WORDS} words.\n"
                f"{course['parameters']:,} parameters, {course['epochs']} epochs in {course['minutes']:.0f} minutes on "
                f"{course['date']}: {course['processor']}, {course['threads']} thread(s), {course['dtype']}.",
                f"{data['packages']} 个软件包中的 {data['pairs']:,} 对：训练 {data['training']:,}，"
                f"验证 {data['validation']:,}，留出 {data['held_out']:,}（英文至少 {catalogues.WORDS} 个词）。\n"
                f"参数 {course['parameters']:,} 个，{course['epochs']} 轮，用时 {course['minutes']:.0f} 分钟，"
                f"{course['date']}：{course['processor']}，{course['threads']} 个线程，{course['dtype']}。",
            ),
            t(
                "\nHeld-out messages; the last columns are BLEU by the cosine with the most similar one of the "
                "training (and how many):",
                "\n留出的消息；右边几列是按“与训练中最相似消息的余弦”分组的 BLEU（括号里是条数）：",
            ),
            table(rows, ["", "BLEU", "chrF", t("exact", "完全相同"), *head]),
            t("\nOur own sentences, translated:", "\n我们自己的句子："),
            table(found.ours),
        ]
    )


def draw(found: Found, t: Text) -> Figure:
    figure = page(8.2)
    upper, lower = figure.subfigures(2, 1, height_ratios=[1.5, 1])
    rows, columns = ([token.strip("␣") for token in side] for side in (found.target, found.source))
    maps = upper.subplots(1, len(found.weights), sharey=True)
    for layer, (axes, weights) in enumerate(zip(maps, found.weights, strict=True)):
        last = layer == len(found.weights) - 1
        bar = t("cross-attention, mean of four heads", "交叉注意力，四个头的平均") if last else ""
        matrix(axes, weights, rows, columns, rotation=90, bar=bar, bar_of=maps)
        axes.set(title=t(f"Layer {layer}", f"层 {layer}"), xlabel=t("key: the source", "键：原文"))
    maps[0].set_ylabel(t("query: what is written next", "查询：接着写出的词元"))
    axes = lower.subplots()
    shown = ("model", "nearest", "words")
    for shift, (name, colour) in enumerate(zip(shown, (BLUE, ORANGE, GREY), strict=True)):
        heights = found.bleu_by_class[name]
        places = [place + 0.27 * (shift - 1) for place in range(len(heights))]
        axes.bar(places, heights, 0.25, color=colour, label=systems(t)[name])
        for place, height in zip(places, heights, strict=True):
            axes.text(place, height + 1, f"{height:.0f}", ha="center", fontsize=9)
    labels = [f"{name}\n({size})" for name, size in zip(classes(t), found.data["classes"], strict=True)]
    axes.set_xticks(range(len(labels)), labels)
    axes.set(ylim=(0, 1.15 * max(map(max, found.bleu_by_class.values()))), ylabel="BLEU")
    axes.set_xlabel(
        t("cosine with the most similar message of the training (messages)", "与训练中最相似消息的余弦（条数）")
    )
    axes.legend(loc="upper left")
    return figure


if __name__ == "__main__":
    run(__name__)
