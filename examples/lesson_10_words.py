"""Lesson 10: the vector of a word, before any position is added to it.

A Transformer's input is a vector for each word plus one for its position. Lessons 4 to 6 are about positions; this one
is about words. The methods differ in what they use:

    one-hot         nothing: every word has an axis of its own, and no two are near
    bag of words    the documents that contain a word, and how often; TF-IDF weights that by the rarity of the word
    word2vec        the neighbouring words
    GloVe           how often each pair of words occurs near each other, counted over the whole text first
    fastText        as word2vec, with the sub-words of the word, so that unseen words have vectors too
    BERT            the whole sentence, so that a word has another vector in each sentence

All but the last are fitted here to the manual that comes with every Python, some 65,000 words, and tested with 29 words
of five kinds (containers, numbers, statements, exceptions, arithmetic): for how many is the nearest of the others of
the same kind? With the weights that `make weights ARGS="google-news minilm"` downloads, two published models show what
so small a text cannot teach.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from pydoc_data.topics import topics
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

import headway as hw
from headway.pictures import MARKERS
from headway.vectors import Vectors
from lesson import BLUE, COLOURS, INK, Text, panels, percents, run, table, weights

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS = {
    ("containers", "容器"): "list tuple dictionary string bytes set",
    ("numbers", "数字"): "integer integers float floating complex numbers",
    ("statements", "语句"): "raise return import assert yield await",
    ("exceptions", "异常"): "typeerror valueerror keyerror indexerror attributeerror nameerror",
    ("arithmetic", "运算"): "addition multiplication division modulo power",
}
DIM = 48
SEEN = 3  # words that occur less often are left out
MISSPELT = 200
METHODS: dict[str, Any] = {
    "one-hot": hw.vectors.OneHot(min_count=SEEN),
    "bag-of-words": hw.vectors.BagOfWords(min_count=SEEN),
    "tf-idf": hw.vectors.TFIDF(min_count=SEEN),
    "word2vec": hw.vectors.Word2Vec(dim=DIM, epochs=20, min_count=SEEN),
    "glove": hw.vectors.GloVe(dim=DIM, min_count=SEEN),
    "fasttext": hw.vectors.FastText(dim=DIM, epochs=20, min_count=SEEN),
}
SENTENCES = (
    "He put his money in the bank.",
    "The bank lent them money for the house.",
    "They sat on the bank of the river and fished.",
)


@dataclass(frozen=True)
class Found:
    """Results of each method for 29 words, misspelt words and order, and results of published vectors."""

    vocabulary: int
    dims: dict[str, int]  # numbers in a vector, by method
    own_kind: dict[str, float]  # share of the words whose nearest is of the same kind, by method
    chance: float  # that share for a nearest word drawn at random
    one_hot_largest_cosine: float  # of two different words
    order_kept: float  # the largest change in a document's bag of words if its words are reversed
    misspelt_found: float  # share of misspelt words whose nearest word in fastText is the right one
    word2vec_knows_misspelt: int  # how many of them word2vec has a vector for
    example: tuple[str, str, float]  # a misspelt word, its nearest, the cosine
    map: dict[str, dict[str, list[float]]]  # by kind and word: its coordinates in two dimensions; word2vec
    queen: list[tuple[str, float]] | None  # nearest to king − man + woman, those three left out; Google's vectors
    queen_with_asked: list[tuple[str, float]] | None  # and with them
    bank: dict[str, float] | None  # cosines of "bank" in two sentences; MiniLM


def kinds() -> Iterable[tuple[str, list[str]]]:
    return ((english, words.split()) for (english, _), words in KINDS.items())


def of_the_kinds(vectors: Vectors) -> list[tuple[str, str]]:
    """Returns (word, kind) for each of the words that has a vector."""
    return [(word, kind) for kind, words in kinds() for word in words if word in vectors]


def own_kind(vectors: Vectors) -> float:
    """Returns the share of the words whose nearest among all of them is of the same kind."""
    known = of_the_kinds(vectors)
    rows = F.normalize(torch.stack([vectors.vector(word) for word, _ in known]), dim=1)
    nearest = (rows @ rows.T).fill_diagonal_(-2).argmax(1).tolist()
    return sum(known[a][1] == known[b][1] for a, b in enumerate(nearest)) / len(known)


def misspell(word: str, chance: random.Random) -> str:
    """Exchanges two neighbouring letters inside the word."""
    place = chance.randrange(1, len(word) - 2)
    return word[:place] + word[place + 1] + word[place] + word[place + 2 :]


def measure() -> Found:
    texts = list(topics.values())
    fitted = {name: method.fit(texts) for name, method in METHODS.items()}
    one_hot, bag, word2vec, fasttext = (fitted[n] for n in ("one-hot", "bag-of-words", "word2vec", "fasttext"))

    rows = one_hot.rows(torch.arange(len(one_hot)))
    sentence = "raise an exception before the function returns a value"
    turned = " ".join(reversed(sentence.split()))

    chance = random.Random(0)
    long = [word for word in fasttext.words if len(word) >= 6 and word.isascii() and word.isalpha()][:MISSPELT]
    pairs = [(word, wrong) for word in long if (wrong := misspell(word, chance)) not in fasttext.index]
    answers = {wrong: fasttext.most_similar(fasttext.vector(wrong), 1)[0] for _, wrong in pairs}
    nearest, cosine = fasttext.most_similar(fasttext.vector("tupel"), 1)[0]

    known = of_the_kinds(word2vec)
    units = F.normalize(torch.stack([word2vec.vector(word) for word, _ in known]), dim=1)
    places = units @ torch.linalg.svd(units - units.mean(0), full_matrices=False).Vh[:2].T
    spread: dict[str, dict[str, list[float]]] = {}
    for (word, kind), place in zip(known, places.tolist(), strict=True):
        spread.setdefault(kind, {})[word] = place
    return Found(
        vocabulary=len(fasttext),
        dims={name: vectors.dim for name, vectors in fitted.items()},
        own_kind={name: own_kind(vectors) for name, vectors in fitted.items() if name != "one-hot"},
        chance=sum(len(words) * (len(words) - 1) for words in spread.values()) / (len(known) * (len(known) - 1)),
        one_hot_largest_cosine=(rows @ rows.T).fill_diagonal_(0).abs().max().item(),
        order_kept=(bag.document(sentence) - bag.document(turned)).abs().max().item(),
        misspelt_found=sum(answers[wrong][0] == word for word, wrong in pairs) / len(pairs),
        word2vec_knows_misspelt=sum(wrong in word2vec for _, wrong in pairs),
        example=("tupel", nearest, cosine),
        map=spread,
        **ask_google(),
        bank=ask_bert(),
    )


def ask_google() -> dict[str, list[tuple[str, float]] | None]:
    """Computes king − man + woman in Google's vectors of 26,423 words."""
    folder = weights("google-news")
    if folder is None:
        return {"queen": None, "queen_with_asked": None}
    vectors = hw.vectors.load(next(folder.glob("*.bin")))
    units = {word: F.normalize(vectors.vector(word), dim=0) for word in ("king", "man", "woman")}
    return {
        "queen": vectors.analogy("man", "king", "woman", 3),
        "queen_with_asked": vectors.most_similar(units["king"] - units["man"] + units["woman"], 3),
    }


