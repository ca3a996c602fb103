"""Times encodings whose scores content gives beside the same computation in torch, written after the papers' formulas.

`python benchmarks/eager_content.py` takes some minutes: 2,048 causal tokens, 4 heads of 64, float32, one thread. Eager
code holds all scores. Both sides run in turn; times are the least of the processor's, so that other programs disturb
little. Outputs and gradients are compared first.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

import headway as hw
from headway.masks import Causal
from headway.terms import ContextualPositions, HouseholderPath, StickWeights, Term

N, HEADS, WIDTH, POSITIONS = 2048, 4, 64, 64
SCALE = WIDTH**-0.5


def causal(n: int, diagonal: int = 0) -> Tensor:
    return torch.ones(n, n, dtype=torch.bool).tril(diagonal)


def cope(q: Tensor, k: Tensor, v: Tensor, vectors: Tensor) -> Tensor:
    """Golovneva et al. 2024, section 4."""
    seen = causal(q.shape[2])
    scores = (SCALE * q @ k.mT).masked_fill(~seen, -math.inf)
    places = scores.sigmoid().flip(-1).cumsum(-1).flip(-1).clamp(max=len(vectors) - 1)
    products, low = q @ vectors.mT, places.detach().floor()
    share = places - low
    of_low, of_high = (products.gather(-1, at.long()) for at in (low, places.detach().ceil()))
    return (scores + (1 - share) * of_low + share * of_high).softmax(-1) @ v


def stick_breaking(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Tan et al. 2025, section 2."""
    scores, seen = SCALE * q @ k.mT, causal(q.shape[2], -1)
    left = F.logsigmoid(-scores).masked_fill(~seen, 0)
    later = left.flip(-1).cumsum(-1).flip(-1) - left
    return (F.logsigmoid(scores) + later).exp().masked_fill(~seen, 0) @ v


def path(q: Tensor, k: Tensor, v: Tensor, w: Tensor, beta: Tensor) -> Tensor:
    """Yang et al. 2025, section 3.2: the inverse of one triangular matrix for each head."""
    n = q.shape[2]
    system = torch.eye(n) + (beta[..., None] * (w @ w.mT)).tril(-1)
    steps = torch.linalg.solve_triangular(
        system, beta[..., None] * (w @ k.mT).tril(-1), upper=False, unitriangular=True
    )
    scores = q @ k.mT - (q @ w.mT).tril() @ steps
    return (SCALE * scores).masked_fill(~causal(n), -math.inf).softmax(-1) @ v


def draws() -> dict[str, tuple[Callable[..., Tensor], Callable[..., Term], list[Tensor]]]:
    """The eager form of each, its term, and what both read beside q, k and v."""
    w = F.normalize(torch.randn(1, HEADS, N, WIDTH), dim=-1)
    return {
        "CoPE": (cope, lambda vectors: ContextualPositions(vectors[None]), [torch.randn(POSITIONS, WIDTH) / 8]),
        "stick-breaking": (stick_breaking, StickWeights, []),
        "PaTH": (path, HouseholderPath, [w, 2 * torch.rand(1, HEADS, N)]),
    }


def sides(name: str) -> tuple[dict[str, Callable[[], Tensor]], list[Tensor]]:
    """The calls of both sides, and the tensors that require a gradient."""
    eager, term, others = draws()[name]
    leaves = [x.requires_grad_() for x in (*torch.randn(3, 1, HEADS, N, WIDTH), *others)]
    q, k, v, *rest = leaves
    return {
        "headway": lambda: hw.attention(q, k, v, terms=(term(*rest),), mask=Causal(), scale=SCALE, kernel="cpu"),
        "eager": lambda: eager(*leaves),
    }, leaves


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=3)
    count = options.parse_args().rounds
    torch.manual_seed(0)
    torch.set_num_threads(1)
    for name in draws():
        runs, leaves = sides(name)
        results = {}
        for side, run in runs.items():
            out = run()
            results[side] = [out.detach(), *torch.autograd.grad(out, leaves, torch.ones_like(out))]
        for ours, theirs in zip(results["headway"], results["eager"], strict=True):
            # as a whole: where a count is next to a whole number, rounding decides between two slopes
            assert (ours - theirs).norm() <= 1e-3 * theirs.norm(), f"{name}: results differ"
        least = {(side, way): math.inf for side in runs for way in ("forward", "backward")}
        for _ in range(count):
            for side, run in runs.items():
                started = time.process_time()
                out = run()
                ended = time.process_time()
                torch.autograd.grad(out, leaves, torch.ones_like(out))
                least[side, "forward"] = min(least[side, "forward"], ended - started)
                least[side, "backward"] = min(least[side, "backward"], time.process_time() - ended)
        for way in ("forward", "backward"):
            ours, theirs = least["headway", way], least["eager", way]
            print(f"{name}, {way}: {1e3 * ours:.0f} ms, eager {1e3 * theirs:.0f} ms, {theirs / ours:.1f} times as long")


if __name__ == "__main__":
    main()
