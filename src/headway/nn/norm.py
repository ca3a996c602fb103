"""The norms of a Transformer block: torch's own, by short names."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import nn
from torch.nn import LayerNorm, RMSNorm

from ..errors import HeadwayError

NORMS: dict[str, Callable[..., nn.Module]] = {"layer": LayerNorm, "rms": RMSNorm}


def make_norm(
    norm: str | Callable[[int], nn.Module],
    embed_dim: int,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> nn.Module:
    """Returns a norm over ``embed_dim`` features, made by name or by a function of the width.

    Raises HeadwayError for a name that is neither "layer" nor "rms".
    """
    if not isinstance(norm, str):
        with nullcontext() if device is None else torch.device(device):
            made = norm(embed_dim)
        return made if device is None and dtype is None else made.to(device=device, dtype=dtype)
    if norm not in NORMS:
        raise HeadwayError(f"norm is {norm!r}: give {' or '.join(map(repr, NORMS))}, or a function of embed_dim")
    return NORMS[norm](embed_dim, device=device, dtype=dtype)
