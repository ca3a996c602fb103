"""What a native kernel is, and the one runner that ties each into autograd, the compiler and torch.func.

A native kernel computes a call and its gradients; it knows nothing of autograd. Where autograd takes part, one
``autograd.Function`` without state in its forward serves eager, ``torch.compile``, ``torch.export`` and ``torch.func``.
Compiled code sees one operator for each direction, headway::<name>_forward and headway::<name>_backward, so that
lengths do not recompile it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from ..errors import HeadwayError
from ..tracing import watched
from . import _ops
from ._base import Kernel, autocasts, without_autocast
from ._problem import Call, without_tables

ORDINARY = frozenset({Tensor, torch.nn.Parameter})
"""Classes of tensors that have memory behind them and leave operations alone."""

Gradients = list[tuple[Tensor, Tensor]]
"""Tensors of a lowered call, each with its gradient; one may occur several times, and its gradients are added."""


class Results(NamedTuple):
    """What a native kernel computes. The statistics are None where they were not asked for.

    Shapes: out [batch, heads, n, v's head_dim]; row_max, row_sum [batch, heads, n] in float32 (float64 for float64)
    """

    out: Tensor
    row_max: Tensor = None  # type: ignore[assignment]
    """The largest score that the query sees, a sink's included where it takes part; −∞ where nothing is in sight."""
    row_sum: Tensor = None  # type: ignore[assignment]
    """Σⱼ exp(scoreⱼ − row_max), a sink included likewise; 0 where nothing is in sight."""

    @property
    def log_sum_exp(self) -> Tensor:
        """row_max + ln(row_sum), [batch, heads, n]; −∞ where nothing is in sight."""
        return torch.where(self.row_max == torch.inf, self.row_max, self.row_max + self.row_sum.log())


class NotOrdinaryError(Exception):
    """A tensor of the call has no memory behind it: the kernel is to be run as an operator."""


L = TypeVar("L", bound=Call)

NATIVE: dict[str, NativeKernel[Any]] = {}
"""Every native kernel that was made, by its name."""


class NativeKernel(Kernel, Generic[L]):
    """A kernel that computes a call and, from its results, its gradients. ``run`` is the same for all of them.

    A subclass says ``why_not``, ``forward`` and ``backward``; ``lower`` where it takes a call in simpler terms.
    """

    opaque: ClassVar[bool] = True
    """Whether it reads memory itself, so that whoever looks on must see one operator."""
    rotates_on_load: ClassVar[bool] = False
    """Whether ``forward`` and ``backward`` take q and k before their rotations."""
    differentiable: ClassVar[bool] = False
    """Whether ``forward`` is made of torch's operations: then autograd follows it, and gradients have derivatives."""

    def __init__(self) -> None:
        NATIVE[self.name] = self
        self._forward_op, self._backward_op = _operators(self)
        self._function = _function(self)
        self._apply = eager_apply(self._function)

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
        return out if out.dtype == call.q.dtype else out.to(call.q.dtype), lse

    def _run(self, call: Call) -> tuple[Tensor, Tensor | None]:
        if not self.rotates_on_load:
            call = self.rotated(call)
        if self.runs_in_plain_operations(call):
            return _outputs(self.forward(self.lower(call), True), call.wants_lse)
        onlooker = self._as_operator((call.q, call.k, call.v))
        gradients = recorded(call)
        if not onlooker and not gradients:
            try:
                return _outputs(self.forward(self.lower(call), call.wants_lse), call.wants_lse)
            except NotOrdinaryError:
                pass
        tensors: list[Tensor] = []
        structure = _ops.pack(without_tables(call), tensors)
        if not gradients:
            return _outputs(Results(*self._forward_op(tensors, _ops.write(structure))), call.wants_lse)
        apply = self._function.apply if onlooker or _transformed() else self._apply
        out, lse, *_ = apply(structure, call.wants_lse, *tensors)
        return out, lse if call.wants_lse else None

    def _as_operator(self, tensors: Sequence[Tensor]) -> bool:
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
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


def _requires_grad(part: Any) -> bool:
    if isinstance(part, Tensor):
        return part.requires_grad
    for item in part if isinstance(part, tuple) else _ops.values_of(part):
        if type(item) not in _ops.LEAVES and _requires_grad(item):
            return True
    return False


# ---------------------------------------------------------------- forward and backward, with lowering


def _forward(kernel: NativeKernel[Any], structure: Any, tensors: Sequence[Tensor]) -> Results:
    return kernel.forward(kernel.lower(_ops.unpack(structure, tensors)), True)


def _backward(
    kernel: NativeKernel[Any],
    structure: Any,
    saved: Sequence[Tensor],
    wanted: list[int],
    d_out: Tensor | None,
    d_lse: Tensor | None,
    foreign: bool = False,
) -> list[Tensor]:
    """The gradients of the wanted tensors; lowering is done again under autograd, which takes them through it.

    saved: the tensors of the call, and then the results.
    """
    *tensors, out, row_max, row_sum = saved
    with torch.enable_grad(), without_autocast(out):
        leaves = [x.detach() if x.requires_grad else x for x in tensors]
        for i in wanted:
            leaves[i] = leaves[i].detach().requires_grad_()
        lowered = kernel.lower(_ops.unpack(structure, leaves))
        if d_out is None:
            d_out = out.new_zeros(()).expand(out.shape)
        found = kernel.backward(lowered, Results(out, row_max, row_sum), d_out, d_lse, foreign)
        return _through_lowering(found, [leaves[i] for i in wanted])


def _through_lowering(found: Gradients, leaves: list[Tensor]) -> list[Tensor]:
    """The gradients of the leaves from those of lowered tensors."""
    sums: dict[int, Tensor] = {}
    lowered, upstream = [], []
    for x, gradient in found:
        if gradient.shape != x.shape:
            gradient = gradient.double().sum_to_size(x.shape)  # its parts may cancel
        if gradient.dtype != x.dtype:
            gradient = gradient.to(x.dtype)
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


def _followed(
    kernel: NativeKernel[Any],
    structure: Any,
    tensors: Sequence[Tensor],
    wanted: list[int],
    d_out: Tensor | None,
    d_lse: Tensor | None,
) -> list[Tensor]:
    """The same gradients in a graph, for them to be differentiated: the call is computed again."""
    with torch.enable_grad(), without_autocast(tensors[0]):
        inputs = [tensors[i] for i in wanted]
        results = _forward(kernel, structure, tensors)
        pairs = ((results.out, d_out), (results.log_sum_exp, d_lse))
        reached = [(x, d) for x, d in pairs if d is not None and x.requires_grad]
        if not reached:
            return [torch.zeros_like(x) for x in inputs]
        outputs, upstream = zip(*reached, strict=True)
        found = torch.autograd.grad(outputs, inputs, upstream, create_graph=True, allow_unused=True)
        return [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, found, strict=True)]


