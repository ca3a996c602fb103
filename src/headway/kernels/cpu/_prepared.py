"""A call of the kernel that is prepared once: later calls write their addresses into a copy of its words.

A call that autograd records has the words of its backward pass prepared too. It saves what the same call saves that is
not prepared, so that a checkpoint may compute it again either way.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...coordinates import Coordinates
from ...masks import Bound, Slot
from ...records import attributes
from ...terms import Part, Term
from ...tracing import watched
from .. import _ops
from .._autograd import ORDINARY, eager_apply, gradients_of
from .._native import recorded
from .._problem import Call, tensors_in, without_tables
from .._results import Results, new_out, new_results
from ..lowering import LoweredCall, lower
from ..lowering.masks import within
from . import _library
from ._describe import describe_backward, describe_forward
from ._descriptor import (
    AT_K,
    AT_KEYS,
    AT_Q,
    AT_THREADS,
    AT_V,
    FAR_SLOT,
    CallDescriptor,
    numbers_from,
)
from ._tokens import PreparedRotation

Path = tuple[str | int, ...]
"""Where a tensor of the terms is: the names of fields, and the numbers of items of tuples."""

KERNEL = "cpu"
INPUTS, RESULTS = 3, 3
"""q, k and v are the first tensors of a call, and its results the last of those that it saves."""
STRIDES, WORDS = 3, 7
"""The words of a tensor end with its strides."""


class Layout(NamedTuple):
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
    def of(at: int, x: Tensor) -> Layout:
        """Returns the layout of ``x``, whose words begin ``at``."""
        return Layout(at, x.shape, x.stride(), x.dtype)

    def empty(self, words: array[int]) -> Tensor:
        """Allocates a tensor, which the kernel writes."""
        x = torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device="cpu")
        words[self.at] = x.data_ptr()
        return x

    def write(self, words: array[int], x: Tensor) -> bool:
        """Writes where a tensor begins; returns whether it has this layout, and the kernel can read it as it is."""
        if x.shape != self.shape or x.stride() != self.strides or x.dtype != self.dtype:
            return False
        return _is_plain(x) and _written(words, self.at, x, self.dtype.itemsize)


class Patch(NamedTuple):
    """A tensor of the terms, which each call has anew.

    Attributes:
        path: where it is in the terms.
        number: its number among the tensors of the call.
        requires_grad: whether it requires a gradient.
        layout: where its words are.
    """

    path: Path
    number: int
    requires_grad: bool
    layout: Layout


class PreparedCall:
    """A call for other q, k and v of the same shapes, strides and dtype.

    A call does not change it, so that threads may share it.

    Args:
        call: the first call, lowered.
        rotations: those of q and k.
        anew: the tensors of the terms that each call has anew: their numbers among its tensors, by identity.
        gradients: the backward pass, if autograd records the call.
    """

    __slots__ = ("gradients", "item", "keep_alive", "patchable", "patches", "results", "rotations", "words")

    def __init__(
        self,
        call: LoweredCall,
        rotations: list[PreparedRotation | None],
        anew: Mapping[int, int],
        gradients: PreparedGradients | None,
    ) -> None:
        self.rotations, self.gradients, self.item = rotations, gradients, call.q.itemsize
        results = Results(new_out(call.q, call.v, call.q.dtype)) if gradients is None else _results(call)
        descriptor = describe_forward(call, results)
        kept = [x for x in results if x is not None]
        self.results = [Layout.of(at, x) for at, x in zip(descriptor.fresh_places, kept, strict=True)]
        self.words = array("q", descriptor.words)
        found = _patches(call, anew, descriptor)
        self.patches = found or []
        self.keep_alive = _constants(descriptor, INPUTS, self.patches)
        self.patchable = found is not None and ORDINARY.issuperset(map(type, descriptor.keep_alive))

    @staticmethod
    def of(call: Call, terms_vary: bool) -> PreparedCall | str:
        """Returns the prepared ``call``, or why more than the kernel takes part in computing it.

        Args:
            call: the first call.
            terms_vary: whether later calls have other terms, of the same kinds.
        """
        reason = _why_not(call)
        if reason is not None:
            return reason
        if any(x.data_ptr() % x.itemsize for x in (call.q, call.k, call.v)):
            return "q, k or v is not aligned to its items, so that the kernel would read a copy of other strides"
        inputs, rotations = [], []
        for x, rotation in ((call.q, call.q_rotation), (call.k, call.k_rotation), (call.v, None)):
            prepared = None if rotation is None else PreparedRotation.of(x, rotation)
            if rotation is not None and prepared is None:
                return "torch computes a rotation"
            inputs.append((x if prepared is None else torch.empty_like(x)).detach().requires_grad_(x.requires_grad))
            rotations.append(prepared)
        bare = without_tables(call._with(q=inputs[0], k=inputs[1], v=inputs[2], q_rotation=None, k_rotation=None))
        given = {id(x) for x in tensors_in(call.terms)} if terms_vary else set()
        for side in (call.q_coordinates, call.k_coordinates) if given else ():
            given -= {id(x) for x in tensors_in(side)}  # of which later calls have the same objects
        gradients: PreparedGradients | None = None
        if recorded(call):
            tensors: list[Tensor] = []
            structure = _ops.flatten(bare, tensors)
            leaves = [x.detach().requires_grad_(x.requires_grad) for x in tensors]
            anew = {id(leaf): number for number, leaf in enumerate(leaves) if id(tensors[number]) in given}
            bare = _ops.unflatten(structure, leaves)
            lowered = lower(bare)
            made = (
                LOWERED if lowered.terms is not bare.terms else PreparedGradients.of(lowered, leaves, structure, anew)
            )
            if isinstance(made, str):
                return made
            gradients = made
        else:
            anew, lowered = dict.fromkeys(given, 0), lower(bare)  # numbers of tensors that nothing saves
            if lowered.terms is not bare.terms:
                return LOWERED
        found = PreparedCall(lowered, rotations[:2], anew, gradients)
        return found if found.patchable else COMPUTED

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, terms: tuple[Term, ...] = ()) -> Tensor | None:
        """Returns the output; None if the kernel cannot read a tensor as it is.

        Args:
            q: queries.
            k: keys.
            v: values.
            terms: the terms; none if they are those of the first call.
        """
        gradients = self.gradients
        rotate_q, rotate_k = self.rotations
        inputs = (q if rotate_q is None else rotate_q(q), k if rotate_k is None else rotate_k(k), v)
        words = self.words[:]
        for at, x in zip((AT_Q, AT_K, AT_V), inputs, strict=True):
            if x is None or not _written(words, at, x, self.item):
                return None
        given: list[Any] = [] if gradients is None else gradients.tensors[:]
        given[:INPUTS] = inputs
        for path, number, requires_grad, layout in self.patches:
            x = _at(path, terms)
            if not layout.write(words, x):
                return None
            if gradients is not None:
                given[number] = x
            if x.requires_grad is not requires_grad and torch.is_grad_enabled():
                return None
        if gradients is not None:
            return eager_apply(PreparedAttention)(self, words, *given)  # type: ignore[return-value]
        out = self.results[0].empty(words)
        _library.run(words)
        return out


class PreparedStep:
    """A decoding step: a call without gradients of queries that are the last of any number of keys.

    The words of the first call hold for others, except for the number of keys, the places of q, k, v and the
    coordinates, and the bounds of the mask, which shift with the number of keys. A call does not change it, so that
    threads may share it.

    Args:
        call: the first call, lowered; its coordinates are aligned and have one axis of whole numbers.
        anew: as for ``PreparedCall``.
    """

    __slots__ = ("bounds", "item", "keep_alive", "keys", "patches", "places", "plain", "queries", "results", "words")

    def __init__(self, call: LoweredCall, anew: Mapping[int, int]) -> None:
        results = Results(new_out(call.q, call.v, call.q.dtype))
        descriptor = describe_forward(call, results)
        self.item, self.queries, self.keys = call.q.itemsize, call.q.shape[2], call.k.shape[2]
        self.words, self.results = array("q", descriptor.words), Layout.of(descriptor.fresh_places[0], results.out)
        found = _patches(call, anew, descriptor)
        self.patches = found or []
        self.keep_alive = [
            x
            for x, at in zip(descriptor.keep_alive, descriptor.places, strict=True)
            if at > descriptor.terms_at and at not in {patch.layout.at for patch in self.patches}
        ]
        # after the number of axes come the positions of queries and keys, and their indices
        first = descriptor.coordinates_at + 1
        self.places = [
            (at, name) for at, name in ((first, "position"), (first + 2 * WORDS, "index")) if at in descriptor.places
        ]
        bounds = [bound for interval in call.intervals for bound in interval]
        self.bounds = [(descriptor.mask_at + 1 + WORDS * i, bound) for i, bound in enumerate(bounds)]
        of_the_mask = any(descriptor.mask_at <= at < descriptor.terms_at for at in descriptor.places)
        self.plain = found is not None and not of_the_mask and not any(isinstance(one, Tensor) for one in bounds)

    @staticmethod
    def of(call: Call, terms_vary: bool) -> PreparedStep | str:
        """Returns the prepared step, or why it holds for this number of keys alone or needs more than the kernel.

        Args:
            call: the first call, whose q and k have been rotated.
            terms_vary: whether later calls have other terms, of the same kinds.
        """
        reason = _why_not(call)
        if reason is not None:
            return reason
        bare = without_tables(call._with(q=call.q.detach(), k=call.k.detach(), v=call.v.detach()))
        lowered = lower(bare)
        if lowered.terms is not bare.terms:
            return LOWERED
        anew = {id(x): number for number, x in enumerate(tensors_in(call.terms))} if terms_vary else {}
        for side in (call.q_coordinates, call.k_coordinates):
            for x in tensors_in(side):
                anew.pop(id(x), None)  # of which later calls have the same objects
        found = PreparedStep(lowered, anew)
        return found if found.plain else COMPUTED

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, terms: tuple[Term, ...], sides: tuple[Coordinates, Coordinates] | None
    ) -> Tensor | None:
        """Returns the output; None if the kernel cannot read a tensor as it is.

        Args:
            q: queries, rotated, of the first step's shape.
            k: keys, rotated, of any number.
            v: values.
            terms: the terms; none if they are those of the first step.
            sides: the coordinates of queries and keys; None if keys stand at 0, 1, 2 …
        """
        words, n, m = self.words[:], self.queries, k.shape[2]
        words[AT_KEYS] = m
        for at, x in ((AT_Q, q), (AT_K, k), (AT_V, v)):
            if not _written(words, at, x, self.item):
                return None
            words[at + STRIDES : at + WORDS] = array("q", x.stride())
        for at, name in self.places:
            if sides is not None:
                if not all(_write_row(words, at + WORDS * i, getattr(side, name)) for i, side in enumerate(sides)):
                    return None
            elif m > FAR_SLOT:
                return None
            else:
                words[at], words[at + 1] = numbers_from(m - n)
                words[at + WORDS], words[at + WORDS + 1] = numbers_from(0)
                words[at + STRIDES : at + WORDS] = words[at + WORDS + STRIDES : at + 2 * WORDS] = RISING
        for number, (at, bound) in enumerate(self.bounds):
            offset = self._offset(bound, number % 2, m)
            if not -FAR_SLOT <= offset <= FAR_SLOT - n:
                return None
            words[at], words[at + 1] = numbers_from(offset)
        for path, _, _, layout in self.patches:
            if not layout.write(words, _at(path, terms)):
                return None
        out = self.results.empty(words)
        _library.run(words)
        return out

    def _offset(self, bound: Bound, is_stop: int, m: int) -> int:
        """Returns the first slot of a bound for m keys."""
        if bound is None:
            return m if is_stop else 0
        slot = bound.offset + m - self.keys if isinstance(bound, Slot) else bound
        assert isinstance(slot, int)
        return within(slot, self.queries, m)


RISING = array("q", [0, 1, 0, 0])
"""The strides of coordinates of one row that rise from token to token."""


def _write_row(words: array[int], at: int, x: Tensor) -> bool:
    """Writes int64 coordinates [1 or batch, tokens] or [1 or batch, tokens, 1]; returns whether they are aligned."""
    words[at + STRIDES] = 0 if x.shape[0] == 1 else x.stride(0)
    words[at + STRIDES + 1] = 0 if x.shape[1] == 1 else x.stride(1)
    return _written(words, at, x, 8)


class PreparedAttention(torch.autograd.Function):
    """Attention of (the prepared call, the words, *tensors), as ``Attention`` without a log-sum-exp."""

    @staticmethod
    def forward(ctx: Any, prepared: PreparedCall, words: array[int], *tensors: Tensor) -> Tensor:
        results = [layout.empty(words) for layout in prepared.results]
        _library.run(words)
        ctx.gradients = prepared.gradients
        ctx.save_for_backward(*tensors, *results)
        ctx.set_materialize_grads(False)
        return results[0]

    @staticmethod
    def backward(ctx: Any, d_out: Tensor | None) -> tuple[Tensor | None, ...]:
        prepared, saved, needed = ctx.gradients, ctx.saved_tensors, ctx.needs_input_grad[2:]
        found = None
        if d_out is not None and not torch.is_grad_enabled() and not watched():
            found = prepared(saved, d_out)
        if found is None:
            found = gradients_of(KERNEL, prepared.structure, saved, needed, d_out, None)
        return None, None, *found


class GradientBuffer(NamedTuple):
    """What the kernel writes as the gradient of a tensor.

    Attributes:
        number: the tensor's number among those of the call.
        layout: that of the buffer, which has the full sizes of dimensions along which the tensor broadcasts.
        shape: the tensor's shape.
        dtype: the tensor's dtype.
    """

    number: int
    layout: Layout
    shape: torch.Size
    dtype: torch.dtype

    def finished(self, x: Tensor) -> Tensor:
        """Returns the gradient in the tensor's shape and dtype, from what the kernel has written."""
        if x.shape != self.shape:
            x = x.double().sum_to_size(self.shape)
        return x if x.dtype == self.dtype else x.to(self.dtype)


