"""Lesson 4: order is invisible without positions.

"the cat chases the mouse" and "the mouse chases the cat" have the same words. Attention computes for each word a
weighted sum over all words, and a sum has no order: without positions every word gets the same vector in both.

Two properties are different. Let P permute the words:

    invariant      f(Px) = f(x)       the output does not change, as for the mean of all words
    equivariant    f(Px) = P·f(x)     each word keeps its vector, as for attention, feed-forward networks and stacks

All outputs of attention together are equivariant; the output of one word is invariant to exchanges of the others.

A position encoding breaks the equivariance; a causal mask alone does too. To test an encoding, one layer reads both
sentences; the full stop, which is last in both and attends to all words, changes if the encoding shows the order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import headway as hw
from headway.masks import Causal, Mask
from lesson import BLUE, FAINT, INK, ORANGE, Text, descend, matrix, model_data, page, percents, run, table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SENTENCES = {  # each in two orders
    "en": (["the", "cat", "chases", "the", "mouse", "."], ["the", "mouse", "chases", "the", "cat", "."]),
    "zh": (["我", "吃", "苹果"], ["苹果", "吃", "我"]),
}
TWICE = ["cat", "sees", "cat", "."]
WORDS = sorted({word for pair in SENTENCES.values() for words in pair for word in words} | set(TWICE))

SIZES = {"num_heads": 4, "head_dim": 16, "embed_dim": 64, "max_length": 16, "bidirectional": True}
ARGUMENTS = {"log-n": "log-n(train_length=2)", "llama4-temperature": "llama4-temperature(step=2)"}
"""Those whose defaults do nothing in a sentence as short as this."""
ROUNDING = 1e-9

WHY_BLIND = {  # what a single layer of them lacks
    ("adds nothing", "什么也不加"): ["none"],
    ("scale the scores of a query", "只缩放每个查询的分数"): ["log-n", "ssmax", "llama4-temperature", "nope-scaling"],
    ("change the softmax", "只改 softmax"): ["sink", "softmax-one"],
    ("compute positions from the content", "位置由内容算出"): ["repo", "repo-rope"],
    ("move tokens for another encoding to read", "只移动位置，供别的编码读取"): [
        *("interpolated", "randomized", "random-float", "cape", "shape", "streaming-llm")
    ],
}

NOUNS, THE, CHASES, STOP = 20, 20, 21, 22  # of the training: word ids
SOURCE, LOCAL = 50, 10  # words of a source, and of them to each side in local attention
TRAINED = {  # encoding, causal mask, layers
    "none": (None, False, 1),
    "sinusoidal": ("sinusoidal", False, 1),
    "causal, 1 layer": (None, True, 1),
    "causal, 2 layers": (None, True, 2),
}


@dataclass(frozen=True)
class Found:
    """Largest differences of vectors of size one, in float64, and accuracies."""

    # a sentence in two orders, by language: [without positions, with sinusoidal ones], two layers
    word_differences: dict[str, list[float]]  # of the same word in both
    mean_differences: dict[str, list[float]]  # of the mean over all words
    twice: list[float]  # the word "cat" at positions 1 and 3 of one sentence
    between_words: dict[str, list[list[list[float]]]]  # distance of each word here to each there: [without, with]

    # by part: [|f(Px) − P·f(x)|, |f(Px) − f(x)|, |f(Px) − f(x)| of the first word where P exchanges the others]
    shuffled: dict[str, list[float]]

    # one layer, by name in ENCODINGS: what the other order changes
    full_stop: dict[str, float]  # in the vector of the full stop
    blind: list[str]  # names with which the full stop does not change
    know_own_place: list[str]  # of these, those with which a word that moves changes by its own position
    with_rope: dict[str, float]  # the full stop of those that only move tokens, joined with RoPE
    under_layer_norm: dict[str, float]  # the full stop, index and unit-index, with a layer norm before the attention

    # a causal mask and no positions: the full stop, by the number of layers
    causal: dict[str, float]

    # trained to name who chases, on unseen pairs of nouns, each in both orders
    accuracy: dict[str, float]

    # all at once, in parallel
    one_by_one: float  # difference of outputs computed all at once and one query at a time
    smallest_reach: float  # the smallest change of any word if one word is replaced

    # before the Transformer: how many words of a source get a weight, by the kind of attention
    older: dict[str, int]


def vectors(words: list[str]) -> Tensor:
    """Returns a fixed random vector for each word, [1, words, 64]."""
    drawn = torch.randn(len(WORDS), 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return drawn[[WORDS.index(word) for word in words]][None]


def stack(
    encoding: hw.positions.PositionEncoding | None, layers: int, mask: Mask | None = None, norm: str = "rms"
) -> hw.models.Stack:
    """Returns blocks with fixed random weights; with RMS norm, because a layer norm removes index and unit-index."""
    torch.manual_seed(0)
    config = hw.models.TransformerConfig(len(WORDS), 64, layers, norm=norm)
    return hw.models.Stack.of(config, encoding, masks=[mask] * layers).double().eval()


def order(here: list[str], there: list[str]) -> list[int]:
    """Returns the position in ``here`` of each word of ``there``; repeated words keep their order."""
    left = list(enumerate(here))
    return [left.pop(next(i for i, (_, word) in enumerate(left) if word == wanted))[0] for wanted in there]


def difference(a: Tensor, b: Tensor) -> float:
    return (a - b).abs().max().item()


def noticed(
    encoding: hw.positions.PositionEncoding | None, layers: int = 1, norm: str = "rms", causal: bool = False
) -> tuple[float, float]:
    """Returns how much the other order changes the vector of the full stop, and that of a word that moves."""
    causal = causal or (encoding is not None and encoding.causal_only)
    model = stack(encoding, layers, Causal() if causal else None, norm)
    here, there = SENTENCES["en"]
    at = hw.Coordinates.span(len(here), axes=(encoding and encoding.axes) or 1)
    for parameter in (
        encoding.parameters() if encoding else ()
    ):  # many are initialized to zero, where they have no effect
        nn.init.normal_(parameter)
    one, other = (model(vectors(words), positions=at)[0] for words in (here, there))
    return difference(one[-1], other[-1]), difference(one[order(here, there)], other)


def train(name: str | None, causal: bool, layers: int) -> float:
    """Trains, and returns the share of "the A chases the B ." in which the full stop names A, on unseen pairs."""
    torch.manual_seed(0)
    config = hw.models.TransformerConfig(NOUNS + 3, 64, layers, norm="rms")
    encoding = hw.encoding(name, **SIZES) if name else None
    model = hw.models.Encoder(config, encoding, masks=[Causal() if causal else None] * layers)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    draw = torch.Generator().manual_seed(0)
    pairs = torch.combinations(torch.arange(NOUNS))
    pairs = pairs[torch.randperm(len(pairs), generator=draw)]

    def read(pairs: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the logits at the full stop of each pair in both orders, and who chases."""
        nouns = torch.cat([pairs, pairs.flip(1)])
        words = torch.tensor([THE, 0, CHASES, THE, 0, STOP]).repeat(len(nouns), 1)
        words[:, [1, 4]] = nouns
        return model.logits(model(words)[:, -1]), nouns[:, 0]

    for _ in range(300):
        loss = F.cross_entropy(*read(pairs[:150][torch.randint(150, (32,), generator=draw)]))
        descend(optimizer, loss)
    logits, chaser = read(pairs[150:])
    return logits.argmax(-1).eq(chaser).double().mean().item()


