"""Masks of torch as masks and terms."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import HeadwayError
from ..masks import Boolean, Mask
from ..terms import DenseBias


def read_mask(mask: Tensor) -> tuple[Mask | None, DenseBias | None]:
    """Reads a mask [batch, heads, n, m]: booleans, True for keys to attend to, or floats that are added to scores.

    −∞ and the lowest floats exclude a key.
    """
    if mask.dtype == torch.bool:
        return Boolean(mask), None
    if not mask.is_floating_point():
        raise HeadwayError(f"its mask is {mask.dtype}: give booleans, or floats to add")
    hidden = mask <= torch.finfo(mask.dtype).min / 2
    added = mask.masked_fill(hidden, 0)
    return Boolean(~hidden) if bool(hidden.any()) else None, DenseBias(added) if bool(added.any()) else None
