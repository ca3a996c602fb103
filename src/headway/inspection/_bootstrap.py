"""Intervals by the bootstrap: what a mean would be with other texts."""

from __future__ import annotations

import torch
from torch import Tensor


def interval(
    totals: Tensor, counts: Tensor, *, level: float = 0.95, draws: int = 1000, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """The bounds in which Σ totals / Σ counts lies for a share ``level`` of samples of texts drawn with replacement.

    Texts are drawn rather than tokens or cases, since those of one text are alike (the percentile bootstrap of Efron
    1979). With fewer than two texts there is no interval, and the bounds are NaN.

    Args:
        totals: the sums of each text, [texts, …].
        counts: how many numbers each of them sums, [texts, …], or of a shape that broadcasts to it.
    """
    texts = totals.shape[0]
    shape = totals.shape[1:]
    if texts < 2:
        return torch.full(shape, torch.nan, dtype=torch.float64), torch.full(shape, torch.nan, dtype=torch.float64)
    drawn = torch.randint(texts, (draws, texts), generator=torch.Generator().manual_seed(seed))
    times = torch.zeros(draws, texts, dtype=torch.float64)
    times.scatter_add_(1, drawn, torch.ones_like(drawn, dtype=torch.float64))
    summed, counted = ((times @ x.double().reshape(texts, -1)).reshape(draws, *x.shape[1:]) for x in (totals, counts))
    bounds = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    low, high = (summed / counted).nanquantile(bounds, dim=0)
    return low, high