def older_attention() -> dict[str, int]:
    """Returns how many words of a source a state of the decoder weighs in translators before the Transformer."""
    draw = torch.Generator().manual_seed(0)
    state, v, *words = torch.randn(2 + SOURCE, 64, generator=draw, dtype=torch.float64)
    W, U = torch.randn(2, 64, 64, generator=draw, dtype=torch.float64) / 8
    source = torch.stack(words)
    additive = torch.tanh(source @ U + state @ W) @ v
    product = source @ W @ state
    middle = SOURCE * torch.sigmoid(torch.tanh(state @ W) @ v / 8)
    far = (torch.arange(SOURCE) - middle).abs() > LOCAL
    scores = {"additive": additive, "global": product, "local": product.masked_fill(far, -torch.inf)}
    return {kind: int(each.softmax(0).count_nonzero()) for kind, each in scores.items()}


def measure() -> Found:
    accuracy = {name: train(*choice) for name, choice in TRAINED.items()}
    with torch.no_grad():
        return observe(accuracy)


def observe(accuracy: dict[str, float]) -> Found:
    """Measures everything but the training."""
    sinusoidal = hw.encoding("sinusoidal", **SIZES)
    words, means, between = {}, {}, {}
    for language, (here, there) in SENTENCES.items():
        read = [[stack(code, 2)(vectors(s))[0] for s in (here, there)] for code in (None, sinusoidal)]
        words[language] = [difference(one[order(here, there)], other) for one, other in read]
        means[language] = [difference(one.mean(0), other.mean(0)) for one, other in read]
        between[language] = [torch.cdist(one, other).tolist() for one, other in read]
    cats = [stack(code, 2)(vectors(TWICE))[0] for code in (None, sinusoidal)]

    x = torch.randn(1, 12, 64, dtype=torch.float64)
    shuffle = torch.randperm(12)
    others = [0, *reversed(range(1, 12))]
    attention = hw.nn.MultiHeadAttention(64, 4).double()
    parts = {"attention": attention, "feed-forward": hw.nn.FeedForward(64, 256).double(), "stack": stack(None, 4)}
    shuffled = {}
    for name, part in parts.items():
        before, after = part(x), part(x[:, shuffle])
        first = part(x[:, others])[:, 0]
        shuffled[name] = [
            difference(after, before[:, shuffle]),
            difference(after, before),
            difference(first, before[:, 0]),
        ]

    full_stop, own_word, with_rope = {}, {}, {}
    for name, kind in hw.positions.ENCODINGS.items():
        encoding = hw.encoding(ARGUMENTS.get(name, name), **SIZES)
        full_stop[name], own_word[name] = noticed(encoding)
        if kind.kind == "coordinates":
            with_rope[name] = noticed(hw.encoding(f"{name} + rope", **SIZES))[0]

    alone = torch.cat([attention(x[:, [i]], x) for i in range(12)], dim=1)
    sentence, other = (stack(None, 1)(vectors(f"the cat chases the {whom} .".split()))[0] for whom in ("mouse", "cat"))
    blind = [name for name, change in full_stop.items() if change < ROUNDING]
    return Found(
        word_differences=words,
        mean_differences=means,
        twice=[difference(cat[0], cat[2]) for cat in cats],
        between_words=between,
        shuffled=shuffled,
        full_stop=full_stop,
        blind=blind,
        know_own_place=[name for name in blind if own_word[name] > ROUNDING],
        with_rope=with_rope,
        under_layer_norm={n: noticed(hw.encoding(n), norm="layer")[0] for n in ("index", "unit-index")},
        causal={str(layers): noticed(None, layers, causal=True)[0] for layers in (1, 2)},
        accuracy=accuracy,
        one_by_one=difference(alone, attention(x)),
        smallest_reach=(sentence - other).abs().amax(-1).min().item(),
        older=older_attention(),
    )


