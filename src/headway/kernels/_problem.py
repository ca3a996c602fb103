"""A call of attention (``Call``), and the properties by which a kernel is chosen for it (``Problem``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._torch import constant_in_graphs, requires_grad
from ..coordinates import Coordinates
from ..masks import Mask
from ..records import Record, attributes
from ..terms import Part, RelativeValues, Rotation, Term
from ..tracing import holds


@dataclass(frozen=True, eq=False)
class Call(Record):
    """The input of a kernel: arguments that have been checked and prepared by an encoding.

    Attributes:
        q: queries, [batch, heads, n, head_dim].
        k: keys, [batch, kv_heads, m, head_dim].
        v: values, [batch, kv_heads, m, v's head_dim].
        q_coordinates: coordinates of the queries.
        k_coordinates: coordinates of the keys.
        terms: the terms of the scores.
        mask: which keys each query attends to; None for all.
        scale: the factor of the scores.
        dropout: the share of the weights that is dropped.
        seed: int64 [1], drawn outside kernels, so that a recomputation drops the same weights.
        wants_lse: whether the log-sum-exp is wanted.
        include_sink: whether sinks take part in the weights and in the log-sum-exp.
        aligned: whether the n queries are known to be the last of the m keys, in the order of the slots.
        q_rotation: the rotation still to be applied to q.
        k_rotation: the rotation still to be applied to k; None for keys from a cache, which are rotated already.
        v_rotation: the rotation still to be applied to v, likewise.
        out_rotation: the rotation to be applied to the output, after parts have been merged.
        batch_offset: for a part of a call, the row of the whole batch at which it begins. Dropout depends on it.
        head_offset: likewise, the head at which it begins.
        restore: the function applied to the output after its rotation. Kernels do not read it.
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
    wants_lse: bool = False
    include_sink: bool = True
    aligned: bool = True
    q_rotation: Rotation | None = None
    k_rotation: Rotation | None = None
    v_rotation: Rotation | None = None
    out_rotation: Rotation | None = None
    batch_offset: int = 0
    head_offset: int = 0
    restore: Callable[[Tensor], Tensor] | None = None

    def rotated(self, rotate: Callable[[Tensor, Rotation], Tensor]) -> Call:
        """Returns the call with its rotations of q, k and v applied by ``rotate``."""
        if self.q_rotation is None and self.k_rotation is None and self.v_rotation is None:
            return self
        q = self.q if self.q_rotation is None else rotate(self.q, self.q_rotation)
        k = self.k if self.k_rotation is None else rotate(self.k, self.k_rotation)
        v = self.v if self.v_rotation is None else rotate(self.v, self.v_rotation)
        return self._with(q=q, k=k, v=v, q_rotation=None, k_rotation=None, v_rotation=None)


def without_tables(call: Call) -> Call:
    """Returns the call with only the fields that kernels read: without tables, ``out_rotation`` and ``restore``."""
    q_at, k_at = _bare(call.q_coordinates), _bare(call.k_coordinates)
    return call._with(q_coordinates=q_at, k_coordinates=k_at, out_rotation=None, restore=None)


def of_weights(call: Call) -> Call:
    """Returns the call with only the parts that its weights before dropout depend on. Its values have width 0."""
    terms = tuple([term for term in call.terms if not isinstance(term, RelativeValues)])
    return call._with(v=call.v[..., :0], v_rotation=None, dropout=0.0, terms=terms)


def _bare(side: Coordinates) -> Coordinates:
    # without numbers that vary with the length; masks read the length of padded rows only
    length = side.length
    if side.padding is None and (side.start is not None or not isinstance(length, Tensor)):
        length = None
    elif length is not None and not isinstance(length, Tensor):
        length = side.index.new_full((1, 1), length)
    spanned = side.position if side.spanned is side.position else None
    return side.facts()._with(
        length=length, start=side.start if holds(side.start == 0) else None, spanned=spanned, shard=None
    )


class Problem:
    """The facts of a call by which a kernel is chosen, from metadata only.

    Its attributes are sizes, dtype and device, and terms, mask, scale, dropout, wants_lse and aligned of the call.

    Args:
        call: the call.
    """

    __slots__ = (
        *("_call", "batch", "heads", "n", "head_dim", "kv_heads", "m", "v_head_dim", "dtype", "device"),
        *("terms", "mask", "scale", "dropout", "wants_lse", "aligned"),
    )

    def __init__(self, call: Call) -> None:
        q = call.q
        self._call = call
        self.batch, self.heads, self.n, self.head_dim = q.shape
        _, self.kv_heads, self.m, self.v_head_dim = call.v.shape
        self.dtype, self.device = q.dtype, q.device.type
        self.terms, self.mask, self.scale, self.dropout = call.terms, call.mask, call.scale, call.dropout
        self.wants_lse, self.aligned = call.wants_lse, call.aligned

    @staticmethod
    def of(call: Call) -> Problem:
        """The facts of ``call``."""
        return Problem(call)

    @property
    def capability(self) -> tuple[int, int] | None:
        """The compute capability of a GPU, such as (9, 0); None on any other device."""
        known = gpu(self._call.q.device) if self.device == "cuda" else None
        return None if known is None else known[0]

    @property
    def memory(self) -> int | None:
        """The bytes of memory of a GPU; None on any other device."""
        known = gpu(self._call.q.device) if self.device == "cuda" else None
        return None if known is None else known[1]

    @property
    def where(self) -> torch.device:
        """The device of q, with its number."""
        return self._call.q.device

    @property
    def strides(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """The strides of q, k and v, in elements."""
        return self._call.q.stride(), self._call.k.stride(), self._call.v.stride()

    @property
    def wanted(self) -> frozenset[str]:
        """Which of "q", "k", "v", "terms" and "positions" require a gradient; none while autograd is off."""
        call = self._call
        if not torch.is_grad_enabled():
            return frozenset()
        parts = {"q": call.q, "k": call.k, "v": call.v, "terms": call.terms}
        names = {name for name, part in parts.items() if wants_gradient(part)}
        return frozenset(names | {"positions"} if self.positions_want_gradient else names)

    @property
    def recorded(self) -> bool:
        """Whether anything requires a gradient."""
        if not torch.is_grad_enabled():
            return False
        call = self._call
        if call.q.requires_grad or call.k.requires_grad or call.v.requires_grad or self.positions_want_gradient:
            return True
        return len(call.terms) > 0 and wants_gradient(call.terms)  # torch 2.11 cannot compile bool() of a tuple

    @property
    def positions_want_gradient(self) -> bool:
        """Whether positions require a gradient."""
        q, k = self._call.q_coordinates, self._call.k_coordinates
        return (q.position.requires_grad or k.position.requires_grad) and torch.is_grad_enabled()

    @property
    def positions_rise_by_one(self) -> bool:
        """Whether the positions of both sides are known to rise by one from token to token."""
        return all(side.spanned is side.position for side in (self._call.q_coordinates, self._call.k_coordinates))

    @property
    def positions_are_whole(self) -> bool:
        """Whether the positions of both sides are integers."""
        q, k = self._call.q_coordinates, self._call.k_coordinates
        return not (q.position.is_floating_point() or k.position.is_floating_point())

    @property
    def keys_in_order(self) -> bool:
        """Whether the index of the keys is known to rise by one from slot to slot."""
        return self._call.k_coordinates.ordered

    @property
    def coordinate_rows(self) -> int:
        """The rows of the coordinates: 1 or the batch."""
        sides = self._call.q_coordinates, self._call.k_coordinates
        return max(x.shape[0] for side in sides for x in (side.position, side.index))


@constant_in_graphs
def gpu(device: torch.device) -> tuple[tuple[int, int], int] | None:
    """Returns the compute capability and the bytes of memory of a GPU; None for fake tensors without one."""
    if not torch.cuda.is_available():
        return None
    properties = torch.cuda.get_device_properties(device)
    return (properties.major, properties.minor), properties.total_memory


@constant_in_graphs  # torch 2.11's compiler cannot compare tuples that such a function returned
def is_older(capability: tuple[int, int] | None, least: tuple[int, int]) -> bool:
    """Returns whether a GPU's compute capability is below another one; False if it is not known."""
    return capability is not None and capability < least


def tensors_in(part: Any) -> Iterator[Tensor]:
    """Yields all tensors of a term, a mask or coordinates."""
    if isinstance(part, Tensor):
        yield part
    elif isinstance(part, (tuple, list)):
        for item in part:
            yield from tensors_in(item)
    elif isinstance(part, (Part, Mask, Coordinates)):
        for value in attributes(part).values():
            yield from tensors_in(value)


def wants_gradient(part: Any) -> bool:
    """Returns whether any tensor of a term requires a gradient."""
    return torch.is_grad_enabled() and any(map(requires_grad, tensors_in(part)))
