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
from ._base import without_autocast
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
    twice        whether ``backward`` can be differentiated; where it cannot, a second derivative raises
    materialize  whether ``backward`` wants zeros, and not None, for a result without a gradient
    as_operator  whether these tensors are to be handed to the operators
    """

    def exact(
        structure: Any, tensors: list[Tensor], wanted: list[int], grad_out: Tensor | None, grad_lse: Tensor | None
    ) -> list[Tensor]:
        """``backward``, whose dtypes are the kernel's own where it is called under autocast too."""
        with without_autocast(tensors[0]):
            return backward(structure, tensors, wanted, grad_out, grad_lse)

    def forward_impl(tensors: list[Tensor], structure: str) -> Results:
        with without_autocast(tensors[0]):
            return forward(_ops.read(structure), tensors)

    def forward_fake(tensors: list[Tensor], structure: str) -> Results:
        return shapes(_ops.unpack(_ops.read(structure), tensors))

    def backward_impl(
        tensors: list[Tensor], structure: str, wanted: list[int], grad_out: Tensor | None, grad_lse: Tensor | None
    ) -> list[Tensor]:
        # an operator runs below autograd, where what is computed again would record nothing and gradients be zero
        recording = torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.AutogradFunctionality, False)
        with recording, torch.no_grad():
            found = exact(_ops.read(structure), tensors, wanted, grad_out, grad_lse)
        return [_laid_out_like(tensors[i], grad) for i, grad in zip(wanted, found, strict=True)]

    def backward_fake(
        tensors: list[Tensor], structure: str, wanted: list[int], grad_out: Tensor | None, grad_lse: Tensor | None
    ) -> list[Tensor]:
        return [torch.empty_like(tensors[i]) for i in wanted]

    forward_schema = f"(Tensor[] tensors, str structure) -> ({', '.join(['Tensor'] * results)})"
    backward_schema = "(Tensor[] tensors, str structure, int[] wanted, Tensor? grad_out, Tensor? grad_lse) -> Tensor[]"
    for step, run, fake, schema in (
        ("forward", forward_impl, forward_fake, forward_schema),
        ("backward", backward_impl, backward_fake, backward_schema),
    ):
        torch.library.custom_op(f"headway::{name}_{step}", run, mutates_args=(), schema=schema).register_fake(fake)
    forward_op = getattr(torch.ops.headway, f"{name}_forward")
    backward_op = getattr(torch.ops.headway, f"{name}_backward")

    def gradients(
        structure: Any, tensors: list[Tensor], wanted: list[int], grad_out: Tensor | None, grad_lse: Tensor | None
    ) -> list[Tensor]:
        """``backward``, or the operator of it where somebody is to see one."""
        if not twice and any(_is_batched(grad) for grad in (grad_out, grad_lse)):
            raise HeadwayError(BATCHED.format(name))
        if as_operator(tensors):
            found: list[Tensor] = backward_op(tensors, _ops.write(structure), wanted, grad_out, grad_lse)
            return found
        return exact(structure, tensors, wanted, grad_out, grad_lse)

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
            if torch.is_grad_enabled() and not torch.compiler.is_compiling() and not (twice and _transformed()):
                found = Gradient.apply(ctx.structure, wanted, grad_out, grad_lse, *ctx.saved_tensors)
            else:
                found = gradients(ctx.structure, list(ctx.saved_tensors), wanted, grad_out, grad_lse)
            grads: list[Tensor | None] = [None] * len(needed)
            for i, grad in zip(wanted, found, strict=True):
                grads[i] = grad
            return None, *grads

        @staticmethod
        def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
            raise HeadwayError("attention cannot be vmapped: fold the mapped dimension into the batch")

    class Gradient(torch.autograd.Function):
        """The backward pass where a graph of it is asked for."""

        @staticmethod
        def forward(structure: Any, wanted: list[int], grad_out: Tensor, grad_lse: Tensor, *tensors: Tensor) -> Results:
            return tuple(gradients(structure, list(tensors), wanted, grad_out, grad_lse))

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Results) -> None:
            ctx.structure, ctx.wanted, *tensors = inputs
            if twice:
                ctx.save_for_backward(*tensors)

        @staticmethod
        def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
            if not twice:
                raise HeadwayError(
                    f"kernel {name!r} gives first derivatives alone: to differentiate a gradient choose "
                    "kernel='reference'"
                )
            again = torch.is_grad_enabled()
            saved, needed = ctx.saved_tensors, ctx.needs_input_grad[2:]
            with torch.enable_grad(), without_autocast(saved[0]):
                if not again:
                    saved = [x.detach().requires_grad_(need) for x, need in zip(saved, needed, strict=True)]
                grad_out, grad_lse, *tensors = saved
                found = backward(ctx.structure, tensors, ctx.wanted, grad_out, grad_lse)
                reached = [(x, g) for x, g in zip(found, upstream, strict=True) if x.requires_grad]
                if not reached:
                    return None, None, *(None for _ in needed)
                outputs, gradients = ([*part] for part in zip(*reached, strict=True))
                inputs = [x for x, need in zip(saved, needed, strict=True) if need]
                grads = iter(torch.autograd.grad(outputs, inputs, gradients, create_graph=again, allow_unused=True))
            return None, None, *(next(grads) if need else None for need in needed)

        @staticmethod
        def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
            raise HeadwayError(BATCHED.format(name))

    return Attention


BATCHED = (
    "kernel {!r} takes one gradient at a time and was given a batch of them (jacrev, is_grads_batched, vectorize): "
    "choose kernel='reference'"
)


def _transformed() -> bool:
    return torch._C._are_functorch_transforms_active()


def _is_batched(grad: Tensor | None) -> bool:
    """Whether a gradient is one of many that vmap holds in one tensor, that of torch.func or that of autograd."""
    if grad is None or torch.compiler.is_compiling():
        return False
    return torch._C._functorch.is_batchedtensor(grad) or torch._C._functorch.is_legacy_batchedtensor(grad)


def eager_apply(function: type[torch.autograd.Function]) -> Callable[..., Results]:
    """``apply`` without the look at signatures that torch.func needs, to which a short call would owe its time."""
    apply: Callable[..., Results] = getattr(super(torch.autograd.Function, function), "apply")  # noqa: B009
    return apply


def _laid_out_like(tensor: Tensor, grad: Tensor) -> Tensor:
    """A gradient with the layout that the operator's fake promises."""
    like = torch.empty_like(tensor)
    return grad if like.stride() == grad.stride() else like.copy_(grad)