# ---------------------------------------------------------------- operators


def _operators(kernel: NativeKernel[Any]) -> tuple[Any, Any]:
    """The operators of a kernel, with what they say of their results without computing them."""

    def forward(tensors: list[Tensor], structure: str) -> Results:
        with without_autocast(tensors[0]):
            found = _forward(kernel, _ops.read(structure), list(map(_plain, tensors)))
        return Results(*(_as_promised(x, like) for x, like in zip(found, shapes(tensors, structure), strict=True)))

    def shapes(tensors: list[Tensor], structure: str) -> Results:
        call: Call = _ops.unpack(_ops.read(structure), tensors)
        return new_results(call.q, call.v, kernel.result_dtype(call.q.dtype))

    def backward(
        tensors: list[Tensor], structure: str, wanted: list[int], d_out: Tensor | None, d_lse: Tensor | None
    ) -> list[Tensor]:
        # an operator runs below autograd, where what is computed again would record nothing and gradients be zero
        recording = torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.AutogradFunctionality, False)
        with recording, torch.no_grad():
            found = _backward(kernel, _ops.read(structure), list(map(_plain, tensors)), wanted, d_out, d_lse)
        return [_as_promised(x, torch.empty_like(tensors[i])) for i, x in zip(wanted, found, strict=True)]

    def gradient_shapes(
        tensors: list[Tensor], structure: str, wanted: list[int], d_out: Tensor | None, d_lse: Tensor | None
    ) -> list[Tensor]:
        return [torch.empty_like(tensors[i]) for i in wanted]

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
    return made[0], made[1]


