"""Writes tensors, coordinates and masks of a call as the int64 words that csrc/call.h reads."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...coordinates import Coordinates
from ...errors import HeadwayError
from ...masks import (
    And,
    Bits,
    Boolean,
    Bounds,
    Causal,
    Chunked,
    Dilated,
    Documents,
    Interval,
    Mask,
    Or,
    Slot,
    Window,
)
from ...terms import Part
from ..lowering.masks import slots, within

MAX_NODES, MAX_DEPTH, MAX_AXES, MAX_WIDTH = 64, 16, 1 << 20, 1 << 16
DTYPES = {
    torch.float32: (0, 4),
    torch.bfloat16: (1, 2),
    torch.float16: (2, 2),
    torch.float64: (3, 8),
    torch.int64: (4, 8),
    torch.bool: (5, 1),
    torch.uint8: (5, 1),  # bits of masks
}
"""The number of each dtype in the C interface, and the bytes of an item."""
DIFFERENCE, DILATED, EQUAL, KEYS, BOOLEAN, BITS, AND, OR = 1, 2, 3, 4, 5, 6, 7, 8

ABSENT = (0,) * 7
AT_THREADS, AT_KEYS, AT_Q, AT_K, AT_V = 2, 8, 18, 25, 32
"""The places of the number of threads, the number of keys, q, k and v in the words of a call."""
FAR = 1 << 62
"""A number larger than any difference of two indices."""

_double, _word = struct.Struct("d"), struct.Struct("q")
_zero = array("q", [0])
ZERO_WORDS = (_zero.buffer_info()[0], 8, DTYPES[torch.int64][0], 0, 0, 0, 0)
"""The words of a tensor of any shape whose items are all 0."""
FAR_SLOT = 1 << 13
_slots = array("q", range(-FAR_SLOT, FAR_SLOT))
SLOTS, SLOTS_SIZE = _slots.buffer_info()[0], 8 * len(_slots)
"""The numbers −FAR_SLOT … FAR_SLOT − 1 in memory. Bounds of short calls that are numbers or ``Slot``s point into it,
and so do positions of decoding steps that rise by one."""


def numbers_from(first: int) -> tuple[int, int]:
    """Returns the address of the int64 numbers first, first + 1, … FAR_SLOT − 1, and their size in bytes."""
    skipped = 8 * (FAR_SLOT + first)
    return SLOTS + skipped, SLOTS_SIZE - skipped


def double_bits(x: float) -> int:
    """Returns the bits of a float64 as an int64 word."""
    bits: int = _word.unpack(_double.pack(x))[0]
    return bits


ONE = double_bits(1.0)


class CallDescriptor:
    """The int64 words of one call, and the tensors that they point to.

    places: the first word of each tensor of ``keep_alive``.
    fresh_places: the first word of each newly allocated tensor.
    gradients: pairs of a tensor that requires a gradient and the buffer into which the kernel writes it. Dimensions
        along which the tensor broadcasts have their full size in the buffer.
    """

    def __init__(self, q_coordinates: Coordinates, k_coordinates: Coordinates, backward: bool) -> None:
        self.words: list[int] = []
        self.keep_alive: list[Tensor] = []
        self.places: list[int] = []
        self.fresh_places: list[int] = []
        self.gradients: list[tuple[Tensor, Tensor]] = []
        self.backward = backward
        self.q, self.k = q_coordinates, k_coordinates
        self.sizes: Mapping[str, int] = {}
        self.coordinates_at = self.mask_at = self.terms_at = 0

    # ------------------------------------------------------------ tensors

    def tensor(self, x: Tensor | None) -> None:
        """Appends the words of a tensor; missing trailing dimensions get stride 0."""
        if x is None:
            self.words += ABSENT
        else:
            self._tensor(x)

    def broadcast(self, x: Tensor, missing: int = 0) -> None:
        """Appends a tensor that broadcasts along dimensions of size 1 and along ``missing`` leading dimensions."""
        self._tensor(x, True, missing)

    def pair(self, x: Tensor, y: Tensor) -> None:
        """Appends two tensors by ``broadcast``, which are one object in self-attention."""
        at = len(self.words)
        self.broadcast(x)
        if y is x:
            self.words += self.words[at:]
        else:
            self.broadcast(y)

    def _tensor(self, x: Tensor, broadcast: bool = False, missing: int = 0) -> None:
        if not x.is_cpu:
            raise HeadwayError(f"q is on the CPU but another tensor of the call is on {x.device}: move it to the CPU")
        if x.is_neg():
            x = x.resolve_neg()
        number, item = DTYPES[x.dtype]
        address: Any = x.data_ptr()
        if address % item:  # a view of bytes may begin anywhere, but the kernel needs aligned numbers
            x = x.clone()
            address = x.data_ptr()
        left: Any = x.untyped_storage().nbytes() - x.storage_offset() * item
        strides: Any = x.stride()
        if broadcast:
            shape = x.shape
            if 1 in shape:
                strides = tuple(map(_broadcast_stride, shape, strides))
        if missing:
            strides = ABSENT[:missing] + strides
        self.places.append(len(self.words))
        self.keep_alive.append(x)
        self.words += (address, left, number, *strides, *ABSENT[len(strides) : 4])

    def fresh(self, x: Tensor) -> None:
        """Appends a newly allocated tensor that the kernel writes."""
        strides = x.stride()
        self.fresh_places.append(len(self.words))
        self.words += (x.data_ptr(), x.nbytes, DTYPES[x.dtype][0], *strides, *ABSENT[len(strides) : 4])

    def parameter(self, part: Part, name: str) -> None:
        """Appends a tensor of a part in float32, and a buffer for its gradient in the broadcast shape."""
        x = getattr(part, name)
        if x is None:
            self.words += ABSENT + ABSENT
        else:
            self.summed(x, part.full_shape(name, x, self.sizes) if self.backward and x.requires_grad else ())

    def summed(self, x: Tensor, shape: tuple[int, ...]) -> None:
        """Appends a tensor in float32, and a buffer of ``shape`` for its gradient, which is summed afterwards."""
        if x.dtype != torch.float32:
            x = x.float()
        self.broadcast(x)
        if self.backward and x.requires_grad:
            gradient = x.new_empty(shape)
            self.gradients.append((x, gradient))
            self.fresh(gradient)
        else:
            self.words += ABSENT

    def gradient(self, x: Tensor) -> None:
        """Appends a buffer for the gradient of q, k or v."""
        if x.requires_grad:
            gradient = torch.empty_like(x)
            self.gradients.append((x, gradient))
            self.fresh(gradient)
        else:
            self.words += ABSENT

    # ------------------------------------------------------------ coordinates and the mask

    def coordinates(self, *, position: bool, index: bool) -> None:
        """Appends the coordinates of the tokens, with zeros in place of unused ones."""
        q, k = self.q, self.k
        self.coordinates_at = len(self.words)
        if position:
            q_position, k_position = _position(q.position), _position(k.position)
            if q_position.dtype != k_position.dtype:
                wide = torch.promote_types(q_position.dtype, k_position.dtype)
                q_position, k_position = q_position.to(wide), k_position.to(wide)
            self.words.append(min(q_position.shape[2], k_position.shape[2], MAX_AXES))
            self.pair(q_position, k_position)
        else:
            self.words += (1, *ZERO_WORDS, *ZERO_WORDS)
        if index:
            self.pair(whole(q.index), whole(k.index))
        else:
            self.words += ZERO_WORDS + ZERO_WORDS

    def mask(self, intervals: tuple[Bounds, ...], rest: Mask | None) -> None:
        self.mask_at = len(self.words)
        self.words.append(len(intervals))
        if intervals:
            n, m = self.q.index.shape[1], self.k.index.shape[1]
            for start, stop in intervals:
                self.bound(0 if start is None else start, n, m)
                self.bound(m if stop is None else stop, n, m)
        at = len(self.words)
        self.words.append(0)
        if rest is not None:
            self.words[at] = self._nodes(rest)

    def bound(self, bound: int | Slot | Tensor, n: int, m: int) -> None:
        """Appends a key slot for each of n queries, [b, n]."""
        if not isinstance(bound, Tensor):
            step, offset = (0, bound) if isinstance(bound, int) else (1, bound.offset)
            offset = within(offset, n, m)
            if offset >= -FAR_SLOT and offset + n <= FAR_SLOT:
                self.words += (*numbers_from(offset), DTYPES[torch.int64][0], 0, step, 0, 0)
                return
            bound = slots(bound, self.q, self.k)
        self.broadcast(whole(bound))

    def _nodes(self, mask: Mask) -> int:
        """Appends the mask in postfix order, and returns the number of nodes."""
        q, k = self.q, self.k
        if isinstance(mask, (And, Or)):
            count = 0
            for number, part in enumerate(mask.masks):
                count += self._nodes(part)
                if number:
                    self.words.append(AND if isinstance(mask, And) else OR)
                    count += 1
            return count
        if isinstance(mask, Causal):
            self.words += (DIFFERENCE, -FAR, 0)
        elif isinstance(mask, Window):
            left, right = (FAR if side is None else side for side in (mask.left, mask.right))
            self.words += (DIFFERENCE, -left, right)
        elif isinstance(mask, Dilated):
            self.words += (DILATED, mask.step)
        elif isinstance(mask, Chunked):
            for back in range(mask.previous + 1):
                self.words.append(EQUAL)
                self.broadcast(whole(q.index) // mask.size)
                self.broadcast(whole(k.index) // mask.size + back)
                if back:
                    self.words.append(OR)
            return 2 * mask.previous + 1
        elif isinstance(mask, Documents):
            self.words.append(EQUAL)
            for ids in mask.ids_of(q, k):
                self.broadcast(whole(ids))
        elif isinstance(mask, Boolean):
            self.words.append(BOOLEAN)
            self.broadcast(mask.values, 4 - mask.values.ndim)
        elif isinstance(mask, Bits):
            self.words += (BITS, mask.first)
            self.broadcast(mask.bits)
        elif isinstance(mask, Interval):
            self.words.append(BOOLEAN)
            self.broadcast(mask.allowed(q, k))
        else:  # the same keys for every query
            self.words.append(KEYS)
            self.broadcast(mask.allowed(q, k)[:, 0, 0])
        return 1

    def need_axis(self, axis: int) -> None:
        """Raises HeadwayError if the positions have no such axis."""
        if not 0 <= axis < min(self.q.position.shape[2], self.k.position.shape[2]):
            self.q.axis(axis)
            self.k.axis(axis)


def _broadcast_stride(size: int, step: int) -> int:
    """Returns the stride of a dimension; 0 for size 1, which broadcasts."""
    return 0 if size == 1 else step


def whole(x: Tensor) -> Tensor:
    """Returns integers as int64."""
    return x if x.dtype == torch.int64 else x.long()


def _position(x: Tensor) -> Tensor:
    """Returns positions in int64, float32 or float64, the dtypes in which the kernel computes distances."""
    if x.dtype in (torch.int64, torch.float32, torch.float64):
        return x
    return x.float() if x.is_floating_point() else x.long()