def page_data() -> dict[str, Any]:
    """A model of random weights, large enough to see what they do: what a sum cannot see needs no training."""
    torch.manual_seed(0)
    config = hw.models.TransformerConfig(len(WORDS), 16, num_layers=2, num_heads=2)
    model = hw.models.Encoder(config)
    for layer in model.stack.modules():
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=layer.in_features**-0.5)
    return {
        "title": ["Lesson 4: order is invisible without positions", "第 4 课：没有位置，就看不出词序"],
        "words": WORDS,
        "sentences": {language: sentence for language, (sentence, _) in SENTENCES.items()},
        "exchanged": {"en": [1, 4], "zh": [0, 2]},
        "model": model_data(model),
    }


def tell(found: Found, t: Text) -> str:
    without, sinusoidal = t("without positions", "没有位置编码"), t("sinusoidal", "正弦编码")
    whose = {"en": "the cat chases the mouse / the mouse chases the cat", "zh": "我 吃 苹果 / 苹果 吃 我"}
    both = [[whose[language], *found.word_differences[language]] for language in whose]
    both += [[t("… the mean of all words", "……全句取平均"), *found.mean_differences["en"]]]
    both += [
        [t("cat sees cat: the first cat from the second", "cat sees cat：第 1 个 cat 与第 2 个 cat"), *found.twice]
    ]
    names = {"attention": t("attention", "注意力"), "feed-forward": t("feed-forward", "前馈层")}
    names["stack"] = t("stack of 4 blocks", "叠起来的 4 层")
    parts = [[names[part], *numbers] for part, numbers in found.shuffled.items()]
    causal = t("causal mask, no positions", "因果掩码，无位置编码")
    shares = {
        "none": t("no positions", "无位置编码"),
        "sinusoidal": sinusoidal,
        "causal, 1 layer": t(f"{causal}, 1 layer", f"{causal}，1 层"),
        "causal, 2 layers": t(f"{causal}, 2 layers", f"{causal}，2 层"),
    }
    seeing = len(found.full_stop) - len(found.blind)
    rope = [name for name, change in found.with_rope.items() if change < ROUNDING]
    return "\n".join(
        [
            t("Distance of a word's vector at one place from that at another:", "同一个词换了位置，向量相差多少："),
            table(both, ["", without, sinusoidal], digits=2),
            "",
            t("Twelve vectors, permuted by P:", "把 12 个向量用置换 P 打乱："),
            table(parts, ["", "|f(Px) − P·f(x)|", "|f(Px) − f(x)|", t("one word", "一个词")], digits=2),
            t(
                "The first column is rounding: all outputs together are equivariant. The second is not rounding:\n"
                "together they are not invariant.\n"
                "The third is one word's output if the other words are exchanged: to that it is invariant.",
                "第一列只剩舍入误差：所有输出合起来是等变的。第二列不为零：合起来并非不变。\n"
                "第三列是只交换其他词时一个词的输出：它对此是不变的。",
            ),
            "",
            t(
                f"Of {len(found.full_stop)} encodings, alone in one layer, {seeing} change the full stop with the "
                "order and"
                f" {len(found.blind)} do not:",
                f"{len(found.full_stop)} 种编码各自单独放进一层：句号能察觉词序的有 {seeing} 种，"
                f"察觉不到的有 {len(found.blind)} 种：",
            ),
            table([[", ".join(names), t(*why)] for why, names in WHY_BLIND.items()]),
            t(
                f"Composed with RoPE, those that move tokens change it too, except {', '.join(rope)}, which computes "
                "positions from the content."
                "\nWith a layer norm, index and unit-index have no more effect than none ("
                f"{max(found.under_layer_norm.values()):.0e}):\n"
                "the norm subtracts what is the same in every dimension.",
                f"只移动位置的那几种与 RoPE 组合后也能察觉，{'、'.join(rope)} 除外：它的位置是从内容里读出来的。\n"
                "前面若有一层 LayerNorm，index 和 unit-index 就与没有编码一样"
                f"（{max(found.under_layer_norm.values()):.0e}）：\n它们给每一维加同一个数，归一化正好把它减掉。",
            ),
            "",
            t("Who chases? Right answers on unseen pairs:", "谁在追？在没见过的名词对上的正确率："),
            table([[shares[name], f"{share:.0%}"] for name, share in found.accuracy.items()]),
            t(
                "Without positions both orders get the same answer, so at most half can be right.",
                "没有位置编码时，两种词序得到同一个答案，最多只能对一半。",
            ),
            "",
            t(
                f"Of {SOURCE} words, attention before the Transformer gives a weight to "
                f"{found.older['additive']} (additive), {found.older['global']} (dot products) and "
                f"{found.older['local']} (local).",
                f"Transformer 之前的注意力，{SOURCE} 个词中得到权重的有 {found.older['additive']} 个（加性）、"
                f"{found.older['global']} 个（点积）、{found.older['local']} 个（局部）。",
            ),
        ]
    )


