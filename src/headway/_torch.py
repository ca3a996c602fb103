"""Every function of torch that headway uses and torch does not document, with what holds where a version lacks it.

A fallback is safe: it takes the slower way, and never the one that a missing answer would have ruled out.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.functional import linear
from torch.utils._pytree import tree_leaves as tree_leaves
from torch.utils._pytree import tree_map_only as tree_map_only

Function = TypeVar("Function", bound=Callable[..., Any])

# ---------------------------------------------------------------- who looks on

_KEYS = torch._C.DispatchKey
_ALONE = torch._C.DispatchKeySet(_KEYS.BackendSelect) | torch._C.DispatchKeySet(_KEYS.ADInplaceOrView)
_OTHERS = ~_ALONE.raw_repr()
"""Dispatch keys that no thread has of itself. Every tracer, mode and transform of torch has one of its own: operators
are dispatched to it by that key."""

_raw = torch._C.DispatchKeySet.raw_repr
_included: Callable[[], Any] = getattr(
    torch._C, "_dispatch_tls_local_include_set", lambda: torch._C.DispatchKeySet(_KEYS.Python)
)
_function_modes: Callable[[], int] = getattr(torch._C, "_len_torch_function_stack", lambda: 1)


def dispatched_elsewhere() -> bool:
    """Whether this thread has a dispatch key, or a mode of torch functions, that it does not have of itself."""
    return bool(_raw(_included()) & _OTHERS) or _function_modes() > 0


dispatch_modes: Callable[[], int] = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 1)
"""How many modes of torch's dispatcher are at work."""

functorch_active: Callable[[], bool] = getattr(torch._C, "_are_functorch_transforms_active", lambda: True)
"""Whether a transform of torch.func is at work."""

any_autocast: Callable[[], bool] = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)
"""Whether autocast may be at work on any device: a quick answer before the documented ones are asked."""


def functionalizing() -> bool:
    """Whether the innermost transform of torch.func is ``functionalize``."""
    functorch = torch._C._functorch
    top = functorch.peek_interpreter_stack() if hasattr(functorch, "peek_interpreter_stack") else None
    return top is not None and top.key() == functorch.TransformType.Functionalize


def forward_mode_level() -> int:
    """The level of forward-mode differentiation; −1 outside of it."""
    level: int = getattr(forward_ad, "_current_level", -1)
    return level


def is_batched(x: Tensor) -> bool:
    """Whether a tensor stands for a batch of them, under torch.func.vmap or autograd's ``is_grads_batched``."""
    tests = ("is_batchedtensor", "is_legacy_batchedtensor")
    return any(getattr(torch._C._functorch, name)(x) for name in tests if hasattr(torch._C._functorch, name))


# ---------------------------------------------------------------- autograd and the compiler


def recorded_by_autograd() -> AbstractContextManager[Any]:
    """A context in which autograd records again, for the body of an operator, which runs below it."""
    return torch._C._SetExcludeDispatchKeyGuard(_KEYS.AutogradFunctionality, False)


def writes_of(x: Tensor) -> int:
    """How often a tensor's memory was written into in place. Raises RuntimeError for one of inference mode."""
    return x._version


def constant_in_graphs(function: Function) -> Function:
    """Marks a function whose result a compiler takes as it is, without looking inside."""
    function.__dict__["_dynamo_marked_constant"] = True
    return function


no_torch_function: Any = torch._C._disabled_torch_function_impl
"""The ``__torch_function__`` of a class of tensors that intercepts nothing."""

# ---------------------------------------------------------------- the processor

_ONEDNN = hasattr(torch.ops.mkldnn, "_reorder_linear_weight") and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def onednn_weight(weight: Tensor, tokens: int) -> Tensor:
    """A weight [out_features, in_features] in oneDNN's own layout for about so many tokens; as it is without oneDNN."""
    return torch.ops.mkldnn._reorder_linear_weight(weight, tokens) if _ONEDNN else weight


def onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x·Wᵀ + b with a weight of ``onednn_weight``."""
    if not _ONEDNN:
        return linear(x, weight, bias)
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return out


@constant_in_graphs
def has_amx() -> bool:
    """Whether the processor has AMX."""
    found: bool = getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)()
    return found
