"""Packs several tensors of a run of tokens into one buffer, which is one message, and keeps buffers for reuse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

ALIGNED = 64
"""Each tensor begins at a multiple of this number of bytes."""


@dataclass(frozen=True)
class Packing:
    """The layout of tensors of some tokens in a buffer.

    Args:
        shapes: their shapes; the size of the token dimension may be any number.
        dims: the dimension of the tokens of each.
        dtypes: their dtypes.
    """

    shapes: tuple[tuple[int, ...], ...]
    dims: tuple[int, ...]
    dtypes: tuple[torch.dtype, ...]

    @staticmethod
    def of(tensors: Sequence[Tensor], dims: Sequence[int]) -> Packing:
        return Packing(tuple(tuple(x.shape) for x in tensors), tuple(dims), tuple(x.dtype for x in tensors))

    def of_gradients(self, wanted: Sequence[bool]) -> Packing:
        """The layout of the gradients of the tensors that require one, in float32 or wider."""
        parts = [
            one for one, want in zip(zip(self.shapes, self.dims, self.dtypes, strict=True), wanted, strict=True) if want
        ]
        return Packing(
            tuple(shape for shape, _, _ in parts),
            tuple(dim for _, dim, _ in parts),
            tuple(torch.promote_types(dtype, torch.float32) for _, _, dtype in parts),
        )

    def size(self, tokens: int) -> int:
        """Returns the bytes of a buffer of some tokens."""
        return sum(nbytes for _, _, nbytes in self._parts(tokens))

    def views(self, buffer: Tensor, tokens: int) -> list[Tensor]:
        """Returns the tensors in a buffer."""
        found, at = [], 0
        for (shape, length, nbytes), dtype in zip(self._parts(tokens), self.dtypes, strict=True):
            found.append(buffer[at : at + length].view(dtype).view(shape))
            at += nbytes
        return found

    def _parts(self, tokens: int) -> list[tuple[tuple[int, ...], int, int]]:
        """The shape of each tensor, its bytes, and its bytes with the padding that aligns the next one."""
        found = []
        for shape, dim, dtype in zip(self.shapes, self.dims, self.dtypes, strict=True):
            shape = (*shape[:dim], tokens, *shape[dim + 1 :])
            count = dtype.itemsize
            for one in shape:
                count *= one
            found.append((shape, count, -(-count // ALIGNED) * ALIGNED))
        return found


class Buffers:
    """Buffers of a call, for reuse.

    Args:
        device: where they are.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._free: dict[int, list[Tensor]] = {}

    def take(self, size: int) -> Tensor:
        """Returns a buffer of some bytes; its contents are undefined."""
        free = self._free.get(size)
        return free.pop() if free else torch.empty(size, dtype=torch.uint8, device=self.device)

    def give(self, buffer: Tensor) -> None:
        """Takes back a buffer that is no longer needed."""
        self._free.setdefault(buffer.numel(), []).append(buffer)
