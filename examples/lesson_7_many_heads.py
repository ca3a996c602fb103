"""Lesson 7: many heads.

One head has one softmax: for each query one set of weights that sums to 1. Several heads have several, side by side:

    head_h = attention(X·Wq_h, X·Wk_h, X·Wv_h),   Wq_h: [d_model, d_k],  d_k = d_model / heads
    output = concat(head_1 … head_H)·Wo

As a loop this is H small attentions; libraries concatenate the small matrices and compute all in one product. The input
is not divided: each head reads all d_model numbers of a token through a matrix of its own, and compares tokens by d_k
numbers. So more heads are narrower, with the same number of parameters and multiplications; the number of weights, n²
for each head, grows, and with it the time of the softmax.

Why several heads: if an output must contain two tokens in order, one softmax gives a mixture α·v_a + (1 − α)·v_b. To
name a from it by a linear map needs α > ½, to name b needs α < ½. So one head cannot do it, and two can. Then the
lesson counts what the heads of a trained model attend to, compared with baselines that need no model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import headway as hw
from heads_at_work import PRONOUNS, TREEBANK, Trained, draw_map, draw_roles, measure_heads, tell_heads
from headway.study import planted
from lesson import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    SKY,
    Text,
    count,
    data,
    descend,
    double,
    handed,
    least_seconds,
    page,
    panels,
    percents,
    planted_data,
    run,
    table,
    weights,
)
from schematic import Place, arrow, box, numbers, sheet, write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

D_MODEL, HEADS = 512, 8  # the sizes of the tutorial in PyTorch; the article has 8 heads too
COST_WIDTH, COST_HEADS = 256, [1, 2, 4, 8, 16, 32, 64]
TOKENS = {128: 8, 1024: 1}  # length: batch, so that all have the same number of tokens

VOCABULARY, LENGTH, WIDTH = 16, 16, 32
BACK = (1, 3)  # the positions to name
SEEDS, STEPS, BATCH = 3, 400, 32
SHARES = ("both", "nearer", "farther")
READERS = {  # heads, feed-forward
    "one head": (1, False),
    "two heads": (2, False),
    "one head and a feed-forward": (1, True),
}


SENTENCE = "The cat that was sleeping on the mat woke up"  # of the article
RELATIONS = ["det", "nsubj", "aux", "case"]  # that tie some of its words
SMALL_WORDS, SMALL_WIDTH, SMALL_HEADS = [("Ming", "小明"), ("eats", "吃"), ("apples", "苹果")], 6, 3  # of the schematic
SMALL_SEED = 17  # three heads that look at different words
TIES = [("cat", "sleeping"), ("mat", "sleeping"), ("that", "cat"), ("woke", "cat")]  # the first two are the document's


DRAWN_FROM = ("minilm",)
"""Without it the picture has two panels instead of seven."""


@dataclass(frozen=True)
class Found:
    """The loop and the batched form, the cost by number of heads, two positions at once, a trained model."""

    d_k: int  # d_model // heads
    loop_error: float  # largest difference between loop and module, same weights
    loop_slower: dict[str, float]  # time of the loop over that of the module, by batch × tokens
    printed_width: int  # of the concatenated heads if each is d_model wide, as in the printed loop
    inputs_read: list[int]  # by head: how many of the d_model numbers of a token have a nonzero weight
    head_rank: list[int]  # by head: of its d_model × d_k query matrix
    cost_heads: list[int]
    cost_parameters: list[int]  # by number of heads, as the three below
    cost_multiplications: dict[int, list[int]]  # by length
    cost_weights: dict[int, list[int]]
    cost_forward: dict[int, list[float]]  # time over that of one head
    cost_training: dict[int, list[float]]  # the same, forward and backward
    bound: float  # the largest share of right answers for both positions of a single head: ½ + 1/vocabulary
    chance: float  # for the second position if only the first is known: 1/vocabulary
    both: dict[str, list[float]]  # by reader: share of outputs with both positions right, for each seed
    nearer: dict[str, list[float]]  # only the position one back
    farther: dict[str, list[float]]  # only the position three back
    parameters: dict[str, int]
    small: dict[str, Any]  # a small layer with random matrices, as it ran: what the schematic shows
    trained: Trained | None  # a published model, if its weights are on this machine


# ---------------------------------------------------------------- the loop, and what heads cost


def one_by_one(X: Tensor, Wq: list[Tensor], Wk: list[Tensor], Wv: list[Tensor]) -> Tensor:
    """Computes the article's loop: each head with matrices of its own, concatenated, before the last projection."""
    heads = []
    for Wq_h, Wk_h, Wv_h in zip(Wq, Wk, Wv, strict=True):
        Q, K, V = X @ Wq_h, X @ Wk_h, X @ Wv_h
        heads.append(hw.attention(Q[:, None], K[:, None], V[:, None])[:, 0])
    return torch.cat(heads, dim=-1)


