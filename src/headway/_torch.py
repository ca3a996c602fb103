"""All undocumented functions of torch that headway uses, each with a fallback for versions that lack it.

A fallback assumes the safe answer: it may make a call slower, but not wrong.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from types import FrameType
from typing import Any, TypeVar

import torch
from torch import Tensor, overrides
from torch.autograd import forward_ad
from torch.nn.functional import linear
from torch.nn.modules import module as module_of_torch
from torch.overrides import TorchFunctionMode
from torch.utils import _python_dispatch as dispatch
from torch.utils import checkpoint as checkpoints
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._pytree import tree_leaves as tree_leaves
from torch.utils._pytree import tree_map_only as tree_map_only

Function = TypeVar("Function", bound=Callable[..., Any])

COMPILER_FOLLOWS_DICT = tuple([int(part) for part in torch.__version__.split(".")[:2]]) >= (2, 12)
"""Whether torch's compiler follows the ``__dict__`` of a frozen dataclass; that of torch 2.11 follows only fields."""


def ragged_dim(x: Tensor) -> int:
    """Returns the dimension of a jagged tensor whose size is another in each component.

    Args:
        x: the jagged tensor.
    """
    return int(getattr(x, "_ragged_idx", 1))


def offsets_of(x: Any) -> Tensor:
    """Returns where the components of a jagged tensor begin, and where the last one ends.

    Args:
        x: the jagged tensor.
    """
    offsets: Tensor = x.offsets()
    return offsets


def has_holes(x: Any) -> bool:
    """Returns whether values of a jagged tensor belong to none of its components.

    Args:
        x: the jagged tensor.
    """
    return x.lengths() is not None


# ---------------------------------------------------------------- tracers, modes and transforms

_KEYS = torch._C.DispatchKey
_ALONE = torch._C.DispatchKeySet(_KEYS.BackendSelect) | torch._C.DispatchKeySet(_KEYS.ADInplaceOrView)
_OTHERS = ~_ALONE.raw_repr()
"""Dispatch keys that a thread does not have by default. Each tracer, mode and transform of torch adds its own, by which
operators are dispatched to it."""

_raw = torch._C.DispatchKeySet.raw_repr
_included: Callable[[], Any] = getattr(
    torch._C, "_dispatch_tls_local_include_set", lambda: torch._C.DispatchKeySet(_KEYS.Python)
)
_function_modes: Callable[[], int] = getattr(torch._C, "_len_torch_function_stack", lambda: 1)


def dispatched_elsewhere() -> bool:
    """Returns whether this thread has a non-default dispatch key, or a torch function mode."""
    return bool(_raw(_included()) & _OTHERS) or _function_modes() > 0


_innermost_mode: Callable[[], Any] = getattr(overrides, "_get_current_function_mode", lambda: None)
_pop_mode: Callable[[], Any] = getattr(overrides, "_pop_mode", lambda: None)
_push_mode: Callable[[Any], None] = getattr(overrides, "_push_mode", lambda mode: None)

dispatch_modes: Callable[[], int] = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 1)
"""Returns the number of active torch dispatch modes."""

functorch_active: Callable[[], bool] = getattr(torch._C, "_are_functorch_transforms_active", lambda: True)
"""Returns whether a transform of torch.func is active."""

any_autocast: Callable[[], bool] = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)
"""Returns whether autocast may be enabled on any device; faster than the documented functions."""


def functionalizing() -> bool:
    """Returns whether the innermost transform of torch.func is ``functionalize``."""
    functorch = torch._C._functorch
    top = functorch.peek_interpreter_stack() if hasattr(functorch, "peek_interpreter_stack") else None
    return top is not None and top.key() == functorch.TransformType.Functionalize


def forward_mode_level() -> int:
    """Returns the level of forward-mode differentiation, −1 if it is not active."""
    level: int = getattr(forward_ad, "_current_level", -1)
    return level


