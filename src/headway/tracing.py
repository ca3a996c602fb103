"""Detects compilers, tracers, modes and transforms, which see torch's operators but no memory."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from ._torch import (
    any_autocast,
    dispatched_elsewhere,
    forward_mode_level,
    functionalizing,
    functorch_active,
    statically_known,
)
from .errors import HeadwayError


def watched() -> bool:
    """Returns whether a compiler, tracer, mode or transform follows torch's operations in this thread.

    Then every result must come from an operator, and no cached tensor may be used. Anything else would become a
    constant of the graph.
    """
    # a compiler evaluates the first to True and does not trace the rest
    return torch.compiler.is_dynamo_compiling() or dispatched_elsewhere()


def to_onnx() -> bool:
    """Returns whether ``torch.onnx.export`` follows the operations of this thread.

    Its graphs have only torch's operations. A comparison with a symbolic length would fix the length silently.
    """
    return watched() and torch.onnx.is_in_onnx_export()


def holds(fact: bool | torch.SymBool) -> bool:
    """Returns whether a comparison of lengths holds; if they are symbolic, whether it holds for all of them.

    Otherwise the lengths of the example would decide. An exported program checks them when it runs; ONNX does not.
    """
    return statically_known(fact) if isinstance(fact, torch.SymBool) else fact


def searchsorted(edges: Tensor, x: Tensor, *, right: bool = False) -> Tensor:
    """``torch.searchsorted`` of x [..., n] in edges [..., m] or [m]; counted for ONNX, which has no such operator."""
    if to_onnx():
        each, x = edges[..., None, :], x[..., None]
        return (each <= x if right else each < x).sum(-1)
    return torch.searchsorted(edges, x.contiguous(), right=right)


PLAIN_ALONE = (
    "forward-mode differentiation and functionalize support only plain torch operations: use kernel='reference'"
)


def forward_mode() -> bool:
    """Returns whether forward-mode differentiation is active."""
    return not torch.compiler.is_dynamo_compiling() and forward_mode_level() >= 0


def plain_alone() -> bool:
    """Returns whether an active transform has no rule for our ``autograd.Function``s and needs plain operations."""
    if forward_mode():
        return True
    return not torch.compiler.is_dynamo_compiling() and functorch_active() and functionalizing()


def refuse_tracers(x: object) -> None:
    """Raises HeadwayError under torch.jit.trace or torch.fx.symbolic_trace, and for an input x that is a DTensor.

    Neither tracer can record attention: the first fixes decisions that depend on lengths, and the second has no
    lengths. A DTensor cannot be combined with the tables of encodings, which each process has by itself.
    """
    if torch.jit.is_tracing():
        raise HeadwayError(
            f"torch.onnx.export(dynamo=False) would keep {KEEPS}: leave out dynamo=False"
            if torch.onnx.is_in_onnx_export()
            else f"torch.jit.trace would keep {KEEPS}: {REMEDY}"
        )
    if type(x) is Tensor:
        return
    if not isinstance(x, Tensor) and type(x).__module__.startswith("torch.fx"):
        raise HeadwayError(f"torch.fx.symbolic_trace gives a {type(x).__name__} without a shape: {REMEDY}")
    if not torch.compiler.is_dynamo_compiling() and type(x).__name__ == "DTensor":
        raise HeadwayError(
            "attention of a DTensor is not defined: give its to_local(), as ColwiseParallel hands over by default"
        )


KEEPS = "what attention decides by the lengths of one call"
REMEDY = "use torch.export.export, or torch.compile"


def refuse_script(module: Any) -> Any:
    """Raises HeadwayError. Modules use it as ``__prepare_scriptable__``, which torch.jit.script calls first."""
    raise HeadwayError(f"torch.jit.script cannot read a {type(module).__name__}: {REMEDY}")


def without_autocast(x: Tensor) -> AbstractContextManager[object]:
    """Returns a context without autocast on the device of x, since q, k and v are cast and terms keep their dtypes."""
    return torch.autocast(x.device.type, enabled=False) if autocasts(x) else nullcontext()


def autocasts(x: Tensor) -> bool:
    """Returns whether autocast is enabled on the device of x."""
    if not any_autocast():
        return False
    device = x.device.type
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
