"""Prepares a call once; later calls write their addresses into a copy of its words.

If autograd records the call, the words of the backward pass are prepared too. A prepared call saves the same tensors
for it as an unprepared one, so that activation checkpointing may recompute the call either way.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...terms import Term
from ...tracing import watched
from .. import _ops
from .._autograd import ORDINARY, eager_apply, gradients_of
from .._native import recorded
from .._problem import Call, without_tables
from .._repeated import tensors_anew, why_not
from .._results import ForwardResults, new_out, new_results
from ..lowering import LoweredCall, lower
from . import _library
from ._describe import describe_backward, describe_forward
from ._descriptor import AT_K, AT_Q, AT_THREADS, AT_V
from ._tensor_words import (
    COMPUTED,
    LOWERED,
    STRIDES,
    WORDS,
    TensorWords,
    constants_of,
    is_plain,
    patches_of,
    write_place,
)
from ._tokens import PreparedRotation

KERNEL = "cpu"
INPUTS, RESULTS = 3, 3
"""q, k and v are the first tensors that a call saves, and its results the last."""


class PreparedCall:
    """A call for other q, k and v of the same shapes, strides and dtype.

    Calls do not change it, so threads may share it.

    Args:
        call: the first call, lowered.
        rotations: the rotations of q and k.
        anew: the tensors of the terms that each call replaces, as ids with their numbers among the saved tensors.
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
        results = ForwardResults(new_out(call.q, call.v, call.q.dtype)) if gradients is None else _results_of(call)
        descriptor = describe_forward(call, results)
        written = [x for x in results if x is not None]
        self.results = [TensorWords.of(at, x) for at, x in zip(descriptor.fresh_places, written, strict=True)]
        self.words = array("q", descriptor.words)
        patches = patches_of(call.terms, anew, descriptor)
        self.patches = patches or []
        self.keep_alive = constants_of(descriptor, self.patches, AT_V)
        self.patchable = patches is not None and ORDINARY.issuperset(map(type, descriptor.keep_alive))

    @staticmethod
    def of(call: Call, terms_vary: bool) -> PreparedCall | str:
        """Returns the prepared ``call``, or why it needs more than the kernel.

        Args:
            call: the first call. The numbers of q, k and v are aligned to their size.
            terms_vary: whether later calls have other terms, of the same kinds.
        """
        reason = why_not(call)
        if reason is not None:
            return reason
        inputs, rotations = [], []
        for x, rotation in ((call.q, call.q_rotation), (call.k, call.k_rotation), (call.v, None)):
            prepared = None if rotation is None else PreparedRotation.of(x, rotation)
            if rotation is not None and prepared is None:
                return "torch computes one of its rotations"
            inputs.append((x if prepared is None else torch.empty_like(x)).detach().requires_grad_(x.requires_grad))
            rotations.append(prepared)
        bare = without_tables(call._with(q=inputs[0], k=inputs[1], v=inputs[2], q_rotation=None, k_rotation=None))
        varying = tensors_anew(call, terms_vary)
        if not recorded(call):
            lowered = lower(bare)
            if lowered.terms is not bare.terms:
                return LOWERED
            anew, gradients = dict.fromkeys(varying, 0), None  # without autograd the numbers are not used
        else:
            tensors: list[Tensor] = []
            structure = _ops.flatten(bare, tensors)
            leaves = [x.detach().requires_grad_(x.requires_grad) for x in tensors]
            anew = {id(leaf): i for i, (leaf, x) in enumerate(zip(leaves, tensors, strict=True)) if id(x) in varying}
            bare = _ops.unflatten(structure, leaves)
            lowered = lower(bare)
            if lowered.terms is not bare.terms:
                return LOWERED
            made = PreparedGradients.of(lowered, leaves, structure, anew)
            if isinstance(made, str):
                return made
            gradients = made
        prepared_call = PreparedCall(lowered, rotations[:2], anew, gradients)
        return prepared_call if prepared_call.patchable else COMPUTED

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, terms: tuple[Term, ...] = ()) -> Tensor | None:
        """Returns the output; None if the kernel cannot read a tensor as it is.

        Args:
            q: queries.
            k: keys.
            v: values.
            terms: the terms; empty for those of the first call.
        """
        gradients = self.gradients
        rotate_q, rotate_k = self.rotations
        q = q if rotate_q is None else rotate_q(q)  # type: ignore[assignment]
        k = k if rotate_k is None else rotate_k(k)  # type: ignore[assignment]
        words = self.words[:]
        for at, x in ((AT_Q, q), (AT_K, k), (AT_V, v)):
            if x is None or not write_place(words, at, x, self.item):
                return None
        tensors: list[Any] = [] if gradients is None else [q, k, v, *gradients.tensors[INPUTS:]]
        for patch in self.patches:
            x = patch.tensor(terms)
            if not patch.words.write(words, x):
                return None
            if gradients is not None:
                tensors[patch.number] = x
            if x.requires_grad is not patch.requires_grad and torch.is_grad_enabled():
                return None
        if gradients is not None:
            return eager_apply(PreparedAttention)(self, words, *tensors)  # type: ignore[return-value]
        out = self.results[0].new(words)
        _library.run(words)
        return out


