"""Lesson 8: the RNN that attention is contrasted with.

    h_t = f(U x_t + W h_{t−1}),   y_t = V h_t

A recurrent network reads a sequence one word at a time and keeps what it has read in a state h of a fixed size. The
state contains the order: it differs after 我吃苹果 and 苹果吃我, which are the same to attention without positions. In
other respects there are advantages and disadvantages:

    distance    a word k positions back influences the present through k steps; in attention through one
    gradient    it is multiplied k times on the way; attention divides it among n words, once
    time        n steps, one after the other, of d² products; attention has n²·d products, all side by side
    memory      a state of d numbers; attention keeps a key and a value of every word

So attention reaches the far past at a cost of n²; recurrence continues without end and forgets. Both are measured here:
gradients at the initial values, recall after a short training, time and memory by length.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import mean
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import headway as hw
from lesson import (
    BLUE,
    DASHES,
    FAINT,
    GREEN,
    GREY,
    ORANGE,
    Text,
    count,
    descend,
    double,
    least_seconds,
    page,
    run,
    table,
)
from schematic import arrow, numbers, sheet, write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = {"rnn": ORANGE, "lstm": GREEN, "attention": BLUE}
LOOKS = {"rnn": ("s", "-"), "lstm": ("D", DASHES[1]), "attention": ("o", "-")}  # marker and dashes
PLACES = {  # of the names in the four panels
    "rnn": [(18, 1e-37), (6, 0.6), (2200, 6), (1500, 120)],
    "lstm": [(72, 1e-13), (17, 0.63), (72, 6), (1500, 700)],
    "attention": [(66, 1e1), (23, 1.03), (720, 60), (200, 3e5)],
}
WORDS = ["我", "吃", "苹果"]
WIDTH, HEADS = 64, 8
BACK = 128  # how far gradients are followed
SHARES = [16, 32, 64, 128, 256, 512]  # lengths for the gradient of attention by n
SYMBOLS, FILLERS = 8, 8
DISTANCES = [4, 8, 16, 32, 64]
SMALL, STEPS, BATCH, RATE, SOLVED, SEEDS = 32, 200, 32, 3e-3, 0.02, 2  # of the recall task
WIDE = 256
LENGTHS = [64, 128, 256, 512, 1024, 2048, 4096]


@dataclass(frozen=True)
class Found:
    """Order, gradients, recall, time and memory; the keys are rnn, lstm and attention."""

    rnn_error: float  # largest difference between the loop written out and torch.nn.RNN, float64
    rnn_order: float  # how far the last states of 我吃苹果 and 苹果吃我 differ, as a share of their length
    attention_order: float  # the same for the sum over words of the outputs of attention without positions
    gradients: dict[str, list[float]]  # size of ∂out_T/∂x_{T−k} for k = 0 … 127, at the initial values
    gradient_per_step: dict[str, float]  # its factor for each step back, fitted over k ≥ 8
    share_exponent: float  # attention: the exponent of n in the size of ∂out_n/∂x_1, fitted over SHARES
    distances: list[int]  # fillers between a word and the question for it
    recall: dict[str, list[float]]  # accuracy by these, mean over seeds; guessing gives 1/8
    recall_parameters: dict[str, int]
    lengths: list[int]
    seconds: dict[str, list[float]]  # processor time of one forward pass of one layer, the least of several
    time_exponent: dict[str, float]  # fitted over the four longest
    attention_slower_from: dict[str, int | None]  # by rnn and lstm: the first length from which on attention is slower
    side_by_side: float  # n steps of one sequence take so many times as long as one step of n sequences, n = 1024
    kept: dict[str, list[int]]  # numbers that one layer stores after n tokens, by length
    unrolled: dict[str, list[list[float]]]  # an RNN and attention 3 wide on WORDS: what the schematic shows


# ---------------------------------------------------------------- the recurrence, and what it knows of order


def recurrence(x: Tensor, U: Tensor, W: Tensor, V: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Returns all states and outputs for x [n, d]; b is torch's bias, which the formula above omits."""
    h, states = torch.zeros(len(W), dtype=x.dtype), []
    for x_t in x:
        h = torch.tanh(U @ x_t + W @ h + b)
        states.append(h)
    return torch.stack(states), torch.stack(states) @ V.T


def same_as_torch() -> float:
    rnn, head = nn.RNN(WIDTH, WIDTH).double(), nn.Linear(WIDTH, 10, bias=False).double()
    x = torch.randn(50, WIDTH, dtype=torch.float64)
    b = rnn.bias_ih_l0 + rnn.bias_hh_l0
    states, outputs = recurrence(x, rnn.weight_ih_l0, rnn.weight_hh_l0, head.weight, b)
    theirs, _ = rnn(x)
    return max((states - theirs).abs().max().item(), (outputs - head(theirs)).abs().max().item())


