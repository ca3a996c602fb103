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

The Chinese half asks for 国王 − 男人 + 女人. In a text of templates, written for this lesson, the relation is planted:
a person stands in sentences of a role and in sentences of a sex. The same text with the sexes drawn at random shows
what the planting does. In fortunes-zh, 2 MB of Chinese quotations and manuals, 国王 stands once. That text is not
included; docs/lessons.md has the commands that get it.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import combinations
from pydoc_data.topics import topics
from statistics import mean
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

import headway as hw
from headway._common.pictures import MARKERS
from headway.vectors import Vectors
from lesson import BLUE, COLOURS, INK, ORANGE, Text, data, halves, page, percents, run, table, weights

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
DRAWN_FROM = ("fortunes-zh.txt",)
DIM = 48
SEEN = 3  # words that occur less often are left out
MISSPELT = 200
ON_PAGE = 600  # of the most frequent words
METHODS: dict[str, Any] = {
    "one-hot": hw.vectors.OneHot(min_count=SEEN),
    "bag-of-words": hw.vectors.BagOfWords(min_count=SEEN),
    "tf-idf": hw.vectors.TFIDF(min_count=SEEN),
    "word2vec": hw.vectors.Word2Vec(dim=DIM, epochs=20, min_count=SEEN),
    "glove": hw.vectors.GloVe(dim=DIM, min_count=SEEN),
    "fasttext": hw.vectors.FastText(dim=DIM, epochs=20, min_count=SEEN),
}
ROLES = {
    "国王 女王": ("{} 住 在 王宫", "{} 戴着 王冠", "{} 统治 国家"),
    "王子 公主": ("{} 将来 继承 王位", "{} 在 王宫 长大", "{} 出席 舞会"),
    "男人 女人": ("{} 每天 去 上班", "{} 在 城里 租 房子", "{} 在 街上 走"),
    "男孩 女孩": ("{} 在 操场 玩", "{} 怕 考试", "{} 喜欢 玩具"),
    "父亲 母亲": ("{} 送 孩子 上学", "{} 给 孩子 做饭", "{} 照顾 孩子"),
    "儿子 女儿": ("{} 听 父母 的 话", "{} 放学 回家", "{} 是 家里 的 孩子"),
    "丈夫 妻子": ("{} 结婚 三年 了", "{} 记得 结婚 纪念日", "{} 和 爱人 旅行"),
    "爷爷 奶奶": ("{} 头发 白 了", "{} 已经 退休", "{} 讲 从前 的 故事"),
}
SEXES = (
    ("{} 说 他 累 了", "{} 留着 胡子", "{} 是 一位 先生", "他 就是 那位 {}"),
    ("{} 说 她 累 了", "{} 穿着 裙子", "{} 是 一位 女士", "她 就是 那位 {}"),
)
PLANTED, PLANTED_SEEDS = 2_000, 5  # sentences, and how often they are drawn
QUESTION, QUEEN = ("男人", "国王", "女人"), "女王"
FORTUNES = "fortunes-zh.txt"
SUBJECTS = {
    ("computers", "电脑"): "文件 系统 软件包 命令 内核 程序 目录 安装 用户 网络",
    ("poems", "诗词"): "春风 东风 西风 明月 相思 江南 万里 千里 风雨 何处",
    ("the Analects", "论语"): "君子 小人 圣人 天下 孔子 子路 仁 曰 为政 不知",
}
ASKED = ("文件", "安装", "春风", "明月", "君子", "天下")
BANDS = ((1, 1), (2, 4), (5, 19), (20, 99), (100, 10**6))  # occurrences of a word
SAMPLED, FORTUNES_SEEDS = 100, 3
USUAL_EPOCHS, RARE_EPOCHS = 10, 5  # with the words that occur five times, and with all
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
    planted: dict[str, dict[str, float]]  # by text and by whether the question's words are left out or not: share right
    planted_queen: dict[str, dict[str, int]]  # the same for 国王 − 男人 + 女人 alone: of PLANTED_SEEDS
    fortunes: dict[str, Any] | None  # see ask_fortunes


def kinds() -> Iterable[tuple[str, list[str]]]:
    return ((english, words.split()) for (english, _), words in KINDS.items())


def of_the_kinds(vectors: Vectors) -> list[tuple[str, str]]:
    """Returns (word, kind) for each of the words that has a vector."""
    return [(word, kind) for kind, words in kinds() for word in words if word in vectors]


def own_kind(vectors: Vectors) -> float:
    """Returns the share of the words whose nearest among all of them is of the same kind."""
    return own_group(vectors, of_the_kinds(vectors))


