"""What the heads of a published encoder attend to: the part of lesson 7 that needs weights and annotated text.

`headway.capture` sees the heads while a model runs: how much weight they give to the previous word, how widely they
spread it, and all weights of one sentence. `headway.inspection.head_roles` says how often the word with the largest
weight is the one that a treebank connects, and whether a pronoun gives more weight to the right name. Queries are words
of real text, never [CLS] and [SEP].

Every number has a baseline that needs no model: equal weights, a fixed offset, the nearer name. Where the best of 72
heads is reported, it was chosen on every other text and measured on the rest, because the best of 72 random heads also
looks good on the texts on which it was chosen. Layers and heads are counted from 0, as everywhere in headway.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from math import log
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import headway as hw
from headway.inspection import ROLES as KNOWN_ROLES
from headway.inspection import Classes, head_roles
from headway.inspection.texts import AnnotatedText, EncodedText, encode, python_manual, read_conllu, read_gap
from lesson import (
    BLUE,
    FAINT,
    GOLD,
    GREEN,
    PINK,
    SKY,
    Text,
    handed,
    matrix,
    table,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KINDS = ("previous", "next", "itself", "special")
"""Of a key, seen from a query: the token before, the one after, itself, [CLS] or [SEP]."""
ROLES = (*KINDS, "broad", "mixed")
TREEBANK, PRONOUNS = "en_pud-ud-test.conllu", "gap-test.tsv"
HALF = 0.5  # the share of a head's weight on one kind of key that defines its role
SENTENCES, PASSAGES = 400, 300  # how many of Python's manual and of GAP are read
WEIGHED = 60  # sentences in which weights are compared with the contributions of values


@dataclass(frozen=True)
class Treebank:
    """Heads compared with dependency arcs, without punctuation.

    A relation has arcs, baseline (of the best fixed offset), and the best head "to governor" and "to dependent", each
    with head, found, low and high: the share and its 95 % interval.
    """

    adjacent: float  # share of the arcs whose words are neighbours
    neighbours: float  # share of all pairs of words of a sentence that are neighbours
    relations: dict[str, dict[str, Any]]
    follows: dict[str, list[str]]  # by head: relations found clearly above the best offset, in both halves


@dataclass(frozen=True)
class Pronouns:
    """The share of ambiguous pronouns that give the right one of two names more weight than the wrong one."""

    passages: int  # on which it was measured
    head: str
    found: float
    low: float  # with high, the 95 % interval
    high: float
    mean: float  # over all heads
    baseline: float  # of the better one of two guesses: the nearer name, and the longer one


@dataclass(frozen=True)
class Trained:
    """Tables are [layer][head]; "2.4" is head 4 of layer 2, counted from 0."""

    sentences: int
    queries: int
    kinds: dict[str, list[list[float]]]  # mean weight on each of KINDS, over the queries that have such a key
    kinds_alike: dict[str, float]  # the same where all weights are equal
    distance: list[list[float]]  # mean |i − j| under the weight on words
    entropy: list[list[float]]  # over ln n: 1 for equal weights, 0 for one key
    keys: list[list[float]]  # e^entropy: the number of keys with equal weights of the same entropy
    keys_alike: float
    neighbour: float  # mean weight of the words before and after, over all heads, over what equal weights would give it
    importance: list[list[float]]  # rank correlation of a key's weight and of how far the output moves without the key
    special_share: list[list[float]]  # share of the sum, by length, that comes from [CLS] and [SEP]
    roles: list[list[str]]  # of ROLES
    tokens: list[str]  # of the one sentence that is shown
    shown: dict[str, list[list[float]]]  # its weights under four heads: "previous 0.2" …
    ties: dict[
        str, dict[str, Any]
    ]  # from word to word: the head with the largest weight, and the number of heads in which it is the largest
    treebank: Treebank | None
    pronouns: Pronouns | None


def measure_heads(
    folder: Path,
    sentence: str,
    relations: list[str],
    ties: list[tuple[str, str]],
    treebank: Path | None,
    pronouns: Path | None,
) -> Trained:
    """Measures one model. Means are over the treebank, or over Python's manual if there is none.

    relations   those of the sentence; the one that a head follows best is shown
    ties        pairs of its words, from the first to the second
    """
    model, tokenizer = hw.load(folder).eval(), hw.checkpoints.tokenizer(folder)
    texts = encode(tokenizer, read_conllu(treebank) if treebank else python_manual(SENTENCES))
    queries, means, alike = where_the_weight_lies(model, texts)
    compared = compare_arcs(model, texts) if treebank else None
    importance, special_share = weigh_values(model, texts[:WEIGHED])

    told = encode(tokenizer, [sentence])[0]
    with torch.no_grad(), hw.capture(model, keep="weights") as seen:
        model(torch.tensor([told.ids]))
    weights = torch.cat(seen.attentions)  # [layers, heads, n, n]
    show = {kind: name_of(means[kind], means[kind].argmax()) for kind in ("previous", "next", "special")}
    followed = {name: row for name, row in compared.relations.items() if name in relations} if compared else {}
    if followed:
        best = max(followed, key=lambda name: followed[name]["to governor"]["found"] - followed[name]["baseline"])
        show[best] = followed[best]["to governor"]["head"]
    return Trained(
        sentences=len(texts),
        queries=queries,
        kinds={kind: means[kind].tolist() for kind in KINDS},
        kinds_alike={kind: alike[kind] for kind in KINDS},
        distance=means["distance"].tolist(),
        entropy=means["entropy"].tolist(),
        keys=means["keys"].tolist(),
        keys_alike=alike["keys"],
        neighbour=(means["previous"] + means["next"]).mean().item() / (alike["previous"] + alike["next"]),
        importance=importance.tolist(),
        special_share=special_share.tolist(),
        roles=roles(means, alike["keys"]),
        tokens=list(told.tokens),
        shown={f"{kind} {name}": weights[place_of(name)].tolist() for kind, name in show.items()},
        ties={f"{a} → {b}": tie(told, weights, a, b) for a, b in ties},
        treebank=compared,
        pronouns=compare_names(model, tokenizer, pronouns) if pronouns else None,
    )


def name_of(table: Tensor, number: Tensor) -> str:
    """Returns the name of an entry of a table [layers, heads]: layer.head."""
    layer, head = divmod(int(number), table.shape[-1])
    return f"{layer}.{head}"


def place_of(name: str) -> tuple[int, int]:
    layer, head = name.split(".")
    return int(layer), int(head)


# ---------------------------------------------------------------- where the weight lies


@torch.no_grad()
def where_the_weight_lies(model: Any, texts: list[EncodedText]) -> tuple[int, dict[str, Tensor], dict[str, float]]:
    """Averages over the tokens between [CLS] and [SEP]: their number, means [layers, heads], those of equal weights."""
    sums: dict[str, Any] = defaultdict(float)
    equal: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)

    for n, same in groupby(sorted(texts, key=len), key=len):  # of equal length, so that none is padded
        ends = Classes(torch.tensor([0, *[-1] * (n - 2), 1]), ("[CLS]", "[SEP]"))
        with hw.capture(model, statistics=("previous", "next", "current", "distance", "entropy", ends)) as seen:
            model(torch.tensor([text.ids for text in same]))
        found = {  # [layers, batch, heads, n]
            name: torch.stack([seen.statistics(layer)[name] for layer in seen.layers])
            for name in seen.statistics(0).names
        }
        first, last = found["classes"].unbind(-1)
        for name, values, alike in (
            ("previous", found["previous"][..., 2:-1], 1 / n),  # which is no [CLS]
            ("next", found["next"][..., 1:-2], 1 / n),
            ("itself", found["current"][..., 1:-1], 1 / n),
            ("special", (first + last)[..., 1:-1], 2 / n),
            ("entropy", found["entropy"][..., 1:-1] / log(n), 1),
            ("keys", found["entropy"][..., 1:-1].exp(), n),
        ):
            count = values[0, :, 0].numel()
            sums[name] += values.sum((1, 3))
            equal[name] += alike * count
            counts[name] += count
        place = torch.arange(n)
        between = found["distance"] - first * place - last * (n - 1 - place)
        sums["distance between words"] += between[..., 1:-1].sum((1, 3))
        sums["weight between words"] += (1 - first - last)[..., 1:-1].sum((1, 3))
    means = {name: sums[name] / counts[name] for name in counts}
    means["distance"] = sums["distance between words"] / sums["weight between words"]
    return counts["entropy"], means, {name: equal[name] / counts[name] for name in counts}


def roles(means: dict[str, Tensor], keys_alike: float) -> list[list[str]]:
    """Returns the kind of key with half of each head's weight, or "broad" if half of all keys count, else "mixed"."""
    largest, kind = torch.stack([means[kind] for kind in KINDS]).max(0)
    other = torch.where(means["keys"] >= HALF * keys_alike, ROLES.index("broad"), ROLES.index("mixed"))
    return [[ROLES[number] for number in row] for row in torch.where(largest >= HALF, kind, other).tolist()]