def draw(found: Found, t: Text) -> Figure:
    figure = page(6.4)
    above, below = figure.subfigures(2, 1, height_ratios=[1.05, 1])
    *maps, shares = above.subplots(1, 3, gridspec_kw={"width_ratios": [1, 1.18, 0.85]})
    draw_distances(maps, found, t)
    draw_accuracy(shares, found, t)
    draw_encodings(below.subplots(), found, t)
    return figure


def draw_distances(maps: list[Axes], found: Found, t: Text) -> None:
    language = t("en", "zh")
    here, there = SENTENCES[language]
    titles = [
        t("Without positions", "没有位置编码"),
        t("With sinusoids", "加上正弦位置编码"),
    ]
    said = t("distance of their vectors", "两个词向量的距离")
    for axes, distances, title in zip(maps, found.between_words[language], titles, strict=True):
        near = [[f"{distance:.1f}" if distance < 4 else "" for distance in row] for row in distances]
        last = axes is maps[-1]
        matrix(
            axes, distances, here, there, top=11, says=lambda i, j, near=near: near[i][j], bar=said if last else "",
            rotation=t(90, 0),
        )  # fmt: skip
        axes.set(title=title, xlabel=t("word of the second sentence", "第二句的词"))
    maps[0].set_ylabel(t("word of the first sentence", "第一句的词"))