def layers(width: int, dtype: torch.dtype = torch.float64) -> dict[str, Callable[[Tensor], Tensor]]:
    """Returns one layer of each kind at its initial values, from [batch, n, width] to the same shape."""
    rnn = nn.RNN(width, width, batch_first=True, dtype=dtype)
    lstm = nn.LSTM(width, width, batch_first=True, dtype=dtype)
    attention = hw.nn.MultiHeadAttention(width, HEADS).to(dtype)
    return {"rnn": lambda x: rnn(x)[0], "lstm": lambda x: lstm(x)[0], "attention": attention}


def order() -> dict[str, float]:
    """Returns the difference of a sentence and its reverse, in the last state and in the sum of attention's outputs."""
    words = torch.randn(1, len(WORDS), WIDTH, dtype=torch.float64)
    read = {"rnn": lambda out: out[0, -1], "lstm": lambda out: out[0, -1], "attention": lambda out: out[0].sum(0)}
    found = {}
    for kind, layer in layers(WIDTH).items():
        there, back = read[kind](layer(words)), read[kind](layer(words.flip(1)))
        found[kind] = ((there - back).norm() / there.norm()).item()
    return found


# ---------------------------------------------------------------- gradients


def gradient_sizes(kind: str, n: int) -> Tensor:
    """Returns the size of ∂out_n/∂x_t for each word t, [n], over 16 sequences with a random direction each."""
    x = torch.randn(16, n, WIDTH, dtype=torch.float64, requires_grad=True)
    out = layers(WIDTH)[kind](x)[:, -1]
    (gradient,) = torch.autograd.grad((out * torch.randn_like(out)).sum(), x)
    return gradient.square().sum(-1).mean(0).sqrt().detach()


def slope(x: Tensor, y: Tensor) -> float:
    """Of the straight line through the points."""
    x, y = x - x.mean(), y - y.mean()
    return ((x * y).sum() / x.square().sum()).item()


# ---------------------------------------------------------------- recall