def tie(told: EncodedText, weights: Tensor, one: str, other: str) -> dict[str, Any]:
    """Returns the head in which one word gives another most weight, and the number of heads where no word gets more."""
    words = told.tokens[1:-1]
    row = weights[:, :, told.tokens.index(one), 1:-1]  # [layers, heads, words]
    to = row[..., words.index(other)]
    top = row.argmax(-1) == words.index(other)
    return {"head": name_of(to, to.argmax()), "weight": to.max().item(), "heads": int(top.sum()), "words": len(words)}


@torch.no_grad()
def weigh_values(model: Any, texts: list[EncodedText]) -> tuple[Tensor, Tensor]:
    """Compares weights with the contributions of values, by layer and head: ``importance`` and ``special_share``.

    A head adds a_j·f(v_j), with f its part of the output map. Without key j the other weights grow to sum to 1 again,
    and the output moves by a_j/(1 − a_j)·|f(v_j) − output|. Lengths |a_j·f(v_j)|: Kobayashi et al. 2020.
    """
    layers = [block.attention for block in model.stack.layers]
    agreements, shares = [], []
    for text in texts:
        is_special = torch.tensor(text.word_of) < 0
        with hw.capture(model, keep="weights") as seen:
            inputs = handed(layers, partial(model, torch.tensor([text.ids])))
        for layer, ((x, *_), _), whole in zip(layers, inputs, seen.attentions, strict=True):
            weights = whole[0, :, ~is_special]  # [heads, queries, keys]
            values = layer.v_proj(x)[0].unflatten(-1, (layer.num_heads, -1)).transpose(0, 1)
            brought = values @ layer.out_proj.weight.unflatten(1, (layer.num_heads, -1)).permute(1, 2, 0)
            away = (brought[:, None] - (weights @ brought)[:, :, None]).norm(dim=-1)
            moved = weights / (1 - weights).clamp(min=1e-6) * away
            ranks = [numbers.argsort(-1).argsort(-1).double() for numbers in (weights, moved)]
            by_weight, by_effect = (rank - rank.mean(-1, keepdim=True) for rank in ranks)
            agreements.append(torch.cosine_similarity(by_weight, by_effect, dim=-1).mean(-1))
            sizes = weights * brought.norm(dim=-1)[:, None]
            shares.append((sizes[..., is_special].sum(-1) / sizes.sum(-1)).mean(-1))
    return tuple(torch.stack(found).unflatten(0, (len(texts), -1)).mean(0) for found in (agreements, shares))


