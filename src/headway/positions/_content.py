"""The base class of encodings that read the layer's input, and functions that they share."""

from __future__ import annotations

import torch
from torch import Tensor

from ..coordinates import Coordinates
from ..errors import HeadwayError, need_positive
from ._base import Input, PositionEncoding, need_width


class Contextual(PositionEncoding):
    """An encoding of a causal stream that reads the layer's input and, by default, no positions."""

    axes: int | None = None
    causal_only = True
    reads_input = True
    embed_dim: int

    def read(self, x: Input) -> Tensor:
        """Returns the input [batch, tokens, embed_dim] in float64, so that neither autocast nor a long sum rounds it.

        Args:
            x: the layer's input, [batch, tokens, embed_dim].

        Raises:
            HeadwayError: if x is None or has another width.
        """
        if x is None:
            raise HeadwayError(
                f"{type(self).__name__} reads the layer's input, which is None: give q_input and k_input [batch, "
                f"tokens, {self.embed_dim}]"
            )
        need_width(x, "embed_dim", self.embed_dim)
        return x.double()


def projected(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x·weightᵀ + bias in the dtype of x, which is float64 for what ``read`` returns."""
    out = x @ weight.to(x.dtype).t()
    return out if bias is None else out + bias.to(x.dtype)


def numbers_of(encoding: PositionEncoding, q_at: Coordinates, k_at: Coordinates) -> tuple[int, int]:
    """Returns the numbers of queries and of keys for an encoding that takes the queries as the last of the keys.

    Raises:
        HeadwayError: if there are more queries than keys.
    """
    n, m = q_at.index.shape[1], k_at.index.shape[1]
    if n > m:
        raise HeadwayError(
            f"there are {n} queries and {m} keys: {type(encoding).__name__} reads the queries' input from the keys', "
            "of which they are the last; give at most as many queries as keys"
        )
    return n, m


def summed(steps: Tensor, at: Coordinates) -> Tensor:
    """The sum of the steps up to and including each token, along dimension 1; padding in front counts as 0.

    The sum continues from one packed document to the next: only differences within one document are meaningful.
    """
    real = (at.index >= 0).reshape(*at.index.shape, *[1] * (steps.ndim - 2))
    return steps.masked_fill(~real, 0).cumsum(1)


def earlier(x: Tensor, at: Coordinates, steps: int) -> Tensor:
    """x [batch, m, …] of the token ``steps`` slots before; 0 if that is padding or of another document."""
    m = x.shape[1]

    def moved(part: Tensor, fill: int) -> Tensor:
        front = part.new_full((part.shape[0], steps, *part.shape[2:]), fill)
        return torch.cat([front, part], dim=1)[:, :m]

    there = moved(at.index, -1) >= 0
    if at.document is not None:
        there = there & (moved(at.document, 0) == at.document)
    return moved(x, 0).masked_fill(~there.reshape(*there.shape, *[1] * (x.ndim - 2)), 0)


def convolved(x: Tensor, at: Coordinates, taps: Tensor) -> Tensor:
    """Σ_s taps[c, s]·x[t − s, c], a causal convolution of each channel c; x [batch, m, channels]."""
    return sum((earlier(x, at, s) * taps[:, s].to(x.dtype) for s in range(taps.shape[1])), torch.zeros_like(x))


def heads_of_keys(num_heads: int, num_kv_heads: int | None) -> int:
    """num_kv_heads, or num_heads if None; raises HeadwayError unless it divides num_heads."""
    kv_heads = num_heads if num_kv_heads is None else num_kv_heads
    need_positive(num_heads=num_heads, num_kv_heads=kv_heads)
    if num_heads % kv_heads:
        raise HeadwayError(f"num_kv_heads is {kv_heads} of {num_heads} heads: give a number that divides them")
    return kv_heads