def ask_bert() -> dict[str, float] | None:
    """Compares one word in three sentences: two about money, one about a river."""
    folder = weights("minilm")
    if folder is None:
        return None
    bert = hw.vectors.Bert(path=folder)
    money, loan, river = (bert.vector_in("bank", sentence) for sentence in SENTENCES)
    return {
        "same sense": F.cosine_similarity(money, loan, dim=0).item(),
        "other sense": max(F.cosine_similarity(vector, river, dim=0).item() for vector in (money, loan)),
    }


def tell(found: Found, t: Text) -> str:
    rows = [
        [name, str(dim), f"{found.own_kind[name]:.0%}" if name in found.own_kind else "—"]
        for name, dim in found.dims.items()
    ]
    wrong, right, cosine = found.example
    lines = [
        t(f"{found.vocabulary:,} words of Python's manual.", f"Python 手册中的 {found.vocabulary:,} 个词。"),
        table(rows, [t("method", "方法"), t("numbers", "维数"), t("nearest of the same kind", "最近的词是同类")]),
        t(
            f"Chance: {found.chance:.0%}. One-hot has no nearest word: the cosine of any two words is "
            f"{found.one_hot_largest_cosine:g}.\nA bag of words is the same for a sentence and its reverse (difference"
            f" {found.order_kept:g}).\nMisspelt by two letters, {found.misspelt_found:.0%} of words are still nearest "
            "to the right word in fastText ("
            f"{wrong} → {right}, {cosine:.2f});\nword2vec has a vector for "
            f"{found.word2vec_knows_misspelt} of them.",
            f"随机猜测为 {found.chance:.0%}。独热编码答不了：任意两个词的余弦都是 {found.one_hot_largest_cosine:g}。\n"
            f"把句子倒过来，词袋完全不变（差 {found.order_kept:g}）。\n"
            f"把词中相邻两个字母写反，fastText 仍能找回 {found.misspelt_found:.0%}"
            f"（{wrong} → {right}，{cosine:.2f}）；\n"
            f"word2vec 认识其中 {found.word2vec_knows_misspelt} 个。",
        ),
    ]
    lacks = [name for name, its in (("google-news", found.queen), ("minilm", found.bank)) if not its]
    missing = t(
        f'Not measured: {" and ".join(lacks)}; make weights ARGS="{" ".join(lacks)}" downloads what is missing.',
        f'没有测量 {"、".join(lacks)}：make weights ARGS="{" ".join(lacks)}" 可以取来。',
    )
    if found.queen and found.queen_with_asked:
        left_out, kept = found.queen[0], found.queen_with_asked[0]
        lines.append(
            t(
                f"king − man + woman: nearest is {kept[0]} ({kept[1]:.3f}); with the three words left out, as is "
                f"usual, {left_out[0]} ({left_out[1]:.3f}).",
                f"国王 − 男人 + 女人：最近的是 {kept[0]}（{kept[1]:.3f}）；按惯例去掉这三个词后是 "
                f"{left_out[0]}（{left_out[1]:.3f}）。",
            )
        )
    if found.bank:
        same, other = found.bank["same sense"], found.bank["other sense"]
        lines.append(
            t(
                f"“bank” in BERT: two sentences about money {same:.2f}, money and river at most {other:.2f}.",
                f"BERT 中的 bank：两句都讲钱时余弦 {same:.2f}，一句讲钱一句讲河时至多 {other:.2f}。",
            )
        )
    return "\n".join([*lines, *([missing] if lacks else [])])