# ---------------------------------------------------------------- what belongs together


def compare_arcs(model: Any, texts: list[EncodedText]) -> Treebank:
    """Compares heads with the dependencies of a treebank: words that attend to their governor, and the reverse."""
    found = head_roles(model, texts, "syntactic")
    relations: dict[str, dict[str, Any]] = defaultdict(dict)
    for one in found.best("syntactic"):
        name, direction = relation_of(one.candidate)
        head = f"{found.layers.index(one.layer)}.{one.head}"
        relations[name] |= {"arcs": one.cases, "baseline": one.baseline}  # the same in both directions
        relations[name][direction] = {"head": head, "found": one.figure, "low": one.low, "high": one.high}
    follows = {}
    for number, layer in enumerate(found.layers):
        for head in range(found.heads(layer)):
            names = {relation_of(one.candidate)[0]: None for one in found.of(layer, head)}
            if names:
                follows[f"{number}.{head}"] = list(names)
    adjacent, neighbours = near([text.text for text in texts])
    return Treebank(adjacent, neighbours, dict(relations), follows)


def relation_of(candidate: str) -> tuple[str, str]:
    """Takes "det → governor" and "governor → det" apart: the relation, and to which of its words a head attends."""
    attends, _, to = candidate.partition(" → ")
    return (attends, "to governor") if to == "governor" else (to, "to dependent")


def near(texts: list[AnnotatedText]) -> tuple[float, float]:
    """Returns the share of neighbours among the words of dependencies, and among all pairs of words of a sentence."""
    apart = [
        abs(governor - word)
        for text in texts
        for word, (governor, relation) in enumerate(zip(text.governors, text.relations, strict=True))
        if governor >= 0 and relation != "punct"
    ]
    pairs = sum(len(text) * (len(text) - 1) / 2 for text in texts)
    return apart.count(1) / len(apart), sum(len(text) - 1 for text in texts) / pairs


