"""The places of tensors in the words of a prepared call, and which of them later calls replace."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...terms import Term
from .._autograd import ORDINARY
from .._repeated import Path, paths_of, tensor_at
from ._descriptor import CallDescriptor

CPU = torch.device("cpu")
STRIDES, WORDS = 3, 7
"""The place of the strides in the words of a tensor, and the number of its words."""
LOWERED = "each call computes a simpler form of the terms for the kernel"
COMPUTED = "the words point to tensors that are computed from those of the call"


class TensorWords(NamedTuple):
    """The place of a tensor's words, and the facts that stay the same from call to call.

    Attributes:
        at: its first word.
        shape: its shape.
        strides: its strides.
        dtype: its dtype.
    """

    at: int
    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype

    @staticmethod
    def of(at: int, x: Tensor) -> TensorWords:
        """Returns the facts of ``x``, whose first word is ``at``."""
        return TensorWords(at, x.shape, x.stride(), x.dtype)

    def new(self, words: array[int]) -> Tensor:
        """Allocates a tensor that the kernel writes."""
        x = torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=CPU)
        words[self.at] = x.data_ptr()
        return x

    def write(self, words: array[int], x: Tensor) -> bool:
        """Writes a tensor's address; returns whether the tensor is like the first one and the kernel can read it."""
        if x.shape != self.shape or x.stride() != self.strides or x.dtype != self.dtype:
            return False
        return is_plain(x) and write_place(words, self.at, x, self.dtype.itemsize)


class Patch(NamedTuple):
    """A tensor of the terms that each call replaces.

    Attributes:
        path: its place in the terms.
        number: its number among the tensors of the call.
        requires_grad: whether it requires a gradient.
        words: the place of its words.
    """

    path: Path
    number: int
    requires_grad: bool
    words: TensorWords

    def tensor(self, terms: Any) -> Tensor:
        """Returns the tensor at this place in other terms."""
        return tensor_at(terms, self.path)


def is_plain(x: Tensor) -> bool:
    """Returns whether the kernel can read a tensor's memory directly."""
    return type(x) in ORDINARY and x.is_cpu and not x.is_neg()


def write_place(words: array[int], at: int, x: Tensor, item: int) -> bool:
    """Writes a tensor's address and number of bytes; returns whether its numbers are aligned to their size."""
    address: Any = x.data_ptr()
    skipped: Any = x.storage_offset() * item
    words[at] = address
    words[at + 1] = x.untyped_storage().nbytes() - skipped
    return not address % item


def patches_of(terms: tuple[Term, ...], anew: Mapping[int, int], descriptor: CallDescriptor) -> list[Patch] | None:
    """Returns the tensors that each call replaces; None if the words point to a tensor that is computed from one.

    Args:
        terms: the terms of the first call.
        anew: the ids of these tensors, with their numbers among the tensors of the call.
        descriptor: the words of the first call.
    """
    if not anew:
        return []
    paths, patches = dict(paths_of(terms)), []
    for x, at in zip(descriptor.keep_alive, descriptor.places, strict=True):
        if at > descriptor.terms_at:
            if x not in paths:
                return None
            if id(x) in anew:
                patches.append(Patch(paths[x], anew[id(x)], x.requires_grad, TensorWords.of(at, x)))
    return patches


def constants_of(descriptor: CallDescriptor, patches: list[Patch], after: int) -> list[Tensor]:
    """Returns the tensors, described behind the word ``after``, to which the words of every call point."""
    patched = {patch.words.at for patch in patches}
    held = zip(descriptor.keep_alive, descriptor.places, strict=True)
    return [x for x, at in held if at > after and at not in patched]
