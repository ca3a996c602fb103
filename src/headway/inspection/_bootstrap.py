"""Bootstrap intervals: how a mean varies with the choice of texts."""

from __future__ import annotations

import torch
from torch import Tensor

DRAWS = 1000
"""Samples of texts."""


def interval(totals: Tensor, counts: Tensor, *, level: float = 0.95, seed: int = 0) -> tuple[Tensor, Tensor]:
    """The bounds of Σ totals / Σ counts, [texts, …] each, in a share ``level`` of samples of texts with replacement.

    Samples consist of texts, not of tokens or cases, since those of one text are alike (the percentile bootstrap of
    Efron 1979). With fewer than two texts there is no interval, and the bounds are NaN.
    """
    texts = totals.shape[0]
    shape = totals.shape[1:]
    if texts < 2:
        return torch.full(shape, torch.nan, dtype=torch.float64), torch.full(shape, torch.nan, dtype=torch.float64)
    drawn = torch.randint(texts, (DRAWS, texts), generator=torch.Generator().manual_seed(seed))
    times = torch.zeros(DRAWS, texts, dtype=torch.float64)
    times.scatter_add_(1, drawn, torch.ones_like(drawn, dtype=torch.float64))
    summed, counted = ((times @ x.double().reshape(texts, -1)).reshape(DRAWS, *x.shape[1:]) for x in (totals, counts))
    bounds = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    low, high = (summed / counted).nanquantile(bounds, dim=0)
    return low, high