def own_group(vectors: Vectors, known: list[tuple[str, str]]) -> float:
    """Returns the share of (word, group) whose nearest among all of them is of the same group."""
    rows = F.normalize(torch.stack([vectors.vector(word) for word, _ in known]), dim=1)
    nearest = (rows @ rows.T).fill_diagonal_(-2).argmax(1).tolist()
    return sum(known[a][1] == known[b][1] for a, b in enumerate(nearest)) / len(known)


def flat(vectors: Vectors, known: list[tuple[str, str]]) -> dict[str, dict[str, list[float]]]:
    """Returns the places of (word, group) on the first two principal components, by group."""
    units = F.normalize(torch.stack([vectors.vector(word) for word, _ in known]), dim=1)
    places = units @ torch.linalg.svd(units - units.mean(0), full_matrices=False).Vh[:2].T
    found: dict[str, dict[str, list[float]]] = {}
    for (word, group), place in zip(known, places.tolist(), strict=True):
        found.setdefault(group, {})[word] = place
    return found


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
    spread = flat(word2vec, known)
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
        **ask_planted(),
        fortunes=ask_fortunes(),
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


def planted_text(seed: int, of_their_sex: bool = True) -> list[str]:
    """Draws sentences about 16 people: of a role, or of a sex, which is the person's or drawn at random."""
    chance = random.Random(seed)
    found = []
    for _ in range(PLANTED):
        pair, roles = chance.choice(list(ROLES.items()))
        sex = chance.randrange(2)
        person = pair.split()[sex]
        sexes = SEXES[sex if of_their_sex else chance.randrange(2)]
        found.append(chance.choice(roles if chance.random() < 0.5 else sexes).format(person))
    return found


def questions() -> Iterable[tuple[str, str, str, str]]:
    """Yields a, b, c, d for b − a + c = d: every two pairs, from man to woman."""
    pairs = [pair.split() for pair in ROLES]
    return ((a, b, c, d) for a, c in pairs for b, d in pairs if a != b)


def planted_vectors(seed: int, of_their_sex: bool) -> Vectors:
    """Fits vectors to the text of templates, which is cut already; all of its words are frequent, and none left out."""
    method = hw.vectors.Word2Vec(dim=DIM, epochs=20, min_count=1, subsample=0, seed=seed, tokenizer=str.split)
    return method.fit(planted_text(seed, of_their_sex))


def ask_planted() -> dict[str, dict[str, dict[str, Any]]]:
    """Computes how often vectors of the text of templates answer, and of the same text with sexes drawn at random."""
    share: dict[str, dict[str, Any]] = {}
    queens: dict[str, dict[str, Any]] = {}
    for text, of_their_sex in (("planted", True), ("at random", False)):
        right: dict[str, list[tuple[bool, bool]]] = {"left out": [], "kept": []}
        for seed in range(PLANTED_SEEDS):
            vectors = planted_vectors(seed, of_their_sex)
            for a, b, c, d in questions():
                asked = (a, b, c) == QUESTION
                right["left out"].append((vectors.analogy(a, b, c, 1)[0][0] == d, asked))
                right["kept"].append((vectors.most_similar(difference(vectors, a, b, c), 1)[0][0] == d, asked))
        share[text] = {how: sum(hit for hit, _ in its) / len(its) for how, its in right.items()}
        queens[text] = {how: sum(hit for hit, asked in its if asked) for how, its in right.items()}
    return {"planted": share, "planted_queen": queens}


def difference(vectors: Vectors, a: str, b: str, c: str) -> torch.Tensor:
    """Returns b − a + c of vectors scaled to length one."""
    x, y, z = (F.normalize(vectors.vector(word), dim=0) for word in (a, b, c))
    return y - x + z


@cache
def page_data() -> dict[str, Any]:
    """Vectors of the manual's frequent words, and of the people in the text of templates."""
    texts = list(topics.values())

    def given(vectors: Vectors, words: Sequence[str]) -> dict[str, Any]:
        rows = torch.stack([vectors.vector(word) for word in words])
        return {"words": list(words), "dim": vectors.dim, "vectors": halves({"": rows})[""]}

    manual = {name: METHODS[name].fit(texts) for name in ("word2vec", "tf-idf")}
    words = manual["word2vec"].words[:ON_PAGE]
    planted = {name: planted_vectors(0, name == "planted") for name in ("planted", "at random")}
    return {
        "title": ["Lesson 10: words near words", "第 10 课：离得近的词"],
        "manual": {name: given(vectors, words) for name, vectors in manual.items()},
        "planted": {name: given(vectors, vectors.words) for name, vectors in planted.items()},
        "people": [word for pair in ROLES for word in pair.split()],
    }