def compare_names(model: Any, tokenizer: Any, path: Path) -> Pronouns:
    """Compares the weights of pronouns on two names, in the first passages of GAP in which one of them is right."""
    passages = [text for text in read_gap(path) if text.choices[0].right][:PASSAGES]
    found = head_roles(model, encode(tokenizer, passages, longest=512, too_long="leave out"), "coreferential")
    (best,) = found.best("coreferential")
    every = [one.figure for one in found.role("coreferential")]
    return Pronouns(
        passages=best.cases,
        head=f"{found.layers.index(best.layer)}.{best.head}",
        found=best.figure,
        low=best.low,
        high=best.high,
        mean=sum(every) / len(every),
        baseline=best.baseline,
    )


# ---------------------------------------------------------------- in words and colours

COLOUR_OF = dict(zip(ROLES, (BLUE, GREEN, PINK, GOLD, SKY, FAINT), strict=True))
TIED = {
    "det": ("article and noun", "冠词与名词"),
    "case": ("preposition and noun", "介词与名词"),
    "nsubj": ("subject and verb", "主语与动词"),
    "obj": ("object and verb", "宾语与动词"),
    "aux": ("auxiliary and verb", "助动词与动词"),
}


def role_names(t: Text) -> dict[str, str]:
    names = (
        t("the word before", "前一个词"),
        t("the word after", "后一个词"),
        t("itself", "自身"),
        t("[CLS], [SEP]", "[CLS]、[SEP]"),
        t("everywhere", "各处均看"),
        t("mixed", "混合"),
    )
    return dict(zip(ROLES, names, strict=True))


def tell_heads(trained: Trained, t: Text) -> str:
    counts = {role: sum(row.count(role) for row in trained.roles) for role in ROLES}
    listed = "; ".join(f"{role_names(t)[role]} {count}" for role, count in counts.items() if count)
    entropy = sorted(one for row in trained.entropy for one in row)
    alike, weight, brought = (
        torch.tensor(found).mean().item()
        for found in (trained.importance, trained.kinds["special"], trained.special_share)
    )
    heads, words = len(entropy), next(iter(trained.ties.values()))["words"]
    ties = "; ".join(f"{pair} {tie['heads']}" for pair, tie in trained.ties.items())
    parts = [
        t(
            f"The {heads} heads of MiniLM, by the keys that get half of their weight or more ({trained.queries:,} "
            "tokens):\n"
            f"  {listed}\n"
            f"Entropy, as a share of that of equal weights: {entropy[0]:.2f} to {entropy[-1]:.2f}, median "
            f"{entropy[heads // 2]:.2f}.\n"
            f"A neighbour gets {trained.neighbour:.2f} times the weight that equal weights would give it.\n"
            "Sorted by weight or by the change without them, keys have a rank correlation of "
            f"{alike:.2f};\n[CLS] and [SEP] get {weight:.0%} of the weight and bring {brought:.0%} of what is "
            "added up.\n"
            "Heads in which that word, of all words, gets the most weight in the sentence of the article:\n"
            f"  {ties}; by chance each would be {heads / words:.0f}",
            f"MiniLM 的 {heads} 个头，在 {trained.queries:,} 个词元上，按至少一半权重的去向分类：\n"
            f"  {listed}\n"
            f"熵占均匀分布的比例：{entropy[0]:.2f} 到 {entropy[-1]:.2f}，中位数 {entropy[heads // 2]:.2f}。\n"
            f"相邻词元得到的权重是平均分配时的 {trained.neighbour:.2f} 倍。\n"
            f"键按权重排序，与按“去掉它会变多少”排序，秩相关为 {alike:.2f}；\n"
            f"[CLS] 和 [SEP] 得到 {weight:.0%} 的权重，在相加的内容里占 {brought:.0%}。\n"
            "例句讲解的那句话中，有多少个头把最多的权重给了那个词：\n"
            f"  {ties}；全凭运气，每一项也约有 {heads / words:.0f} 个",
        )
    ]
    if trained.treebank:
        head = [t("relation", "关系"), t("arcs", "弧数"), t("best offset", "最佳偏移")]
        for direction in (t("to governor", "看支配词"), t("to dependent", "看从属词")):
            head += [direction, t("finds", "命中"), t("95 % interval", "95% 区间")]
        rows = []
        for name, row in trained.treebank.relations.items():
            cells = [name, row["arcs"], f"{row['baseline']:.0%}"]
            for one in (row["to governor"], row["to dependent"]):
                cells += [one["head"], f"{one['found']:.0%}", interval(one["low"], one["high"])]
            rows.append(cells)
        margin = f"{100 * KNOWN_ROLES['syntactic'].margin:.0f}"
        many = sum(len(follows) > 1 for follows in trained.treebank.follows.values())
        parts += [
            "",
            t(
                f"Dependencies of {trained.sentences:,} sentences. Heads and offsets were chosen on one half, the "
                "shares are\nthose of the other. A head is written layer.head; both are counted from 0.",
                f"{trained.sentences:,} 句的依存关系。头与偏移在一半句子上挑选，比例是另一半上的。\n"
                "头写作“层.头”，两者都从 0 数起。",
            ),
            table(rows, head),
            t(
                f"{len(trained.treebank.follows)} heads find a relation more often than the best offset by {margin} "
                f"points or more,\non both halves, {many} of them several relations.",
                f"有 {len(trained.treebank.follows)} 个头在两半上对某种关系的命中率都比最佳偏移高出至少 {margin} "
                f"个百分点，其中 {many} 个兼顾多种关系。",
            ),
        ]
    if trained.pronouns:
        one = trained.pronouns
        parts += [
            "",
            t(
                f"Of {one.passages} ambiguous pronouns head {one.head} prefers the right name in {one.found:.0%} "
                f"({interval(one.low, one.high)}), the mean head in\n{one.mean:.0%}; the better one of two guesses, "
                f"the nearer and the longer name, is right in {one.baseline:.0%}.",
                f"{one.passages} 个有歧义的代词中，头 {one.head} 有 {one.found:.0%}（{interval(one.low, one.high)}）"
                f"偏向正确的名字，全部头平均 {one.mean:.0%}；“取较近的名字”与“取较长的名字”中较好的一种猜法对 "
                f"{one.baseline:.0%}。",
            ),
        ]
    lacks = [text for text, found in ((TREEBANK, trained.treebank), (PRONOUNS, trained.pronouns)) if not found]
    if lacks:
        parts += [
            "",
            t(
                f"Not measured without {' and '.join(lacks)}: put them into a folder, and give it as HEADWAY_DATA=…",
                f"没有 {'、'.join(lacks)}，所以有些内容没有测量：把文件放进一个文件夹，用 HEADWAY_DATA=… 指明。",
            ),
        ]
    return "\n".join(parts)