def _plain(x: Tensor) -> Tensor:
    """What an operator is given is real, and may still have a class of its own."""
    return x if type(x) in ORDINARY else x.as_subclass(Tensor)


def new_out(q: Tensor, v: Tensor, dtype: torch.dtype) -> Tensor:
    """Memory for out: tokens lie before heads, as torch's SDPA has it."""
    (batch, heads, n, _), width = q.shape, v.shape[3]
    return q.new_empty_strided((batch, heads, n, width), (n * heads * width, width, heads * width, 1), dtype=dtype)


def new_results(q: Tensor, v: Tensor, dtype: torch.dtype) -> Results:
    """Memory for the results of a call."""
    statistics = torch.float64 if q.dtype == torch.float64 else torch.float32
    row_max, row_sum = (q.new_empty(q.shape[:3], dtype=statistics) for _ in range(2))
    return Results(new_out(q, v, dtype), row_max, row_sum)


def _as_promised(x: Tensor, like: Tensor) -> Tensor:
    """A result with the layout and dtype that the operator's fake promises."""
    return x if like.stride() == x.stride() and like.dtype == x.dtype else like.copy_(x)


# ---------------------------------------------------------------- autograd


def _function(kernel: NativeKernel[Any]) -> type[torch.autograd.Function]:
    """The Function of a kernel, applied to (structure, wants_lse, *tensors) of ``_ops.pack``."""
    # no closure over the kernel: a compiler can follow an object that it finds by its name, and none in a closure
    name, differentiable = kernel.name, kernel.differentiable
    forward_op, backward_op = kernel._forward_op, kernel._backward_op

    def gradients(
        structure: Any, saved: Sequence[Tensor], wanted: list[int], d_out: Tensor | None, d_lse: Tensor | None
    ) -> list[Tensor]:
        """The first derivatives, or the operator of them where somebody is to see one."""
        if not differentiable and any(map(_is_batched, (d_out, d_lse))):
            raise HeadwayError(BATCHED.format(name))
        if torch.compiler.is_compiling() or NATIVE[name]._as_operator(saved):
            found: list[Tensor] = backward_op(list(saved), _ops.write(structure), wanted, d_out, d_lse)
            return found
        return _backward(NATIVE[name], structure, saved, wanted, d_out, d_lse)

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(structure: Any, wants_lse: bool, *tensors: Tensor) -> tuple[Tensor, ...]:
            if torch.compiler.is_compiling() or NATIVE[name]._as_operator(tensors):
                found = Results(*forward_op(list(tensors), _ops.write(structure)))
            else:
                found = _forward(NATIVE[name], structure, tensors)
            lse = found.log_sum_exp if wants_lse else found.row_max.new_empty(0)
            return found.out, lse, found.row_max, found.row_sum

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
            ctx.structure, wants_lse, *tensors = inputs
            out, lse, row_max, row_sum = output
            ctx.save_for_backward(*tensors, out, row_max, row_sum)
            ctx.mark_non_differentiable(row_max, row_sum, *(() if wants_lse else (lse,)))
            if not torch.compiler.is_compiling():
                ctx.set_materialize_grads(False)
            ctx.wants_lse = wants_lse

        @staticmethod
        def backward(ctx: Any, d_out: Tensor, d_lse: Tensor, *unused: Any) -> tuple[Tensor | None, ...]:
            needed = ctx.needs_input_grad[2:]
            wanted = [i for i, need in enumerate(needed) if need]
            upstream = d_out, d_lse if ctx.wants_lse else None
            saved = ctx.saved_tensors
            if not torch.is_grad_enabled() or torch.compiler.is_compiling():
                found = gradients(ctx.structure, saved, wanted, *upstream)
            elif differentiable and torch._C._are_functorch_transforms_active():
                found = _followed(NATIVE[name], ctx.structure, saved[:-3], wanted, *upstream)
            else:
                found = Gradient.apply(ctx.structure, wanted, *upstream, *saved)
            grads: list[Tensor | None] = [None] * len(needed)
            for i, grad in zip(wanted, found, strict=True):
                grads[i] = grad
            return None, None, *grads

        @staticmethod
        def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
            raise HeadwayError("attention cannot be vmapped: fold the mapped dimension into the batch")

    class Gradient(torch.autograd.Function):
        """The first derivatives where a graph of them is asked for."""

        @staticmethod
        def forward(
            structure: Any, wanted: list[int], d_out: Tensor | None, d_lse: Tensor | None, *saved: Tensor
        ) -> tuple[Tensor, ...]:
            return tuple(gradients(structure, saved, wanted, d_out, d_lse))

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
            ctx.structure, ctx.wanted, d_out, d_lse, *saved = inputs
            if differentiable:
                ctx.save_for_backward(d_out, d_lse, *saved[:-3])

        @staticmethod
        def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
            if not differentiable:
                raise HeadwayError(
                    f"kernel {name!r} gives first derivatives alone: to differentiate a gradient choose "
                    "kernel='reference'"
                )
            grads = _second_derivatives(NATIVE[name], ctx, ctx.needs_input_grad[2:-3], upstream)
            return None, None, *grads, None, None, None  # the results are computed again

        @staticmethod
        def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
            raise HeadwayError(BATCHED.format(name))

    return Attention


