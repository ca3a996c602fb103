"""Lesson 3: why the scores are divided by √d_k.

A dot product of two vectors of d independent numbers, each of mean 0 and variance 1, is a sum of d products: its mean
is 0, its variance d. Wider keys alone make larger scores, and a sharper softmax, which depends on their differences:

    d = 4       scores of size 2      the weights are spread over the keys
    d = 1024    scores of size 32     nearly all weight is on one key, which matches a little better by chance

Divided by √d, the scores have variance 1 at any width. Their gradient passes through the Jacobian of the softmax,
J = diag(a) − a·aᵀ of the weights a, which tends to 0 as one weight tends to 1. This is the usual reason for the scale:
without it gradients vanish. The lesson measures the gradient of the query, on which there is a second, opposite effect:
∂score/∂q is k·scale, so without the scale all gradients are √d times larger before J makes most of them small.

The root itself is not necessary, only the size of the scores. T5 has no scale and starts from a smaller Wq instead.
The lesson also checks two common statements about the dot product: that it is 0 for unrelated and 1 for equal vectors,
and that the largest one belongs to the closest direction.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import headway as hw
from lesson import BLUE, DASHES, GREEN, GREY, ORANGE, Text, descend, double, panels, run, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTHS = [4, 16, 64, 256, 1024]
KINDS = {"scaled": BLUE, "unscaled": ORANGE}
KEYS, DRAWS, AT_ONCE = 64, 512, 64
SILENT = 0.01  # a query is silent if its gradient is below this share of the median with the scale

# A layer that must look up by content: 16 of 64 symbols, each with one of 8 labels; which label has the first one?
WIDTH, SYMBOLS, PAIRS, LABELS = 256, 64, 16, 8
STEPS, LAST, BATCH, SEEDS = 120, 40, 16, 3
ROOT, RATE = math.sqrt(WIDTH), 1e-3
ARMS = {  # the scale, the factor of the initial Wq, Adam's learning rate for Wq and for all the rest
    "scaled": (1 / ROOT, 1.0, RATE, RATE),
    "unscaled": (1.0, 1.0, RATE, RATE),
    "unscaled, slower": (1.0, 1.0, RATE / 10, RATE / 10),
    "folded": (1.0, 1 / ROOT, RATE, RATE),
    "folded, Wq slower": (1.0, 1 / ROOT, RATE / ROOT, RATE),
}


@dataclass(frozen=True)
class Found:
    """Lists go by WIDTHS; "scaled" is with 1/√d, "unscaled" without. Medians and means are over DRAWS queries."""

    widths: list[int]
    # the dot product itself, of vectors with entries from N(0, 1) and of unit vectors
    unrelated_mean: list[float]  # of two independent vectors: 0
    unrelated_std: list[float]  # √d
    itself: list[float]  # of a vector with itself: d
    unit_unrelated_std: list[float]  # 1/√d
    unit_itself: list[float]  # 1
    not_closest: list[float]  # share of queries whose largest product is not with the key at the smallest angle
    unit_not_closest: list[float]  # the same with keys of length 1

    # softmax over 64 keys
    variance: dict[str, list[float]]  # of the scores; "folded": no scale, and Wq/√d as T5 starts
    largest: dict[str, list[float]]  # median of the largest weight
    entropy: dict[str, list[float]]  # median, in nats; ln 64 = 4.16 is even
    jacobian: dict[str, list[float]]  # median of the spectral norm of J, at most 1/2
    jacobian_mean: dict[str, list[float]]

    # |∂output/∂q| through hw.attention, for values from N(0, 1)
    gradient: dict[str, list[float]]  # median
    gradient_mean: dict[str, list[float]]
    gradient_low: dict[str, list[float]]  # the lowest tenth lies below
    gradient_high: dict[str, list[float]]  # the highest tenth lies above
    silent: dict[str, list[float]]  # share of queries with a gradient below SILENT of the scaled median
    folded_difference: float  # of outputs: no scale and Wq/√d, against the scale; d = 256

    # the derivative of one of two weights a by its own score
    weights: list[float]
    derivatives: list[float]  # ∂a/∂x = a(1 − a)
    log_derivatives: list[float]  # ∂(ln a)/∂x = 1 − a, which a cross-entropy on a itself has

    # training, by ARMS: means over SEEDS
    losses: dict[str, list[float]]  # of ten steps each, every batch new
    final_loss: dict[str, float]  # of the last LAST steps
    final_accuracy: dict[str, float]
    first_gradient: dict[str, float]  # norm of the gradient of Wq at the first step


def product_numbers(d: int) -> dict[str, float]:
    """Measures products of random vectors, and whether the largest is the closest in direction."""
    q, k = torch.randn(DRAWS, d), torch.randn(DRAWS, KEYS, d)
    products = (k @ q[:, :, None])[..., 0]
    unit_q, unit_k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    cosines = (unit_k @ unit_q[:, :, None])[..., 0]
    with_q = (unit_k @ q[:, :, None])[..., 0]
    return {
        "unrelated_mean": products.mean().item(),
        "unrelated_std": products.std().item(),
        "itself": k.square().sum(-1).mean().item(),
        "unit_unrelated_std": cosines.std().item(),
        "unit_itself": unit_k.square().sum(-1).mean().item(),
        "not_closest": (products.argmax(-1) != cosines.argmax(-1)).float().mean().item(),
        "unit_not_closest": (with_q.argmax(-1) != cosines.argmax(-1)).float().mean().item(),
    }


def softmax_numbers(d: int) -> dict[str, dict[str, Tensor]]:
    """Measures scores, largest weight, entropy, norm of J, gradient and silent queries for each of KINDS."""
    found: dict[str, dict[str, list[Tensor]]] = {kind: {} for kind in KINDS}
    for _ in range(DRAWS // AT_ONCE):
        q = torch.randn(AT_ONCE, 1, 1, d, requires_grad=True)
        k, v = torch.randn(AT_ONCE, 1, KEYS, d), torch.randn(AT_ONCE, 1, KEYS, 1)
        for kind, scale in (("scaled", d**-0.5), ("unscaled", 1.0)):
            (gradient,) = torch.autograd.grad(hw.attention(q, k, v, scale=scale).sum(), q)
            scores = scale * (q.detach() @ k.mT)[:, 0, 0]
            a = scores.double().softmax(-1)
            jacobian = torch.diag_embed(a) - a[:, :, None] * a[:, None, :]
            parts = {
                "scores": scores,
                "largest": a.amax(-1),
                "entropy": torch.special.entr(a).sum(-1),
                "jacobian": torch.linalg.eigvalsh(jacobian)[:, -1],  # symmetric, no eigenvalue below 0
                "gradient": gradient.flatten(1).norm(dim=-1),
            }
            for name, part in parts.items():
                found[kind].setdefault(name, []).append(part)
    numbers = {kind: {name: torch.cat(parts) for name, parts in each.items()} for kind, each in found.items()}
    for each in numbers.values():
        each["silent"] = each["gradient"] < SILENT * numbers["scaled"]["gradient"].median()
    return numbers


def folded(d: int) -> tuple[float, float]:
    """Measures scores without a scale for Wq/√d: their variance, and the difference of the outputs."""
    many = 4096 // d
    x, y = torch.randn(many, 1, KEYS, d), torch.randn(many, 1, KEYS, d)
    w_q, w_k = (torch.randn(many, 1, d, d) / math.sqrt(d) for _ in range(2))
    q, k, folded_q = x @ w_q, y @ w_k, x @ (w_q / math.sqrt(d))
    difference = hw.attention(folded_q, k, y, scale=1.0) - hw.attention(q, k, y)
    return (folded_q @ k.mT).var().item(), difference.abs().max().item()


def derivatives(weights: list[float]) -> dict[str, list[float]]:
    """Computes ∂a/∂x and ∂(ln a)/∂x for one of two weights a and its score x."""
    found = {"derivatives": [], "log_derivatives": []}
    for a in weights:
        x = torch.tensor(math.log(a / (1 - a)), dtype=torch.float64, requires_grad=True)
        log_a = torch.stack([x, torch.zeros_like(x)]).log_softmax(0)[0]
        found["derivatives"].append(torch.autograd.grad(log_a.exp(), x, retain_graph=True)[0].item())
        found["log_derivatives"].append(torch.autograd.grad(log_a, x)[0].item())
    return found


def train(arm: str, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Trains, and returns loss and accuracy of each step and the norm of the first gradient of Wq."""
    scale, factor, q_rate, rate = ARMS[arm]
    torch.manual_seed(seed)  # the same symbols, initial weights and batches for every arm
    symbols, labels = torch.randn(SYMBOLS, WIDTH), torch.eye(LABELS)
    layer = hw.nn.MultiHeadAttention(WIDTH, 1, value_dim=LABELS, scale=scale, bias=False)
    head = nn.Linear(WIDTH, LABELS)
    nn.init.normal_(layer.q_proj.weight, std=factor * WIDTH**-0.5)
    nn.init.normal_(layer.k_proj.weight, std=WIDTH**-0.5)
    w_q, *others = [*layer.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam([{"params": [w_q], "lr": q_rate}, {"params": others}], lr=rate)
    losses, hits = [], []
    for _ in range(STEPS):
        shown = symbols[torch.rand(BATCH, SYMBOLS).argsort(-1)[:, :PAIRS]]
        label = torch.randint(LABELS, (BATCH, PAIRS))
        asked, answer = shown[:, :1], label[:, 0]  # attention without positions cannot see which is the first
        logits = head(layer(asked, shown, labels[label]))[:, 0]
        loss = F.cross_entropy(logits, answer)
        descend(optimizer, loss)
        if not losses:
            first = w_q.grad.norm()
        losses.append(loss.detach())
        hits.append((logits.argmax(-1) == answer).float().mean())
    return torch.stack(losses), torch.stack(hits), first


def measure() -> Found:
    products = [product_numbers(d) for d in WIDTHS]
    by_width = [softmax_numbers(d) for d in WIDTHS]

    def each(number: Callable[[dict[str, Tensor]], Tensor]) -> dict[str, list[float]]:
        return {kind: [number(found[kind]).item() for found in by_width] for kind in KINDS}

    runs = {arm: [train(arm, seed) for seed in range(SEEDS)] for arm in ARMS}
    losses, hits, first = (
        {arm: torch.stack([seed[part] for seed in seeds]).mean(0) for arm, seeds in runs.items()} for part in range(3)
    )
    weights = [0.5, 0.9, 0.99, 0.999, 0.0001]
    return Found(
        widths=WIDTHS,
        **{name: [found[name] for found in products] for name in products[0]},
        variance=each(lambda x: x["scores"].var()) | {"folded": [folded(d)[0] for d in WIDTHS]},
        largest=each(lambda x: x["largest"].median()),
        entropy=each(lambda x: x["entropy"].median()),
        jacobian=each(lambda x: x["jacobian"].median()),
        jacobian_mean=each(lambda x: x["jacobian"].mean()),
        gradient=each(lambda x: x["gradient"].median()),
        gradient_mean=each(lambda x: x["gradient"].mean()),
        gradient_low=each(lambda x: x["gradient"].quantile(0.1)),
        gradient_high=each(lambda x: x["gradient"].quantile(0.9)),
        silent=each(lambda x: x["silent"].float().mean()),
        folded_difference=folded(256)[1],
        weights=weights,
        **derivatives(weights),
        losses={arm: x.view(-1, 10).mean(-1).tolist() for arm, x in losses.items()},
        final_loss={arm: x[-LAST:].mean().item() for arm, x in losses.items()},
        final_accuracy={arm: x[-LAST:].mean().item() for arm, x in hits.items()},
        first_gradient={arm: x.item() for arm, x in first.items()},
    )


def page_data() -> dict[str, Any]:
    """The products of one query with all keys at each width: the first d numbers of wide vectors count."""
    torch.manual_seed(0)
    widths = [2**power for power in range(11)]
    by_dimension = torch.randn(max(widths), dtype=torch.float64) * torch.randn(KEYS, max(widths), dtype=torch.float64)
    return {
        "title": ["Lesson 3: why the scores are divided by √d", "第 3 课：分数为什么要除以 √d"],
        "widths": widths,
        "width": 64,
        "products": [by_dimension[:, :d].sum(-1).tolist() for d in widths],
        "draws": DRAWS,
    }


# ---------------------------------------------------------------- what was found


def arms(t: Text) -> dict[str, str]:
    return {
        "scaled": t("scale 1/√d", "缩放 1/√d"),
        "unscaled": t("no scale", "不缩放"),
        "unscaled, slower": t("no scale, a tenth of the rate", "不缩放，学习率降为十分之一"),
        "folded": t("no scale, Wq/√d", "不缩放，Wq/√d"),
        "folded, Wq slower": t("no scale, Wq/√d and its rate/√d", "不缩放，Wq 及其学习率都除以 √d"),
    }


def tell(found: Found, t: Text) -> str:
    means = (found.widths, found.unrelated_mean, found.unrelated_std, found.itself, found.unit_unrelated_std)
    shares = [f"{share:.0%}" for share in found.not_closest]
    columns = (found.variance, found.largest, found.entropy, found.jacobian, found.gradient, found.gradient_mean)
    by_width = [
        [d, arms(t)[kind], *(column[kind][i] for column in columns), f"{found.silent[kind][i]:.0%}"]
        for i, d in enumerate(found.widths)
        for kind in KINDS
    ]
    training = [
        [said, found.first_gradient[arm], found.final_loss[arm], f"{found.final_accuracy[arm]:.0%}"]
        for arm, said in arms(t).items()
    ]
    return "\n".join(
        [
            t(
                "Dot products of independent vectors and of a vector with itself, and the share in which the largest "
                f"of {KEYS} is\nnot with the key that is closest in direction:"
                "",
                f"独立向量的点积、向量与自身的点积；{KEYS} 个键中点积最大者有多少次并非方向最近者：",
            ),
            table(
                [*zip(*means, shares, strict=True)],
                t(
                    "d,mean,std,itself,std of unit vectors,not closest",
                    "d,均值,标准差,与自身,单位向量的标准差,并非最近",
                ).split(","),
                digits=3,
            ),
            "",
            t(
                f"Softmax over {KEYS} keys, and the gradient of the query; medians:",
                f"对 {KEYS} 个键做 softmax，以及传到查询的梯度（中位数）：",
            ),
            table(
                by_width,
                t(
                    "d,,variance,largest weight,entropy,‖J‖,gradient,its mean,silent",
                    "d,,方差,最大权重,熵,‖J‖,梯度,梯度均值,近乎无梯度",
                ).split(","),
                digits=3,
            ),
            t(
                f"Silent: less than {SILENT:.0%} of the median with the scale. Without the scale the median first "
                "grows, then vanishes;\nthe mean does not, since a few queries have very large gradients.",
                f"近乎无梯度：不到缩放时中位数的 {SILENT:.0%}。不缩放时，梯度的中位数先升后降，直至消失；\n"
                "均值却不消失，因为少数查询的梯度非常大。",
            ),
            "",
            t("The derivative of a weight a by its own score, and that of ln a:", "权重 a 与 ln a 对自身分数的导数："),
            table(
                [*zip(found.weights, found.derivatives, found.log_derivatives, strict=True)],
                ["a", "∂a/∂x", "∂ln a/∂x"],
                digits=3,
            ),
            "",
            t(
                f"Learning to look up by content, d = {WIDTH}: the first gradient of Wq; loss and accuracy of the last "
                f"{LAST} of {STEPS} steps:",
                f"学习按内容查找，d = {WIDTH}：第一步 Wq 的梯度；{STEPS} 步中最后 {LAST} 步的损失与准确率：",
            ),
            table(training, t(",gradient,loss,accuracy", ",梯度,损失,准确率").split(","), digits=3),
        ]
    )


LOOKS: dict[str, dict[str, Any]] = {  # of the lines, by ARMS
    "scaled": {"color": BLUE, "marker": "o", "linewidth": 3.4, "markevery": 2},
    "unscaled": {"color": ORANGE, "marker": "s", "markevery": 2},
    "unscaled, slower": {"color": ORANGE, "linestyle": DASHES[2], "marker": "s", "markevery": 2},
    "folded": {"color": GREEN, "marker": "D", "markevery": 2},
    "folded, Wq slower": {"color": GREEN, "linestyle": DASHES[1], "marker": "^", "markevery": (1, 2)},
}


def draw(found: Found, t: Text) -> Figure:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    figure, (largest, gradient, training) = panels(3, height=4.3)
    d = found.widths
    for kind in KINDS:
        look = LOOKS[kind] | {"markersize": 5, "linewidth": 1.8, "markevery": 1}
        colour = look["color"]
        largest.plot(d, found.largest[kind], **look)
        gradient.plot(d, found.gradient[kind], **look)
        gradient.plot(d, found.gradient_mean[kind], linestyle=DASHES[1], color=colour, linewidth=1.2)
        gradient.fill_between(d, found.gradient_low[kind], found.gradient_high[kind], color=colour, alpha=0.18, lw=0)
    for axes in (largest, gradient):
        double(axes, d, t("width d of queries and keys", "查询与键的维数 d"))
    largest.set(
        ylim=(0, 1.05),
        ylabel=t("largest weight, median", "最大权重（中位数）"),
        title=t(f"Softmax over {KEYS} keys", f"对 {KEYS} 个键做 softmax"),
    )
    gradient.set(
        yscale="log",
        ylim=(1e-4, 20),
        ylabel=t("|∂output/∂query|", "|∂输出/∂查询|"),
        title=t("Gradient of a query", "查询的梯度"),
    )
    kinds = [
        Line2D([], [], color=GREY, label=t("median", "中位数")),
        Line2D([], [], color=GREY, linestyle=DASHES[1], linewidth=1.2, label=t("mean", "均值")),
        Patch(color=GREY, alpha=0.25, linewidth=0, label=t("middle 80 %", "中间 80%")),
    ]
    gradient.legend(handles=kinds, loc="lower left")

    lines = {arm: training.plot(range(5, STEPS, 10), found.losses[arm], **LOOKS[arm])[0] for arm in ARMS}
    training.set(
        ylim=(0, 2.5),
        xlabel=t("training step", "训练步"),
        ylabel=t("cross-entropy, nats", "交叉熵（奈特）"),
        title=t(f"Learning to look up, d = {WIDTH}", f"学习查表，d = {WIDTH}"),
    )
    figure.legend([*lines.values()], [arms(t)[arm] for arm in lines], loc="outside lower center", ncols=3)
    return figure


if __name__ == "__main__":
    run(__name__)
