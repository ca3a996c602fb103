"""One call of attention: its tensors (``Call``) and the facts a kernel decides by (``Problem``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

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
    include_sink: bool = True
    """Whether sinks take part in the weights and in the log-sum-exp."""
    aligned: bool = True
    """A static fact: the n queries are the last of the m keys, in the order of the slots."""
    q_rotation: Rotation | None = None
    """What is still to be done to q, to k and to v; cached keys and values have it behind them."""
    k_rotation: Rotation | None = None
    v_rotation: Rotation | None = None
    out_rotation: Rotation | None = None
    """What is to be done to the output, once parts are merged."""
    batch_offset: int = 0
    head_offset: int = 0
    """Where row 0 of the batch and head 0 stand in the call of which this is a part: dropout counts from there."""
    restore: Callable[[Tensor], Tensor] | None = None
    """What is to be done to the output after its rotation; no kernel reads it."""

    def rotated(self, rotate: Callable[[Tensor, Rotation], Tensor]) -> Call:
        """The call with q, k and v turned by ``rotate``."""
        if self.q_rotation is None and self.k_rotation is None and self.v_rotation is None:
            return self
        q = self.q if self.q_rotation is None else rotate(self.q, self.q_rotation)
        k = self.k if self.k_rotation is None else rotate(self.k, self.k_rotation)
        v = self.v if self.v_rotation is None else rotate(self.v, self.v_rotation)
        return self._with(q=q, k=k, v=v, q_rotation=None, k_rotation=None, v_rotation=None)


def without_tables(call: Call) -> Call:
    """The call with coordinates that hold no more than kernels read, and without what is done to the output."""
    q_at, k_at = _bare(call.q_coordinates), _bare(call.k_coordinates)
    return call._with(q_coordinates=q_at, k_coordinates=k_at, out_rotation=None, restore=None)


def _bare(side: Coordinates) -> Coordinates:
    # no number that varies with length; masks read the length of rows alone that were padded one by one
    length = side.length if isinstance(side.length, Tensor) and side.start is None else None
    return side.facts()._with(length=length, start=side.start if side.start == 0 else None, spanned=None)


class Problem:
    """The facts of one call, without the values of its tensors: what a kernel may decide by.

    terms, mask, dropout, wants_lse and aligned are those of the call.
    """

    __slots__ = (
        *("_call", "batch", "heads", "n", "head_dim", "kv_heads", "m", "v_head_dim", "dtype", "device"),
        *("terms", "mask", "dropout", "wants_lse", "aligned"),
    )

    def __init__(self, call: Call) -> None:
        q = call.q
        self._call = call
        self.batch, self.heads, self.n, self.head_dim = q.shape
        _, self.kv_heads, self.m, self.v_head_dim = call.v.shape
        self.dtype, self.device = q.dtype, q.device.type
        self.terms, self.mask, self.dropout = call.terms, call.mask, call.dropout
        self.wants_lse, self.aligned = call.wants_lse, call.aligned

    @staticmethod
    def of(call: Call) -> Problem:
        return Problem(call)

    @property
    def capability(self) -> tuple[int, int] | None:
        """Of the GPU, as CUDA counts them, such as (9, 0); None on any other device."""
        return torch.cuda.get_device_capability(self._call.q.device) if self.device == "cuda" else None

    @property
    def strides(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Of q, k and v, in numbers."""
        return self._call.q.stride(), self._call.k.stride(), self._call.v.stride()

    @property
    def wanted(self) -> frozenset[str]:
        """Which of q, k, v, "terms" and "positions" want a gradient; none while autograd is off."""
        call = self._call
        if not torch.is_grad_enabled():
            return frozenset()
        parts = {"q": call.q, "k": call.k, "v": call.v, "terms": call.terms}
        found = {name for name, part in parts.items() if wants_gradient(part)}
        return frozenset(found | {"positions"} if self.positions_want_gradient else found)

    @property
    def positions_want_gradient(self) -> bool:
        q, k = self._call.q_coordinates, self._call.k_coordinates
        return (q.position.requires_grad or k.position.requires_grad) and torch.is_grad_enabled()

    @property
    def coordinate_rows(self) -> int:
        """Rows of the batch whose coordinates are kept apart: 1 or the batch."""
        sides = self._call.q_coordinates, self._call.k_coordinates
        return max(x.shape[0] for side in sides for x in (side.position, side.index))


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