def is_compiled(module: torch.nn.Module) -> bool:
    """Whether a module is what ``torch.compile`` returns, or has been compiled in place."""
    return getattr(module, "_compiled_call_impl", None) is not None or hasattr(module, "_orig_mod")


_dynamo = getattr(torch._C, "_dynamo", None)
_frame_callback: Callable[[], Any] = getattr(
    getattr(_dynamo, "eval_frame", None), "get_eval_frame_callback", lambda: None
)


def compiles() -> bool:
    """Returns whether ``torch.compile`` traces this thread, even while it runs a part uncompiled."""
    return torch.compiler.is_dynamo_compiling() or callable(_frame_callback())


_global_hooks: Callable[[], bool] = getattr(module_of_torch, "_has_any_global_hook", lambda: True)


def _of_another_thread(hook: Any) -> bool:
    thread = getattr(hook, "thread", None)  # an attribute that ``headway.inspection`` gives its hooks
    return thread is not None and thread != threading.get_ident()


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def calls_forward_alone(module: torch.nn.Module) -> bool:
    """Returns whether calling a module calls the ``forward`` of its class and nothing else."""
    own = module.__dict__
    for name in _HOOKS:
        hooks = own.get(name, True)
        if hooks and (hooks is True or not all(map(_of_another_thread, hooks.values()))):
            return False
    return "forward" not in own and "_compiled_call_impl" not in own and not _global_hooks()


def is_batched_by_autograd(x: Tensor) -> bool:
    """Returns whether a tensor is batched by autograd's ``is_grads_batched``."""
    return bool(getattr(torch._C._functorch, "is_legacy_batchedtensor", lambda x: False)(x))


def is_mapped(x: Tensor) -> bool:
    """Returns whether a tensor is batched by torch.func.vmap, at any level of transforms."""
    functorch = torch._C._functorch
    while functorch_active() and functorch.is_functorch_wrapped_tensor(x):
        if functorch.is_batchedtensor(x):
            return True
        x = functorch.get_unwrapped(x)
    return False


def requires_grad(x: Tensor) -> bool:
    """Returns whether a tensor requires a gradient, also if it is batched by torch.func.vmap, which hides that."""
    if x.requires_grad:
        return True
    if torch.compiler.is_compiling() or not functorch_active():
        return False
    functorch = torch._C._functorch
    return bool(functorch.is_batchedtensor(x)) and requires_grad(functorch.get_unwrapped(x))


# ---------------------------------------------------------------- autograd and the compiler


register_decomposition: Callable[..., Callable[[Function], Function]] = getattr(
    torch._decomp, "register_decomposition", lambda operator: lambda function: function
)
"""Returns a decorator of an operator's decomposition; ``torch.onnx.export`` takes it, ``torch.export`` does not."""


def kept_by_inductor(operator: Any) -> None:
    """Lets Inductor call an operator that has a decomposition.

    Where the environment variable CI is set, Inductor raises an error for such an operator, as torch's own tests want
    it of torch's operators, unless a fallback is registered before. Its module is imported when it begins to compile,
    and a compiler asks for the operator's shapes after that.
    """
    lowering = sys.modules.get("torch._inductor.lowering")
    if lowering is None or operator in getattr(lowering, "lowerings", (operator,)):
        return
    try:
        tag = lowering.get_layout_constraint_tag(operator, with_default=True)
        lowering.make_fallback(operator, layout_constraint=lowering.tag_to_layout_constraint(tag), warn=False)
    except (AttributeError, TypeError):  # another version of torch, which registers a fallback itself
        return


def recorded_by_autograd() -> AbstractContextManager[Any]:
    """Returns a context in which autograd records, for use inside an operator, where it does not."""
    return torch._C._SetExcludeDispatchKeyGuard(_KEYS.AutogradFunctionality, False)


def writes_of(x: Tensor) -> int:
    """Returns how often a tensor was written into in place. Raises RuntimeError for an inference tensor."""
    return x._version


def never_compiled(function: Function) -> Function:
    """The function as compiled code calls it without looking inside; as it is where nothing has been compiled yet."""
    return torch.compiler.disable(function) if "torch._dynamo" in sys.modules else function  # else it would be loaded


