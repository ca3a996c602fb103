"""A call of the kernel that is planned once: later calls write their addresses into a copy of its words."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...records import attributes
from ...terms import Part, Term
from .._autograd import ORDINARY
from .._problem import Call, without_tables
from .._results import new_out
from ..lowering import LoweredCall, lower
from . import _library
from ._descriptor import ABSENT, AT_K, AT_OUT, AT_Q, AT_V, begin, finish
from ._tokens import PlannedRotation

Path = tuple[str | int, ...]
"""Where a tensor of the terms is: the names of fields, and the numbers of items of tuples."""


class Patch(NamedTuple):
    """Where a tensor of the terms stands, in the terms and in the words, and what does not change.

    Attributes:
        path: where it is in the terms.
        at: where its words begin.
        shape: its shape.
        strides: its strides.
        dtype: its dtype.
    """

    path: Path
    at: int
    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype


class PlannedCall:
    """A call without a gradient, for other q, k and v of the same shapes, strides and dtype.

    A call does not change it, so that threads may share it.
    """

    __slots__ = ("dtype", "item", "keep_alive", "patchable", "patches", "rotations", "shape", "strides", "words")

    def __init__(self, call: LoweredCall, rotations: list[PlannedRotation | None]) -> None:
        out = new_out(call.q, call.v, call.q.dtype)
        self.rotations = rotations
        self.shape, self.strides, self.dtype, self.item = out.shape, out.stride(), out.dtype, out.itemsize
        descriptor = begin(call, False)
        descriptor.fresh(out)
        descriptor.words += ABSENT + ABSENT
        finish(descriptor, call)
        self.words = array("q", descriptor.words)
        self.keep_alive = descriptor.keep_alive[3:]  # all but q, k and v
        paths, placed = dict(_paths(call.terms)), zip(descriptor.places, descriptor.keep_alive, strict=True)
        found = [(paths.get(x), at, x) for at, x in placed if at > descriptor.terms_at]
        self.patches = [Patch(path, at, x.shape, x.stride(), x.dtype) for path, at, x in found if path is not None]
        self.patchable = len(self.patches) == len(found)

    @staticmethod
    def of(call: Call, terms_vary: bool) -> PlannedCall | None:
        """Returns the planned ``call``; None if more than the kernel takes part in computing it.

        Args:
            call: the first call.
            terms_vary: whether later calls have other terms, of the same kinds.
        """
        if not call.q.dtype == call.k.dtype == call.v.dtype or call.wants_lse or call.dropout:
            return None
        if call.v_rotation is not None or call.out_rotation is not None or call.restore is not None:
            return None
        inputs, rotations = [], []
        for x, rotation in ((call.q, call.q_rotation), (call.k, call.k_rotation)):
            planned = None if rotation is None else PlannedRotation.of(x, rotation)
            if rotation is not None and planned is None:
                return None
            inputs.append(x if planned is None else torch.empty_like(x))
            rotations.append(planned)
        bare = call._with(q=inputs[0], k=inputs[1], q_rotation=None, k_rotation=None)
        lowered = lower(without_tables(bare))
        if lowered.terms is not call.terms:
            return None
        found = PlannedCall(lowered, rotations)
        if not ORDINARY.issuperset(map(type, found.keep_alive)) or (terms_vary and not found.patchable):
            return None
        return found

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, terms: tuple[Term, ...] = ()) -> Tensor | None:
        """Returns the output; None if the kernel cannot read a tensor as it is.

        Args:
            q: queries.
            k: keys.
            v: values.
            terms: the terms; none if they are those of the first call.
        """
        rotate_q, rotate_k = self.rotations
        inputs = (q if rotate_q is None else rotate_q(q), k if rotate_k is None else rotate_k(k), v)
        words = self.words[:]
        for at, x in zip((AT_Q, AT_K, AT_V), inputs, strict=True):
            if x is None or not _written(words, at, x, self.item):
                return None
        for path, at, shape, strides, dtype in self.patches if terms else ():
            x = _at(path, terms)
            if x.shape != shape or x.stride() != strides or x.dtype != dtype:
                return None
            if type(x) not in ORDINARY or x.is_neg() or not x.is_cpu:
                return None
            if not _written(words, at, x, dtype.itemsize):
                return None
        out = torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device="cpu")
        words[AT_OUT] = out.data_ptr()
        _library.run(words)
        return out


def _paths(part: Any, path: Path = ()) -> Iterator[tuple[Tensor, Path]]:
    """Yields the tensors of terms, by identity, and where they are."""
    if isinstance(part, Tensor):
        yield part, path
    elif isinstance(part, tuple):
        for number, item in enumerate(part):
            yield from _paths(item, (*path, number))
    elif isinstance(part, Part):
        for name, value in attributes(part).items():
            yield from _paths(value, (*path, name))


def _at(path: Path, terms: Any) -> Tensor:
    for step in path:
        terms = terms[step] if isinstance(step, int) else getattr(terms, step)
    return terms


def _written(words: array[int], at: int, x: Tensor, item: int) -> bool:
    """Writes where a tensor begins and how many bytes it has; returns whether its numbers are aligned to their size."""
    address: Any = x.data_ptr()
    skipped: Any = x.storage_offset() * item
    words[at] = address
    words[at + 1] = x.untyped_storage().nbytes() - skipped
    return not address % item