def interval(low: float, high: float) -> str:
    """Writes a 95 % interval, such as "63–77%"."""
    return f"{100 * low:.0f}–{high:.0%}"


def draw_map(
    axes: Axes, name: str, weights: list[list[float]], tokens: list[str], t: Text, bar: str = "", bar_of: Any = None
) -> None:
    kind, _, head = name.partition(" ")
    layer, number = place_of(head)
    title = role_names(t).get(kind) or t(*TIED.get(kind, (kind, kind)))
    matrix(axes, weights, tokens, tokens, size=7.5, rotation=90, bar=bar, bar_of=bar_of)
    axes.set_title(t(f"{title}\nlayer {layer}, head {number}", f"{title}\n层 {layer}，头 {number}"), fontsize=9.5)


def draw_roles(axes: Axes, trained: Trained, t: Text) -> None:
    from matplotlib.colors import to_rgb

    layers, heads = len(trained.roles), len(trained.roles[0])
    axes.imshow([[to_rgb(COLOUR_OF[role]) for role in row] for row in trained.roles], aspect="auto")
    axes.set_xticks(range(heads))
    axes.set_yticks(range(layers))
    axes.set_xticks([x - 0.5 for x in range(1, heads)], minor=True)
    axes.set_yticks([y - 0.5 for y in range(1, layers)], minor=True)
    axes.grid(which="minor", color="white", linewidth=1.5)
    axes.tick_params(length=0, which="both")
    axes.set(
        xlabel=t("head", "头"), ylabel=t("layer", "层"), title=t("What gets half of the weight", "一半以上权重的去向")
    )
    used = [role for role in ROLES if any(role in row for row in trained.roles)]
    marks = [axes.plot([], [], "s", color=COLOUR_OF[role], label=role_names(t)[role])[0] for role in used]
    below = {"loc": "upper center", "bbox_to_anchor": (0.45, -0.2), "ncols": 3, "fontsize": 8.5}
    axes.legend(handles=marks, handletextpad=0.1, columnspacing=0.8, **below)