@contextmanager
def without_data() -> Iterator[Callable[[Tensor], Tensor]]:
    """A block in which tensors are made without data; yields a function that returns a tensor without its data.

    Raises NotImplementedError where something reads data.
    """
    from torch._subclasses.fake_tensor import (
        DataDependentOutputException,
        DynamicOutputShapeException,
        FakeTensorMode,
    )

    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        try:
            yield mode.from_tensor
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise NotImplementedError(str(error)) from error


@contextmanager
def without_function_modes(kind: type[TorchFunctionMode]) -> Iterator[None]:
    """A block without the innermost modes of torch functions, as far as they are of a class."""
    left = []
    try:
        while isinstance(_innermost_mode(), kind):
            left.append(_pop_mode())
        yield
    finally:
        for mode in reversed(left):
            _push_mode(mode)


_DISPATCH_STACK = ("_get_current_dispatch_mode", "_pop_mode", "_push_mode")
_dispatch_stack = [getattr(dispatch, name) for name in _DISPATCH_STACK if hasattr(dispatch, name)]


@contextmanager
def without_dispatch_modes() -> Iterator[None]:
    """A block without torch dispatch modes, except those that tensors need, such as that of fake tensors."""
    if len(_dispatch_stack) < len(_DISPATCH_STACK):
        yield
        return
    innermost, pop, push = _dispatch_stack
    left = []
    try:
        while (mode := innermost()) is not None and getattr(mode, "_mode_key", None) is None:
            left.append(pop())
        yield
    finally:
        for mode in reversed(left):
            push(mode)


def statically_known(fact: torch.SymBool) -> bool:
    """Returns whether a comparison of symbolic sizes holds whatever they are."""
    from torch.fx.experimental import symbolic_shapes

    found: bool = symbolic_shapes.statically_known_true(fact)
    return found


def constant_in_graphs(function: Function) -> Function:
    """Marks a function whose result is a constant for a compiler, which does not trace it."""
    function.__dict__["_dynamo_marked_constant"] = True
    return function


_APPLY = getattr(getattr(torch.autograd.Function.apply, "__func__", None), "__code__", None)


def function_around() -> type | None:
    """Returns the innermost ``torch.autograd.Function`` in whose ``forward``, for a gradient, this thread is.

    It is for a gradient if it, or a Function around it, was called where gradients are taken. Torch's own of reentrant
    checkpoints counts only as a Function around another: its backward computes the other again, for a gradient.
    """
    innermost: type | None = None
    inner: FrameType | None = None
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code is _APPLY:
            kind = frame.f_locals["cls"]
            if innermost is None and kind is not checkpoints.CheckpointFunction:
                innermost = kind
            ctx = inner and inner.f_locals.get(inner.f_code.co_varnames[0])
            # needs_input_grad also counts parameters while gradients are off; the graph then has no next functions
            if innermost is not None and getattr(ctx, "next_functions", True):
                return innermost
        inner, frame = frame, frame.f_back
    return None


Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]

_HOLDERS = (("CheckpointFunction", "forward", "run_function"), ("_CheckpointFrame", "__init__", "recompute_fn"))
"""The classes of ``torch.utils.checkpoint``, reentrant and not, that hold what a backward pass recomputes; what
makes them of it, and the attribute that has it."""

_wraps: list[Wrap] = []
_replaced: list[tuple[Any, str, Any]] = []
_lock = threading.Lock()


@contextmanager
def recomputed_as(wrap: Wrap) -> Iterator[None]:
    """A block in which ``torch.utils.checkpoint`` holds ``wrap(function)`` for the recomputation of ``function``.

    ``wrap`` is called in any thread, before the first computation, for which ``function`` is called itself. Where
    blocks nest, the wrap of the outermost is called last. In a version of torch without these classes it is not called.
    """
    with _lock:
        if not _wraps:
            _replaced[:] = [_replace(*holder) for holder in _HOLDERS if hasattr(checkpoints, holder[0])]
        _wraps.append(wrap)
    try:
        yield
    finally:
        with _lock:
            _wraps.remove(wrap)
            while not _wraps and _replaced:
                setattr(*_replaced.pop())


