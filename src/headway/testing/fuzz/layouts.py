"""Ways in which a tensor of four dimensions lies in memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def _contiguous(x: Tensor) -> Tensor:
    return x


def _tokens_first(x: Tensor) -> Tensor:
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def _part_of_a_projection(x: Tensor) -> Tensor:
    return torch.cat([x, x], dim=-1)[..., : x.shape[-1]]


def _every_other_number(x: Tensor) -> Tensor:
    return torch.stack([x, x], dim=-1).flatten(-2)[..., ::2]


def _numbers_first(x: Tensor) -> Tensor:
    return x.transpose(-1, -2).contiguous().transpose(-1, -2)


def _not_aligned(x: Tensor) -> Tensor:
    return torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape)


def _one_for_all_sequences(x: Tensor) -> Tensor:
    return x[:1].expand(x.shape)


def _one_for_all_heads(x: Tensor) -> Tensor:
    return x[:, :1].expand(x.shape)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": _contiguous,
    "tokens first": _tokens_first,
    "part of a projection": _part_of_a_projection,
    "every other number": _every_other_number,
    "numbers first": _numbers_first,
    "not aligned": _not_aligned,
    "one for all sequences": _one_for_all_sequences,
    "one for all heads": _one_for_all_heads,
}
"""Functions of a contiguous tensor [batch, heads, tokens, dim]; the last two repeat a part of it with stride 0."""
