"""Lesson 12: how far a layer sees, how many layers, how many dimensions.

Two tasks, whose difficulty is a number and whose right answers are known:

    find    which symbol stands Δ tokens before the last one? Fillers stand everywhere else
    chase   token i names its successor f(i), on one circle of all tokens; what is f(f(… f(i))), after k hops?

A layer with a window of w tokens sees keys at distances up to w, and a stack of L such layers up to L·w. One layer
without a window can follow one link, and each further layer can join two paths that the layer below has found: after L
layers 2^L hops. Every model is an encoder or decoder of headway, trained with three seeds. What "chase" learns takes
minutes: `--train` measures it and stores it in measured/, and the lesson reads it.

Protocol: sizes, steps and learning rates were chosen on seed 100 with dimension 32, before seeds 0, 1 and 2 were run;
the steps of "chase" were then cut from 1,500 to 800, to save time, when five runs of one and two layers were known. Its
learning rate goes with dim^−½.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import headway as hw
from lesson import (
    BLUE,
    DASHES,
    GREEN,
    ORANGE,
    PINK,
    Text,
    count,
    descend,
    double,
    least_seconds,
    matrix,
    measured,
    page,
    run,
    table,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEEDS = [0, 1, 2]
BATCH, HEADS, DIM = 32, 2, 32

SYMBOLS, FILLERS = 8, 8
DISTANCES = [2, 4, 8, 16, 32]
FIND_STEPS, FIND_RATE, ASKED = 200, 3e-3, 1000
WINDOW = 8
SPANS: dict[str, tuple[int | None, int, int]] = {  # window, layers, heads
    "4": (4, 1, HEADS),
    "8": (WINDOW, 1, HEADS),
    "16": (16, 1, HEADS),
    "all": (None, 1, HEADS),
    "8, eight heads": (WINDOW, 1, 8),
    "8, two layers": (WINDOW, 2, HEADS),
    "8, four layers": (WINDOW, 4, HEADS),
}

CIRCLE, HOPS = 12, 6
CHASE_STEPS, CHASE_RATE, CHASED = 800, 5e-3, 500
DEPTHS = [1, 2, 3, 4, 5, 6]
DIMS = [8, 16, 32, 64, 128]
DEPTH = 3  # of the models by dimension

LONG, WIDE = 4096, 256  # tokens and dimension, for time and memory by window
WINDOWS = [64, 256, 1024, None]
LAYER_DIMS, LAYER_TOKENS = [64, 128, 256, 512, 1024], 512


@dataclass(frozen=True)
class Found:
    """Accuracies have one row for each seed; times are processor time of one core, the least of several."""

    distances: list[int]
    find: dict[str, list[list[float]]]  # by window, layers and heads: accuracy at each distance
    reach: dict[str, int]  # the largest distance from which any gradient comes, by the same
    span_seconds: list[float]  # forward pass of one layer with 4096 tokens, by WINDOWS
    span_kept: list[int]  # numbers that one layer stores to continue after 4096 tokens, by WINDOWS
    depths: list[int]
    chase: dict[str, list[list[float]]]  # by depth: accuracy after 1 … 6 hops
    depth_seconds: list[float]  # one training step
    depth_parameters: list[int]
    dims: list[int]
    chase_by_dim: dict[str, list[list[float]]]  # by dimension
    dim_seconds: list[float]
    dim_parameters: list[int]
    dim_saved: list[int]  # bytes of activations that one training step stores for its backward pass
    layer_dims: list[int]
    layer_seconds: list[float]  # forward pass of one layer with 512 tokens, by LAYER_DIMS


# ---------------------------------------------------------------- find: one symbol, far back


def questions(many: int, random: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Returns ids [many, tokens], the symbol in each, and the number of its distance among DISTANCES."""
    symbol = torch.randint(SYMBOLS, (many,), generator=random)
    which = torch.randint(len(DISTANCES), (many,), generator=random)
    tokens = max(DISTANCES) + 1
    ids = SYMBOLS + torch.randint(FILLERS, (many, tokens), generator=random)
    ids[:, -1] = SYMBOLS + FILLERS
    ids[torch.arange(many), tokens - 1 - torch.tensor(DISTANCES)[which]] = symbol
    return ids, symbol, which