class PreparedAttention(torch.autograd.Function):
    """Attention of (the prepared call, the words, *tensors), like ``Attention`` without the log-sum-exp."""

    @staticmethod
    def forward(ctx: Any, prepared: PreparedCall, words: array[int], *tensors: Tensor) -> Tensor:
        results = [x.new(words) for x in prepared.results]
        _library.run(words)
        ctx.gradients = prepared.gradients
        ctx.save_for_backward(*tensors, *results)
        ctx.set_materialize_grads(False)
        return results[0]

    @staticmethod
    def backward(ctx: Any, d_out: Tensor | None) -> tuple[Tensor | None, ...]:
        prepared, saved, needed = ctx.gradients, ctx.saved_tensors, ctx.needs_input_grad[2:]
        gradients = None
        if d_out is not None and not torch.is_grad_enabled() and not watched():
            gradients = prepared(saved, d_out)
        if gradients is None:
            gradients = gradients_of(KERNEL, prepared.structure, saved, needed, d_out, None)
        return None, None, *gradients


class GradientBuffer(NamedTuple):
    """The buffer into which the kernel writes the gradient of a tensor.

    Attributes:
        number: the tensor's number among those of the call.
        words: the words of the buffer. Dimensions along which the tensor broadcasts have their full size.
        shape: the tensor's shape.
        dtype: the tensor's dtype.
    """

    number: int
    words: TensorWords
    shape: torch.Size
    dtype: torch.dtype

    def finished(self, x: Tensor) -> Tensor:
        """Returns the gradient in the tensor's shape and dtype, from the filled buffer."""
        if x.shape != self.shape:
            x = x.double().sum_to_size(self.shape)
        return x if x.dtype == self.dtype else x.to(self.dtype)


class PreparedGradients:
    """The backward pass of a prepared call.

    Args:
        words: the words of the first call.
        saved: the words of the tensors that are read, by their numbers among the saved tensors.
        d_out: the words of the first gradient of the output.
        buffers: the gradients.
        tensors: the tensors of the first call; None for q, k, v and the tensors that later calls replace.
        structure: the structure of the call.
        keep_alive: other tensors to which the words point.
    """

    __slots__ = ("buffers", "d_out", "keep_alive", "saved", "structure", "tensors", "words")

    def __init__(
        self,
        words: list[int],
        saved: list[tuple[int, TensorWords]],
        d_out: TensorWords,
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
        """Returns the backward pass, or why it needs more than the kernel.

        Args:
            call: the first call, lowered.
            tensors: its tensors.
            structure: its structure.
            anew: the tensors of the terms that each call replaces, as ids with their numbers.
        """
        results = _results_of(call)
        d_out = torch.empty_like(results.out)
        descriptor = describe_backward(call, results, d_out, None)
        if len(descriptor.fresh_places) != len(descriptor.gradients):
            return "a gradient is summed into a buffer that each call must fill with zeros"
        numbers = {id(x): number for number, x in enumerate(tensors)}
        buffers = [
            GradientBuffer(numbers.get(id(x), -1), TensorWords.of(at, gradient), x.shape, x.dtype)
            for at, (x, gradient) in zip(descriptor.fresh_places, descriptor.gradients, strict=True)
        ]
        if sorted(one.number for one in buffers) != [n for n, x in enumerate(tensors) if x.requires_grad]:
            return "a gradient passes through lowering, or consists of several parts"
        patches = patches_of(call.terms, anew, descriptor)
        if patches is None or any(x.requires_grad and id(x) not in anew for x in tensors[INPUTS:]):
            return COMPUTED
        read = (call.q, call.k, call.v, *results, d_out)
        *of_saved, of_d_out = [TensorWords.of(at, x) for at, x in zip(descriptor.places, read, strict=False)]
        saved = [*zip((*range(INPUTS), *range(-RESULTS, 0)), of_saved, strict=True)]
        saved += [(patch.number, patch.words) for patch in patches]
        kept = [None if number < INPUTS or id(x) in anew else x for number, x in enumerate(tensors)]
        keep_alive = constants_of(descriptor, patches, of_d_out.at)
        return PreparedGradients(descriptor.words, saved, of_d_out, buffers, kept, structure, keep_alive)

    def __call__(self, saved: Sequence[Tensor], d_out: Tensor) -> list[Tensor | None] | None:
        """Returns the gradient of each tensor; None if the kernel cannot read one as it is.

        Args:
            saved: the tensors of the call and its results.
            d_out: the gradient of the output.
        """
        words = self.words[:]
        at, shape, _, dtype = self.d_out
        if d_out.shape != shape or d_out.dtype != dtype or not is_plain(d_out):
            return None
        if not write_place(words, at, d_out, dtype.itemsize):
            return None
        words[at + STRIDES : at + WORDS] = array("q", d_out.stride())
        words[AT_THREADS] = torch.get_num_threads()
        for number, of_saved in self.saved:
            if not of_saved.write(words, saved[number]):
                return None
        written = [buffer.words.new(words) for buffer in self.buffers]
        _library.run(words)
        gradients: list[Tensor | None] = [None] * len(self.tensors)
        for buffer, x in zip(self.buffers, written, strict=True):
            gradients[buffer.number] = buffer.finished(x)
        return gradients


def _results_of(call: Call) -> ForwardResults:
    return new_results(call.q, call.v, call.q.dtype)
