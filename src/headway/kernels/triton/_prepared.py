"""A call of the kernel that is prepared once: later calls find the programs compiled, and what does not depend on q, k
and v lowered. Importing this module imports triton.

A call that autograd records saves what the same call saves that is not prepared, so that a checkpoint may compute it
again either way.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...terms import Term
from ...tracing import watched
from .. import _ops
from .._autograd import eager_apply, gradients_of, through_lowering
from .._base import without_autocast
from .._masks import evaluated
from .._native import recorded
from .._problem import Call, without_tables
from .._repeated import Path, paths_of, tensor_at, tensors_anew, why_not
from .._results import ForwardResults
from ._backward import Backward
from ._forward import Forward
from ._launch import Launch
from ._lowered import RELATIVE, Frame, TritonCall, lower_for_programs
from ._rotations import PreparedRotation, is_plain, supports
from ._start import Programs, alignment, on_device_of

KERNEL = "triton"
INPUTS, RESULTS = 3, 3
"""q, k and v are the first tensors of a call, and its results the last of those that it saves."""
MOST_KEPT = 1 << 22
"""The most bytes of tables and bounds that a prepared call keeps; what is more is computed in each call."""
MOST_ROTATED = 1 << 23
"""The most bytes of cosines and sines that it keeps; a call that has more is not prepared."""


class PreparedCall:
    """A call for other q, k and v of the same shapes, strides, alignment and dtype.

    A call does not change it but for the programs that it finds, so that threads may share it.

    Args:
        call: the first call, without rotations and tables.
        rotations: those of q and k.
        terms_vary: whether later calls have other terms, of the same kinds.
        recorded: whether autograd records the call.
    """

    def __init__(
        self, call: Call, rotations: Sequence[PreparedRotation | None], terms_vary: bool, recorded: bool
    ) -> None:
        self.rotations, self.recorded, self.programs = rotations, recorded, Programs()
        tensors: list[Tensor] = []
        self.structure = _ops.flatten(call, tensors)
        varying = tensors_anew(call, terms_vary)
        numbers = {id(x): number for number, x in enumerate(tensors)}
        self.paths: list[tuple[int, Path]] = [
            (numbers[id(x)], path) for x, path in paths_of(call.terms) if id(x) in varying
        ]
        self.constants = [None if n < INPUTS or id(x) in varying else x for n, x in enumerate(tensors)]
        self.strides = [x.stride() for x in tensors[:INPUTS]]
        self.call = call._with(q=None, k=None, v=None, terms=() if varying else call.terms)
        self.terms = _ops.flatten(call.terms, tensors)
        frame = Frame.of(call)
        self.launch, self.lowered = self._kept(call, frame, bool(varying))
        self.frame = None if self.launch is None else frame

    def _kept(self, call: Call, frame: Frame, varying: bool) -> tuple[Launch | None, TritonCall | None]:
        """Returns what later launches are like, and the lowered call if it depends on q, k and v nowhere else."""
        lowered = lower_for_programs(call, frame)
        if lowered.documents is not None or lowered.allowed is not None:
            return None, None  # lists of blocks would be kept
        launch = Forward(lowered)
        same_terms = not varying and not any(isinstance(term, RELATIVE) for term in call.terms)
        if _bytes_of(launch.parts if same_terms else launch.parts.sight) > MOST_KEPT:
            return None, None
        launch = launch.without_tensors(same_terms)
        return launch, launch.call if same_terms else None

    @staticmethod
    def of(call: Call, terms_vary: bool) -> PreparedCall | str:
        """Returns the prepared ``call``, or why more than the kernel takes part in computing it.

        Args:
            call: the first call.
            terms_vary: whether later calls have other terms, of the same kinds.
        """
        reason = why_not(call)
        if reason is not None:
            return reason
        rotations, inputs = list[PreparedRotation | None](), list[Tensor]()
        backs: dict[int, Tensor] = {}
        for x, rotation in ((call.q, call.q_rotation), (call.k, call.k_rotation), (call.v, None)):
            if rotation is not None and not supports(x, rotation):
                return "torch computes a rotation"
            sin = None  # of the rotation back, which queries and keys share
            if rotation is not None and torch.is_grad_enabled() and x.requires_grad:
                sin = backs.setdefault(id(rotation.sin), -rotation.sin)
            rotations.append(None if rotation is None else PreparedRotation(rotation, sin))
            like = x if rotation is None else PreparedRotation.like(x)
            inputs.append(like.detach().requires_grad_(x.requires_grad))
        if _bytes_of_rotations(rotations) > MOST_ROTATED:
            return f"its rotations take more than {MOST_ROTATED >> 20} MiB"
        bare = evaluated(call)._with(q=inputs[0], k=inputs[1], v=inputs[2], q_rotation=None, k_rotation=None)
        bare = without_tables(bare)
        follows = recorded(call)
        with without_autocast(call.q), torch.no_grad():  # a checkpoint counts what autograd saves
            found = PreparedCall(bare, rotations[:2], terms_vary, follows)
        if follows and any(x is not None and x.requires_grad for x in found.constants):
            return "a tensor that requires a gradient is the same in each call"
        return found

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, terms: tuple[Term, ...] = ()) -> Tensor | None:
        """Returns the output; None if autograd must record the call, as it did not record the first one.

        Args:
            q: queries.
            k: keys.
            v: values.
            terms: the terms; none if they are those of the first call.
        """
        can_record = not self.recorded and torch.is_grad_enabled()
        if can_record and any(tensor_at(terms, path).requires_grad for _, path in self.paths):
            return None
        dtype = q.dtype
        rotate_q, rotate_k = self.rotations
        q = q if rotate_q is None else rotate_q(q)
        k = k if rotate_k is None else rotate_k(k)
        if self.recorded:
            tensors: list[Any] = [q, k, v, *self.constants[INPUTS:]]
            for number, path in self.paths:
                tensors[number] = tensor_at(terms, path)
            out: Tensor = eager_apply(PreparedAttention)(self, terms, *tensors)  # type: ignore[assignment]
        else:
            out = self.forward(q, k, v, terms).out
        return out if out.dtype == dtype else out.to(dtype)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, terms: tuple[Term, ...]) -> ForwardResults:
        """Returns the results of rotated q, k and v, without a gradient."""
        with on_device_of(q), without_autocast(q):
            if self.lowered is None:
                lowered = self._lowered(q, k, v, terms or self.call.terms)
                kind: Hashable = _kind_of(lowered)
            else:
                lowered, kind = self.lowered._with(q=q, k=k, v=v), None
            starts = self.programs.starts(kind)
            results = Forward(lowered, starts, self.launch).run()
            starts.end()
        return results

    def _lowered(self, q: Tensor, k: Tensor, v: Tensor, terms: tuple[Term, ...]) -> TritonCall:
        """Returns a later call in terms that the programs take."""
        return lower_for_programs(self.call._with(q=q, k=k, v=v, terms=terms), self.frame)

    def backward(self, saved: Sequence[Tensor], needed: Sequence[bool], d_out: Tensor) -> list[Tensor | None] | None:
        """Returns the gradient of each tensor that needs one; None if a tensor is not as in the first call.

        Args:
            saved: the tensors of the call and its results.
            needed: which tensors need a gradient.
            d_out: the gradient of the output.
        """
        if not is_plain(d_out) or [x.stride() for x in saved[:INPUTS]] != self.strides:
            return None
        *tensors, out, row_max, row_sum = saved
        wanted = [number for number, need in enumerate(needed) if need]
        leaves = [
            x.detach().requires_grad_() if need else x.detach() if x.requires_grad else x
            for x, need in zip(tensors, needed, strict=True)
        ]
        with on_device_of(d_out), without_autocast(d_out), torch.set_grad_enabled(self.lowered is None):
            if self.lowered is None:  # autograd goes through lowering
                q, k, v = leaves[:INPUTS]
                lowered = self._lowered(q, k, v, _ops.unflatten(self.terms, leaves))
                kind: Hashable = _kind_of(lowered)
            else:
                lowered = self.lowered._with(q=leaves[0], k=leaves[1], v=leaves[2])
                kind = alignment(*leaves[:INPUTS])
            layout = d_out.stride(), d_out.dtype, out.stride(), alignment(d_out, out, row_max, row_sum)
            kind = kind, tuple(wanted), layout
            starts = self.programs.starts(kind)
            results = ForwardResults(out, row_max, row_sum)
            found = Backward(lowered, results, d_out, None, False, starts, self.launch).run()
            starts.end()
            computed = through_lowering(found, [leaves[number] for number in wanted])
        gradients: list[Tensor | None] = [None] * len(needed)
        for number, gradient in zip(wanted, computed, strict=True):
            gradients[number] = gradient
        return gradients


class PreparedAttention(torch.autograd.Function):
    """Attention of (the prepared call, the terms, *tensors), as ``Attention`` without a log-sum-exp."""

    @staticmethod
    def forward(ctx: Any, prepared: PreparedCall, terms: tuple[Term, ...], *tensors: Tensor) -> Tensor:
        q, k, v = tensors[:INPUTS]
        results = prepared.forward(q, k, v, terms)
        ctx.prepared = prepared
        ctx.save_for_backward(*tensors, *results)
        ctx.set_materialize_grads(False)
        return results.out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor | None) -> tuple[Tensor | None, ...]:
        prepared, saved, needed = ctx.prepared, ctx.saved_tensors, ctx.needs_input_grad[2:]
        gradients = None
        if d_out is not None and not torch.is_grad_enabled() and not watched():
            gradients = prepared.backward(saved, needed, d_out)
        if gradients is None:
            gradients = gradients_of(KERNEL, prepared.structure, saved, needed, d_out, None)
        return None, None, *gradients


def _kind_of(lowered: TritonCall) -> Hashable:
    """Returns what the programs of a call depend on of tensors that each call has anew."""
    values = [] if lowered.relative_values is None else lowered.relative_values.learned
    every = lowered.q, lowered.k, lowered.v, *lowered.scores.tensors, *values
    return tuple([(x.shape, x.stride(), x.dtype, x.requires_grad) for x in every]), alignment(*every)


def _bytes_of_rotations(rotations: Sequence[PreparedRotation | None]) -> int:
    """Returns how many bytes the cosines and sines of queries and keys take, of which they may share some."""
    kept = [side for one in rotations if one is not None for side in (one.rotation, one.back) if side is not None]
    tensors = {id(x): x for side in kept for x in (side.cos, side.sin)}
    return sum(x.nbytes for x in tensors.values())


def _bytes_of(arguments: Any) -> int:
    """Returns how many bytes the tensors in the arguments of a program take."""
    if isinstance(arguments, Tensor):
        return arguments.nbytes
    return sum(map(_bytes_of, arguments)) if isinstance(arguments, tuple) else 0