def draw_accuracy(axes: Axes, found: Found, t: Text) -> None:
    labels = [
        t("no positions", "无位置编码"),
        t("sinusoidal", "正弦编码"),
        t("causal mask,\n1 layer", "因果掩码\n1 层"),
        t("causal mask,\n2 layers", "因果掩码\n2 层"),
    ]
    shares = list(found.accuracy.values())
    bars = axes.barh(labels, shares, 0.55, color=[ORANGE if share <= 0.5 else BLUE for share in shares])
    axes.bar_label(bars, [f"{share:.0%}" for share in shares], label_type="center", color="white")
    axes.axvline(0.5, color=FAINT, zorder=0)
    axes.invert_yaxis()
    percents(axes, 1.05)
    axes.set(title=t("“Who chases?”", "“谁在追？”"), xlabel=t("right answers", "正确率"))


def draw_encodings(axes: Axes, found: Found, t: Text) -> None:
    """Draws a square for each encoding, with the names of those with no effect or almost none."""
    seeing = len(found.full_stop) - len(found.blind)
    heights: dict[int, int] = {}
    named: list[int] = []
    for name, change in sorted(found.full_stop.items(), key=lambda item: item[1]):
        place = -16 if name in found.blind else round(4 * torch.tensor(change).log10().item())
        heights[place] = heights.get(place, -1) + 1
        x = 1e-16 if name in found.blind else 10 ** (place / 4)
        axes.plot(x, heights[place], "s", color=ORANGE if name in found.blind else BLUE, markersize=4.5)
        if name not in found.blind and change < 0.01:
            above = 7 + 12 * sum(place - other < 10 for other in named)  # names side by side would overlap
            axes.annotate(name, (x, heights[place]), (0, above), textcoords="offset points", ha="center", color=BLUE)
            named.append(place)
    axes.set_xscale("log")
    for line, (why, names) in enumerate(WHY_BLIND.items()):
        y = 23 - 4.4 * line
        axes.text(4e-16, y, ", ".join(names), color=ORANGE, va="center")
        axes.text(4e-16, y - 1.9, t(*why), color=INK, va="center", fontsize=8.5)
    axes.text(0.03, 15, t(f"{seeing} encodings: yes", f"{seeing} 种能察觉"), ha="right", color=BLUE)
    axes.set(
        ylim=(-1, max(heights.values()) + 1.5),
        xlim=(3e-17, 30),
        yticks=[],
        xlabel=t(
            "length of the change of the full stop's vector; each square is an encoding",
            "换词序后，句号向量变化的长度；每个方块是一种编码",
        ),
    )
    axes.set_xticks([1e-16, 1e-12, 1e-8, 1e-4, 1], ["0", "10⁻¹²", "10⁻⁸", "10⁻⁴", "1"])
    axes.minorticks_off()
    axes.spines["left"].set_visible(False)
    axes.set_title(
        t(
            f"{len(found.full_stop)} encodings in one layer: does the full stop's vector change with the order?",
            f"{len(found.full_stop)} 种编码，各用一层：句号能察觉词序吗？",
        ),
        color=INK,
    )


if __name__ == "__main__":
    run(__name__)