def finder(window: int | None, layers: int, heads: int) -> hw.models.Decoder:
    config = hw.models.TransformerConfig(SYMBOLS + FILLERS + 1, embed_dim=DIM, num_layers=layers, num_heads=heads)
    masks = None if window is None else [hw.masks.Window(left=window)] * layers
    return hw.models.Decoder(config, hw.encoding("rope", head_dim=DIM // heads), masks)


def find(seed: int, window: int | None, layers: int, heads: int) -> list[float]:
    """Returns the accuracy at each distance after training on all of them."""
    torch.manual_seed(seed)
    random = torch.Generator().manual_seed(seed)
    model = finder(window, layers, heads)
    optimizer = torch.optim.Adam(model.parameters(), lr=FIND_RATE)
    for _ in range(FIND_STEPS):
        ids, symbol, _ = questions(BATCH, random)
        descend(optimizer, F.cross_entropy(model(ids)[:, -1, :SYMBOLS], symbol), longest=1.0)
    with torch.no_grad():
        ids, symbol, which = questions(ASKED, random)
        right = (model(ids)[:, -1, :SYMBOLS].argmax(-1) == symbol).double()
    return [right[which == number].mean().item() for number in range(len(DISTANCES))]


def reach(window: int | None, layers: int, heads: int) -> int:
    """Returns the largest distance from which the gradient of the last output is not 0, before training."""
    tokens = 2 * max(DISTANCES)
    x = torch.randn(1, tokens, DIM, requires_grad=True)
    out = finder(window, layers, heads).stack(x, mask=hw.masks.Causal())[0, -1] * torch.randn(DIM)
    (gradient,) = torch.autograd.grad(out.sum(), x)
    return tokens - 1 - int(gradient[0].abs().sum(-1).nonzero()[0])


@torch.inference_mode()
def cost_of_spans() -> tuple[list[float], list[int]]:
    """Returns seconds and numbers stored by one layer, by window."""
    layer, x = hw.nn.MultiHeadAttention(WIDE, 8), torch.randn(1, LONG, WIDE)
    masks = [hw.masks.Causal() if window is None else hw.masks.Causal() & hw.masks.Window(window) for window in WINDOWS]
    kept = []
    for window in WINDOWS:
        stack = hw.models.Stack([hw.nn.Block(WIDE, 8)], masks=[None if window is None else hw.masks.Window(window)])
        cache = stack.new_cache()
        stack(x, mask=hw.masks.Causal(), cache=cache)
        kept.append(cache.layers[0].keys.numel() + cache.layers[0].values.numel())
    return least_seconds([partial(layer, x, mask=mask) for mask in masks], 3), kept


# ---------------------------------------------------------------- chase: k hops on a circle


def circles(many: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Returns the successor of each token on a random circle, [many, CIRCLE], and 1 … HOPS hops on, [..., HOPS]."""
    order = torch.rand(many, CIRCLE, generator=random).argsort(1)
    ids = torch.empty_like(order).scatter_(1, order, order.roll(-1, 1))
    hops = [ids]
    for _ in range(HOPS - 1):
        hops.append(ids.gather(1, hops[-1]))
    return ids, torch.stack(hops, -1)


class Chaser(nn.Module):
    """An encoder that names for every token the one after 1 … HOPS hops: logits [batch, CIRCLE, HOPS, CIRCLE]."""

    def __init__(self, depth: int, dim: int) -> None:
        super().__init__()
        config = hw.models.TransformerConfig(CIRCLE, embed_dim=dim, num_layers=depth, num_heads=HEADS)
        self.encoder = hw.models.Encoder(config, hw.encoding("learned", embed_dim=dim, max_length=CIRCLE))
        self.answers = nn.Linear(dim, HOPS * CIRCLE)

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.answers(self.encoder(ids)).unflatten(-1, (HOPS, CIRCLE))
        return logits


def loss_of(model: Chaser, ids: Tensor, hops: Tensor) -> Tensor:
    return F.cross_entropy(model(ids).flatten(0, 2), hops.flatten())


def chase(seed: int, depth: int, dim: int) -> list[float]:
    """Returns the accuracy after 1 … HOPS hops after training on all of them."""
    torch.manual_seed(seed)
    random = torch.Generator().manual_seed(seed)
    model = Chaser(depth, dim)
    optimizer = torch.optim.Adam(model.parameters(), lr=CHASE_RATE * (DIM / dim) ** 0.5)
    for _ in range(CHASE_STEPS):
        descend(optimizer, loss_of(model, *circles(BATCH, random)), longest=1.0)
    with torch.no_grad():
        ids, hops = circles(CHASED, random)
        right = (model(ids).argmax(-1) == hops).double().mean((0, 1))
    return [round(share, 4) for share in right.tolist()]


def train() -> Iterator[dict[str, Any]]:
    """Measures what takes minutes: "chase" by depth and by dimension."""
    for depth, dim in [(depth, DIM) for depth in DEPTHS] + [(DEPTH, dim) for dim in DIMS if dim != DIM]:
        for seed in SEEDS:
            yield {"depth": depth, "dim": dim, "seed": seed, "right": chase(seed, depth, dim)}


def a_step(depth: int, dim: int) -> Callable[[], None]:
    """Returns a training step of "chase"."""
    model, batch = Chaser(depth, dim), circles(BATCH, torch.Generator().manual_seed(0))
    optimizer = torch.optim.Adam(model.parameters())
    return lambda: descend(optimizer, loss_of(model, *batch), longest=1.0)


def saved_bytes(depth: int, dim: int) -> int:
    """Returns the size of all that the forward pass stores for the backward pass, parameters left out."""
    model, batch = Chaser(depth, dim), circles(BATCH, torch.Generator().manual_seed(0))
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    stored = {}

    def keep(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in own:
            stored[storage.data_ptr()] = storage.nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        loss = loss_of(model, *batch)
    assert loss.requires_grad  # the graph lives until here, so that no two of its tensors share an address
    return sum(stored.values())


# ---------------------------------------------------------------- the lesson


def stored(depth: int, dim: int) -> list[list[float]]:
    """Returns the accuracies of the stored models, a row for each seed."""
    return [row["right"] for row in measured(__file__) if (row["depth"], row["dim"]) == (depth, dim)]


def page_data() -> dict[str, Any]:
    return {
        "title": ["Lesson 12: how far layers reach", "第 12 课：几层能看多远"],
        "tokens": max(DISTANCES) + 1,
        "wide": WIDE,
        "circle": CIRCLE,
        "hops": HOPS,
        "dim": DIM,
        "depth": DEPTH,
        "right": {
            "depth": {str(depth): stored(depth, DIM) for depth in DEPTHS},
            "dim": {str(dim): stored(DEPTH, dim) for dim in DIMS},
        },
    }


def measure() -> Found:
    span_seconds, span_kept = cost_of_spans()
    layers = [hw.nn.MultiHeadAttention(dim, 8) for dim in LAYER_DIMS]
    with torch.inference_mode():
        x = [torch.randn(1, LAYER_TOKENS, dim) for dim in LAYER_DIMS]
        layer_seconds = least_seconds([partial(*pair) for pair in zip(layers, x, strict=True)], 5)

    return Found(
        distances=DISTANCES,
        find={name: [find(seed, *given) for seed in SEEDS] for name, given in SPANS.items()},
        reach={name: reach(*given) for name, given in SPANS.items()},
        span_seconds=span_seconds,
        span_kept=span_kept,
        depths=DEPTHS,
        chase={str(depth): stored(depth, DIM) for depth in DEPTHS},
        depth_seconds=least_seconds([a_step(depth, DIM) for depth in DEPTHS], 10),
        depth_parameters=[count(Chaser(depth, DIM)) for depth in DEPTHS],
        dims=DIMS,
        chase_by_dim={str(dim): stored(DEPTH, dim) for dim in DIMS},
        dim_seconds=least_seconds([a_step(DEPTH, dim) for dim in DIMS], 10),
        dim_parameters=[count(Chaser(DEPTH, dim)) for dim in DIMS],
        dim_saved=[saved_bytes(DEPTH, dim) for dim in DIMS],
        layer_dims=LAYER_DIMS,
        layer_seconds=layer_seconds,
    )


def share(rows: list[list[float]], column: int, line: str = " ") -> str:
    """Returns the median over the seeds, and the range if the seeds differ by more than five points."""
    values = [row[column] for row in rows]
    low, high = min(values), max(values)
    spread = f"{line}({100 * low:.0f}–{100 * high:.0f})" if high - low > 0.05 else ""
    return f"{median(values):.0%}{spread}"


def names(t: Text) -> dict[str, str]:
    """What the models of "find" are called."""
    return {
        "4": t("window 4", "窗口 4"),
        "8": t("window 8", "窗口 8"),
        "16": t("window 16", "窗口 16"),
        "all": t("no window", "不设窗口"),
        "8, eight heads": t("window 8, 8 heads", "窗口 8，8 个头"),
        "8, two layers": t("window 8, 2 layers", "窗口 8，2 层"),
        "8, four layers": t("window 8, 4 layers", "窗口 8，4 层"),
    }


def milliseconds(seconds: list[float]) -> list[str]:
    return [f"{1000 * taken:.1f}" for taken in seconds]


def tell(found: Found, t: Text) -> str:
    called = names(t)
    seen = [
        [called[name], found.reach[name], *(share(rows, i) for i in range(len(found.distances)))]
        for name, rows in found.find.items()
    ]
    windows = [t("none", "不设") if window is None else str(window) for window in WINDOWS]
    spans = [
        [t("milliseconds", "毫秒"), *milliseconds(found.span_seconds)],
        [t("numbers kept", "要留着的数"), *(f"{kept:,}" for kept in found.span_kept)],
    ]
    hops = [str(k) for k in range(1, HOPS + 1)]
    deep = [
        [depth, *(share(rows, k) for k in range(HOPS)), f"{parameters:,}", taken]
        for (depth, rows), parameters, taken in zip(
            found.chase.items(), found.depth_parameters, milliseconds(found.depth_seconds), strict=True
        )
    ]
    broad = [
        [dim, *(share(rows, k) for k in range(HOPS)), f"{parameters:,}", f"{saved / 1e6:.1f}", taken]
        for (dim, rows), parameters, saved, taken in zip(
            found.chase_by_dim.items(),
            found.dim_parameters,
            found.dim_saved,
            milliseconds(found.dim_seconds),
            strict=True,
        )
    ]
    layer = [[t("milliseconds", "毫秒"), *milliseconds(found.layer_seconds)]]
    costs = [t("parameters", "参数"), t("ms a step", "每步毫秒")]
    return "\n".join(
        [
            t(
                "Accuracies are medians of three seeds, with the range in brackets if it is more than five points.\n\n"
                f"Find the symbol so many tokens back (guessing: {1 / SYMBOLS:.1%}); reach: the farthest token that "
                "the last output depends on, of 64:",
                "正确率是三个种子的中位数；三者相差超过五个百分点时，括号里给出范围。\n\n"
                f"找出往前第 Δ 个词元处的符号（随机猜测 {1 / SYMBOLS:.1%}）；"
                "“可及”是 64 个词元中最后一个输出所依赖的最远距离：",
            ),
            table(seen, ["", t("reach", "可及"), *(f"Δ = {distance}" for distance in found.distances)]),
            t(
                f"\nOne layer of dimension {WIDE}, {LONG} tokens, causal, by window:",
                f"\n一层、维度 {WIDE}、{LONG} 个词元、因果掩码，按窗口：",
            ),
            table(spans, ["", *windows]),
            t(
                f"\nFollow k hops on a circle of {CIRCLE} (guessing: {1 / (CIRCLE - 1):.1%}), dimension {DIM}, by "
                "layers:",
                f"\n在 {CIRCLE} 个词元的圈上跳 k 步（随机猜测 {1 / (CIRCLE - 1):.1%}），维度 {DIM}，按层数：",
            ),
            table(deep, [t("layers", "层数"), *(f"k = {k}" for k in hops), *costs]),
            t(f"\nThe same with {DEPTH} layers, by dimension:", f"\n同上，{DEPTH} 层，按维度："),
            table(
                broad,
                [t("dimension", "维度"), *(f"k = {k}" for k in hops), costs[0], t("MB kept", "激活 MB"), costs[1]],
            ),
            t(
                f"\nOne layer of attention, {LAYER_TOKENS} tokens, by dimension:",
                f"\n一层注意力、{LAYER_TOKENS} 个词元，按维度：",
            ),
            table(layer, ["", *map(str, found.layer_dims)]),
        ]
    )


def draw(found: Found, t: Text) -> Figure:
    figure = page(7.4)
    (spans, deep), (broad, costs) = figure.subplots(2, 2)
    for axes, rows, down, across in (
        (spans, list(found.find.values()), list(names(t).values()), found.distances),
        (deep, list(found.chase.values()), list(found.chase), list(range(1, HOPS + 1))),
        (broad, list(found.chase_by_dim.values()), list(found.chase_by_dim), list(range(1, HOPS + 1))),
    ):
        middle = [[median(row[i] for row in seeds) for i in range(len(across))] for seeds in rows]
        matrix(
            axes,
            middle,
            down,
            [str(value) for value in across],
            says=lambda i, j, rows=rows: share(rows[i], j, "\n"),  # type: ignore[misc]
            size=8,
        )
    spans.set(title=t("Find: what one window sees", "找符号：窗口看得到多远"), xlabel=t("tokens back", "往前的词元数"))
    deep.set(title=t("Chase: hops by layers", "跳步：层数"), xlabel=t("hops", "跳几步"), ylabel=t("layers", "层数"))
    broad.set(
        title=t(f"Chase: hops by dimension, {DEPTH} layers", f"跳步：维度（{DEPTH} 层）"),
        xlabel=t("hops", "跳几步"),
        ylabel=t("dimension", "维度"),
    )
    lines = {
        t("parameters", "参数"): (found.dims, found.dim_parameters, BLUE, "o"),
        t("activations kept", "留存的激活"): (found.dims, found.dim_saved, GREEN, "D"),
        t("time of a step", "一步的时间"): (found.dims, found.dim_seconds, ORANGE, "s"),
        t(f"time of a layer, {LAYER_TOKENS} tokens", f"一层的时间（{LAYER_TOKENS} 个词元）"): (
            found.layer_dims,
            found.layer_seconds,
            PINK,
            "^",
        ),
    }
    for (name, (dims, numbers, colour, marker)), dashes in zip(lines.items(), DASHES, strict=True):
        relative = [number / numbers[0] for number in numbers]
        costs.plot(dims, relative, label=name, color=colour, marker=marker, markersize=5, linestyle=dashes)
    costs.set_yscale("log")
    costs.set_ylim(top=5000)  # the legend stands above the lines
    double(costs, sorted({*found.dims, *found.layer_dims}), t("dimension", "维度"))
    costs.set(title=t("Cost, as a multiple of the smallest", "代价（最小维度的倍数）"), ylabel=t("multiple", "倍数"))
    costs.legend(loc="upper left")
    return figure


if __name__ == "__main__":
    run(__name__)
