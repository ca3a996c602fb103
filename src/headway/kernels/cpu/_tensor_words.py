"""Where the words of a prepared call have its tensors, and which of these later calls have anew."""

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
"""The words of a tensor end with its strides."""
LOWERED = "the kernel takes the terms in simpler form, which each call computes"
COMPUTED = "the words point to tensors that are computed from those of the call"


class TensorWords(NamedTuple):
    """Where the words of a tensor begin, and what does not change from call to call.

    Attributes:
        at: where its words begin.
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
        """Returns what is known of ``x``, whose words begin ``at``."""
        return TensorWords(at, x.shape, x.stride(), x.dtype)

    def new(self, words: array[int]) -> Tensor:
        """Allocates a tensor, which the kernel writes."""
        x = torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=CPU)
        words[self.at] = x.data_ptr()
        return x

    def write(self, words: array[int], x: Tensor) -> bool:
        """Writes where a tensor begins; returns whether it is as the first one, and the kernel can read it as it is."""
        if x.shape != self.shape or x.stride() != self.strides or x.dtype != self.dtype:
            return False
        return is_plain(x) and write_place(words, self.at, x, self.dtype.itemsize)


class Patch(NamedTuple):
    """A tensor of the terms, which each call has anew.

    Attributes:
        path: where it is in the terms.
        number: its number among the tensors of the call.
        requires_grad: whether it requires a gradient.
        words: where its words are.
    """

    path: Path
    number: int
    requires_grad: bool
    words: TensorWords

    def tensor(self, terms: Any) -> Tensor:
        """Returns the tensor of other terms."""
        return tensor_at(terms, self.path)


def is_plain(x: Tensor) -> bool:
    """Returns whether the kernel can read a tensor's numbers as they lie."""
    return type(x) in ORDINARY and x.is_cpu and not x.is_neg()


def write_place(words: array[int], at: int, x: Tensor, item: int) -> bool:
    """Writes where a tensor begins and how many bytes it has; returns whether its numbers are aligned to their size."""
    address: Any = x.data_ptr()
    skipped: Any = x.storage_offset() * item
    words[at] = address
    words[at + 1] = x.untyped_storage().nbytes() - skipped
    return not address % item


def patches_of(terms: tuple[Term, ...], anew: Mapping[int, int], descriptor: CallDescriptor) -> list[Patch] | None:
    """Returns where the tensors are that each call has anew; None if the words have one that is computed from them.

    Args:
        terms: the terms of the first call.
        anew: for these tensors, by identity, their numbers among those of the call.
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
    """Returns the tensors after a word to which the words point in every call."""
    patched = {patch.words.at for patch in patches}
    held = zip(descriptor.keep_alive, descriptor.places, strict=True)
    return [x for x, at in held if at > after and at not in patched]
