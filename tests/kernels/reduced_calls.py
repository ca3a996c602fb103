"""Reductions that are drawn to fit a call, and computed from all its weights at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from headway import reductions as R
from headway.kernels import Call, ScoreBlock, reference
from headway.kernels._reduce import SUMS


def reductions_of(call: Call, seed: int = 0, cells: int = 36) -> list[R.Reduction]:
    """Every reduction, drawn to fit a call, with a map of at most so many cells in each direction."""
    g = torch.Generator().manual_seed(seed)
    (batch, _, n, _), m = call.q.shape, call.k.shape[2]
    some = torch.randint(1, 13, (8,), generator=g).tolist()
    edges = torch.randint(-m - 3, m + 3, (some[0],), generator=g).unique().tolist()
    ids = [torch.randint(-1, some[6], (batch, tokens), generator=g) for tokens in (n, m)]
    queries, keys = (x + (x > 0) * (1 << 32) * torch.randint(2, x.shape, generator=g) for x in ids)
    return [
        *(R.Entropy(), R.VisibleKeys(), R.MeanDistance(), R.ColumnSums(), R.TopKeys(1), R.TopKeys(some[1])),
        R.WeightsAt(torch.randint(-1, max(m, 1), (1, n, some[2] % 4 + 1), generator=g)),
        R.WeightsAt(torch.randint(-1, max(m, 1), (batch, n, 1), generator=g)),
        R.WeightsByLabel(torch.randint(-1, some[3], (batch, m), generator=g), some[3]),
        R.WeightsByDistance(tuple(edges)),
        R.WeightsOfMatches(queries, keys[: some[7] % 2 or batch], some[7] * 5 - 30),
        R.PooledMap(max(1, min(some[4], n, cells)), max(1, min(some[5] * 3, m, cells)), seed % 2 == 1),
    ]  # fmt: skip


def counting(call: Call, seed: int) -> Tensor | None:
    rows = torch.rand(call.q.shape[0], call.q.shape[2], generator=torch.Generator().manual_seed(seed)) < 0.8
    return None if seed % 3 == 0 else rows[: 1 if seed % 3 == 1 else None]


def naive_reductions(call: Call, reductions: Sequence[R.Reduction], counted: Tensor | None) -> tuple[list[Any], Tensor]:
    """Reductions of all weights at once, in the dtype of the call, and the weights."""
    with torch.no_grad():
        _, _, scores, weights, _ = reference.steps(call.rotated(lambda x, rotation: rotation.of(x)))
    n, m = scores.shape[2:]
    dtype = torch.float64 if call.q.dtype == torch.float64 else torch.float32
    scores, weights, none = scores.to(dtype), weights.to(dtype), scores.new_empty(scores.shape[:3])
    block = ScoreBlock(slice(0, n), slice(0, m), scores, weights.log(), weights, none, none)
    found = []
    for one in reductions:
        total = SUMS[type(one)](call, one, counted)
        total.add(block)
        found.append(total.result())
    return found, weights


def pairs(
    one: R.Reduction, found: Any, naive: Any, exact: Any, weights: Tensor
) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
    """What of a reduction is compared: ours, the naive one, the exact one."""
    name = type(one).__name__
    if isinstance(one, R.TopKeys):
        # which of two keys is first may hang on rounding: the key found has as large a weight
        at = weights.gather(-1, found[1].clamp(min=0)).masked_fill(found[1] < 0, 0) if weights.shape[-1] else found[0]
        return {
            f"{name} {one.count}": (found[0], naive[0], exact[0]),
            f"{name} {one.count} at keys": (at.to(found[0].dtype), naive[0], exact[0]),
        }
    if isinstance(one, R.PooledMap):
        return {f"{name} {i}": (found[i], naive[i], exact[i]) for i in range(2)}
    if isinstance(one, R.WeightsOfMatches):
        assert torch.equal(found[1], exact[1])
        return {name: (found[0], naive[0], exact[0])}
    return {name: (found, naive, exact)}
