"""Layouts of a tensor of four dimensions in memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x,
    "tokens first": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "part of a projection": lambda x: torch.cat([x, x], dim=-1)[..., : x.shape[-1]],
    "every other number": lambda x: torch.stack([x, x], dim=-1).flatten(-2)[..., ::2],
    "numbers first": lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2),
    "not aligned": lambda x: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape),
    "one for all sequences": lambda x: x[:1].expand(x.shape),
    "one for all heads": lambda x: x[:, :1].expand(x.shape),
}
"""Functions of a contiguous tensor [batch, heads, tokens, dim]; the last two repeat a part of it with stride 0."""
