"""Compares the three products of a linear map in oneDNN and torch; the table of products comes from this.

python -m headway.bench.linear                  # on as many threads as torch takes; OMP_NUM_THREADS=1 for one
python -m headway.bench.linear 128 512 2048     # of one size: tokens, features in, features out
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterable
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor

from .._common.table import Cell, Table
from .._torch import onednn_linear
from ..kernels._products import Products, products_for
from .machine import processor

Size = tuple[int, int, int]
"""Tokens, features in, features out."""

TOKENS = (1, 4, 16, 32, 64, 128, 256, 512, 1024, 2048, 8192)
FEATURES = (
    *((64, 64), (64, 256), (256, 64), (256, 256), (512, 512)),
    *((512, 2048), (2048, 512), (512, 32128), (2048, 2048), (2048, 8192)),
)
GRID: tuple[Size, ...] = tuple((tokens, *features) for features, tokens in product(FEATURES, TOKENS))

LEAST_TIME = 2e-4
"""Seconds that are timed at once: a short product is repeated."""


def measure(size: Size, seconds: float = 0.3, rounds: int = 5) -> dict[str, float]:
    """Returns how many times as fast oneDNN is, for each product: the ratio of the least times, both in turn.

    Each product is timed for at least so many ``seconds`` and ``rounds``.
    """
    tokens, inputs, outputs = size
    x, weight, bias, grad = (
        torch.randn(shape) for shape in ((tokens, inputs), (outputs, inputs), outputs, (tokens, outputs))
    )
    pairs: dict[str, tuple[Callable[[], Tensor], Callable[[], Tensor]]] = {
        "forward": (lambda: F.linear(x, weight, bias), lambda: onednn_linear(x, weight, bias)),
        "d_input": (lambda: grad @ weight, lambda: onednn_linear(grad, weight.t(), None)),
        "d_weight": (lambda: grad.t() @ x, lambda: onednn_linear(grad.t(), x.t(), None)),
    }
    with torch.inference_mode():
        return {name: _ratio(*pair, seconds, rounds) for name, pair in pairs.items()}


def _ratio(torchs: Callable[[], Tensor], onednns: Callable[[], Tensor], seconds: float, rounds: int) -> float:
    sides = [torchs, onednns]
    for side in (*sides, *sides):
        began = time.perf_counter()
        side()
        took = time.perf_counter() - began
    repeats = max(1, int(LEAST_TIME / took))
    least = dict.fromkeys(sides, float("inf"))
    until = time.perf_counter() + seconds
    while rounds > 0 or time.perf_counter() < until:
        rounds -= 1
        for side in random.sample(sides, 2):
            began = time.perf_counter()
            for _ in range(repeats):
                side()
            least[side] = min(least[side], (time.perf_counter() - began) / repeats)
    return least[torchs] / least[onednns]


def report(sizes: Iterable[Size], seconds: float = 0.3, rounds: int = 5) -> str:
    """Returns the table of ratios; those of products that are oneDNN's on this processor are bold."""
    lines: list[list[str | Cell]] = []
    worst = {name: float("inf") for name in Products._fields}
    for size in sizes:
        tokens, inputs, outputs = size
        chosen = products_for(tokens * inputs, outputs, inputs)._asdict()
        ratios = measure(size, seconds, rounds)
        worst |= {name: min(worst[name], ratios[name]) for name in worst if chosen[name]}
        cells = [Cell(f"{ratio:.2f}", best=chosen[name]) for name, ratio in ratios.items()]
        lines.append([f"{tokens:,} × {inputs:,} × {outputs:,}", *cells])
    slowest = ", ".join(f"{name} {ratio:.2f}" for name, ratio in worst.items() if ratio < float("inf")) or "none"
    said = (
        f"{processor()}, torch {torch.__version__}, {torch.get_num_threads()} threads: times as fast as torch's product"
    )
    rows = Table(["tokens × in × out", *Products._fields], lines).markdown()
    return f"{said}\n\n{rows}\n\nThe slowest of those chosen: {slowest}\n"


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    print(report([(given[0], given[1], given[2])] if given else GRID))