class PreparedGradients:
    """The backward pass of a prepared call.

    Args:
        words: the words of the first call.
        saved: the layouts of the tensors that are read, by their numbers among those that a call saves.
        d_out: the layout of the first gradient of the output.
        buffers: the gradients.
        tensors: the tensors of the first call; None for q, k, v and those that later calls have anew.
        structure: the structure of the call.
        keep_alive: what else the words point to.
    """

    __slots__ = ("buffers", "d_out", "keep_alive", "saved", "structure", "tensors", "words")

    def __init__(
        self,
        words: list[int],
        saved: list[tuple[int, Layout]],
        d_out: Layout,
        buffers: list[GradientBuffer],
        tensors: list[Tensor | None],
        structure: Any,
        keep_alive: list[Tensor],
    ) -> None:
        self.words, self.keep_alive = array("q", words), keep_alive
        self.saved, self.d_out, self.buffers, self.tensors, self.structure = saved, d_out, buffers, tensors, structure

    @staticmethod
    def of(
        call: LoweredCall, tensors: list[Tensor], structure: Any, anew: Mapping[int, int]
    ) -> PreparedGradients | str:
        """Returns the backward pass, or why more than the kernel takes part in computing it.

        Args:
            call: the first call, lowered.
            tensors: its tensors.
            structure: its structure.
            anew: the tensors of the terms that each call has anew: their numbers, by identity.
        """
        results = _results(call)
        d_out = torch.empty_like(results.out)
        descriptor = describe_backward(call, results, d_out, None)
        if len(descriptor.fresh_places) != len(descriptor.gradients):
            return "a gradient is summed into a buffer that must be zero before"
        numbers = {id(x): number for number, x in enumerate(tensors)}
        buffers = [
            GradientBuffer(numbers.get(id(x), -1), Layout.of(at, gradient), x.shape, x.dtype)
            for at, (x, gradient) in zip(descriptor.fresh_places, descriptor.gradients, strict=True)
        ]
        if sorted(one.number for one in buffers) != [n for n, x in enumerate(tensors) if x.requires_grad]:
            return "a gradient goes through lowering, or has several parts"
        patches = _patches(call, anew, descriptor)
        if patches is None or any(x.requires_grad and id(x) not in anew for x in tensors[INPUTS:]):
            return COMPUTED
        read = (call.q, call.k, call.v, *results, d_out)
        layouts = [Layout.of(at, x) for at, x in zip(descriptor.places, read, strict=False)]
        saved = [*zip((*range(INPUTS), *range(-RESULTS, 0)), layouts, strict=False)]
        saved += [(patch.number, patch.layout) for patch in patches]
        kept = [None if number < INPUTS or id(x) in anew else x for number, x in enumerate(tensors)]
        keep_alive = _constants(descriptor, len(read), patches)
        return PreparedGradients(descriptor.words, saved, layouts[-1], buffers, kept, structure, keep_alive)

    def __call__(self, saved: Sequence[Tensor], d_out: Tensor) -> list[Tensor | None] | None:
        """Returns the gradient of each tensor; None if the kernel cannot read one as it is.

        Args:
            saved: the tensors of the call and its results.
            d_out: the gradient of the output.
        """
        words = self.words[:]
        at, shape, _, dtype = self.d_out
        if d_out.shape != shape or d_out.dtype != dtype or not _is_plain(d_out):
            return None
        if not _written(words, at, d_out, dtype.itemsize):
            return None
        words[at + STRIDES : at + WORDS] = array("q", d_out.stride())
        words[AT_THREADS] = torch.get_num_threads()
        for number, layout in self.saved:
            if not layout.write(words, saved[number]):
                return None
        made = [buffer.layout.empty(words) for buffer in self.buffers]
        _library.run(words)
        found: list[Tensor | None] = [None] * len(self.tensors)
        for buffer, x in zip(self.buffers, made, strict=True):
            found[buffer.number] = buffer.finished(x)
        return found


