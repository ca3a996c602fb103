"""Autograd functions and operators through which autograd, compilers and torch.func run native kernels.

One ``autograd.Function`` without state in its forward serves eager, ``torch.compile``, ``torch.export`` and
``torch.func``. Compiled code sees one operator for each direction, headway::<name>_forward and
headway::<name>_backward, so another length causes no recompilation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .._torch import (
    functorch_active,
    is_batched_by_autograd,
    is_mapped,
    kept_by_inductor,
    recorded_by_autograd,
    register_decomposition,
)
from ..errors import HeadwayError
from ..tracing import without_autocast
from . import _ops
from ._base import Native
from ._problem import Call
from ._results import ForwardResults, Gradients, new_results

NATIVE: dict[str, Native[Any]] = {}
"""All native kernels by name."""

ORDINARY = frozenset({Tensor, torch.nn.Parameter})
"""Classes of tensors that have ordinary memory and do not intercept operations."""


# ---------------------------------------------------------------- forward and backward, with lowering


def run_forward(kernel: Native[Any], structure: Any, tensors: Sequence[Tensor]) -> ForwardResults:
    return kernel.forward(kernel.lower(_ops.unflatten(structure, tensors)), True)


def run_backward(
    kernel: Native[Any],
    structure: Any,
    saved: Sequence[Tensor],
    wanted: list[int],
    d_out: Tensor | None,
    d_lse: Tensor | None,
    partial_keys: bool = False,
) -> list[Tensor]:
    """Computes the gradients of the wanted tensors. The call is lowered again, so that autograd records the lowering.

    saved: the tensors of the call, followed by the results.
    """
    *tensors, out, row_max, row_sum = saved
    with torch.enable_grad(), without_autocast(out):
        leaves = [x.detach() if x.requires_grad else x for x in tensors]
        for i in wanted:
            leaves[i] = leaves[i].detach().requires_grad_()
        lowered = kernel.lower(_ops.unflatten(structure, leaves))
        if d_out is None:
            d_out = out.new_zeros(()).expand(out.shape)
        gradients = kernel.backward(lowered, ForwardResults(out, row_max, row_sum), d_out, d_lse, partial_keys)
        return through_lowering(gradients, [leaves[i] for i in wanted])


def through_lowering(gradients: Gradients, leaves: list[Tensor]) -> list[Tensor]:
    """Computes the gradients of the leaves from those of the lowered tensors."""
    sums: dict[int, Tensor] = {}
    lowered, upstream = [], []
    for x, gradient in gradients:
        gradient = fitted(gradient, x)
        if x.is_leaf:
            sums[id(x)] = sums[id(x)] + gradient if id(x) in sums else gradient
        else:
            lowered.append(x)
            upstream.append(gradient)
    if lowered:
        through = torch.autograd.grad(lowered, leaves, upstream, allow_unused=True)
        for leaf, gradient in zip(leaves, through, strict=True):
            if gradient is not None:
                sums[id(leaf)] = sums[id(leaf)] + gradient if id(leaf) in sums else gradient
    return [sums[id(leaf)] if id(leaf) in sums else torch.zeros_like(leaf) for leaf in leaves]


def fitted(gradient: Tensor, x: Tensor) -> Tensor:
    """Returns a gradient in the shape and dtype of ``x``, summed where ``x`` was broadcast."""
    if gradient.shape != x.shape:
        if gradient.numel() == x.numel():  # they differ only in dimensions of size 1
            gradient = gradient.view(x.shape)
        else:
            gradient = gradient.double().sum_to_size(x.shape)  # in float64, since the addends may cancel
    return gradient if gradient.dtype == x.dtype else gradient.to(x.dtype)


def _followed(
    kernel: Native[Any],
    structure: Any,
    tensors: Sequence[Tensor],
    wanted: list[int],
    d_out: Tensor | None,
    d_lse: Tensor | None,
) -> list[Tensor]:
    """Computes differentiable gradients by running the call again under autograd."""
    with torch.enable_grad(), without_autocast(tensors[0]):
        inputs = [tensors[i] for i in wanted]
        results = run_forward(kernel, structure, tensors)
        pairs = ((results.out, d_out), (results.log_sum_exp, d_lse))
        reached = [(x, d) for x, d in pairs if d is not None and x.requires_grad]
        if not reached:
            return [torch.zeros_like(x) for x in inputs]
        outputs, upstream = zip(*reached, strict=True)
        gradients = torch.autograd.grad(outputs, inputs, upstream, create_graph=True, allow_unused=True)
        return [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, gradients, strict=True)]


# ---------------------------------------------------------------- operators


def operators(kernel: Native[Any]) -> tuple[Any, Any]:
    """Registers the forward and backward operators of a kernel, with their fake implementations."""

    def forward(tensors: list[Tensor], structure: str) -> ForwardResults:
        with without_autocast(tensors[0]):
            results = run_forward(kernel, _ops.read(structure), list(map(_plain, tensors)))
        return ForwardResults(
            *(_as_promised(x, like) for x, like in zip(results, shapes(tensors, structure), strict=True))
        )

    def shapes(tensors: list[Tensor], structure: str) -> ForwardResults:
        kept_by_inductor(made[0].default)
        call: Call = _ops.unflatten(_ops.read(structure), tensors)
        return new_results(call.q, call.v, kernel.result_dtype(call.q.dtype))

    def backward(
        tensors: list[Tensor], structure: str, wanted: list[int], d_out: Tensor | None, d_lse: Tensor | None
    ) -> list[Tensor]:
        # inside an operator autograd is off, so gradients through lowering would be zero
        with recorded_by_autograd(), torch.no_grad():
            gradients = run_backward(kernel, _ops.read(structure), list(map(_plain, tensors)), wanted, d_out, d_lse)
        return [_as_promised(x, torch.empty_like(tensors[i])) for i, x in zip(wanted, gradients, strict=True)]

    def gradient_shapes(
        tensors: list[Tensor], structure: str, wanted: list[int], d_out: Tensor | None, d_lse: Tensor | None
    ) -> list[Tensor]:
        return [torch.empty_like(tensors[i]) for i in wanted]

    def plainly(tensors: list[Tensor], structure: str) -> ForwardResults:
        """The forward pass in torch's own operations, for exporters that support no others, such as ONNX's."""
        with without_autocast(tensors[0]):
            results = run_forward(NATIVE["reference"], _ops.read(structure), tensors)
        out = results.out.to(kernel.result_dtype(tensors[0].dtype))
        return results._replace(out=out.transpose(1, 2).contiguous().transpose(1, 2))

    made = []
    for step, run, fake, schema in (
        ("forward", forward, shapes, "(Tensor[] tensors, str structure) -> (Tensor, Tensor, Tensor)"),
        (
            "backward",
            backward,
            gradient_shapes,
            "(Tensor[] tensors, str structure, int[] wanted, Tensor? d_out, Tensor? d_lse) -> Tensor[]",
        ),
    ):
        name = f"{kernel.name}_{step}"
        torch.library.custom_op(f"headway::{name}", run, mutates_args=(), schema=schema).register_fake(fake)
        made.append(getattr(torch.ops.headway, name))
    register_decomposition(made[0].default)(plainly)
    # without it, fake tensors of symbolic sizes would run the decomposition: a quarter of the compile time
    register_decomposition(made[0].default, type="meta")(shapes)
    return made[0], made[1]


def _as_promised(x: Tensor, like: Tensor) -> Tensor:
    """Returns a result in the layout and dtype of the fake implementation."""
    return x if like.stride() == x.stride() and like.dtype == x.dtype else like.copy_(x)


def _plain(x: Tensor) -> Tensor:
    """Returns a plain tensor: inside an operator, tensors have memory but may be subclasses."""
    return x if type(x) in ORDINARY else x.as_subclass(Tensor)


# ---------------------------------------------------------------- autograd


class Attention(torch.autograd.Function):
    """Attention of (name of the kernel, structure, wants_lse, *tensors); ``_ops.flatten`` makes structure and tensors.

    The kernel is given by name, since a compiler cannot trace an object among the arguments.
    """

    @staticmethod
    def forward(name: str, structure: Any, wants_lse: bool, *tensors: Tensor) -> tuple[Tensor, ...]:
        if NATIVE[name].as_operator(tensors):
            results = ForwardResults(*NATIVE[name].forward_op(list(tensors), _ops.write(structure)))
        else:
            results = run_forward(NATIVE[name], structure, tensors)
        lse = results.log_sum_exp if wants_lse else results.row_max.new_empty(0)
        return results.out, lse, results.row_max, results.row_sum

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.name, ctx.structure, ctx.wants_lse, *tensors = inputs
        out, lse, row_max, row_sum = output
        ctx.save_for_backward(*tensors, out, row_max, row_sum)
        ctx.mark_non_differentiable(row_max, row_sum, *(() if ctx.wants_lse else (lse,)))
        if not torch.compiler.is_compiling():
            ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor, d_lse: Tensor, *unused: Any) -> tuple[Tensor | None, ...]:
        upstream = d_out, d_lse if ctx.wants_lse else None
        grads = gradients_of(ctx.name, ctx.structure, ctx.saved_tensors, ctx.needs_input_grad[3:], *upstream)
        return None, None, None, *grads

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        return one_by_one(Attention, info.batch_size, in_dims, args)


def one_by_one(function: type[torch.autograd.Function], size: int, in_dims: Sequence[Any], args: Sequence[Any]) -> Any:
    """Applies a function to each slice of its mapped arguments and stacks the results.

    Each slice is a call of its own, so that a shared parameter gets a gradient for each slice. Slices folded into the
    batch would give it only the sum.

    Args:
        function: the function, which returns a tuple of tensors.
        size: the number of slices.
        in_dims: the mapped dimension of each argument; None if all slices share the argument.
        args: the arguments.

    Raises:
        HeadwayError: if there is no slice.
    """
    if size == 0:
        raise HeadwayError("vmap maps over 0 slices: give at least one")
    mapped = [dim if isinstance(x, Tensor) else None for x, dim in zip(args, in_dims, strict=True)]
    slices = [
        function.apply(*[x if dim is None else x.select(dim, i) for x, dim in zip(args, mapped, strict=True)])
        for i in range(size)
    ]
    return tuple(map(torch.stack, zip(*slices, strict=True))), (0,) * len(slices[0])


def gradients_of(
    name: str,
    structure: Any,
    saved: Sequence[Tensor],
    needed: Sequence[bool],
    d_out: Tensor | None,
    d_lse: Tensor | None,
) -> list[Tensor | None]:
    """Computes the gradients of the tensors of a call in a backward pass; None for those that are not needed."""
    wanted = [i for i, need in enumerate(needed) if need]
    transformed = not torch.compiler.is_compiling() and functorch_active()
    if transformed and any(is_mapped(x) for x in (d_out, d_lse, *saved) if x is not None):
        computed = Gradient.apply(name, structure, wanted, d_out, d_lse, *saved)  # for its derivative
    elif not torch.is_grad_enabled() or torch.compiler.is_compiling():
        computed = gradients(name, structure, saved, wanted, d_out, d_lse)
    elif NATIVE[name].differentiable and transformed:
        computed = _followed(NATIVE[name], structure, saved[:-3], wanted, d_out, d_lse)
    else:
        computed = Gradient.apply(name, structure, wanted, d_out, d_lse, *saved)
    grads: list[Tensor | None] = [None] * len(needed)
    for i, grad in zip(wanted, computed, strict=True):
        grads[i] = grad
    return grads


class Gradient(torch.autograd.Function):
    """The gradients of attention, as a function that can be differentiated."""

    @staticmethod
    def forward(
        name: str, structure: Any, wanted: list[int], d_out: Tensor | None, d_lse: Tensor | None, *saved: Tensor
    ) -> tuple[Tensor, ...]:
        return tuple(gradients(name, structure, saved, wanted, d_out, d_lse))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.name, ctx.structure, ctx.wanted, d_out, d_lse, *saved = inputs
        if NATIVE[ctx.name].differentiable:
            ctx.save_for_backward(d_out, d_lse, *saved[:-3])

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        if not NATIVE[ctx.name].differentiable:
            raise HeadwayError(
                f"kernel {ctx.name!r} supports first derivatives only: to differentiate a gradient choose "
                "kernel='reference'"
            )
        grads = _second_derivatives(NATIVE[ctx.name], ctx, ctx.needs_input_grad[3:-3], upstream)
        return None, None, None, *grads, None, None, None  # the results get none, since they are recomputed

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        return one_by_one(Gradient, info.batch_size, in_dims, args)


def gradients(
    name: str,
    structure: Any,
    saved: Sequence[Tensor],
    wanted: list[int],
    d_out: Tensor | None,
    d_lse: Tensor | None,
) -> list[Tensor]:
    """Computes the gradients, by the operator if a compiler or a mode needs one."""
    kernel = NATIVE[name]
    if not kernel.differentiable and (_is_batched(d_out) or _is_batched(d_lse)):
        raise HeadwayError(BATCHED.format(name))
    if kernel.as_operator(saved):
        computed: list[Tensor] = kernel.backward_op(list(saved), _ops.write(structure), wanted, d_out, d_lse)
        return computed
    return run_backward(kernel, structure, saved, wanted, d_out, d_lse)


def _second_derivatives(
    kernel: Native[Any], ctx: Any, needed: Sequence[bool], upstream: Sequence[Tensor]
) -> list[Tensor | None]:
    """Computes the gradients of the gradients with respect to d_out, d_lse and the tensors of the call."""
    again = torch.is_grad_enabled()
    saved = ctx.saved_tensors
    with torch.enable_grad(), without_autocast(saved[2]):
        if not again:
            saved = [x if x is None else x.detach().requires_grad_(need) for x, need in zip(saved, needed, strict=True)]
        d_out, d_lse, *tensors = saved
        first = _followed(kernel, ctx.structure, tensors, ctx.wanted, d_out, d_lse)
        reached = [(x, g) for x, g in zip(first, upstream, strict=True) if g is not None and x.requires_grad]
        if not reached:
            return [None] * len(needed)
        outputs, gradients = ([*part] for part in zip(*reached, strict=True))
        inputs = [x for x, need in zip(saved, needed, strict=True) if need]
        grads = iter(torch.autograd.grad(outputs, inputs, gradients, create_graph=again, allow_unused=True))
    return [next(grads) if need else None for need in needed]


BATCHED = (
    "kernel {!r} takes one gradient at a time, not a batch of them (is_grads_batched, vectorize): choose "
    "kernel='reference', or torch.func.jacrev"
)


def _is_batched(grad: Tensor | None) -> bool:
    """Returns whether autograd passed several gradients at once, outside the rules of ``torch.func``."""
    return grad is not None and not torch.compiler.is_compiling() and is_batched_by_autograd(grad)


def eager_apply(function: type[torch.autograd.Function]) -> Callable[..., tuple[Tensor, ...]]:
    """Returns ``apply`` without the slow binding of the signature, which only torch.func needs."""
    apply: Callable[..., tuple[Tensor, ...]] = getattr(super(torch.autograd.Function, function), "apply")  # noqa: B009
    return apply