def relative(calls: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """Returns the time of each call divided by that of the first."""
    seconds = least_seconds(calls, rounds)
    return [one / seconds[0] for one in seconds]


def measure_loop() -> dict[str, object]:
    def matrices(d_k: int) -> list[list[Tensor]]:
        return [[torch.randn(D_MODEL, d_k) / D_MODEL**0.5 for _ in range(HEADS)] for _ in "qkv"]

    d_k = D_MODEL // HEADS
    own = matrices(d_k)
    layer = hw.nn.MultiHeadAttention(D_MODEL, HEADS, bias=False)
    with torch.no_grad():
        for projection, W in zip((layer.q_proj, layer.k_proj, layer.v_proj), own, strict=True):
            projection.weight.copy_(torch.cat(W, dim=1).T)  # side by side; torch stores matrices transposed
    x, slower = torch.randn(4, 128, D_MODEL), {}
    with torch.inference_mode():
        error = (layer.out_proj(one_by_one(x, *own)) - layer(x)).abs().max().item()
        for batch, n in ((1, 16), (4, 128)):
            part = x[:batch, :n]
            calls = [partial(layer, part), lambda part=part: layer.out_proj(one_by_one(part, *own))]
            slower[f"{batch} × {n}"] = relative(calls, 15)[1]
        printed_width = one_by_one(x[:1, :2], *matrices(D_MODEL)).shape[-1]
    of_head = layer.q_proj.weight.unflatten(0, (HEADS, d_k))
    return {
        "d_k": d_k,
        "loop_error": error,
        "loop_slower": slower,
        "printed_width": printed_width,
        "inputs_read": (of_head != 0).any(1).sum(-1).tolist(),
        "head_rank": torch.linalg.matrix_rank(of_head).tolist(),
    }


def measure_cost() -> dict[str, object]:
    @torch.inference_mode()
    def infer(layer: nn.Module, x: Tensor) -> None:
        layer(x)

    def train(layer: nn.Module, x: Tensor) -> None:
        layer(x).sum().backward()

    layers = [hw.nn.MultiHeadAttention(COST_WIDTH, heads) for heads in COST_HEADS]
    forward, training, multiplications, scores = {}, {}, {}, {}
    for n, batch in TOKENS.items():
        x = torch.randn(batch, n, COST_WIDTH)
        forward[n] = relative([partial(infer, layer, x) for layer in layers], 5)
        training[n] = relative([partial(train, layer, x) for layer in layers], 3)
        projections = 4 * n * COST_WIDTH**2
        multiplications[n] = [projections + heads * 2 * n * n * (COST_WIDTH // heads) for heads in COST_HEADS]
        scores[n] = [heads * n * n for heads in COST_HEADS]
    return {
        "cost_heads": COST_HEADS,
        "cost_parameters": [count(layer) for layer in layers],
        "cost_multiplications": multiplications,
        "cost_weights": scores,
        "cost_forward": forward,
        "cost_training": training,
    }


def measure_small() -> dict[str, Any]:
    """Runs a layer of three heads on three random words; returns what stands in it."""
    with torch.random.fork_rng(devices=[]):  # so that the picture does not depend on what ran before
        torch.manual_seed(SMALL_SEED)
        layer = hw.nn.MultiHeadAttention(SMALL_WIDTH, SMALL_HEADS, bias=False)
        x = torch.randn(1, len(SMALL_WORDS), SMALL_WIDTH)
    with torch.no_grad(), hw.capture(layer, keep="weights") as seen:
        [((joined,), _)] = handed([layer.out_proj], lambda: layer(x))
        output = layer.out_proj(joined)
    return {
        "x": x[0].tolist(),
        "weights": seen.weights(0)[0].tolist(),
        "joined": joined[0].tolist(),
        "W_O": layer.out_proj.weight.T.tolist(),
        "output": output[0].tolist(),
    }


# ---------------------------------------------------------------- two places at once
#
# Why one head cannot. Keep all of a text but the two tokens to be named, and let p and r be the weights that their
# places get. What a token t adds to the logit of the name c is W[c,t] times that: value, projection and linear map in
# one, and the part of a weight that depends on t itself. To name the farther token of (a,b) against c, and of (a,c)
# against b, wants r·M > 0, where M = W[b,b] + W[c,c] − W[b,c] − W[c,b]; of (b,c) and of (c,b) it wants (r − p)·M > 0.
# So r > p. The nearer one wants p > r in the same way. Where p ≥ r, the ordered pairs whose farther token can be right
# are at most V²/2 + V of V², since no two tokens that are told apart in both orders may follow a common third.


class Reader(nn.Module):
    """Attention with distances only in its scores (T5's table), and a linear map that names two tokens."""

    def __init__(self, heads: int, feed_forward: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        distances = hw.encoding("t5", num_heads=heads, bidirectional=False)
        self.attention = hw.nn.MultiHeadAttention(WIDTH, heads, encoding=distances, scale=(WIDTH // heads) ** -0.5)
        self.feed_forward = hw.nn.FeedForward(WIDTH, 4 * WIDTH, "relu") if feed_forward else nn.Identity()
        self.read = nn.Linear(WIDTH, len(BACK) * VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        """Returns logits [batch, n, places, vocabulary] for ids [batch, n]."""
        x = self.embedding(ids)
        x = x + self.attention(x, mask=hw.masks.Causal())
        return self.read(self.feed_forward(x)).unflatten(-1, (len(BACK), VOCABULARY))


def train_reader(reader: Reader, seed: int) -> list[float]:
    """Trains; returns the shares of outputs with both positions, the nearer and the farther one right, on new texts."""
    chance = torch.Generator().manual_seed(seed)
    far = max(BACK)

    def texts(count: int) -> tuple[Tensor, Tensor]:
        ids = torch.randint(VOCABULARY, (count, LENGTH), generator=chance)
        return ids, torch.stack([ids[:, far - back : LENGTH - back] for back in BACK], dim=-1)

    optimizer = torch.optim.Adam(reader.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, STEPS)
    for _ in range(STEPS):
        ids, wanted = texts(BATCH)
        loss = F.cross_entropy(reader(ids)[:, far:].flatten(0, 2), wanted.flatten())
        descend(optimizer, loss)
        schedule.step()
    ids, wanted = texts(1000)
    with torch.inference_mode():
        right = reader(ids)[:, far:].argmax(-1) == wanted
    return [share.float().mean().item() for share in (right.all(-1), right[..., 0], right[..., 1])]


def measure_readers() -> dict[str, object]:
    shares, parameters = {}, {}
    for name, shape in READERS.items():
        shares[name] = []
        for seed in range(SEEDS):
            torch.manual_seed(seed)
            reader = Reader(*shape)
            shares[name].append(train_reader(reader, seed))
        parameters[name] = count(reader)
    of_each = {key: {name: [one[i] for one in rows] for name, rows in shares.items()} for i, key in enumerate(SHARES)}
    return {"bound": 0.5 + 1 / VOCABULARY, "chance": 1 / VOCABULARY, "parameters": parameters, **of_each}


# ---------------------------------------------------------------- the lesson


def measure() -> Found:
    found = measure_loop() | measure_cost() | measure_readers()
    model, treebank, pronouns = weights("minilm"), data(TREEBANK), data(PRONOUNS)
    trained = measure_heads(model, SENTENCE, RELATIONS, TIES, treebank, pronouns) if model else None
    return Found(**found, small=measure_small(), trained=trained)


def reader_names(t: Text) -> list[str]:
    return [t("one head", "一个头"), t("two heads", "两个头"), t("one head and\na feed-forward", "一个头\n加前馈层")]


def page_data() -> dict[str, Any]:
    return {
        "title": ["Lesson 7: a sentence and its heads", "第 7 课：一句话和它的头"],
        "models": {language: small_model(language) for language in planted.LANGUAGES},
    }


def small_model(language: str) -> dict[str, Any]:
    """Returns a small model that comes with headway, and what its page offers."""
    small = planted.pretrained(language)
    pronouns = [word for relation in small.language.relations if "pronoun" in relation.name for word in relation.nouns]
    decided = [word for relation in small.language.relations for word in relation.nouns]
    between = " " if small.language.spaced else ""
    return planted_data(small, planted.tokenizer(small.language).get_vocab()) | {
        "examples": [between.join(sentence.words) for sentence in small.language.examples],
        "decided": [*pronouns, *decided],
    }


def tell(found: Found, t: Text) -> str:
    times = [one for kind in (found.cost_forward, found.cost_training) for one in kind.values()]
    kinds = (t("forward", "前向"), t("training", "训练"))
    cost = [[str(h), str(COST_WIDTH // h), *(f"{one[i]:.2f}" for one in times)] for i, h in enumerate(COST_HEADS)]
    names = [name.replace("\n", t(" ", "")) for name in reader_names(t)]
    readers = []
    for key, name in zip(READERS, names, strict=True):
        shares = (found.nearer[key], found.farther[key], found.both[key])
        readers.append([name, f"{found.parameters[key]:,}", *(f"{sum(one) / SEEDS:.1%}" for one in shares)])
    slower = "; ".join(f"{size}: {ratio:.2f}" for size, ratio in found.loop_slower.items())
    parts = [
        t(
            f"{HEADS} heads of {found.d_k} numbers, in a loop or at once: results differ by {found.loop_error:.1g}.\n"
            f"Time of the loop over that of headway's layer, by batch × tokens: {slower}\n"
            f"With d_k = d_model, as the article prints it, the concatenated heads are {found.printed_width} wide, "
            "not "
            f"{D_MODEL}.\n"
            f"Each head reads all {min(found.inputs_read)} numbers of a token; its matrix has rank "
            f"{max(found.head_rank)}.",
            f"{HEADS} 个头，每头 {found.d_k} 维，逐头循环与一次算完的结果相差 {found.loop_error:.1g}。\n"
            f"循环与 headway 模块的耗时之比（批 × 词元数）：{slower}\n"
            f"若照例句讲解印出的 d_k = d_model，拼接后的维度是 {found.printed_width}，而不是 {D_MODEL}。\n"
            f"每个头都读入词元的全部 {min(found.inputs_read)} 维，投影矩阵的秩是 {max(found.head_rank)}。",
        ),
        "",
        t(
            f"Time by number of heads, one head = 1; d_model {COST_WIDTH}, the same parameters and multiplications",
            f"耗时与头数的关系（单头为 1）；d_model 为 {COST_WIDTH}，参数量与乘法次数都不变",
        ),
        table(cost, [t("heads", "头数"), "d_k", *(f"{kind} n={n}" for kind in kinds for n in TOKENS)]),
        "",
        t("Name the tokens 1 and 3 positions back, in order:", "按顺序说出往前第 1 个和第 3 个词元："),
        table(readers, ["", t("parameters", "参数量"), t("1 back", "前 1"), t("3 back", "前 3"), t("both", "两者")]),
        t(
            f"No single head followed by a linear map has both right in more than ½ + 1/{VOCABULARY} = "
            f"{found.bound:.1%} of all texts.",
            f"单头加线性读出，两者都对的比例不可能超过 ½ + 1/{VOCABULARY} = {found.bound:.1%}。",
        ),
        "",
        tell_heads(found.trained, t)
        if found.trained
        else t(
            "To measure what the heads of a published model attend to, download its weights: make weights ARGS=minilm",
            "要看已发布模型的各个头在看什么，需要先取得权重：make weights ARGS=minilm",
        ),
    ]
    return "\n".join(parts)


def draw(found: Found, t: Text) -> dict[str, Figure]:
    return {"": draw_measured(found, t), "concatenation": draw_concatenation(found, t)}


def draw_concatenation(found: Found, t: Text) -> Figure:
    """Draws the small layer: the input, three heads, their outputs side by side, and the last product."""
    figure, axes = sheet(5.6)
    small, words = found.small, [t(*word) for word in SMALL_WORDS]
    d_k = SMALL_WIDTH // SMALL_HEADS
    look: dict[str, Any] = {"cell": (0.38, 0.23), "form": ".1f"}
    size = t(f"input X: 3 words, {SMALL_WIDTH} dimensions", f"输入 X：3 个词，各 {SMALL_WIDTH} 维")
    x = numbers(axes, 3.5, 0.4, small["x"], title=size, down=words, **look)
    joined_at = 0.9
    for head, (attention, colour) in enumerate(zip(small["weights"], (BLUE, ORANGE, GREEN), strict=True)):
        left = 0.15 + 3.03 * head
        frame = box(axes, Place(left, 1.55, 2.85, 1.45), "", colour=colour)
        write(
            axes,
            left + 0.1,
            1.7,
            t(f"head {head}, by its own Wq, Wk, Wv", f"头 {head}，自己的 Wq、Wk、Wv"),
            align="left",
        )
        shown = numbers(axes, left + 0.55, 2.2, attention, title=t("weights", "权重"), down=words, **look)
        part = [row[d_k * head : d_k * (head + 1)] for row in small["joined"]]
        out = numbers(axes, left + 1.99, 2.2, part, title=t("output", "输出"), **look)
        arrow(axes, shown.right, out.left)
        arrow(axes, x.bottom, frame.top)
        place = numbers(
            axes, joined_at + d_k * 0.38 * head, 3.8, part, down=() if head else words, frame=colour, **look
        )
        arrow(axes, out.bottom, place.top)
    write(axes, joined_at, 4.65, t("concat of the heads", "各头拼接"), align="left")
    last = numbers(axes, 3.75, 3.8, small["W_O"], **look)
    write(axes, last.x, 5.35, "W_O", align="left")
    output = numbers(axes, 6.75, 3.8, small["output"], down=words, **look)
    write(axes, output.x, 4.65, t("output of the layer", "整层的输出"), align="left")
    write(axes, 3.47, output.left[1], "×", size=15)
    write(axes, 6.2, output.left[1], "=", size=15)
    return figure


def draw_measured(found: Found, t: Text) -> Figure:
    if found.trained is None:
        figure, below = panels(2)
    else:
        figure = page(6.8)
        top, bottom = figure.subfigures(2, 1, height_ratios=[2.9, 3.3])
        maps = top.subplots(1, len(found.trained.shown))
        for axes, (name, weights) in zip(maps, found.trained.shown.items(), strict=True):
            bar = t("attention weight", "注意力权重") if axes is maps[-1] else ""
            draw_map(axes, name, weights, found.trained.tokens, t, bar, maps)
        maps[0].set_ylabel(t("query", "查询"))
        top.supxlabel(t("key", "键"), fontsize=10)
        below = bottom.subplots(1, 3, gridspec_kw={"width_ratios": [1.2, 1, 1]})
        draw_roles(below[0], found.trained, t)
    draw_readers(below[-2], found, t)
    draw_cost(below[-1], found, t)
    return figure


def draw_readers(axes: Axes, found: Found, t: Text) -> None:
    for row, (name, shares) in enumerate(found.both.items()):
        axes.barh(row, sum(shares) / len(shares), color=ORANGE if name == "one head" else BLUE, height=0.6)
        axes.plot(shares, [row] * len(shares), ".", color=INK, markersize=4)
    axes.axvline(found.bound, color=INK, linewidth=1.2, linestyle=(0, (4, 3)))
    axes.text(found.bound + 0.02, 0, t("one head can\nhave no more", "单头的上界"), va="center", fontsize=8.5)
    axes.set_yticks(range(len(READERS)), reader_names(t))
    axes.invert_yaxis()
    axes.set(
        xlim=(0, 1.03),
        xlabel=t("texts with both tokens right", "两个词元都对的比例"),
        title=t("Two places at once", "同时看两处"),
    )
    percents(axes, 1.03)


def draw_cost(axes: Axes, found: Found, t: Text) -> None:
    for (n, times), colour in zip(found.cost_training.items(), (SKY, BLUE), strict=True):
        marker = "s" if colour == SKY else "o"
        axes.plot(found.cost_heads, times, marker, linestyle="-", color=colour, label=t(f"{n} tokens", f"{n} 个词元"))
    axes.axhline(1, color=INK, linewidth=1.2, linestyle=(0, (4, 3)))
    double(axes, found.cost_heads, t(f"heads of a layer of width {COST_WIDTH}", f"头数（总维度 {COST_WIDTH}）"))
    axes.set(
        ylim=(0, None),
        ylabel=t("training time, one head = 1", "训练耗时（单头为 1）"),
        title=t("What heads cost", "头数的代价"),
    )
    axes.legend(loc="upper left")


if __name__ == "__main__":
    run(__name__)
