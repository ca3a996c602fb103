"""How a kernel is tied into autograd and into the compiler.

One ``autograd.Function`` without state in its forward serves eager, ``torch.compile``, ``torch.export`` and
``torch.func.grad``. Compiled code sees one operator for each direction, so that lengths do not recompile it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import HeadwayError
from . import _ops
from ._problem import Call

Results = tuple[Tensor, ...]
"""out, lse, and whatever else the backward pass of a kernel reads."""


def compiling(tensors: Sequence[Tensor]) -> bool:
    """Whether a graph is being made, so that the call has to be one operator in it."""
    return torch.compiler.is_compiling()


def differentiable(
    name: str,
    forward: Callable[[Any, Sequence[Tensor]], Results],
    backward: Callable[[Any, list[Tensor], list[int], Any, Any], list[Tensor]],
    shapes: Callable[[Call], Results],
    *,
    results: int = 2,
    keeps: tuple[int, ...] = (),
    twice: bool = False,
    materialize: bool = True,
    as_operator: Callable[[Sequence[Tensor]], bool] = compiling,
) -> type[torch.autograd.Function]:
    """The Function of a kernel, applied to (structure, *tensors) of ``_ops.pack``.

    The operators headway::<name>_forward and headway::<name>_backward are made with it.

    forward      (structure, tensors) → results
    backward     (structure, tensors and then the results kept, wanted, gradients of out and lse) → the gradients of
                 the wanted tensors
    shapes       a call → the results without data, laid out like those of ``forward``
    results      their number; keeps: the numbers of those that ``backward`` reads
    twice        whether autograd can look through ``backward``; where it cannot, a second derivative raises
    materialize  whether ``backward`` wants zeros, and not None, for a result without a gradient
    as_operator  whether these tensors are to be handed to the operators
    """

    def forward_impl(tensors: list[Tensor], structure: str) -> Results:
        return forward(_ops.read(structure), tensors)

    def forward_fake(tensors: list[Tensor], structure: str) -> Results:
        return shapes(_ops.unpack(_ops.read(structure), tensors))

    def backward_impl(
        tensors: list[Tensor], structure: str, wanted: list[int], grad_out: Tensor, grad_lse: Tensor
    ) -> list[Tensor]:
        # an operator runs below autograd, where what is computed again would record nothing and gradients be zero
        recording = torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.AutogradFunctionality, False)
        with recording, torch.no_grad():
            found = backward(_ops.read(structure), tensors, wanted, grad_out, grad_lse)
        return [_laid_out_like(tensors[i], grad) for i, grad in zip(wanted, found, strict=True)]

    def backward_fake(
        tensors: list[Tensor], structure: str, wanted: list[int], grad_out: Tensor, grad_lse: Tensor
    ) -> list[Tensor]:
        return [torch.empty_like(tensors[i]) for i in wanted]

    forward_schema = f"(Tensor[] tensors, str structure) -> ({', '.join(['Tensor'] * results)})"
    backward_schema = "(Tensor[] tensors, str structure, int[] wanted, Tensor grad_out, Tensor grad_lse) -> Tensor[]"
    for step, run, fake, schema in (
        ("forward", forward_impl, forward_fake, forward_schema),
        ("backward", backward_impl, backward_fake, backward_schema),
    ):
        torch.library.custom_op(f"headway::{name}_{step}", run, mutates_args=(), schema=schema).register_fake(fake)
    forward_op = getattr(torch.ops.headway, f"{name}_forward")
    backward_op = getattr(torch.ops.headway, f"{name}_backward")

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(structure: Any, *tensors: Tensor) -> Results:
            if as_operator(tensors):
                return forward_op(list(tensors), _ops.write(structure))
            return forward(structure, tensors)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Results) -> None:
            ctx.structure, *tensors = inputs
            ctx.save_for_backward(*tensors, *[output[i] for i in keeps])
            if results > 2:
                ctx.mark_non_differentiable(*output[2:])
            if not materialize and not torch.compiler.is_compiling():
                ctx.set_materialize_grads(False)

        @staticmethod
        def backward(ctx: Any, grad_out: Tensor, grad_lse: Tensor, *unused: Any) -> tuple[Tensor | None, ...]:
            needed = ctx.needs_input_grad[1:]
            wanted = [i for i, need in enumerate(needed) if need]
            tensors = list(ctx.saved_tensors)
            if as_operator(tensors):
                found = backward_op(tensors, _ops.write(ctx.structure), wanted, grad_out, grad_lse)
            elif torch.is_grad_enabled() and not twice:
                found = Once.apply(ctx.structure, wanted, grad_out, grad_lse, *tensors)
            else:
                found = backward(ctx.structure, tensors, wanted, grad_out, grad_lse)
            grads: list[Tensor | None] = [None] * len(needed)
            for i, grad in zip(wanted, found, strict=True):
                grads[i] = grad
            return None, *grads

        @staticmethod
        def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
            raise HeadwayError("attention cannot be vmapped: fold the mapped dimension into the batch")

    class Once(torch.autograd.Function):
        """The backward pass where a graph of it is asked for: differentiated, it raises and never gives zeros."""

        @staticmethod
        def forward(structure: Any, wanted: list[int], grad_out: Tensor, grad_lse: Tensor, *tensors: Tensor) -> Results:
            return tuple(backward(structure, list(tensors), wanted, grad_out, grad_lse))

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Results) -> None:
            pass

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            raise HeadwayError(
                f"kernel {name!r} gives first derivatives alone: to differentiate a gradient choose kernel='reference'"
            )

        vmap = Attention.vmap

    return Attention


def eager_apply(function: type[torch.autograd.Function]) -> Callable[..., Results]:
    """``apply`` without the look at signatures that torch.func needs, to which a short call would owe its time."""
    apply: Callable[..., Results] = getattr(super(torch.autograd.Function, function), "apply")  # noqa: B009
    return apply


def _laid_out_like(tensor: Tensor, grad: Tensor) -> Tensor:
    """A gradient with the layout that the operator's fake promises."""
    like = torch.empty_like(tensor)
    return grad if like.stride() == grad.stride() else like.copy_(grad)
