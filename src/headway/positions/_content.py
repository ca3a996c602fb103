"""The base class of encodings that read the layer's input, and functions that they share."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ..coordinates import Coordinates
from ..errors import HeadwayError, need_positive
from ..tracing import without_autocast
from ._base import Input, PositionEncoding
from ._formulas import need_width


class Contextual(PositionEncoding):
    """An encoding of a causal stream that reads the layer's input and, by default, no positions."""

    axes: int | None = None
    causal_only = True
    reads_input = True
    embed_dim: int

    def read(self, x: Input) -> Tensor:
        """Returns the input in float64, so that neither autocast nor a long sum rounds it.

        Args:
            x: the layer's input, [batch, tokens, embed_dim].

        Raises:
            HeadwayError: if x is None or has another width.
        """
        return self.given(x).double()

    def given(self, x: Input) -> Tensor:
        """Returns the input.

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
        return x


def projected(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x·weightᵀ + bias in the dtype of x, which is float64 for what ``read`` returns."""
    out = x @ weight.to(x.dtype).t()
    return out if bias is None else out + bias.to(x.dtype)


def projected_once(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x·weightᵀ + bias in float32, whatever autocast says, or in float64 if weights are; where no long sum follows."""
    with without_autocast(x):
        dtype = torch.promote_types(weight.dtype, torch.float32)
        return F.linear(x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype))


def numbers_of(encoding: PositionEncoding, q_at: Coordinates, k_at: Coordinates) -> tuple[int, int]:
    """Returns the numbers of queries and of keys for an encoding that takes the queries as the last of the keys.

    Raises:
        HeadwayError: if there are more queries than keys.
    """
    n, m = q_at.index.shape[1], k_at.index.shape[1]
    if n > m:
        raise HeadwayError(
            f"there are {n} queries and {m} keys: {type(encoding).__name__} takes the queries for the last keys, "
            "whose input it reads; give at most as many queries as keys"
        )
    return n, m


def summed(steps: Tensor, at: Coordinates) -> Tensor:
    """The sum of the steps up to and including each token, along dimension 1; padding in front counts as 0.

    The sum continues from one packed document to the next, so only differences within one document are meaningful. If
    several processes share the stream, it continues from one process to the next.
    """
    real = (at.index >= 0).reshape(*at.index.shape, *[1] * (steps.ndim - 2))
    steps = steps.masked_fill(~real, 0)
    return steps.cumsum(1) if at.shard is None else at.shard.connected().summed(steps)


def earlier(x: Tensor, at: Coordinates, steps: int) -> Tensor:
    """x [batch, m, …] of the token ``steps`` slots before; 0 if that is padding or of another document."""
    return torch.cat([run.earlier(steps) for run in _runs(x, at, steps)], dim=1)


def convolved(x: Tensor, at: Coordinates, taps: Tensor) -> Tensor:
    """Σ_s taps[c, s]·x[t − s, c], a causal convolution of each channel c; x [batch, m, channels]."""
    count = taps.shape[1]
    runs = _runs(x, at, count - 1)
    found = [
        sum((run.earlier(s) * taps[:, s].to(x.dtype) for s in range(count)), torch.zeros_like(run.own)) for run in runs
    ]
    return torch.cat(found, dim=1)


@dataclass(frozen=True)
class _Run:
    """Tokens that follow one another in a stream, after the few tokens before them.

    Attributes:
        x: of these and of the tokens before, [batch, count + m, …].
        index: their index, −1 where there is no token.
        document: their document, or None.
        count: the number of tokens before.
    """

    x: Tensor
    index: Tensor
    document: Tensor | None
    count: int

    @property
    def own(self) -> Tensor:
        return self.x[:, self.count :]

    def earlier(self, steps: int) -> Tensor:
        """x of the token ``steps`` slots before each one; 0 if that is padding or of another document."""
        own, before = slice(self.count, None), slice(self.count - steps, self.index.shape[1] - steps)
        there = self.index[:, before] >= 0
        if self.document is not None:
            there = there & (self.document[:, before] == self.document[:, own])
        return self.x[:, before].masked_fill(~there.reshape(*there.shape, *[1] * (self.x.ndim - 2)), 0)


def _runs(x: Tensor, at: Coordinates, count: int) -> list[_Run]:
    """The runs of tokens of x [batch, m, …], each behind the ``count`` tokens before it; one without a shard."""
    if at.shard is None:
        front = x.new_zeros(x.shape[0], count, *x.shape[2:])
        return [_run(front, x, at, 0, x.shape[1])]
    whole, runs = at.shard.whole, at.shard.runs
    fronts = at.shard.connected().preceding(x, count)
    each = x.split([stop - start for start, stop in runs], dim=1)
    return [_run(front, own, whole, *run) for front, own, run in zip(fronts, each, runs, strict=True)]


def _run(front: Tensor, own: Tensor, whole: Coordinates, start: int, stop: int) -> _Run:
    count = front.shape[1]
    known = min(count, start)

    def extended(part: Tensor, fill: int) -> Tensor:
        missing = part.new_full((part.shape[0], count - known), fill)
        return torch.cat([missing, part[:, start - known : stop]], dim=1)

    document = None if whole.document is None else extended(whole.document, 0)
    return _Run(torch.cat([front, own], dim=1), extended(whole.index, -1), document, count)


def heads_of_keys(num_heads: int, num_kv_heads: int | None) -> int:
    """num_kv_heads, or num_heads if None; raises HeadwayError unless it divides num_heads."""
    kv_heads = num_heads if num_kv_heads is None else num_kv_heads
    need_positive(num_heads=num_heads, num_kv_heads=kv_heads)
    if num_heads % kv_heads:
        raise HeadwayError(f"num_kv_heads is {kv_heads} of {num_heads} heads: give a number that divides them")
    return kv_heads
