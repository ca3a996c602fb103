"""The base class of native kernels, and their runner.

A native kernel computes a call and its gradients. ``_autograd`` connects it to autograd, compilers and transforms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from .._torch import functorch_active
from ..errors import HeadwayError
from ..tracing import autocasts, watched
from . import _ops
from ._autograd import NATIVE, ORDINARY, Attention, eager_apply, operators
from ._base import L, Native
from ._masks import evaluated
from ._problem import Call, without_tables
from ._results import ForwardResults

apply_in_eager = eager_apply(Attention)


class NotOrdinaryError(Exception):
    """Raised if a tensor of the call has no memory of its own, so the kernel must run as an operator."""


class NativeKernel(Native[L]):
    """The base class of kernels that compute a call and, from its results, its gradients.

    A subclass defines ``why_not``, ``forward`` and ``backward``, and ``lower`` if it needs calls in simpler terms.
    ``run`` connects the kernel to autograd, compilers and torch.func, which find it by its name.

    Raises:
        HeadwayError: if a kernel of another class already has the name.
    """

    opaque: ClassVar[bool] = True
    """Whether the kernel reads memory directly. Compilers and modes then see it as an operator."""
    rotates_on_load: ClassVar[bool] = False
    """Whether ``forward`` and ``backward`` take q, k and v before their rotations."""

    def __init__(self) -> None:
        taken = type(NATIVE.get(self.name, self))
        # running the cell of a notebook again defines the class again
        if (taken.__module__, taken.__qualname__) != (type(self).__module__, type(self).__qualname__):
            raise HeadwayError(
                f"the name {self.name!r} of kernel {type(self).__name__} belongs to kernel {taken.__name__} already: "
                "give the class another name"
            )
        NATIVE[self.name] = self
        self.forward_op, self.backward_op = operators(self)

    def runs_in_plain_operations(self, call: Call) -> bool:
        """Returns whether ``forward`` of this ``call`` is traced operation by operation, not as one operator."""
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
        as_operator = self.as_operator((call.q, call.k, call.v))
        call = evaluated(call) if self.opaque or as_operator else call
        gradients = recorded(call)
        if not as_operator and not gradients:
            try:
                return _outputs(self.forward(self.lower(call), call.wants_lse), call.wants_lse)
            except NotOrdinaryError:
                pass
        tensors: list[Tensor] = []
        structure = _ops.flatten(without_tables(call), tensors)
        if not gradients:
            return _outputs(ForwardResults(*self.forward_op(tensors, _ops.write(structure))), call.wants_lse)
        apply = Attention.apply if as_operator or _transformed() else apply_in_eager
        out, lse, *_ = apply(self.name, structure, call.wants_lse, *tensors)
        return out, lse if call.wants_lse else None

    def as_operator(self, tensors: Sequence[Tensor]) -> bool:
        if not self.opaque:
            return torch.compiler.is_compiling()
        return watched() or not ORDINARY.issuperset(map(type, tensors))


def _outputs(results: ForwardResults, wants_lse: bool) -> tuple[Tensor, Tensor | None]:
    return results.out, results.log_sum_exp if wants_lse else None


def recorded(call: Call) -> bool:
    """Returns whether autograd records the call."""
    if torch.is_grad_enabled():
        positions = call.q_coordinates.position, call.k_coordinates.position
        if _requires_grad((call.q, call.k, call.v, call.terms, positions)):
            return True
    return _transformed()


def _transformed() -> bool:
    """Returns whether a transform of torch.func is active."""
    return not torch.compiler.is_compiling() and functorch_active()


def _requires_grad(part: Any) -> bool:
    if isinstance(part, Tensor):
        return part.requires_grad
    for item in part if isinstance(part, tuple) else _ops.values_of(part):
        if type(item) not in _ops.LEAVES and _requires_grad(item):
            return True
    return False