def _replace(holder: str, maker: str, attribute: str) -> tuple[Any, str, Any]:
    """Lets a class hold what ``_wraps`` make of a function; returns what ``setattr`` takes to restore it."""
    owner = getattr(checkpoints, holder)
    original = vars(owner)[maker]
    make = getattr(owner, maker)

    def holding(held: Any, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        wrapped = function
        for wrap in reversed(tuple(_wraps)):
            wrapped = wrap(wrapped)
        out = make(held, function, *args, **kwargs)
        setattr(held, attribute, wrapped)
        return out

    setattr(owner, maker, staticmethod(holding) if isinstance(original, staticmethod) else holding)
    return owner, maker, original


_backward_pass: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", lambda: -1)


@constant_in_graphs
def backward_pass() -> int:
    """Returns the number of the backward pass that this thread runs, as checkpoints do forward; −1 outside of one."""
    return _backward_pass()


sdp_order: Callable[[], list[int]] = getattr(torch._C, "_get_sdp_priority_order", lambda: [1, 2, 0, 3])
"""Returns torch's numbers of the back ends of its SDPA, in the order in which it tries them on CUDA."""

no_torch_function: Any = torch._C._disabled_torch_function_impl
"""The ``__torch_function__`` of tensor subclasses that intercept nothing."""

# ---------------------------------------------------------------- the processor

_LINEAR_ARGUMENTS = ("Tensor", "Tensor", "Optional[Tensor]", "str", "List[Optional[number]]", "Optional[str]")


def _has_onednn_linear() -> bool:
    """Returns whether oneDNN's linear map is there, with the arguments with which it is called here."""
    operator = getattr(getattr(torch.ops.mkldnn, "_linear_pointwise", None), "default", None)
    schema = getattr(operator, "_schema", None)
    return schema is not None and tuple(str(one.type) for one in schema.arguments) == _LINEAR_ARGUMENTS


ONEDNN_LINEAR = torch.backends.mkldnn.is_available() and _has_onednn_linear()
"""Whether ``onednn_linear`` is oneDNN's; otherwise it is torch's."""

_PREPACKS = ONEDNN_LINEAR and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")


def onednn_weight(weight: Tensor, tokens: int) -> Tensor:
    """Returns a weight [out_features, in_features] in oneDNN's layout for about ``tokens`` tokens, if oneDNN exists."""
    return torch.ops.mkldnn._reorder_linear_weight(weight, tokens) if _PREPACKS else weight


def onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Returns x·Wᵀ + b without a gradient; W is a matrix of any strides, or from ``onednn_weight``."""
    if not ONEDNN_LINEAR:
        return linear(x, weight, bias)
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return out


_onednn_enabled: Callable[[], bool] = getattr(torch._C, "_get_mkldnn_enabled", lambda: False)
_precision: Callable[[str, str], str] = getattr(
    torch._C, "_get_fp32_precision_getter", lambda backend, operation: "bf16"
)


def onednn_in_float32() -> bool:
    """Returns whether the user leaves oneDNN on, and products of float32 matrices in float32."""
    return _onednn_enabled() and _precision("mkldnn", "matmul") != "bf16"


@constant_in_graphs
def has_amx() -> bool:
    """Returns whether the processor has AMX."""
    found: bool = getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)()
    return found


def keep_gpu_busy(cycles: int) -> None:
    """Starts a program on the current GPU that waits for a number of cycles, so that the host gets ahead."""
    torch.cuda._sleep(cycles)


def stream_of(device: int) -> int | None:
    """Returns the current stream of a GPU as a number; None while its work is captured in a graph.

    Args:
        device: the number of the GPU.
    """
    if torch.cuda.is_current_stream_capturing():
        return None
    current = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    stream: int = torch.cuda.current_stream(device).cuda_stream if current is None else current(device)
    return stream


# ---------------------------------------------------------------- groups of processes


def devices_of(group: Any) -> list[str]:
    """Returns the kinds of devices whose tensors a process group exchanges, such as ["cpu", "cuda"].

    Args:
        group: the process group.
    """
    return [one.type for one in getattr(group, "_device_types", ())]


def backend_of(group: Any, device: str) -> Any:
    """Returns the backend of a process group for the tensors of a kind of device; None if it has none.

    Args:
        group: the process group.
        device: the kind, such as "cuda".
    """
    try:
        return group._get_backend(torch.device(device))
    except (AttributeError, RuntimeError):
        return None


def timeout_of(group: Any) -> timedelta | None:
    """Returns the timeout of a process group, which torch states for each backend; None if no backend states it.

    Args:
        group: the process group.
    """
    for device in ("cpu", "cuda"):
        found: timedelta | None = getattr(getattr(backend_of(group, device), "options", None), "_timeout", None)
        if found is not None:
            return found
    return None


def store_of(group: Any) -> Any:
    """Returns the store that the processes of a group share; None if torch does not tell.

    Args:
        group: the process group.
    """
    try:
        return group.get_group_store()
    except (AttributeError, RuntimeError):
        return None


# ---------------------------------------------------------------- programs of the compiler


def up_to_programs(count: int) -> AbstractContextManager[Any]:
    """Returns a context in which torch's compiler keeps up to ``count`` programs of a function."""
    from torch._dynamo import config

    return config.patch(recompile_limit=count) if hasattr(config, "recompile_limit") else nullcontext()


# ---------------------------------------------------------------- functions of FlexAttention


class _IndexByTensors(TorchFunctionMode):
    """Makes x[i] with tensors i without dimensions an operation, where torch would read their values.

    FlexAttention has the same mode, in a module that takes a second to import.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__getitem__:
            x, given = args
            numbers = given if isinstance(given, tuple) else (given,)
            if all(isinstance(one, (Tensor, int)) and not isinstance(one, bool) for one in numbers):
                tensors = [one if isinstance(one, Tensor) else torch.tensor(one, device=x.device) for one in numbers]
                return torch.ops.aten.index.Tensor(x, tensors)
        return func(*args, **(kwargs or {}))


def mapped_over_pairs(
    function: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor],
    rows: Tensor,
    heads: Tensor,
    q_idx: Tensor,
    kv_idx: Tensor,
) -> Tensor:
    """Returns a function of FlexAttention for all rows, heads, queries and keys, as a tensor of four dimensions.

    A dimension that the result does not depend on has size 1.

    Args:
        function: the function (b, h, q_idx, kv_idx) of tensors without dimensions.
        rows: the numbers of rows of the batch, [batch].
        heads: the numbers of heads, [heads].
        q_idx: the numbers of queries, [batch or 1, n].
        kv_idx: the numbers of keys, [batch or 1, m].
    """
    if not (len(rows) and len(heads) and q_idx.shape[1] and kv_idx.shape[1]):
        return torch.zeros(len(rows), len(heads), q_idx.shape[1], kv_idx.shape[1], dtype=torch.bool, device=rows.device)
    q_row, k_row = (None if len(x) == 1 else 0 for x in (q_idx, kv_idx))
    q_idx, kv_idx = (x[0] if len(x) == 1 else x for x in (q_idx, kv_idx))
    mapped: Callable[..., Tensor] = function
    for dims in ((None, None, None, 0), (None, None, 0, None), (None, 0, None, None), (0, None, q_row, k_row)):
        mapped = torch.vmap(mapped, in_dims=dims)
    with _IndexByTensors():
        found = mapped(rows, heads, q_idx, kv_idx)
    for dim, step in enumerate(found.stride()[:4]):
        if step == 0 and found.shape[dim] > 1:  # the result was expanded
            found = found.narrow(dim, 0, 1)
    return found
