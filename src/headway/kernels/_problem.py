"""One call of attention: its tensors (``Call``) and the facts a kernel decides by (``Problem``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..coordinates import Coordinates
from ..masks import Mask
from ..records import Record, attributes
from ..terms import Part, Rotation, Term


@dataclass(frozen=True, eq=False)
class Call(Record):
    """Everything a kernel needs; q, k and v are prepared, all arguments checked.

    q [batch, heads, n, head_dim]; k [batch, kv_heads, m, head_dim]; v [batch, kv_heads, m, v's head_dim]
    """

    q: Tensor
    k: Tensor
    v: Tensor
    q_coordinates: Coordinates
    k_coordinates: Coordinates
    terms: tuple[Term, ...] = ()
    mask: Mask | None = None
    scale: float = 1.0
    dropout: float = 0.0
    seed: Tensor | None = None
    """int64 [1], drawn outside the kernel, so that a recomputation drops the same weights."""
    wants_lse: bool = False
    partial: bool = False
    """Leave the sink out of the log-sum-exp and of the weights."""
    aligned: bool = True
    """A static fact: the n queries are the last of the m keys, in the order of the slots."""
    q_rotation: Rotation | None = None
    """What is still to be done to q, and to k, before they meet; cached keys have it behind them."""
    k_rotation: Rotation | None = None
    batch_offset: int = 0
    head_offset: int = 0
    """Where row 0 of the batch and head 0 stand in the call of which this is a part: dropout counts from there."""
    restore: Callable[[Tensor], Tensor] | None = None
    """What makes the output of what the kernel computes, once parts are merged; no kernel reads it."""

    def rotated(self, rotate: Callable[[Tensor, Rotation], Tensor]) -> Call:
        """The call with its rotations done by ``rotate``."""
        if self.q_rotation is None and self.k_rotation is None:
            return self
        q = self.q if self.q_rotation is None else rotate(self.q, self.q_rotation)
        k = self.k if self.k_rotation is None else rotate(self.k, self.k_rotation)
        return self._with(q=q, k=k, q_rotation=None, k_rotation=None)


def without_tables(call: Call) -> Call:
    """The call with coordinates that hold no more than kernels read, and nothing of an encoding."""
    q_at, k_at = (_bare(side) for side in (call.q_coordinates, call.k_coordinates))
    q_at = q_at._with(start=None)  # Padding reads the start of the keys
    return call._with(q_coordinates=q_at, k_coordinates=k_at, restore=None)


def _bare(side: Coordinates) -> Coordinates:
    length = side.length if isinstance(side.length, Tensor) else None
    return side.facts()._with(length=length, spanned=None)


class Problem(NamedTuple):
    """The facts of one call, without the values of its tensors."""

    batch: int
    heads: int
    kv_heads: int
    n: int
    m: int
    head_dim: int
    v_head_dim: int
    dtype: torch.dtype
    device: str
    terms: tuple[Term, ...]
    mask: Mask | None
    dropout: float
    wants_lse: bool
    aligned: bool
    coordinate_rows: int
    """Rows of the batch whose coordinates are kept apart: 1 or the batch."""
    positions_want_gradient: bool = False

    @staticmethod
    def of(call: Call) -> Problem:
        batch, heads, n, head_dim = call.q.shape
        _, kv_heads, m, v_head_dim = call.v.shape
        q, k = call.q_coordinates, call.k_coordinates
        rows = max(q.position.shape[0], k.position.shape[0], q.index.shape[0], k.index.shape[0])
        moving = (q.position.requires_grad or k.position.requires_grad) and torch.is_grad_enabled()
        return Problem(  # by position: by name it takes twice as long
            batch, heads, kv_heads, n, m, head_dim, v_head_dim, call.q.dtype, call.q.device.type,
            call.terms, call.mask, call.dropout, call.wants_lse, call.aligned, rows, moving,
        )  # fmt: skip


def tensors_in(part: Any) -> Iterator[Tensor]:
    """Every tensor in a term, a mask or coordinates."""
    if isinstance(part, Tensor):
        yield part
    elif isinstance(part, (tuple, list)):
        for item in part:
            yield from tensors_in(item)
    elif isinstance(part, (Part, Mask, Coordinates)):
        for value in attributes(part).values():
            yield from tensors_in(value)


def wants_gradient(part: Any) -> bool:
    """Whether any tensor in a term wants a gradient."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors_in(part))