def draw(found: Found, t: Text) -> Figure:
    figure, (left, right) = panels(2, height=5.0, gridspec_kw={"width_ratios": [2, 4]})
    names, shares = list(found.own_kind), list(found.own_kind.values())
    left.barh(names, shares, color=BLUE, height=0.62)
    for place, share in enumerate(shares):
        left.text(share + 0.015, place, f"{share:.0%}", va="center")
    left.axvline(found.chance, color=INK, linewidth=1, linestyle=(0, (4, 3)))
    left.text(found.chance + 0.02, -0.45, t("at random", "随机"), fontsize=8.5)
    left.invert_yaxis()
    percents(left, 1.15)
    left.set(title=t("Nearest word of the same kind", "最近的词属于同类"))
    left.set(xlabel=t("share of the words", "词的比例"), ylabel=t("method", "方法"))

    points = []
    for colour, marker, (english, chinese) in zip(COLOURS, MARKERS, KINDS, strict=False):
        places = found.map[english]
        xs, ys = zip(*places.values(), strict=True)
        right.plot(xs, ys, marker, color=colour, markersize=5, label=t(english, chinese))
        points += [(word, place) for word, place in places.items()]
    right.margins(0.08)
    right.set(
        title=t(
            f"word2vec: the two directions in which {len(points)} words differ most",
            f"word2vec：{len(points)} 个词差别最大的两个方向",
        ),
        xlabel=t(f"first principal component (of {DIM} dimensions)", f"第一主成分（共 {DIM} 维）"),
        ylabel=t("second principal component", "第二主成分"),
    )
    right.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=5, handletextpad=0.1, columnspacing=1.2)
    name_points(right, points)
    return figure


def name_points(axes: Axes, points: list[tuple[str, list[float]]]) -> None:
    """Writes each word beside its point where it covers no other word or point; a word without room is left out."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.transforms import Bbox

    FigureCanvasAgg(axes.figure).draw()
    spots = [axes.transData.transform(place) for _, place in points]
    taken = [Bbox.from_bounds(x - 5, y - 5, 10, 10) for x, y in spots]
    sides = [(6, 0), (-6, 0), (0, 6), (0, -6), (5, 5), (-5, 5), (5, -5), (-5, -5), (0, 12), (0, -12)]
    for word, place in points:
        for x, y in sides:
            name = axes.annotate(
                word, place, (x, y), textcoords="offset points", fontsize=8.5,
                ha="center" if not x else "left" if x > 0 else "right",
                va="center" if not y else "bottom" if y > 0 else "top",
            )  # fmt: skip
            box = name.get_window_extent()
            if axes.bbox.containsx(box.x0) and axes.bbox.containsx(box.x1) and not box.count_overlaps(taken):
                taken.append(box)
                break
            name.remove()


if __name__ == "__main__":
    run(__name__)
