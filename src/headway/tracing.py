"""Who looks on at a call: compilers, tracers, modes and transforms, which see operators of torch and no memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._torch import dispatched_elsewhere, forward_mode_level, functionalizing, functorch_active
from .errors import HeadwayError


def watched() -> bool:
    """Whether somebody looks on at what torch does in this thread.

    Then every result has to come from an operator, or the onlooker would take its memory for a constant; and no tensor
    may be used that was made before, since it would be one.
    """
    # a compiler takes the first for True and does not look at the rest
    return torch.compiler.is_dynamo_compiling() or dispatched_elsewhere()


PLAIN_ALONE = (
    "forward-mode differentiation and functionalize follow plain operations alone, as kernel 'reference' has them"
)


def forward_mode() -> bool:
    """Whether forward-mode differentiation is at work."""
    return not torch.compiler.is_dynamo_compiling() and forward_mode_level() >= 0


def plain_alone() -> bool:
    """Whether what is at work has no rule for an ``autograd.Function`` of ours and follows plain operations alone."""
    if forward_mode():
        return True
    return not torch.compiler.is_dynamo_compiling() and functorch_active() and functionalizing()


def refuse_tracers(x: object) -> None:
    """Raises HeadwayError where torch.jit.trace or torch.fx.symbolic_trace look on; x: an input of the call.

    The first keeps what Python decides by lengths, and the second has no lengths: neither can record attention.
    """
    if torch.jit.is_tracing():
        raise HeadwayError(f"torch.jit.trace would keep {KEEPS}: {REMEDY}")
    if not isinstance(x, Tensor) and type(x).__module__.startswith("torch.fx"):
        raise HeadwayError(f"torch.fx.symbolic_trace gives a {type(x).__name__} without a shape: {REMEDY}")


KEEPS = "what attention decides by the lengths of one call"
REMEDY = "use torch.export.export, or torch.compile"


def refuse_script(module: Any) -> Any:
    """What a module has as ``__prepare_scriptable__``, which torch.jit.script calls first: raises HeadwayError."""
    raise HeadwayError(f"torch.jit.script cannot read a {type(module).__name__}: {REMEDY}")