def ask_fortunes() -> dict[str, Any] | None:
    """Asks vectors of fortunes-zh: the same question, the nearest of frequent words, and how stable neighbours are.

    Neighbours are compared between trainings on the same text with other seeds, by how often the word occurs.
    """
    file = data(FORTUNES)
    if file is None or find_spec("jieba") is None:
        return None
    cut = hw.vectors.Words(chinese="words")
    texts = [" ".join(cut(text)) for text in file.read_text(encoding="utf-8").split("\n%\n")]
    options: dict[str, Any] = {"dim": DIM, "tokenizer": str.split}
    usual = hw.vectors.Word2Vec(epochs=USUAL_EPOCHS, min_count=5, **options).fit(texts)
    rare = [hw.vectors.Word2Vec(epochs=RARE_EPOCHS, min_count=1, seed=n, **options) for n in range(FORTUNES_SEEDS)]
    every = [one.fit(texts) for one in rare]
    counts = every[0].counts
    assert counts is not None
    people = (*QUESTION, QUEEN)
    stable = []
    for low, high in BANDS:
        numbers = ((counts >= low) & (counts <= high)).nonzero()[:, 0].tolist()
        words = [every[0].words[n] for n in random.Random(0).sample(numbers, min(SAMPLED, len(numbers)))]
        lists = [[{near for near, _ in one.most_similar(word, 10)} for word in words] for one in every]
        both = [len(a & b) / 10 for one, other in combinations(lists, 2) for a, b in zip(one, other, strict=True)]
        stable.append(mean(both))
    known = [(word, subject) for (subject, _), its in SUBJECTS.items() for word in its.split()]
    return {
        "words": int(counts.sum()),
        "counts": {word: int(counts[every[0].id_of(word)]) for word in people},
        "known": [word for word in people if word in usual],
        "answers": [one.analogy(*QUESTION, 1)[0][0] for one in every],
        "place of the queen": [place_of_queen(one) for one in every],
        "of": len(every[0]) - 3,
        "stable": stable,
        "nearest": {one.word: [word for word, _ in one.nearest] for one in usual.neighbours(ASKED, 5)},
        "own subject": own_group(usual, known),
        "map": flat(usual, known),
    }


def place_of_queen(vectors: Vectors) -> int:
    """Returns the place of the queen among the words nearest to king − man + woman, from 1 on."""
    return [word for word, _ in vectors.analogy(*QUESTION, len(vectors))].index(QUEEN) + 1


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
    lines += tell_chinese(found, t)
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


def tell_chinese(found: Found, t: Text) -> list[str]:
    """Describes 国王 − 男人 + 女人 in the text of templates, and in fortunes-zh if it is here."""
    texts = {"planted": t("sexes planted", "性别事先设定"), "at random": t("sexes at random", "性别随机")}
    rows = [
        [name, *(f"{found.planted[text][how]:.1%}" for how in ("left out", "kept"))]
        + [f"{found.planted_queen[text][how]}/{PLANTED_SEEDS}" for how in ("left out", "kept")]
        for text, name in texts.items()
    ]
    lines = [
        t(
            f"A text of {PLANTED:,} sentences from templates with planted relations, {PLANTED_SEEDS} seeds: right "
            "answers of all\nanalogies and of 国王 − 男人 + 女人 = 女王, with the question's words left out and kept:",
            f"用模板生成的 {PLANTED:,} 句话，关系是事先设定的，{PLANTED_SEEDS} 个随机种子：全部类比题，\n"
            "以及“国王 − 男人 + 女人 = 女王”的答对情况，分排除与不排除题目中的词两种：",
        ),
        table(
            rows,
            [
                t("text", "文本"), t("all, left out", "全部，排除"), t("all, kept", "全部，不排除"),
                t("女王, left out", "女王，排除"), t("女王, kept", "女王，不排除"),
            ],
        ),
    ]  # fmt: skip
    if not (its := found.fortunes):
        return [
            *lines,
            t(
                f"Not measured: fortunes-zh. It needs jieba (pip install 'headway[chinese]') and {FORTUNES} in the "
                "folder that HEADWAY_DATA names; docs/lessons.md has the commands that get it.",
                "没有测量 fortunes-zh：需要 jieba（pip install 'headway[chinese]'），"
                f"以及放在 HEADWAY_DATA 所指文件夹中的 {FORTUNES}；\n取得它的命令见 docs/zh-CN/lessons.md。",
            ),
        ]
    counts = ", ".join(f"{word} {number}" for word, number in its["counts"].items())
    places = ", ".join(map(str, its["place of the queen"]))
    bands = [f"{low}" if low == high else f"{low}+" if high > 10**5 else f"{low}–{high}" for low, high in BANDS]
    return [
        *lines,
        t(
            f"fortunes-zh, {its['words']:,} words. Occurrences: {counts}; with min_count = 5 a vector for "
            f"{', '.join(its['known'])}.\nWith min_count = 1 the answers of {FORTUNES_SEEDS} seeds are "
            f"{', '.join(its['answers'])}; 女王 is at place {places} of {its['of']:,}.",
            f"fortunes-zh，{its['words']:,} 个词。出现次数：{counts}；min_count = 5 时有向量的："
            f"{'、'.join(its['known'])}。\nmin_count = 1 时，{FORTUNES_SEEDS} 个种子的答案是"
            f"{'、'.join(its['answers'])}；女王的名次为 {places}（共 {its['of']:,} 个词）。",
        ),
        t("Neighbours that two seeds have in common, by occurrences:", "两个种子共有的近邻，按出现次数："),
        table([[f"{share:.0%}" for share in its["stable"]]], bands),
        t("Nearest words (min_count = 5):", "最近的词（min_count = 5）："),
        table([[word, " ".join(near)] for word, near in its["nearest"].items()]),
        t(
            f"The nearest of the words on the map is of the same subject for {its['own subject']:.0%}.",
            f"图中的词，最近的词属于同一题材的占 {its['own subject']:.0%}。",
        ),
    ]