def _second_derivatives(
    kernel: NativeKernel[Any], ctx: Any, needed: Sequence[bool], upstream: Sequence[Tensor]
) -> list[Tensor | None]:
    """The derivatives of first derivatives by d_out, d_lse and the tensors of the call."""
    again = torch.is_grad_enabled()
    saved = ctx.saved_tensors
    with torch.enable_grad(), without_autocast(saved[2]):
        if not again:
            saved = [x if x is None else x.detach().requires_grad_(need) for x, need in zip(saved, needed, strict=True)]
        d_out, d_lse, *tensors = saved
        found = _followed(kernel, ctx.structure, tensors, ctx.wanted, d_out, d_lse)
        reached = [(x, g) for x, g in zip(found, upstream, strict=True) if g is not None and x.requires_grad]
        if not reached:
            return [None] * len(needed)
        outputs, gradients = ([*part] for part in zip(*reached, strict=True))
        inputs = [x for x, need in zip(saved, needed, strict=True) if need]
        grads = iter(torch.autograd.grad(outputs, inputs, gradients, create_graph=again, allow_unused=True))
    return [next(grads) if need else None for need in needed]


BATCHED = (
    "kernel {!r} takes one gradient at a time and was given a batch of them (jacrev, is_grads_batched, vectorize): "
    "choose kernel='reference'"
)


def _is_batched(grad: Tensor | None) -> bool:
    """Whether a gradient is one of many that vmap holds in one tensor, that of torch.func or that of autograd."""
    if grad is None or torch.compiler.is_compiling():
        return False
    return torch._C._functorch.is_batchedtensor(grad) or torch._C._functorch.is_legacy_batchedtensor(grad)


def eager_apply(function: type[torch.autograd.Function]) -> Callable[..., tuple[Tensor, ...]]:
    """``apply`` without the look at signatures that torch.func needs, to which a short call would owe its time."""
    apply: Callable[..., tuple[Tensor, ...]] = getattr(super(torch.autograd.Function, function), "apply")  # noqa: B009
    return apply
