"""Lesson 2: the five steps of attention, with numbers small enough to check by hand.

A sentence of five words is a matrix I, with a row for each word. Three matrices, which a network would learn, compute
what each word looks for (the queries Q), how other words find it (the keys K), and what it contributes (the values V):

    Q = I·Wq,  K = I·Wk,  V = I·Wv

    1. products   A = Q·Kᵀ         how well each word's query matches each word's key
    2. scaled     A/√d_k           the size of the numbers no longer depends on the width of the keys (lesson 3)
    3. masked     −∞ for later words, which a model that writes from left to right must not read
    4. weights    A′ = softmax     each row becomes weights that sum to 1
    5. output     B = A′·V         the weighted sum of the values

`hw.attention_steps` returns all five, `hw.attention` only the last. Implementations differ in the third step: many use
a large negative number for −∞. The lesson measures when that is the same. It then checks further claims: that later
words have no influence, that rows sum to 1, that the best match is amplified, and that any length is possible.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import headway as hw
import schematic
from lesson import BLUE, FAINT, INK, ORANGE, Text, count, matrix, one_head, page, run, table
from schematic import arrow, sheet, write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WORDS = [("cat", "小猫"), ("so", "很"), ("cute", "可爱"), ("it", "它"), ("sleeps", "睡觉")]
# The columns are features: thing, quality, action, pronoun.
INPUTS = [[2, 0, 0, 0], [0, 1, 0, 0], [0, 2, 0, 0], [1, 0, 0, 2], [0, 0, 2, 0]]
# Things look for qualities; qualities for things; actions for things and pronouns; pronouns for things, twice as much.
W_Q = [[0, 1, 0, 0], [1, 0, 0, 0], [1, 0, 0, 1], [2, 0, 0, 0]]
# The key of a word is its own features, but a pronoun is not a thing.
W_K = [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [-1, 0, 0, 1]]
W_V = [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0]]
KINDS = [("thing", "事物"), ("quality", "性质"), ("action", "动作")]

LENGTHS = [1, 7, 1000]
CHANGED = 5  # the first changed word of a sequence of 8


@dataclass(frozen=True)
class Found:
    """The numbers of the five steps and of each claim."""

    queries: list[list[float]]
    keys: list[list[float]]
    values: list[list[float]]
    products: list[list[float]]
    scaled: list[list[float]]
    masked: list[list[float | None]]  # None for −∞, which JSON cannot represent
    weights: list[list[float]]
    output: list[list[float]]
    formula_difference: float  # of the output, from the formula in three lines of torch

    # a large negative number as a mask
    ordinary_difference: float  # largest difference of a weight between −1e9 and −∞, 1000 × 64 random rows
    empty_rows: int  # rows without allowed keys: five positions, two of them padding on the left, a causal mask
    empty_weights: dict[str, list[float] | None]  # what the first of them gives to each key; None for NaN
    nan_gradients: dict[str, int]  # NaN among the 55 entries of the gradients of q, k and v
    leaks: dict[str, float | None]  # the smallest lead of 2, 20 … 2e10 with which an excluded score wins; None: never
    half: dict[str, str]  # −1e9 in float16: the number; the weights of a row of it; the error of masked_fill

    # later words
    change_causal: list[float]  # largest change of each of 8 outputs when the inputs from CHANGED on change
    change_open: list[float]  # the same without a mask
    cache_difference: float  # word by word with a cache, from one pass over all
    cache_open_difference: float  # the same, word by word without a mask

    # softmax
    sum_error: dict[str, float]  # largest |sum − 1| of 1000 softmaxes of 64 scores, by the size of the scores
    overflow: int  # the first whole score at which eˣ/Σeˣ, computed as it is written, is NaN in float32
    amplified: list[dict[str, list[float]]]  # scores, shares in proportion to them, and weights

    # output
    beyond_values: float  # by how much an output leaves the range of its values at most; 1000 × 64 rows
    lengths: dict[str, list[float]]  # n → parameters of the layer, weights it computes, mean of the largest weight


def step_numbers(q: Tensor, k: Tensor, v: Tensor) -> dict[str, object]:
    """Measures the five steps, and compares them with the formula in three lines."""
    steps = hw.attention_steps(q, k, v, mask=hw.masks.Causal())

    scores = q @ k.mT / math.sqrt(k.shape[-1])
    weights = scores.masked_fill(torch.ones(5, 5).triu(1).bool(), -math.inf).softmax(-1)
    output = weights @ v

    found = {name: step[0, 0].tolist() for name, step in steps._asdict().items()}
    found["masked"] = [[None if x == -math.inf else x for x in row] for row in found["masked"]]
    found |= {"queries": q[0, 0].tolist(), "keys": k[0, 0].tolist(), "values": v[0, 0].tolist()}
    return found | {"formula_difference": (output - steps.output).abs().max().item()}


def softmax_with(number: float, q: Tensor, k: Tensor, v: Tensor, allowed: Tensor, add: bool = False) -> list[Tensor]:
    """Computes weights and output by the formula, with a number in place of, or added to, excluded scores."""
    scores = q @ k.mT / math.sqrt(k.shape[-1])
    masked = scores + number * ~allowed if add else scores.masked_fill(~allowed, number)
    weights = masked.softmax(-1)
    return [weights, weights @ v]


def mask_numbers(q: Tensor, k: Tensor, v: Tensor) -> dict[str, object]:
    """Compares −∞, −1e9 and −1e4: ordinary rows, rows without allowed keys, large excluded scores, float16."""
    random = [torch.randn(1000, 1, 64, 16) for _ in range(3)]
    causal = torch.ones(64, 64, dtype=torch.bool).tril()
    ordinary = [softmax_with(number, *random, causal)[0] for number in (-1e9, -math.inf)]

    # Two sentences in one batch are padded to one length; on the left where words are to be written on the right.
    left_padded = hw.masks.Causal() & hw.masks.Padding([3], side="left")
    allowed = torch.ones(5, 5, dtype=torch.bool).tril() & (torch.arange(5) >= 2)
    ways = {
        "-inf": lambda q, k, v: softmax_with(-math.inf, q, k, v, allowed),
        "-1e9": lambda q, k, v: softmax_with(-1e9, q, k, v, allowed),
        "-1e4 added": lambda q, k, v: softmax_with(-1e4, q, k, v, allowed, add=True),
        "headway": lambda q, k, v: [way(q, k, v, mask=left_padded) for way in (hw.attention_weights, hw.attention)],
    }
    empty, nan = {}, {}
    for name, way in ways.items():
        inputs = [x.clone().requires_grad_() for x in (q, k, v)]
        weights, output = way(*inputs)
        row = weights[0, 0, 0].tolist()
        empty[name] = None if math.isnan(row[0]) else row
        loss = output[:, :, 2:].square().sum()  # of the real words alone
        nan[name] = sum(int((~gradient.isfinite()).sum()) for gradient in torch.autograd.grad(loss, inputs))

    def wins(lead: float, number: float | None) -> bool:
        """Whether the second of two keys, which is excluded and has a larger score, gets more than half the weight."""
        q, k, v = one_head([[1]]), one_head([[0], [lead]]), one_head([[0], [1]])
        seen = torch.tensor([[True, False]])
        if number is None:
            return hw.attention(q, k, v, mask=seen, scale=1.0).item() > 0.5
        return softmax_with(number, q, k, v, seen, add=True)[1].item() > 0.5

    leads = [2.0 * 10**power for power in range(11)]
    leaks = {
        name: next((lead for lead in leads if wins(lead, number)), None)
        for name, number in (("-1e4", -1e4), ("-1e9", -1e9), ("headway", None))
    }

    number = torch.tensor(-1e9).half()
    try:
        torch.zeros(5).half().masked_fill(torch.ones(5, dtype=torch.bool), -1e9)
        answer = "accepted"
    except RuntimeError as error:
        answer = f"RuntimeError: {error}"
    half = {"number": str(number.item()), "empty": str(number.expand(5).softmax(-1)[0].item()), "fill": answer}
    return {
        "ordinary_difference": (ordinary[0] - ordinary[1]).abs().max().item(),
        "empty_rows": int((~allowed).all(-1).sum()),
        "empty_weights": empty,
        "nan_gradients": nan,
        "leaks": leaks,
        "half": half,
    }


def future_numbers() -> dict[str, object]:
    """Measures which outputs change with the words from CHANGED on, and compares word by word with all at once."""
    layer, causal = hw.nn.MultiHeadAttention(32, 4), hw.masks.Causal()
    x = torch.randn(1, 8, 32)
    other = torch.cat([x[:, :CHANGED], torch.randn(1, 8 - CHANGED, 32)], 1)

    def change(mask: hw.masks.Mask | None) -> list[float]:
        return (layer(x, mask=mask) - layer(other, mask=mask)).abs().amax(-1)[0].tolist()

    def word_by_word(mask: hw.masks.Mask | None) -> float:
        cache = hw.nn.KeyValueCache()
        steps = [layer(x[:, i : i + 1], mask=mask, cache=cache) for i in range(8)]
        return (torch.cat(steps, 1) - layer(x, mask=causal)).abs().max().item()

    return {
        "change_causal": change(causal),
        "change_open": change(None),
        "cache_difference": word_by_word(causal),
        "cache_open_difference": word_by_word(None),
    }


def softmax_numbers() -> dict[str, object]:
    """Measures sums of weights, overflow of the literal formula, and amplification."""
    scores = torch.randn(1000, 64)
    written = [(x, torch.tensor([float(x), 0.0]).exp()) for x in range(200)]
    examples = [torch.tensor(row) for row in ([1.0, 2, 3], [0.1, 0.2, 0.3], [101.0, 102, 103])]

    def error(scores: Tensor) -> float:
        return (scores.softmax(-1).double().sum(-1) - 1).abs().max().item()

    errors = {size: error(float(size) * scores) for size in ("0.001", "1", "1000", "1e30")}
    return {
        "sum_error": errors | {"1, bfloat16": error(scores.bfloat16())},
        "overflow": next(x for x, powers in written if (powers / powers.sum()).isnan().any()),
        "amplified": [
            {"scores": s.tolist(), "shares": (s / s.sum()).tolist(), "weights": s.softmax(-1).tolist()}
            for s in examples
        ],
    }


def output_numbers() -> dict[str, object]:
    """Measures that outputs are in the range of the values, and that one layer reads any length."""
    q, k, v = (torch.randn(1000, 1, 64, 16) for _ in range(3))
    out = hw.attention(q, k, v, scale=10.0)  # so large that some outputs are almost equal to one value
    low, high = v.amin(-2, keepdim=True), v.amax(-2, keepdim=True)
    layer = hw.nn.MultiHeadAttention(64, 4)
    lengths = {}
    for n in LENGTHS:
        x = torch.randn(1, n, 64)
        with hw.capture(layer, "weights") as seen:
            layer(x)
        weights = seen.weights(0)
        lengths[str(n)] = [count(layer), weights.numel(), weights.amax(-1).mean().item()]
    return {"beyond_values": torch.maximum(low - out, out - high).max().item(), "lengths": lengths}


def measure() -> Found:
    q, k, v = (one_head(INPUTS) @ one_head(w) for w in (W_Q, W_K, W_V))
    with torch.no_grad():
        found = step_numbers(q, k, v) | future_numbers() | softmax_numbers() | output_numbers()
    return Found(**found, **mask_numbers(q, k, v))


# ---------------------------------------------------------------- what was found


def ways(t: Text) -> dict[str, str]:
    return {
        "-inf": t("−∞, torch.softmax", "−∞，torch.softmax"),
        "-1e9": t("set to −1e9", "设为 −1e9"),
        "-1e4 added": t("−1e4 added", "加上 −1e4"),
        "headway": "headway",
    }


def page_data() -> dict[str, Any]:
    return {
        "title": ["Lesson 2: queries, keys and values of a sentence", "第 2 课：一句话的查询、键和值"],
        "words": WORDS,
        "kinds": KINDS,
        "word": 3,
        "inputs": INPUTS,
        "w_q": W_Q,
        "w_k": W_K,
        "w_v": W_V,
    }


def tell(found: Found, t: Text) -> str:
    words = [t(*word) for word in WORDS]
    steps = [
        [word, *(f"{x:.2f}" for x in weights), "→", *(f"{x:.2f}" for x in output)]
        for word, weights, output in zip(words, found.weights, found.output, strict=True)
    ]
    empty = [
        [ways(t)[name], *(["NaN"] * 5 if row is None else [f"{x:.2f}" for x in row]), found.nan_gradients[name]]
        for name, row in found.empty_weights.items()
    ]
    fits = [
        ["  ".join(f"{x:.3g}" for x in example[kind]) for kind in ("scores", "shares", "weights")]
        for example in found.amplified
    ]
    lengths = [[int(n), int(p), f"{int(w):,}", f"{largest:.3f}"] for n, (p, w, largest) in found.lengths.items()]
    hidden, seen = max(found.change_causal[:CHANGED]), max(found.change_open[:CHANGED])
    error, rough = max(list(found.sum_error.values())[:-1]), found.sum_error["1, bfloat16"]
    return "\n".join(
        [
            t(
                "Weights A′ and outputs B of five words; each attends to itself and to earlier words.",
                "五个词的权重 A′ 与输出 B；每个词只能看到自己和前面的词。",
            ),
            table(steps, ["", *words, "", *(t(*kind) for kind in KINDS)]),
            t(
                f"“it” gives {found.weights[3][0]:.0%} of its weight to “cat”. The formula in three lines of torch "
                f"differs by {found.formula_difference:g}.",
                f"“它”把 {found.weights[3][0]:.0%} 的权重给了“小猫”。三行 torch 写成的公式与此相差 "
                f"{found.formula_difference:g}。",
            ),
            "",
            t(
                "A sentence of three words, padded on the left to five: its first row has no allowed keys.",
                "三个词的句子，在左侧填充到五个位置：第一行什么也看不到。",
            ),
            table(empty, t("mask,1,2,3,4,5,NaN among 55 gradients", "掩码,1,2,3,4,5,55 个梯度中的 NaN").split(",")),
            t(
                f"In ordinary rows −1e9 and −∞ give weights that differ by {found.ordinary_difference:g}. With −1e4 "
                f"added a\nexcluded score wins if it is larger by {found.leaks['-1e4']:,.0f}.\n"
                f"In float16 −1e9 is {found.half['number']}, a row of nothing else gives {found.half['empty']}, and "
                f"masked_fill says\n{found.half['fill']}.",
                f"在普通的行里，−1e9 与 −∞ 的权重相差 {found.ordinary_difference:g}；若加上的是 −1e4，"
                f"被禁的分数领先 {found.leaks['-1e4']:,.0f} 时就会胜出。\n"
                f"在 float16 里，−1e9 变成 {found.half['number']}，整行都是它时得到 {found.half['empty']}，"
                f"masked_fill 则报错：\n{found.half['fill']}。",
            ),
            "",
            t(
                f"Other words from position {CHANGED + 1} on change earlier outputs by {hidden:g} under the mask,\n"
                f"by up to {seen:.2f} without it. Word by word with a cache differs from one pass by "
                f"{found.cache_difference:.1e},\nwithout any mask by {found.cache_open_difference:.1e}: later words do "
                "not exist yet."
                "",
                f"从第 {CHANGED + 1} 个词起换掉后文：有掩码时，前面的输出变化为 {hidden:g}；"
                f"没有掩码时最大为 {seen:.2f}。\n"
                f"带缓存逐词计算，与一次算完相差 {found.cache_difference:.1e}；逐词时不用掩码也只差 "
                f"{found.cache_open_difference:.1e}：\n还没写出的词，本来就看不到。",
            ),
            "",
            t(
                "Three scores, weights proportional to them, and their softmax:",
                "三个分数：按比例分配，与 softmax 对照：",
            ),
            table(fits, t("scores,in proportion,softmax", "分数,按比例,softmax").split(",")),
            t(
                f"Rows sum to 1 within {error:.1e} for scores of size 0.001 to 1e30, in bfloat16 within {rough:.1e}.\n"
                f"Computed literally, eˣ/Σeˣ is NaN from x = {found.overflow} on in float32.\n"
                f"No output is outside the range of its values by more than {found.beyond_values:.1e}.",
                f"分数的量级从 0.001 到 1e30，每行之和与 1 相差不超过 {error:.1e}；bfloat16 下不超过 {rough:.1e}。\n"
                f"照公式直接计算 eˣ/Σeˣ，float32 下从 x = {found.overflow} 起得到 NaN。\n"
                f"输出超出各个值的范围不多于 {found.beyond_values:.1e}。",
            ),
            "",
            t("One layer, any length:", "同一层，任意长度："),
            table(lengths, t("n,parameters,weights,largest (mean)", "n,参数,权重个数,最大权重（均值）").split(",")),
        ]
    )


def numbers(
    axes: Axes,
    rows: list[list[float | None]],
    down: Sequence[str],
    across: Sequence[str],
    *,
    form: str = "g",
    none: str = "−∞",
) -> None:
    """Draws a matrix with its numbers in the cells; cells without a number are grey and have a text."""
    top = max(x for row in rows for x in row if x is not None)

    def says(i: int, j: int) -> str:
        return none if rows[i][j] is None else f"{rows[i][j]:{form}}".replace("-", "−")

    filled = [[math.nan if x is None else x for x in row] for row in rows]
    matrix(axes, filled, down, across, top=2 * top, says=says)
    axes.set_facecolor(FAINT)
    axes.spines[:].set_visible(False)


def draw(found: Found, t: Text) -> dict[str, Figure]:
    return {"": draw_steps(found, t), "projections": draw_projections(found, t)}


def draw_projections(found: Found, t: Text) -> Figure:
    """Draws Q = I·Wq, K = I·Wk and V = I·Wv."""
    figure, axes = sheet(4.95)
    words, kinds = [t(*word) for word in WORDS], [t(*kind) for kind in (*KINDS, ("pronoun", "代词"))]
    look = {"cell": (0.36, 0.22), "form": "g"}
    inputs = schematic.numbers(
        axes, 0.75, 2.2, INPUTS, title=t("the words I", "输入 I"), down=words, across=kinds, cell=(0.56, 0.22), form="g"
    )
    projected = [
        ("Wq", W_Q, t("queries Q", "查询 Q"), found.queries),
        ("Wk", W_K, t("keys K", "键 K"), found.keys),
        ("Wv", W_V, t("values V", "值 V"), found.values),
    ]
    for number, (name, given, title, made) in enumerate(projected):
        y = 0.4 + 1.6 * number
        weight = schematic.numbers(axes, 4.2, y + 0.11, given, title=name, **look)
        result = schematic.numbers(axes, 7.2, y, made, title=title, down=words, **look)
        arrow(axes, inputs.right, weight.left)
        away = 0.3 if weight.left[1] > inputs.right[1] else -0.3  # beside the head of the arrow
        write(axes, weight.left[0] - 0.22, weight.left[1] + away, "×", size=15)
        write(axes, (weight.right[0] + result.x - 0.5) / 2, weight.right[1], "=", size=15)
    return figure


def draw_steps(found: Found, t: Text) -> Figure:
    figure = page(5.4)
    above, below = figure.subfigures(2, 1, height_ratios=[10, 11], hspace=0.06)
    words = [t(*word) for word in WORDS]
    steps = above.subplots(1, 5, gridspec_kw={"width_ratios": [5, 5, 5, 5, 3.5]})
    numbers(steps[0], found.products, words, words)
    numbers(steps[1], found.scaled, [], [])
    numbers(steps[2], found.masked, [], [])
    numbers(steps[3], found.weights, [], words, form=".2f")
    numbers(steps[4], found.output, [], [t(*kind) for kind in KINDS], form=".2f")
    titles = t(
        "1. products QKᵀ,2. scaled by 1/√4,3. masked,4. weights A′,5. output A′V",
        "1. 点积 QKᵀ,2. 缩放 1/√4,3. 掩码,4. 权重 A′,5. 输出 A′V",
    )
    for axes, title in zip(steps, titles.split(","), strict=True):
        axes.set_title(title, fontsize=9.5)
    steps[0].set_ylabel(t("query", "查询"))
    for axes in steps[:4]:
        axes.set_xlabel(t("key", "键"))
    steps[4].set_xlabel(t("part of the value", "值的分量"))

    empty, future = below.subplots(1, 2)
    rows = [row or [None] * 5 for row in found.empty_weights.values()]
    padded = [t("pad", "填充"), t("pad", "填充"), *words[2:]]
    numbers(empty, rows, list(ways(t).values()), padded, form=".2f", none="NaN")
    empty.set_title(t("Weights of a query that may attend to no key", "查询什么都看不到时，各键得到的权重"))
    empty.set(xlabel=t("key", "键"), ylabel=t("how the mask is written", "掩码的写法"))

    places = torch.arange(1, 9)
    future.bar(places - 0.2, found.change_open, 0.4, color=ORANGE, label=t("no mask", "无掩码"))
    future.bar(places + 0.2, found.change_causal, 0.4, color=BLUE, label=t("causal mask", "因果掩码"))
    future.axvline(CHANGED + 0.5, color=INK, linewidth=0.8, linestyle=":")
    future.set(
        xlabel=t("position in the sequence", "序列中的位置"),
        ylabel=t("change of the output (length)", "输出的变化（长度）"),
        title=t(f"If all words from position {CHANGED + 1} on change", f"从第 {CHANGED + 1} 个词起换掉后文"),
        xticks=places,
        ylim=(0, 2.9),
    )
    future.legend(loc="upper left")
    return figure


if __name__ == "__main__":
    run(__name__)
