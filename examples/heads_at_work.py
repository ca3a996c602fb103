"""What the heads of a published encoder attend to: the part of lesson 7 that needs weights and annotated text.

`headway.capture` records every weight of every head while a model runs. The rest counts: the share of a head's weight
on the previous word, how often the word with the largest weight is the one that a treebank connects, whether a pronoun
gives more weight to the right name. Queries are words of real text, never [CLS] and [SEP].

Every number has a baseline that needs no model: equal weights, a fixed offset, the nearer name. Where the best of 72
heads is reported, it was chosen on every other sentence and measured on the rest, because the best of 72 random heads
also looks good on the sentences on which it was chosen.
"""

from __future__ import annotations

import csv
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from pydoc_data.topics import topics
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import headway as hw
from lesson import (
    BLUE,
    FAINT,
    GOLD,
    GREEN,
    PINK,
    PURPLE,
    SKY,
    Text,
    handed,
    matrix,
    table,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KINDS = ("previous", "next", "itself", "special", "same")
"""Of a key, seen from a query: the token before, the one after, itself, [CLS] or [SEP], the same token elsewhere."""
ROLES = (*KINDS, "broad", "mixed")
HALF = 0.5  # the share of a head's weight on one kind of key that defines its role
SENTENCES, PASSAGES = 400, 300  # how many are read
FREQUENT = 50  # arcs of a relation in each half of the treebank
MARGIN = 0.10  # above the best fixed offset: the head follows the relation (Voita et al. 2019)
OFFSETS = [d for d in range(-5, 6) if d]
DISTANCES = 16  # 0 … 15, each counted by itself
WEIGHED = 60  # sentences in which weights are compared with the contributions of values


@dataclass(frozen=True)
class Sentence:
    """Words, and for each the index of its governor (−1: none) and the name of the relation."""

    words: list[str]
    governors: list[int]
    relations: list[str]


@dataclass(frozen=True)
class Treebank:
    """Heads compared with dependency arcs, without punctuation."""

    lengths: dict[int, float]  # share of the arcs by the distance of their words
    neighbours: float  # share of all pairs of words of a sentence that are neighbours
    relations: dict[str, dict[str, Any]]  # arcs, head, direction, found; baseline and offset: the best fixed one
    follows: dict[str, list[str]]  # by head: relations found MARGIN above the best offset, in both halves


@dataclass(frozen=True)
class Pronouns:
    """The share of ambiguous pronouns that give the right one of two names more weight than the wrong one."""

    passages: int  # on which it was measured
    head: str
    found: float
    mean: float  # over all heads
    nearer: float  # for the nearer name


@dataclass(frozen=True)
class Trained:
    """Tables are [layer][head]; "3.5" is head 5 of layer 3, counted from 1."""

    sentences: int
    queries: int
    kinds: dict[str, list[list[float]]]  # mean weight on each of KINDS, over the queries that have such a key
    kinds_alike: dict[str, float]  # the same where all weights are equal
    distance: list[list[float]]  # mean |i − j| under the weight on words
    entropy: list[list[float]]  # over ln n: 1 for equal weights, 0 for one key
    keys: list[list[float]]  # e^entropy: the number of keys with equal weights of the same entropy
    keys_alike: float
    by_distance: list[float]  # mean weight of a token 0, 1, 2 … tokens away, over all heads
    by_distance_alike: float  # of a neighbour, 1 away, where all weights are equal
    importance: list[list[float]]  # rank correlation of a key's weight and of how far the output moves without the key
    special_share: list[list[float]]  # share of the sum, by length, that comes from [CLS] and [SEP]
    roles: list[list[str]]  # of ROLES
    tokens: list[str]  # of the one sentence that is shown
    shown: dict[str, list[list[float]]]  # its weights under four heads: "previous 1.3" …
    ties: dict[
        str, dict[str, Any]
    ]  # from word to word: the head with the largest weight, and the number of heads in which it is the largest
    treebank: Treebank | None
    pronouns: Pronouns | None


# ---------------------------------------------------------------- the weights


def every_weight(model: Any, ids: Tensor) -> Tensor:
    """Returns the weights of an encoder for ids [batch, n], [batch, layers, heads, n, n]."""
    with torch.no_grad(), hw.capture(model, "weights") as seen:
        model(ids)
    return torch.stack(seen.attentions, dim=1)


def in_batches(model: Any, texts: list[Any], size: int = 32) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Yields texts of equal length, so that none is padded: their indices, their ids [batch, n], their weights."""
    of_length = defaultdict(list)
    for i, text in enumerate(texts):
        of_length[len(text.ids)].append(i)
    for same in of_length.values():
        for which in (same[start : start + size] for start in range(0, len(same), size)):
            ids = torch.tensor([texts[i].ids for i in which])
            yield which, ids, every_weight(model, ids)


# ---------------------------------------------------------------- text


def read_treebank(path: Path) -> list[Sentence]:
    """Returns the sentences of a CoNLL-U file; "nsubj:pass" counts as nsubj."""
    sentences = []
    for block in path.read_text(encoding="utf-8").strip().split("\n\n")[:SENTENCES]:
        rows = [line.split("\t") for line in block.split("\n") if not line.startswith("#")]
        rows = [row for row in rows if row[0].isdigit()]  # "3-4" is two words written as one, "3.1" a word left out
        words, governors = [row[1] for row in rows], [int(row[6]) - 1 for row in rows]
        sentences.append(Sentence(words, governors, [row[7].partition(":")[0] for row in rows]))
    return sentences


def read_manual() -> list[Sentence]:
    """Returns sentences of plain words from the manual of Python, without relations."""
    text = " ".join(" ".join(topics.values()).split())
    sentences = (one.strip(".:;").replace(",", "").split() for one in re.split(r"(?<=[.:;]) ", text))
    plain = [words for words in sentences if 8 <= len(words) <= 30 and all(word.isalpha() for word in words)]
    return [Sentence(words, [-1] * len(words), [""] * len(words)) for words in plain[:SENTENCES]]


def read_pronouns(path: Path, tokenizer: Any) -> tuple[list[Any], list[dict[str, list[int]]], Tensor]:
    """Reads a file of GAP: encoded passages, tokens of pronoun and names, whether the nearer name is right."""
    texts: list[Any] = []
    places, nearer = [], []
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
            right, wrong = ("A", "B") if row["A-coref"].upper() == "TRUE" else ("B", "A")
            if row["A-coref"] == row["B-coref"] or len(texts) == PASSAGES:  # neither name is right, or there are enough
                continue
            text, found, start = tokenizer.encode(row["Text"]), {}, {}
            for role, column in (("pronoun", "Pronoun"), ("right", right), ("wrong", wrong)):
                start[role] = int(row[f"{column}-offset"])
                stop = start[role] + len(row[column])
                found[role] = [i for i, (a, b) in enumerate(text.offsets) if a < stop and b > start[role]]
            if len(text.ids) <= 512 and all(found.values()):
                texts.append(text)
                places.append(found)
                far = {role: abs(place - start["pronoun"]) for role, place in start.items()}
                nearer.append(far["right"] < far["wrong"])
    return texts, places, torch.tensor(nearer)


# ---------------------------------------------------------------- where the weight lies


class Means:
    """Means over batches, by name: sums and counts."""

    def __init__(self) -> None:
        self.sums: dict[str, Any] = {}
        self.counts: dict[str, Any] = {}

    def add(self, name: str, total: Tensor, count: Tensor) -> None:
        self.sums[name] = self.sums.get(name, 0) + total
        self.counts[name] = self.counts.get(name, 0) + count

    def __getitem__(self, name: str) -> Tensor:
        return self.sums[name] / self.counts[name].clamp(min=1e-9)


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
    special = torch.tensor([tokenizer.token_to_id("[CLS]"), tokenizer.token_to_id("[SEP]")])
    text = read_treebank(treebank) if treebank else read_manual()
    encoded = [tokenizer.encode(one.words, is_pretokenized=True) for one in text]

    means, hits, arcs = Means(), [], []
    for which, ids, weights in in_batches(model, encoded):
        add_up(means, ids, torch.isin(ids, special), weights)
        looked = most_looked_at([encoded[i].word_ids for i in which], weights)
        for row, i in enumerate(which):
            for word, (governor, relation) in enumerate(zip(text[i].governors, text[i].relations, strict=True)):
                if governor >= 0 and relation != "punct":
                    arcs.append((i % 2, relation, governor - word))
                    hits.append(torch.stack([looked[row, ..., word] == governor, looked[row, ..., governor] == word]))
    compared = compare_arcs(text, torch.stack(hits), arcs) if treebank else None

    importance, special_share = weigh_values(model, [one.ids for one in encoded[:WEIGHED]], special)
    told = tokenizer.encode(sentence)
    weights = every_weight(model, torch.tensor([told.ids]))[0]
    show = {kind: name_of(means[kind], means[kind].argmax()) for kind in ("previous", "next", "special")}
    followed = {name: row for name, row in compared.relations.items() if name in relations} if compared else {}
    if followed:
        best = max(followed, key=lambda name: followed[name]["found"] - followed[name]["baseline"])
        show[best] = followed[best]["head"]
    return Trained(
        sentences=len(text),
        queries=int(means.counts["entropy"]),
        kinds={kind: means[kind].tolist() for kind in KINDS},
        kinds_alike={kind: means[f"{kind} alike"].item() for kind in KINDS},
        distance=means["distance"].tolist(),
        entropy=means["entropy"].tolist(),
        keys=means["keys"].tolist(),
        keys_alike=means["keys alike"].item(),
        by_distance=means["by distance"].tolist(),
        by_distance_alike=means["by distance alike"][1].item(),
        importance=importance.tolist(),
        special_share=special_share.tolist(),
        roles=roles(means),
        tokens=told.tokens,
        shown={f"{kind} {name}": weights[place_of(name)].tolist() for kind, name in show.items()},
        ties={f"{a} → {b}": tie(told.tokens, weights, a, b) for a, b in ties},
        treebank=compared,
        pronouns=compare_names(model, *read_pronouns(pronouns, tokenizer)) if pronouns else None,
    )


@torch.no_grad()
def weigh_values(model: Any, texts: list[list[int]], special: Tensor) -> tuple[Tensor, Tensor]:
    """Compares weights with the contributions of values, by layer and head: ``importance`` and ``special_share``.

    A head adds a_j·f(v_j), with f its part of the output map. Without key j the other weights grow to sum to 1 again,
    and the output moves by a_j/(1 − a_j)·|f(v_j) − output|. Lengths |a_j·f(v_j)|: Kobayashi et al. 2020.
    """
    layers = [block.attention for block in model.stack.layers]
    agreements, shares = [], []
    for ids in texts:
        tokens = torch.tensor([ids])
        is_special = torch.isin(tokens[0], special)
        with hw.capture(model, "weights") as seen:
            inputs = handed(layers, partial(model, tokens))
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


def name_of(table: Tensor, number: Tensor) -> str:
    """Returns the name of an entry of a table [layers, heads], counted from 1: layer.head."""
    layer, head = divmod(int(number), table.shape[-1])
    return f"{layer + 1}.{head + 1}"


def place_of(name: str) -> tuple[int, int]:
    layer, head = name.split(".")
    return int(layer) - 1, int(head) - 1


def add_up(means: Means, ids: Tensor, special: Tensor, weights: Tensor) -> None:
    """Adds the statistics of a batch of weights [batch, layers, heads, n, n]; "alike" is for equal weights."""
    word, n = ~special, ids.shape[1]
    delta = torch.arange(n)[None, :] - torch.arange(n)[:, None]
    between = word[:, :, None] & word[:, None, :]
    keys = {
        "previous": between & (delta == -1),
        "next": between & (delta == 1),
        "itself": between & (delta == 0),
        "special": word[:, :, None] & special[:, None, :],
        "same": between & (ids[:, :, None] == ids[:, None, :]) & (delta != 0),
    }

    def share(pairs: Tensor) -> Tensor:
        return torch.einsum("blhij,bij->lh", weights, pairs.float())

    for kind, pairs in keys.items():
        means.add(kind, share(pairs), pairs.any(-1).sum())
        means.add(f"{kind} alike", pairs.sum() / n, pairs.any(-1).sum())
    means.add("distance", share(between * delta.abs()), share(between))

    entropy = torch.special.entr(weights).sum(-1)  # [batch, layers, heads, n]
    means.add("entropy", torch.einsum("blhi,bi->lh", entropy, word / math.log(n)), word.sum())
    means.add("keys", torch.einsum("blhi,bi->lh", entropy.exp(), word.float()), word.sum())
    means.add("keys alike", n * word.sum(), word.sum())

    over_heads, so_far = weights.mean((1, 2)), [between & (delta.abs() == d) for d in range(DISTANCES)]
    counts = torch.stack([pairs.sum() for pairs in so_far])
    means.add("by distance", torch.stack([over_heads[pairs].sum() for pairs in so_far]), counts)
    means.add("by distance alike", counts / n, counts)


def roles(means: Means) -> list[list[str]]:
    """Returns the kind of key with half of each head's weight, or "broad" if half of all keys count, else "mixed"."""
    largest, kind = torch.stack([means[kind] for kind in KINDS]).max(0)
    broad = means["keys"] >= HALF * means["keys alike"]
    other = torch.where(broad, ROLES.index("broad"), ROLES.index("mixed"))
    return [[ROLES[number] for number in row] for row in torch.where(largest >= HALF, kind, other).tolist()]


def tie(tokens: list[str], weights: Tensor, one: str, other: str) -> dict[str, Any]:
    """Returns the head in which one word gives another most weight, and the number of heads where no word gets more."""
    words = [token for token in tokens if token[0] != "["]
    row = weights[:, :, tokens.index(one), 1:-1]  # [layers, heads, words]
    to = row[..., words.index(other)]
    top = row.argmax(-1) == words.index(other)
    return {"head": name_of(to, to.argmax()), "weight": to.max().item(), "heads": int(top.sum()), "words": len(words)}


# ---------------------------------------------------------------- what belongs together


def most_looked_at(word_ids: list[list[int | None]], weights: Tensor) -> Tensor:
    """Returns the other word that gets most of each word's weight, [batch, layers, heads, words].

    Weight on a word is the sum over its pieces, weight from a word the mean over its own (Clark et al. 2019).
    """
    count = 1 + max(word for one in word_ids for word in one if word is not None)
    pieces = torch.zeros(len(word_ids), weights.shape[-1], count)
    for row, one in enumerate(word_ids):
        for piece, word in enumerate(one):
            if word is not None:
                pieces[row, piece, word] = 1
    of_words = torch.einsum("biv,blhij,bjw->blhvw", pieces / pieces.sum(1, keepdim=True).clamp(min=1), weights, pieces)
    of_words.diagonal(dim1=-2, dim2=-1).fill_(-1)
    return of_words.argmax(-1)


def compare_arcs(text: list[Sentence], hits: Tensor, arcs: list[tuple[int, str, int]]) -> Treebank:
    """Compares hits [arcs, 2, layers, heads]: dependents that attend to their governor, and the reverse.

    arcs: half of the sentences, relation, and distance of the governor. Heads are chosen on half 0 and measured on half
    1. The best fixed offset is chosen on half 1 too, which makes the comparison stricter.
    """
    half, offset = torch.tensor([arc[0] for arc in arcs]), torch.tensor([arc[2] for arc in arcs])
    at_offset = torch.stack([offset == d for d in OFFSETS], dim=1).float()

    def shares(mine: Tensor) -> list[tuple[Tensor, Tensor]]:
        return [(hits[mine & (half == h)].float().mean(0), at_offset[mine & (half == h)].mean(0)) for h in (0, 1)]

    def compare(mine: Tensor) -> dict[str, Any]:
        (heads, _), (heads_then, offsets) = shares(mine)
        best, fixed = heads.argmax(), offsets.argmax()
        return {
            "arcs": int((mine & (half == 1)).sum()),
            "head": name_of(heads, best % heads[0].numel()),
            "direction": ("to its governor", "to its dependent")[int(best) // heads[0].numel()],
            "found": heads_then.flatten()[best].item(),
            "baseline": offsets[fixed].item(),
            "offset": OFFSETS[int(fixed)],
        }

    relations, follows = {}, defaultdict(list)
    for relation, _ in Counter(arc[1] for arc in arcs).most_common():
        mine = torch.tensor([arc[1] == relation for arc in arcs])
        if min((mine & (half == h)).sum() for h in (0, 1)) < FREQUENT:
            continue
        relations[relation] = compare(mine)
        gains = torch.minimum(*(heads - offsets.max() for heads, offsets in shares(mine)))  # in the worse half
        for layer, head in (gains.amax(0) >= MARGIN).nonzero().tolist():
            follows[f"{layer + 1}.{head + 1}"].append(relation)
    lengths, words = Counter(offset.abs().tolist()), [len(one.words) for one in text]
    return Treebank(
        lengths={d: lengths[d] / len(arcs) for d in range(1, DISTANCES)},
        neighbours=sum(n - 1 for n in words) / sum(n * (n - 1) / 2 for n in words),
        relations=relations,
        follows=dict(follows),
    )


def compare_names(model: Any, texts: list[Any], places: list[dict[str, list[int]]], nearer: Tensor) -> Pronouns:
    """Chosen on the passages 0, 2, …, measured on 1, 3, …; weight on a name is the sum over its pieces."""
    prefers = [torch.empty(0)] * len(texts)
    for which, _, weights in in_batches(model, texts):
        for row, i in enumerate(which):
            from_pronoun = weights[row, :, :, places[i]["pronoun"]].mean(2)  # [layers, heads, n]
            right, wrong = (from_pronoun[..., places[i][name]].sum(-1) for name in ("right", "wrong"))
            prefers[i] = (right > wrong).float()
    chosen_on, found = torch.stack(prefers[0::2]).mean(0), torch.stack(prefers[1::2]).mean(0)
    best = chosen_on.argmax()
    return Pronouns(
        passages=len(prefers[1::2]),
        head=name_of(found, best),
        found=found.flatten()[best].item(),
        mean=found.mean().item(),
        nearer=nearer[1::2].float().mean().item(),
    )


# ---------------------------------------------------------------- in words and colours

COLOUR_OF = dict(zip(ROLES, (BLUE, GREEN, PINK, GOLD, PURPLE, SKY, FAINT), strict=True))
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
        t("the same word", "相同的词"),
        t("everywhere", "各处均看"),
        t("mixed", "混合"),
    )
    return dict(zip(ROLES, names, strict=True))


def tell_heads(trained: Trained, t: Text) -> str:
    counts = {role: sum(row.count(role) for row in trained.roles) for role in ROLES}
    listed = "; ".join(f"{role_names(t)[role]} {count}" for role, count in counts.items() if count)
    entropy = sorted(one for row in trained.entropy for one in row)
    near = trained.by_distance[1] / trained.by_distance_alike
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
            f"A neighbour gets {near:.2f} times the weight that equal weights would give it.\n"
            "Sorted by weight or by the change without them, keys have a rank correlation of "
            f"{alike:.2f};\n[CLS] and [SEP] get {weight:.0%} of the weight and bring {brought:.0%} of what is "
            "added up.\n"
            "Heads in which that word, of all words, gets the most weight in document 002's sentence:\n"
            f"  {ties}; by chance each would be {heads / words:.0f}",
            f"MiniLM 的 {heads} 个头，在 {trained.queries:,} 个词元上，按至少一半权重的去向分类：\n"
            f"  {listed}\n"
            f"熵占均匀分布的比例：{entropy[0]:.2f} 到 {entropy[-1]:.2f}，中位数 {entropy[heads // 2]:.2f}。\n"
            f"相邻词元得到的权重是平均分配时的 {near:.2f} 倍。\n"
            f"键按权重排序，与按“去掉它会变多少”排序，秩相关为 {alike:.2f}；\n"
            f"[CLS] 和 [SEP] 得到 {weight:.0%} 的权重，在相加的内容里占 {brought:.0%}。\n"
            "文档 002 的例句中，有多少个头把最多的权重给了那个词：\n"
            f"  {ties}；全凭运气，每一项也约有 {heads / words:.0f} 个",
        )
    ]
    if trained.treebank:
        head = [t("relation", "关系"), t("arcs", "弧数"), t("head", "头"), t("looks", "看向"), t("finds", "命中")]
        to = {"to its governor": t("to its governor", "支配词"), "to its dependent": t("to its dependent", "从属词")}
        rows = []
        for name, row in trained.treebank.relations.items():
            shares = (f"{row['found']:.1%}", f"{row['baseline']:.1%}", f"{row['offset']:+d}")
            rows.append([name, row["arcs"], row["head"], to[row["direction"]], *shares])
        many = sum(len(follows) > 1 for follows in trained.treebank.follows.values())
        parts += [
            "",
            table(rows, [*head, t("best fixed offset", "最佳固定偏移"), t("which", "偏移量")]),
            t(
                f"{len(trained.treebank.follows)} heads find a relation more often than any offset by "
                f"{100 * MARGIN:.0f} points or more, {many} of them several relations.",
                f"有 {len(trained.treebank.follows)} 个头对某种关系的命中率比任何固定偏移都高出至少 "
                f"{100 * MARGIN:.0f} 个百分点，其中 {many} 个兼顾多种关系。",
            ),
        ]
    if trained.pronouns:
        one = trained.pronouns
        parts += [
            "",
            t(
                f"Of {one.passages} ambiguous pronouns head {one.head} prefers the right name in {one.found:.1%}, the "
                f"mean head in {one.mean:.1%}; the nearer name is right in {one.nearer:.1%}.",
                f"{one.passages} 个有歧义的代词中，头 {one.head} 有 {one.found:.1%} 偏向正确的名字；全部头平均 "
                f"{one.mean:.1%}；取较近的名字对 {one.nearer:.1%}。",
            ),
        ]
    return "\n".join(parts)


def draw_map(axes: Axes, name: str, weights: list[list[float]], tokens: list[str], t: Text) -> None:
    kind, _, head = name.partition(" ")
    layer, number = (one + 1 for one in place_of(head))
    title = role_names(t).get(kind) or t(*TIED.get(kind, (kind, kind)))
    matrix(axes, weights, tokens, tokens, size=7.5, rotation=90)
    axes.set_title(t(f"{title}\nlayer {layer}, head {number}", f"{title}\n第 {layer} 层第 {number} 头"), fontsize=9.5)


def draw_roles(axes: Axes, trained: Trained, t: Text) -> None:
    from matplotlib.colors import to_rgb

    layers, heads = len(trained.roles), len(trained.roles[0])
    axes.imshow([[to_rgb(COLOUR_OF[role]) for role in row] for row in trained.roles], aspect="auto")
    axes.set_xticks(range(heads), range(1, heads + 1))
    axes.set_yticks(range(layers), range(1, layers + 1))
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
