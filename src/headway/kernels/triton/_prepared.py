"""Prepares a call once: later calls reuse its compiled programs and everything lowered that does not depend on q, k, v.

Importing this module imports triton. A prepared call saves the same tensors for autograd as an unprepared one, so that
activation checkpointing may recompute the call either way.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...terms import Rows, Term
from ...tracing import watched, without_autocast
from .. import _ops
from .._autograd import eager_apply, fitted, gradients_of, through_lowering
from .._masks import evaluated
from .._native import recorded
from .._problem import Call, without_tables
from .._repeated import Path, paths_of, tensor_at, tensors_anew, why_not
from .._results import ForwardResults
from ._backward import Backward
from ._forward import Forward
from ._launch import Launch
from ._lowered import RELATIVE, Frame, TritonCall, lower_for_programs, only_rows
from ._rotations import PreparedRotation, is_plain, supports
from ._slots import Places, Slots
from ._start import Programs, alignment, on_device_of
from ._tables import places_of

KERNEL = "triton"
INPUTS, RESULTS = 3, 3
"""q, k and v are the first tensors that a call saves, and its results the last."""
MOST_KEPT = 1 << 22
"""The most bytes of tables and bounds that a prepared call keeps. Larger ones are computed in each call."""
MOST_ROTATED = 1 << 23
"""The most bytes of cosines and sines that a prepared call keeps. A call with more is not prepared."""


class Table(NamedTuple):
    """The table of distances of calls that differ only in the values of its rows.

    Attributes:
        slots: the positions.
        places: the row of each distance.
        shape: the shape of the rows.
    """

    slots: Slots
    places: Places
    shape: torch.Size

    def rows(self, terms: tuple[Term, ...]) -> Rows | None:
        """Returns the rows of a call; None if it differs in anything else."""
        rows = only_rows(terms)
        if rows is None or rows.table.shape != self.shape or places_of(rows, self.slots) is not self.places:
            return None
        return rows


class Again(NamedTuple):
    """A later call.

    Attributes:
        lowered: the call in terms that the programs take.
        launch: a launch that it can reuse.
        kind: the facts that select its programs and may differ between calls.
        table: the values of its bias's rows, and the values at each distance, if the call differs only in these.
    """

    lowered: TritonCall
    launch: Launch | None
    kind: Hashable
    table: tuple[Tensor, Tensor] | None


class PreparedCall:
    """A call for other q, k and v of the same shapes, strides, alignment and dtype.

    Calls change nothing in it but the kept programs, so threads may share it.

    Args:
        call: the first call, without rotations and tables.
        rotations: the rotations of q and k.
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
        self.launch, self.same_terms, self.table = self._kept(call, frame, bool(varying))
        self.frame = None if self.launch is None else frame

    def _kept(self, call: Call, frame: Frame, varying: bool) -> tuple[Launch | None, bool, Table | None]:
        """Returns a launch for later calls, whether their terms are the same, and the table if only that changes."""
        lowered = lower_for_programs(call, frame)
        if lowered.documents is not None or lowered.allowed is not None:
            return None, False, None  # the launch would keep lists of blocks
        launch = Forward(lowered)
        same_terms = not varying and not any(isinstance(term, RELATIVE) for term in call.terms)
        if _bytes_of(launch.parts if same_terms else launch.parts.sight) > MOST_KEPT:
            return None, False, None
        rows, table = only_rows(call.terms) if varying else None, None
        if rows is not None and lowered.scores.table is not None and lowered.scores.table.ends is not None:
            table = Table(frame.slots, places_of(rows, frame.slots), rows.table.shape)
        launch = launch.without_tensors(same_terms or table is not None)
        if table is not None:
            launch = launch.with_table(None)
            launch.call = launch.call._with(terms=())
        return launch, same_terms, table

    @staticmethod
    def of(call: Call, terms_vary: bool) -> PreparedCall | str:
        """Returns the prepared ``call``, or why it needs more than the kernel.

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
                return "torch computes one of its rotations"
            sin = None  # the sines of the rotation back, which queries and keys share
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
            return "every call would share a tensor that requires a gradient"
        return found

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, terms: tuple[Term, ...] = ()) -> Tensor | None:
        """Returns the output; None if autograd must record the call but did not record the first one.

        Args:
            q: queries.
            k: keys.
            v: values.
            terms: the terms; empty for those of the first call.
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
            again = self._again(q, k, v, terms or self.call.terms)
            starts = self.programs.starts(again.kind)
            results = Forward(again.lowered, starts, again.launch).run()
            starts.end()
        return results

    def _again(self, q: Tensor, k: Tensor, v: Tensor, terms: tuple[Term, ...]) -> Again:
        """Returns a later call with rotated q, k and v."""
        launch, rows = self.launch, None if self.table is None else self.table.rows(terms)
        if launch is None or (not self.same_terms and rows is None):
            lowered = lower_for_programs(self.call._with(q=q, k=k, v=v, terms=terms), self.frame)
            return Again(lowered, launch, _kind_of(lowered), None)
        table = None
        if self.table is not None and rows is not None:
            table = rows.table, self.table.places.of(rows.table.detach().float())
            launch = launch.with_table(table[1])
        return Again(launch.call._with(q=q, k=k, v=v), launch, None, table)

    def backward(self, saved: Sequence[Tensor], needed: Sequence[bool], d_out: Tensor) -> list[Tensor | None] | None:
        """Returns the gradient of each tensor that needs one; None if a tensor differs from the first call's.

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
        q, k, v = leaves[:INPUTS]
        # autograd differentiates the lowering
        with on_device_of(d_out), without_autocast(d_out), torch.set_grad_enabled(not self.same_terms):
            again = self._again(q, k, v, () if self.same_terms else _ops.unflatten(self.terms, leaves))
            layout = d_out.stride(), d_out.dtype, out.stride(), alignment(q, k, v, d_out, out, row_max, row_sum)
            starts = self.programs.starts((again.kind, tuple(wanted), layout))
            rows, values = again.table or (None, None)
            if rows is not None and values is not None:
                values.requires_grad_(rows.requires_grad)
            results = ForwardResults(out, row_max, row_sum)
            found = Backward(again.lowered, results, d_out, None, False, starts, again.launch).run()
            if self.table is not None and rows is not None:
                sums = self.table.places.gradient
                found = [(rows, sums(fitted(d, x), starts)) if x is values else (x, d) for x, d in found]
            starts.end()
            computed = through_lowering(found, [leaves[number] for number in wanted])
        gradients: list[Tensor | None] = [None] * len(needed)
        for number, gradient in zip(wanted, computed, strict=True):
            gradients[number] = gradient
        return gradients


class PreparedAttention(torch.autograd.Function):
    """Attention of (the prepared call, the terms, *tensors), like ``Attention`` without the log-sum-exp."""

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
    """Returns the facts of replaced tensors on which the programs of a call depend."""
    values = [] if lowered.relative_values is None else lowered.relative_values.learned
    every = lowered.q, lowered.k, lowered.v, *lowered.scores.tensors, *values
    return tuple([(x.shape, x.stride(), x.dtype, x.requires_grad) for x in every]), alignment(*every)


def _bytes_of_rotations(rotations: Sequence[PreparedRotation | None]) -> int:
    """Returns the bytes of the cosines and sines of queries and keys, counting shared tensors once."""
    kept = [side for one in rotations if one is not None for side in (one.rotation, one.back) if side is not None]
    tensors = {id(x): x for side in kept for x in (side.cos, side.sin)}
    return sum(x.nbytes for x in tensors.values())


def _bytes_of(arguments: Any) -> int:
    """Returns the bytes of the tensors in the arguments of a program."""
    if isinstance(arguments, Tensor):
        return arguments.nbytes
    return sum(map(_bytes_of, arguments)) if isinstance(arguments, tuple) else 0