LOWERED = "the kernel takes the terms in simpler form, which each call computes"
COMPUTED = "the words point to tensors that are computed from those of the call"


def _why_not(call: Call) -> str | None:
    """Returns why the kernel alone does not compute what is wanted of a call; None if it does."""
    if not call.q.dtype == call.k.dtype == call.v.dtype:
        return "q, k and v are not of one dtype"
    if call.wants_lse or call.dropout:
        return "the log-sum-exp is wanted" if call.wants_lse else "dropout draws a seed for each call"
    if call.v_rotation is not None or call.out_rotation is not None or call.restore is not None:
        return "values are transformed and the output is restored"
    return None


def _results(call: Call) -> Results:
    return new_results(call.q, call.v, call.q.dtype)


def _patches(call: LoweredCall, anew: Mapping[int, int], descriptor: CallDescriptor) -> list[Patch] | None:
    """Returns where the tensors are that each call has anew; None if the words have one that is computed from them."""
    if not anew:
        return []
    paths, found = dict(_paths(call.terms)), []
    for x, at in zip(descriptor.keep_alive, descriptor.places, strict=True):
        if at > descriptor.terms_at:
            if x not in paths:
                return None
            if id(x) in anew:
                found.append(Patch(paths[x], anew[id(x)], x.requires_grad, Layout.of(at, x)))
    return found


def _constants(descriptor: CallDescriptor, first: int, patches: list[Patch]) -> list[Tensor]:
    """Returns the tensors that the words point to in every call, after the ``first`` ones."""
    patched = {patch.layout.at for patch in patches}
    found = [(x, at) for x, at in zip(descriptor.keep_alive, descriptor.places, strict=True)][first:]
    return [x for x, at in found if at not in patched]


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


def _is_plain(x: Tensor) -> bool:
    """Returns whether the kernel can read a tensor's numbers as they lie."""
    return type(x) in ORDINARY and x.is_cpu and not x.is_neg()


def _written(words: array[int], at: int, x: Tensor, item: int) -> bool:
    """Writes where a tensor begins and how many bytes it has; returns whether its numbers are aligned to their size."""
    address: Any = x.data_ptr()
    skipped: Any = x.storage_offset() * item
    words[at] = address
    words[at + 1] = x.untyped_storage().nbytes() - skipped
    return not address % item
