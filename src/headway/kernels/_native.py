"""What a native kernel is, and how each is run.

A native kernel computes a call and its gradients; it knows nothing of autograd, compilers and transforms, which
``_autograd`` ties it into.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from .._torch import functorch_active
from ..tracing import watched
from . import _ops
from ._autograd import NATIVE, ORDINARY, Attention, eager_apply, operators
from ._base import Kernel, autocasts
from ._problem import Call, without_tables
from ._results import Gradients, Results

apply_in_eager = eager_apply(Attention)


class NotOrdinaryError(Exception):
    """A tensor of the call has no memory behind it: the kernel is to be run as an operator."""


L = TypeVar("L", bound=Call)


class NativeKernel(Kernel, Generic[L]):
    """A kernel that computes a call and, from its results, its gradients. ``run`` is the same for all of them.

    A subclass says ``why_not``, ``forward`` and ``backward``; ``lower`` where it takes a call in simpler terms.
    """

    opaque: ClassVar[bool] = True
    """Whether it reads memory itself, so that whoever looks on must see one operator."""
    rotates_on_load: ClassVar[bool] = False
    """Whether ``forward`` and ``backward`` take q, k and v before their rotations."""
    differentiable: ClassVar[bool] = False
    """Whether ``forward`` is made of torch's operations: then autograd follows it, and gradients have derivatives."""

    def __init__(self) -> None:
        NATIVE[self.name] = self
        self.forward_op, self.backward_op = operators(self)

    @abstractmethod
    def forward(self, call: L, keep: bool) -> Results:
        """The results of a lowered call; keep: whether the statistics are wanted.

        An opaque kernel raises NotOrdinaryError where a tensor has no memory behind it.
        """

    @abstractmethod
    def backward(
        self, call: L, results: Results, d_out: Tensor, d_lse: Tensor | None, foreign: bool = False
    ) -> Gradients:
        """The gradients of every tensor of a lowered call that requires one.

        With P = exp(score − row_max)/row_sum and δ = Σ d_out·out − d_lse, the gradient of a score is P·(dP − δ).
        foreign: the results, d_out and d_lse are those of a call over more keys, of which this one has a part. They are
        taken as they are; δ must not be summed of this call's own products.
        Called with gradients enabled, so that what it derives of the call's tensors is followed by autograd.
        """

    def lower(self, call: Call) -> L:
        """The call in the simpler terms that ``forward`` takes, made by torch's operations, which autograd follows."""
        return call  # type: ignore[return-value]

    def result_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """The dtype of ``out`` for a q of this dtype."""
        return dtype

    def runs_in_plain_operations(self, call: Call) -> bool:
        """Whether ``forward`` is to be followed operation by operation here, in place of being one operator."""
        return False

    # ------------------------------------------------------------ the runner

    def run(self, call: Call) -> tuple[Tensor, Tensor | None]:
        if autocasts(call.q):
            with torch.autocast(call.q.device.type, enabled=False):
                out, lse = self._run(call)
        else:
            out, lse = self._run(call)
        out = self.restored(call, out)
        return out if out.dtype == call.q.dtype else out.to(call.q.dtype), lse

    def _run(self, call: Call) -> tuple[Tensor, Tensor | None]:
        if not self.rotates_on_load:
            call = self.rotated(call)
        if self.runs_in_plain_operations(call):
            return _outputs(self.forward(self.lower(call), True), call.wants_lse)
        onlooker = self.as_operator((call.q, call.k, call.v))
        gradients = recorded(call)
        if not onlooker and not gradients:
            try:
                return _outputs(self.forward(self.lower(call), call.wants_lse), call.wants_lse)
            except NotOrdinaryError:
                pass
        tensors: list[Tensor] = []
        structure = _ops.flatten(without_tables(call), tensors)
        if not gradients:
            return _outputs(Results(*self.forward_op(tensors, _ops.write(structure))), call.wants_lse)
        apply = Attention.apply if onlooker or _transformed() else apply_in_eager
        out, lse, *_ = apply(self.name, structure, call.wants_lse, *tensors)
        return out, lse if call.wants_lse else None

    def as_operator(self, tensors: Sequence[Tensor]) -> bool:
        """Whether somebody is to see one operator here: an onlooker, or a tensor with a class of its own."""
        if not self.opaque:
            return torch.compiler.is_compiling()
        return watched() or not ORDINARY.issuperset(map(type, tensors))


def _outputs(results: Results, wants_lse: bool) -> tuple[Tensor, Tensor | None]:
    return results.out, results.log_sum_exp if wants_lse else None


def recorded(call: Call) -> bool:
    """Whether autograd takes part."""
    if torch.is_grad_enabled():
        positions = call.q_coordinates.position, call.k_coordinates.position
        if _requires_grad((call.q, call.k, call.v, call.terms, positions)):
            return True
    return _transformed()


def _transformed() -> bool:
    """Whether a transform of torch.func is at work."""
    return not torch.compiler.is_compiling() and functorch_active()


def _requires_grad(part: Any) -> bool:
    if isinstance(part, Tensor):
        return part.requires_grad
    for item in part if isinstance(part, tuple) else _ops.values_of(part):
        if type(item) not in _ops.LEAVES and _requires_grad(item):
            return True
    return False