def questions(distance: int, many: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """A symbol, fillers of another alphabet, and the question which symbol it was: ids [many, distance + 2]."""
    symbol = torch.randint(SYMBOLS, (many, 1), generator=random)
    fillers = SYMBOLS + torch.randint(FILLERS, (many, distance), generator=random)
    return torch.cat([symbol, fillers, torch.full((many, 1), SYMBOLS + FILLERS)], dim=1), symbol[:, 0]


def reader(kind: str) -> nn.Module:
    """A language model of one layer; the forget gates of this LSTM begin open, other than torch's."""
    vocabulary = SYMBOLS + FILLERS + 1
    if kind != "attention":
        return hw.models.RecurrentLM(vocabulary, SMALL, SMALL, cell=kind)
    config = hw.models.TransformerConfig(vocabulary, embed_dim=SMALL, num_layers=1, num_heads=2)
    return hw.models.Decoder(config, hw.encoding("sinusoidal", embed_dim=SMALL))


def recall(kind: str, distance: int, seed: int) -> float:
    """The accuracy on new questions after training on this distance."""
    torch.manual_seed(seed)
    random = torch.Generator().manual_seed(seed)
    model = reader(kind)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    for _ in range(STEPS):
        ids, symbol = questions(distance, BATCH, random)
        loss = F.cross_entropy(model(ids)[:, -1, :SYMBOLS], symbol)
        descend(optimizer, loss, longest=1.0)
        if loss < SOLVED:
            break
    with torch.no_grad():
        ids, symbol = questions(distance, 1000, random)
        return (model(ids)[:, -1, :SYMBOLS].argmax(-1) == symbol).double().mean().item()


# ---------------------------------------------------------------- time and memory


@torch.inference_mode()
def timed() -> tuple[dict[str, list[float]], float]:
    """Seconds by kind and length; and n steps one by one against the same n steps side by side."""
    each = layers(WIDE, torch.float32)
    tokens = torch.randn(1, max(LENGTHS), WIDE)
    seconds = {
        kind: [least_seconds([partial(layer, tokens[:, :n])], 5)[0] for n in LENGTHS] for kind, layer in each.items()
    }
    sequence = tokens[:, :1024]
    in_turn, at_once = least_seconds([partial(each["rnn"], x) for x in (sequence, sequence.transpose(0, 1))], 5)
    return seconds, in_turn / at_once


def slower_from(attention: list[float], other: list[float]) -> int | None:
    """Returns the first length from which on attention takes longer."""
    faster = [n for n, ours, theirs in zip(LENGTHS, attention, other, strict=True) if ours <= theirs]
    return next((n for n in LENGTHS if n > max(faster, default=0)), None)


@torch.inference_mode()
def kept() -> dict[str, list[int]]:
    """Returns how many numbers a layer stores of n tokens to continue."""
    rnn, lstm, attention = nn.RNN(WIDE, WIDE), nn.LSTM(WIDE, WIDE), hw.nn.MultiHeadAttention(WIDE, HEADS)
    found: dict[str, list[int]] = {kind: [] for kind in KINDS}
    for n in LENGTHS:
        tokens, cache = torch.randn(n, WIDE), hw.nn.KeyValueCache()
        attention(tokens[None], mask=hw.masks.Causal(), cache=cache)
        found["rnn"].append(rnn(tokens)[1].numel())
        found["lstm"].append(sum(part.numel() for part in lstm(tokens)[1]))
        found["attention"].append(cache.keys.numel() + cache.values.numel())
    return found


@dataclass(frozen=True)
class Three:
    """An RNN and attention, 3 wide and without training, and the vectors of the three words."""

    rnn: nn.RNN
    head: nn.Linear
    attention: hw.nn.MultiHeadAttention
    x: Tensor

    @classmethod
    def drawn(cls) -> Three:
        return cls(
            nn.RNN(3, 3), nn.Linear(3, 3, bias=False), hw.nn.MultiHeadAttention(3, 1), torch.randn(len(WORDS), 3)
        )

    def states(self) -> tuple[Tensor, Tensor]:
        """Returns all states and outputs of the RNN."""
        rnn = self.rnn
        bias = rnn.bias_ih_l0 + rnn.bias_hh_l0
        return recurrence(self.x, rnn.weight_ih_l0, rnn.weight_hh_l0, self.head.weight, bias)


@torch.no_grad()
def unrolled() -> dict[str, list[list[float]]]:
    """Runs an RNN and attention, 3 wide and without training, on the three words."""
    three = Three.drawn()
    states, outputs = three.states()
    with hw.capture(three.attention, keep="weights") as seen:
        attended = three.attention(three.x[None])[0]
    rows = {"x": three.x, "h": states, "y": outputs, "weights": seen.weights(0)[0, 0], "attended": attended}
    return {name: tensor.tolist() for name, tensor in rows.items()}


# ---------------------------------------------------------------- the lesson


def page_data() -> dict[str, Any]:
    torch.manual_seed(0)
    order()  # as `measure` does before: the gradients below are the lesson's
    gradients = {kind: gradient_sizes(kind, BACK).flip(0).tolist() for kind in KINDS}
    three = Three.drawn()
    rnn, attention = three.rnn, three.attention
    maps = {"q": attention.q_proj, "k": attention.k_proj, "v": attention.v_proj, "out": attention.out_proj}
    return {
        "title": ["Lesson 8: recurrence and attention", "第 8 课：循环网络与注意力"],
        "words": WORDS,
        "x": three.x.tolist(),
        "rnn": {
            "U": rnn.weight_ih_l0.tolist(),
            "W": rnn.weight_hh_l0.tolist(),
            "b": (rnn.bias_ih_l0 + rnn.bias_hh_l0).tolist(),
        },
        "attention": {
            name: {"weight": each.weight.flatten().tolist(), "bias": each.bias.tolist()} for name, each in maps.items()
        },
        "gradients": gradients,
    }


def measure() -> Found:
    apart = order()
    gradients = {kind: gradient_sizes(kind, BACK).flip(0) for kind in KINDS}
    steps_back = torch.arange(8, BACK).double()
    shares = torch.stack([gradient_sizes("attention", n)[0] for n in SHARES])
    recalled = {
        kind: [mean(recall(kind, distance, seed) for seed in range(SEEDS)) for distance in DISTANCES] for kind in KINDS
    }
    seconds, side_by_side = timed()
    longest = torch.tensor(LENGTHS[-4:]).log()
    return Found(
        rnn_error=same_as_torch(),
        rnn_order=apart["rnn"],
        attention_order=apart["attention"],
        gradients={kind: sizes.tolist() for kind, sizes in gradients.items()},
        gradient_per_step={kind: math.exp(slope(steps_back, sizes[8:].log())) for kind, sizes in gradients.items()},
        share_exponent=slope(torch.tensor(SHARES).double().log(), shares.log()),
        distances=DISTANCES,
        recall=recalled,
        recall_parameters={kind: count(reader(kind)) for kind in KINDS},
        lengths=LENGTHS,
        seconds=seconds,
        time_exponent={kind: slope(longest, torch.tensor(taken[-4:]).log()) for kind, taken in seconds.items()},
        attention_slower_from={kind: slower_from(seconds["attention"], seconds[kind]) for kind in ("rnn", "lstm")},
        side_by_side=side_by_side,
        kept=kept(),
        unrolled=unrolled(),
    )


def names(t: Text) -> dict[str, str]:
    return {"rnn": "RNN", "lstm": "LSTM", "attention": t("attention", "注意力")}


def tell(found: Found, t: Text) -> str:
    back = [1, 8, 64, 127]
    called = names(t)
    gradients = [
        [name, *(f"{found.gradients[kind][k]:.0e}" for k in back), f"{found.gradient_per_step[kind]:.3f}"]
        for kind, name in called.items()
    ]
    recalled = [
        [f"{name} ({found.recall_parameters[kind]:,})", *(f"{right:.0%}" for right in found.recall[kind])]
        for kind, name in called.items()
    ]
    times = [
        [name, *(f"{1000 * taken:.1f}" for taken in found.seconds[kind]), f"n^{found.time_exponent[kind]:.2f}"]
        for kind, name in called.items()
    ]
    keeps = ", ".join(f"{name} {found.kept[kind][-1]:,}" for kind, name in called.items())
    slower = {kind: n or t("none of these", "这些长度之后") for kind, n in found.attention_slower_from.items()}
    return "\n".join(
        [
            t(
                f"The loop and torch.nn.RNN differ by at most {found.rnn_error:.0e}.\n"
                f"我吃苹果 and 苹果吃我: the RNN's last states differ by {found.rnn_order:.0%} of their length; the "
                f"sums of attention's outputs\nare the same ({found.attention_order:.0e}).\n\n"
                "Gradient of the last output for the word so many steps back, before training:",
                f"循环写法与 torch.nn.RNN 最多相差 {found.rnn_error:.0e}。\n"
                f"我吃苹果与苹果吃我：RNN 最后的状态相差 {found.rnn_order:.0%}，"
                f"注意力输出之和没有差别（{found.attention_order:.0e}）。\n\n"
                "训练之前，最后一个输出对前面第 k 个词的梯度：",
            ),
            table(gradients, ["", *(f"k = {k}" for k in back), t("each step", "每步的倍数")]),
            t(
                f"Attention divides its gradient among all words: it goes with n^{found.share_exponent:.2f}, and not "
                "with "
                f"k.\n\nWhich symbol came before so many fillers? After at most {STEPS} steps of training; guessing "
                "gives"
                f" {1 / SYMBOLS:.1%};\nin brackets how many numbers are learned:",
                f"注意力把梯度分给所有词：它按 n^{found.share_exponent:.2f} 变小，与 k 无关。\n\n"
                f"隔了这么多个填充词，还记得最初的符号吗？最多训练 {STEPS} 步，随机猜测是 {1 / SYMBOLS:.1%}；\n"
                "括号里是可学习参数的个数：",
            ),
            table(recalled, ["", *(str(k) for k in found.distances)]),
            t(
                f"\nMilliseconds for one layer {WIDE} wide, one sequence, one core of this machine:",
                f"\n一层、维度 {WIDE}、一个序列、本机单核，毫秒：",
            ),
            table(times, ["", *(f"n = {n}" for n in found.lengths), t("last four", "后四个")]),
            t(
                f"Attention is slower than the RNN from n = {slower['rnn']} on, and than the LSTM from "
                f"{slower['lstm']}.\n1024 steps of the RNN one by one take {found.side_by_side:.1f} times as long as "
                f"1024 side by side.\nNumbers that a layer stores to continue after {found.lengths[-1]} tokens: "
                f"{keeps}.",
                f"从 n = {slower['rnn']} 起注意力比 RNN 慢，从 {slower['lstm']} 起比 LSTM 慢。\n"
                f"RNN 的 1024 步逐步计算，用时是并排计算 1024 步的 {found.side_by_side:.1f} 倍。\n"
                f"读完 {found.lengths[-1]} 个词元后，一层要留着多少个数才能接着读：{keeps}。",
            ),
        ]
    )


def draw(found: Found, t: Text) -> dict[str, Figure]:
    return {"": draw_measured(found, t), "unrolled": draw_unrolled(found, t)}


def draw_unrolled(found: Found, t: Text) -> Figure:
    """Draws the RNN's steps, and attention, whose arrows are as thick as their weights."""
    figure, axes = sheet(3.95)
    rows, look = found.unrolled, {"cell": (0.37, 0.24), "form": ".1f"}
    y_at, h_at, x_at = 0.6, 1.9, 3.3
    words = [t(en, zh) for en, zh in zip(("I", "eat", "apples"), WORDS, strict=True)]

    def vectors(left: float, y: float, which: str) -> list[Any]:
        return [numbers(axes, left + 1.5 * i, y, [row], **look) for i, row in enumerate(rows[which])]

    write(axes, 0.2, 0.2, t("RNN: one word after another", "RNN：一个词接一个词"), size=10, align="left")
    y, h, x = (vectors(0.3, at, which) for at, which in ((y_at, "y"), (h_at, "h"), (x_at, "x")))
    for i, word in enumerate(words):
        write(axes, x[i].bottom[0], 3.75, word, size=10)
        for name, place, before, matrix in (("h", h[i], x[i], "U"), ("y", y[i], h[i], "V")):
            arrow(axes, before.top, place.bottom)
            write(axes, place.bottom[0] + 0.16, (before.y + place.bottom[1]) / 2, matrix, size=10)
            write(axes, place.x + 0.1, place.y - 0.13, f"{name}{i + 1}")
        write(axes, x[i].x + 0.1, x[i].bottom[1] + 0.13, f"x{i + 1}")
    for before, after in pairwise(h):
        arrow(axes, before.right, after.left)
        write(axes, (before.right[0] + after.x) / 2, h_at - 0.05, "W", size=10)

    write(axes, 4.85, 0.2, t("attention: all words at once", "注意力：所有的词一起"), size=10, align="left")
    out, x = vectors(4.95, y_at, "attended"), vectors(4.95, x_at, "x")
    for j, word in enumerate(words):
        write(axes, x[j].bottom[0], 3.75, word, size=10)
        for i, weight in enumerate(row[j] for row in rows["weights"]):
            last = i == len(WORDS) - 1
            arrow(axes, x[j].top, out[i].bottom, colour=BLUE if last else GREY, width=0.6 + 4 * weight)
            if last:
                (left, low), (right, high) = x[j].top, out[i].bottom
                write(axes, left + 0.22 * (right - left) + 0.25, low + 0.22 * (high - low), f"{weight:.2f}")
    return figure


def draw_measured(found: Found, t: Text) -> Figure:
    figure = page(6.2)
    (gradient, remembered), (timing, memory) = figure.subplots(2, 2)
    for kind, name in names(t).items():
        (marker, dashes), colour = LOOKS[kind], KINDS[kind]
        points = {"marker": marker, "linestyle": dashes, "markersize": 5, "color": colour}
        gradient.semilogy(range(BACK), found.gradients[kind], **points, markevery=16)
        remembered.plot(found.distances, found.recall[kind], **points)
        timing.loglog(found.lengths, [1000 * taken for taken in found.seconds[kind]], **points)
        memory.loglog(found.lengths, found.kept[kind], **points)
        factor = t(
            f"{name}: ×{found.gradient_per_step[kind]:.2f} each step",
            f"{name}：每步 ×{found.gradient_per_step[kind]:.2f}",
        )
        gradient.text(*PLACES[kind][0], factor, color=colour)
        for panel, place in zip((remembered, timing, memory), PLACES[kind][1:], strict=True):
            panel.text(*place, name, color=colour)
    gradient.set(
        title=t("Gradient before training", "训练前的梯度"),
        xlabel=t("tokens back", "往前的词元数"),
        ylabel=t("|∂output/∂input|", "|∂输出/∂输入|"),
        ylim=(None, 1e6),
    )
    remembered.axhline(1 / SYMBOLS, color=FAINT, linewidth=1.2, zorder=0)
    remembered.text(4, 1 / SYMBOLS + 0.02, t("guessing", "随机猜测"), va="bottom")
    double(remembered, DISTANCES, t("tokens in between", "中间隔着的词元数"))
    remembered.set(
        title=t(f"Recall after at most {STEPS} steps of training", f"最多训练 {STEPS} 步之后的记忆"),
        ylabel=t("share of right answers", "正确率"),
        ylim=(0, 1.1),
    )
    for panel in (timing, memory):
        double(panel, LENGTHS, t("length, tokens", "长度（词元）"))
    timing.set(
        title=t("Time of one forward pass, one core", "一次前向计算的时间（单核）"), ylabel=t("milliseconds", "毫秒")
    )
    memory.set(
        title=t("What a layer keeps for the next token", "接着读下去要留着的数"),
        ylabel=t("numbers kept", "留着的数（个）"),
        ylim=(80, None),
    )
    return figure


if __name__ == "__main__":
    run(__name__)