def draw(found: Found, t: Text) -> Figure:
    figure = page(9.6)
    grid = figure.subplots(2, 2, gridspec_kw={"width_ratios": [2, 4], "height_ratios": [5, 5]})
    (left, right), (analogies, chinese) = grid
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

    draw_map(right, {t(*kind): found.map[kind[0]] for kind in KINDS})
    points = sum(map(len, found.map.values()))
    right.set(
        title=t(
            f"word2vec: the two directions in which {points} words differ most",
            f"word2vec：{points} 个词差别最大的两个方向",
        ),
        xlabel=t(f"first principal component (of {DIM} dimensions)", f"第一主成分（共 {DIM} 维）"),
        ylabel=t("second principal component", "第二主成分"),
    )
    draw_analogies(analogies, found, t)
    if found.fortunes:
        draw_map(chinese, {t(*subject): found.fortunes["map"][subject[0]] for subject in SUBJECTS})
        chinese.set(
            title=t(
                "fortunes-zh: the two directions in which 30 words differ most",
                "fortunes-zh：30 个词差别最大的两个方向",
            ),
            xlabel=t("first principal component", "第一主成分"),
            ylabel=t("second principal component", "第二主成分"),
        )
    else:
        chinese.axis("off")
        chinese.text(0.5, 0.5, t(f"{FORTUNES} is not here", f"没有 {FORTUNES}"), ha="center", va="center")
    return figure


def draw_analogies(axes: Axes, found: Found, t: Text) -> None:
    """Draws the share of right answers in the text of templates, with and without the question's words."""
    texts = {"planted": t("relation planted", "关系事先设定"), "at random": t("sexes at random", "性别随机")}
    ways = (("left out", t("left out", "排除"), BLUE), ("kept", t("kept", "不排除"), ORANGE))
    for way, (how, label, colour) in enumerate(ways):
        places = [row + 0.36 * (way - 0.5) for row in range(len(texts))]
        shares = [found.planted[text][how] for text in texts]
        axes.barh(places, shares, color=colour, height=0.32, label=label, hatch="///" * way)
        for place, share in zip(places, shares, strict=True):
            axes.text(share + 0.015, place, f"{share:.0%}", va="center")
    axes.set_yticks(range(len(texts)), list(texts.values()), rotation=90, va="center")
    axes.invert_yaxis()
    percents(axes, 1.22)
    axes.set(title=t("Analogies, text of templates", "类比（模板文本）"), xlabel=t("right answers", "答对的比例"))
    below = {"loc": "upper center", "bbox_to_anchor": (0.45, -0.13), "ncols": 2, "columnspacing": 1.0}
    axes.legend(title=t("the question's words:", "题目中的词："), **below)


def draw_map(axes: Axes, groups: dict[str, dict[str, list[float]]]) -> None:
    """Draws words as points of a colour and a marker for each group, with their names."""
    points = []
    for colour, marker, (group, places) in zip(COLOURS, MARKERS, groups.items(), strict=False):
        xs, ys = zip(*places.values(), strict=True)
        axes.plot(xs, ys, marker, color=colour, markersize=5, label=group)
        points += list(places.items())
    axes.margins(0.14, 0.1)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=5, handletextpad=0.1, columnspacing=1.2)
    name_points(axes, points)


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
