"""Lesson 11: how word2vec and fastText learn their vectors, written out in torch.

Both learn by one question: does this word stand near these words in the text, or was it drawn at random?

    CBOW         the mean of the neighbours' vectors is asked for the word between them
    skip-gram    the vector of a word is asked for each of its neighbours
    sub-words    as skip-gram, and the vector of a word is the mean of a vector of its own and of those of its n-grams

`step` is the whole of the learning, the same for all three: they differ in what is asked (the inputs) and what for (the
targets). The vectors are compared with those of gensim, which hw.vectors.Word2Vec and FastText run: are the nearest
words the same? gensim itself finds other neighbours with another seed, and that is the yardstick.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations, product
from pydoc_data.topics import topics
from statistics import mean
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

import headway as hw
from headway.vectors import Vectors
from lesson import BLUE, DASHES, GREEN, GREY, INK, ORANGE, Text, page, percents, run, table
from lesson_10_words import DIM, ROLES, SEEN, of_the_kinds, own_kind, planted_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS = ("CBOW", "skip-gram", "sub-words")
WINDOW, NEGATIVE, EPOCHS, SEEDS = 5, 5, 10, 3
RATE, LAST_RATE, SUBSAMPLE = 0.025, 0.0001, 1e-3  # gensim's, as the window and the number of drawn words
BATCH = 256  # words of the text for each step; gensim makes one step for each pair
LEAST, MOST = 3, 6  # letters of an n-gram
TABLE = 1_000_000  # entries of the table from which words are drawn
NOBODY = 0  # the number of no word, which fills up lists; its row stays zero, and words count from 1
FREQUENT, NEAREST = 300, 10  # neighbours of so many words are compared, so many of each
SENTENCE = "the list of names is not a tuple"
SHOWN, UNSEEN = "tuple", "tupel"
PAIRS = ("ours, gensim", "gensim, gensim", "ours, ours")
ON_PAGE = 800  # sentences of lesson 10, on which the page trains


@dataclass(frozen=True)
class Found:
    """Results by CBOW, skip-gram and sub-words; in lists, one for each seed or pair of seeds."""

    vocabulary: int
    running: int  # words of the text that have a vector
    parts: int  # different n-grams
    loss: dict[str, list[float]]  # mean of each epoch, first seed
    own_kind: dict[str, dict[str, list[float]]]  # by method, ours or gensim's: see lesson 10
    chance: float  # that share for a nearest word drawn at random
    overlap: dict[str, dict[str, list[float]]]  # share of the ten nearest that two trainings have in common
    overlap_chance: float
    nearest: dict[str, dict[str, list[str]]]  # to "tuple", first seed
    unseen: tuple[str, float]  # the word nearest to "tupel", by our n-grams
    sentence: list[str]
    windows: list[list[int]]  # by word of the sentence: how far its window reaches, and its neighbours' places


# ---------------------------------------------------------------- a text in numbers


@dataclass(frozen=True)
class Numbers:
    """A text as numbers of words from 1 on, with the document of each."""

    words: tuple[str, ...]
    ids: Tensor
    document: Tensor
    counts: Tensor  # by number; 0 for no word

    @classmethod
    def of(cls, texts: Sequence[str], min_count: int = SEEN) -> Numbers:
        vocabulary = hw.vectors.Vocabulary.of(texts, min_count=min_count)
        documents = [vocabulary.ids(text) for text in texts]
        ids = torch.cat(documents) + 1
        document = torch.arange(len(documents)).repeat_interleave(torch.tensor([len(one) for one in documents]))
        known = ids <= len(vocabulary)
        counts = ids[known].bincount(minlength=len(vocabulary) + 1)
        return cls(vocabulary.words, ids[known], document[known], counts)


def kept(counts: Tensor) -> Tensor:
    """The chance that an occurrence of a word is read: of frequent words, which say little, most are left out."""
    share = counts / counts.sum()
    return (((share / SUBSAMPLE).sqrt() + 1) * SUBSAMPLE / share).clamp(max=1)


def noise(counts: Tensor) -> Tensor:
    """A table of words in which each has a share by count^¾: a draw from it is a draw of a word."""
    weights = counts.double().pow(0.75)
    return torch.arange(len(counts)).repeat_interleave((TABLE * weights / weights.sum()).ceil().long())


def around(ids: Tensor, document: Tensor, reach: Tensor) -> Tensor:
    """The neighbours of each word of the text, as far as its window reaches: int64 [words, 2 · WINDOW]."""
    away = torch.tensor([distance for distance in range(-WINDOW, WINDOW + 1) if distance])
    places = torch.arange(len(ids))[:, None] + away
    inside = (away.abs() <= reach[:, None]) & (places >= 0) & (places < len(ids))
    places = places.clamp(0, len(ids) - 1)
    return ids[places].where(inside & (document[places] == document[:, None]), NOBODY)


def n_grams(word: str) -> list[str]:
    """The runs of 3 … 6 letters of <word>, whose signs mark its beginning and its end."""
    marked = f"<{word}>"
    return [marked[k : k + n] for n in range(LEAST, MOST + 1) for k in range(len(marked) - n + 1)]


# ---------------------------------------------------------------- learning


def step(rows: Tensor, outputs: Tensor, inputs: Tensor, targets: Tensor, drawn: Tensor, rate: float) -> float:
    """Changes both tables so that the mean of the inputs' rows tells its targets from drawn words; returns the loss.

    Args:
        rows: the vectors v, [words and n-grams, dim].
        outputs: the second table u, [words, dim], which is not kept.
        inputs: what is asked, int64 [batch, most inputs], filled up with 0.
        targets: what for, int64 [batch, most targets], filled up with 0.
        drawn: the words drawn for each target, int64 [batch, most targets, NEGATIVE].
        rate: the learning rate.
    """
    hidden = F.embedding(inputs, rows).sum(1) / (inputs != NOBODY).sum(1, keepdim=True)
    example, place = (targets != NOBODY).nonzero(as_tuple=True)
    right, wrong = targets[example, place, None], drawn[example, place]
    words = torch.cat([right, wrong], 1)  # of each pair: the target, and what was drawn for it
    h, u = hidden[example, None], F.embedding(words, outputs)  # [pairs, 1, dim], [pairs, 1 + NEGATIVE, dim]

    scores = (u * h).sum(2)
    sign = scores.new_tensor([1.0] + [-1.0] * NEGATIVE)
    counted = torch.cat([torch.ones_like(right), wrong != right], 1)  # a target that was drawn itself is left out
    loss = -(counted * F.logsigmoid(sign * scores)).sum(1).mean()
    error = counted * sign * (-sign * scores).sigmoid()  # the derivative of ln σ(sign · score)

    up = torch.zeros_like(hidden).index_add_(0, example, (error[:, :, None] * u).sum(1))
    outputs.index_add_(0, words.flatten(), rate * (error[:, :, None] * h).flatten(0, 1))
    rows.index_add_(0, inputs.flatten(), rate * up.repeat_interleave(inputs.shape[1], 0))  # in full, as in word2vec
    rows[NOBODY] = 0
    return loss.item()


@dataclass(frozen=True)
class Learned:
    """Vectors that were learned here, the loss of each epoch, and the rows of the n-grams."""

    vectors: Vectors
    loss: list[float]
    grams: dict[str, int]
    rows: Tensor = field(repr=False)

    def unseen(self, word: str) -> Tensor:
        """The vector of a word that the text does not have: the mean of those of its n-grams that it has."""
        return self.rows[[self.grams[gram] for gram in n_grams(word) if gram in self.grams]].mean(0)


def learn(text: Numbers, kind: str, seed: int, epochs: int = EPOCHS) -> Learned:
    """Learns vectors by CBOW, skip-gram or sub-words."""
    torch.manual_seed(seed)
    size = len(text.counts)
    its = [n_grams(word) if kind == "sub-words" else [] for word in ("", *text.words)]
    its[NOBODY] = []
    grams = {gram: size + k for k, gram in enumerate(dict.fromkeys(gram for one in its for gram in one))}
    pieces = [torch.tensor([number, *(grams[gram] for gram in one)]) for number, one in enumerate(its)]
    parts = torch.nn.utils.rnn.pad_sequence(pieces, batch_first=True, padding_value=NOBODY)

    rows = (2 * torch.rand(size + len(grams), DIM) - 1) / DIM
    rows[NOBODY] = 0
    outputs = torch.zeros(size, DIM)
    urn, chance, losses = noise(text.counts), kept(text.counts), []
    for epoch in range(epochs):
        read = torch.rand(len(text.ids)) < chance[text.ids]
        ids, document = text.ids[read], text.document[read]
        near = around(ids, document, torch.randint(1, WINDOW + 1, (len(ids),)))
        batches = torch.randperm(len(ids)).split(BATCH)
        total = 0.0
        for number, batch in enumerate(batches):
            rate = RATE + (LAST_RATE - RATE) * (epoch + number / len(batches)) / epochs
            if kind == "CBOW":
                inputs, targets = near[batch], ids[batch, None]
                alone = ~inputs.any(1)
                inputs, targets = inputs[~alone], targets[~alone]
            else:
                inputs, targets = parts[ids[batch]], near[batch]
            drawn = urn[torch.randint(len(urn), (*targets.shape, NEGATIVE))]
            total += step(rows, outputs, inputs, targets, drawn, rate)
        losses.append(total / len(batches))
    finished = F.embedding(parts, rows).sum(1) / (parts != NOBODY).sum(1, keepdim=True).clamp(min=1)
    return Learned(hw.vectors.Pretrained.of(text.words, finished[1:]), losses, grams, rows)


def gensims(texts: Sequence[str], kind: str, seed: int) -> Vectors:
    options: dict[str, Any] = {"dim": DIM, "epochs": EPOCHS, "min_count": SEEN, "seed": seed}
    if kind == "sub-words":
        return hw.vectors.FastText(min_n=LEAST, max_n=MOST, **options).fit(texts)
    return hw.vectors.Word2Vec(architecture=kind.lower(), **options).fit(texts)


# ---------------------------------------------------------------- measured


def neighbours(vectors: Vectors) -> list[set[int]]:
    """The ten nearest of each of the 300 most frequent words."""
    cosines = vectors.cosines(vectors.rows(torch.arange(FREQUENT)))
    cosines.fill_diagonal_(-2)
    return [set(nearest) for nearest in cosines.topk(NEAREST).indices.tolist()]


def overlap(ours: list[set[int]], theirs: list[set[int]]) -> float:
    return mean(len(a & b) for a, b in zip(ours, theirs, strict=True)) / NEAREST


def measure() -> Found:
    texts = list(topics.values())
    text = Numbers.of(texts)
    learned = {kind: [learn(text, kind, seed) for seed in range(SEEDS)] for kind in KINDS}
    both = {
        kind: {"ours": [one.vectors for one in its], "gensim": [gensims(texts, kind, seed) for seed in range(SEEDS)]}
        for kind, its in learned.items()
    }
    lists = {kind: {who: [neighbours(one) for one in its[who]] for who in its} for kind, its in both.items()}

    first = learned["sub-words"][0]
    known = of_the_kinds(first.vectors)
    same = [a == b for (_, a), (_, b) in combinations(known, 2)]
    sentence = SENTENCE.split()
    places = torch.arange(1, len(sentence) + 1)
    torch.manual_seed(0)
    reach = torch.randint(1, WINDOW + 1, (len(sentence),))
    near = around(places, torch.zeros_like(places), reach)
    return Found(
        vocabulary=len(text.words),
        running=len(text.ids),
        parts=len(first.grams),
        loss={kind: its[0].loss for kind, its in learned.items()},
        own_kind={kind: {who: [own_kind(one) for one in its[who]] for who in its} for kind, its in both.items()},
        chance=sum(same) / len(same),
        overlap={
            kind: {
                PAIRS[0]: [overlap(a, b) for a, b in product(its["ours"], its["gensim"])],
                PAIRS[1]: [overlap(a, b) for a, b in combinations(its["gensim"], 2)],
                PAIRS[2]: [overlap(a, b) for a, b in combinations(its["ours"], 2)],
            }
            for kind, its in lists.items()
        },
        overlap_chance=NEAREST / (len(text.words) - 1),
        nearest={
            kind: {who: [word for word, _ in its[who][0].most_similar(SHOWN, 5)] for who in its}
            for kind, its in both.items()
        },
        unseen=first.vectors.most_similar(first.unseen(UNSEEN), 1)[0],
        sentence=sentence,
        windows=[[int(reach[k]), *(place - 1 for place in row if place)] for k, row in enumerate(near.tolist())],
    )


def page_data() -> dict[str, Any]:
    text = Numbers.of(list(topics.values()))
    order = text.counts.argsort(descending=True).tolist()
    return {
        "title": ["Lesson 11: how word vectors are learned", "第 11 课：词向量是怎样学出来的"],
        "sentence": SENTENCE.split(),
        "frequent": [[text.words[n - 1], int(text.counts[n])] for n in (*order[:6], *order[100:700:100])],
        "text": [sentence.split() for sentence in planted_text(0)[:ON_PAGE]],
        "people": [word for pair in ROLES for word in pair.split()],
    }


def tell(found: Found, t: Text) -> str:
    rows = [
        [kind, who, *(f"{share:.0%}" for share in found.own_kind[kind][who]), ", ".join(found.nearest[kind][who])]
        for kind in KINDS
        for who in ("ours", "gensim")
    ]
    names = {"ours": t("ours", "本课"), "gensim": "gensim"}
    named = [[row[0], names[row[1]], *row[2:]] for row in rows]
    shared = [[kind, *(f"{mean(its[pair]):.1%}" for pair in PAIRS)] for kind, its in found.overlap.items()]
    return "\n".join(
        [
            t(
                f"{found.vocabulary:,} words of Python's manual, {found.running:,} with repetitions; {found.parts:,} "
                "n-grams.\nShare of the words of lesson 10 whose nearest is of the same kind, by seed (chance "
                f"{found.chance:.0%}), and the words nearest to “{SHOWN}”:",
                f"Python 手册中的 {found.vocabulary:,} 个词，连重复共 {found.running:,} 个；n-gram "
                f"共 {found.parts:,} 个。\n第 10 课的词中，最近的词属于同类的比例，每个随机种子一列"
                f"（随机为 {found.chance:.0%}）；以及离 {SHOWN} 最近的词：",
            ),
            table(
                named,
                [
                    t("method", "方法"),
                    t("trained by", "训练者"),
                    *map(str, range(SEEDS)),
                    t(f"nearest to {SHOWN}", f"离 {SHOWN} 最近"),
                ],
            ),
            t(
                f"Share of the {NEAREST} nearest of {FREQUENT} words that two trainings have in common (at random "
                f"{found.overlap_chance:.1%}):",
                f"取 {FREQUENT} 个常用词，看两次训练得到的 {NEAREST} 个近邻有多少相同"
                f"（随机为 {found.overlap_chance:.1%}）：",
            ),
            table(
                shared,
                [
                    t("method", "方法"),
                    t("ours and gensim", "本课与 gensim"),
                    t("gensim, two seeds", "gensim，两个种子"),
                    t("ours, two seeds", "本课，两个种子"),
                ],
            ),
            t(
                f"“{UNSEEN}” is not in the text; by its n-grams, it is nearest to “{found.unseen[0]}” "
                f"({found.unseen[1]:.2f}).",
                f"文本里没有 {UNSEEN}；由它的 n-gram 算出的向量离 {found.unseen[0]} 最近（{found.unseen[1]:.2f}）。",
            ),
        ]
    )


# ---------------------------------------------------------------- drawn


def draw(found: Found, t: Text) -> Figure:
    figure = page(7.2)
    (pairs, loss), (shared, same) = figure.subplots(2, 2, gridspec_kw={"height_ratios": [5, 4]})
    draw_pairs(pairs, found, t)

    looks = dict(zip(KINDS, zip((ORANGE, BLUE, GREEN), DASHES[:3], "os^", strict=True), strict=True))
    for kind, (colour, dash, marker) in looks.items():
        epochs = range(1, len(found.loss[kind]) + 1)
        loss.plot(epochs, found.loss[kind], color=colour, linestyle=dash, marker=marker, markersize=4, label=kind)
    loss.set(title=t("Loss of a pair, our training", "每对词的损失（本课的训练）"))
    loss.set(xlabel=t("epoch", "轮次"), ylabel=t("loss, in nats", "损失（奈特）"))
    loss.legend()

    who = (
        t("ours and gensim", "本课与 gensim"),
        t("gensim, two seeds", "gensim，两个种子"),
        t("ours, two seeds", "本课，两个种子"),
    )
    overlaps = [(label, [found.overlap[kind][pair] for kind in KINDS]) for pair, label in zip(PAIRS, who, strict=True)]
    dots(shared, overlaps, found.overlap_chance, t)
    shared.set(title=t(f"{NEAREST} nearest words in common", f"{NEAREST} 个近邻中相同的"))
    shared.set(xlabel=t("share of the nearest words", "近邻的比例"))

    names = {"ours": t("ours", "本课"), "gensim": "gensim"}
    kinds = [(label, [found.own_kind[kind][key] for kind in KINDS]) for key, label in names.items()]
    dots(same, kinds, found.chance, t)
    same.set(title=t("Nearest word of the same kind", "最近的词属于同类"), xlabel=t("share of the words", "词的比例"))
    return figure


def draw_pairs(axes: Axes, found: Found, t: Text) -> None:
    """Draws which words a sentence pairs: a row for each word, with its window and its neighbours in it."""
    for row, (reach, *places) in enumerate(found.windows):
        low, high = max(0, row - reach), min(len(found.sentence) - 1, row + reach)
        axes.plot([low, high], [row, row], color=GREY, linewidth=9, alpha=0.25, solid_capstyle="round")
        axes.plot(places, [row] * len(places), "o", color=BLUE, markersize=6)
        axes.plot(row, row, "s", color=INK, markersize=7)
    words, numbers = found.sentence, range(len(found.sentence))
    axes.set_xticks(numbers, words, rotation=40)
    axes.set_yticks(numbers, [f"{word}  ({reach})" for word, (reach, *_) in zip(words, found.windows, strict=True)])
    axes.invert_yaxis()
    axes.set(
        title=t("Pairs of a sentence", "一句话给出的词对"),
        xlabel=t("■ word   ● its neighbour", "■ 词    ● 它的邻词"),
        ylabel=t("word (reach of its window)", "词（窗口半径）"),
    )


def dots(axes: Axes, series: Sequence[tuple[str, list[list[float]]]], chance: float, t: Text) -> None:
    """Draws a dot for each number, by method, and a line for chance."""
    looks = zip(series, ((BLUE, "o"), (ORANGE, "s"), (GREY, "^")), strict=False)
    for number, ((label, values), (colour, marker)) in enumerate(looks):
        offset = 0.24 * (number - (len(series) - 1) / 2)
        for place, its in enumerate(values):
            named = label if not place else None
            axes.plot(its, [place + offset] * len(its), marker, color=colour, markersize=5, alpha=0.75, label=named)
    axes.axvline(chance, color=INK, linewidth=1, linestyle=(0, (4, 3)), label=t("at random", "随机"))
    axes.set_yticks(range(len(KINDS)), KINDS)
    axes.set_ylim(len(KINDS) - 0.45, -0.55)
    percents(axes, 1.02)
    axes.legend(loc="upper center", bbox_to_anchor=(0.45, -0.25), ncols=2, handletextpad=0.3, columnspacing=1.0)


if __name__ == "__main__":
    run(__name__)
