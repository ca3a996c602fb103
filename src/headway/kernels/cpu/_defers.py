"""Which calls "auto" leaves to torch's SDPA although the CPU kernel could run them: those that SDPA runs faster.

Nothing is timed at run time. A table holds what was measured on x86-64; a case that was not measured is not in it. On
other processors, such as Arm, nothing was measured, and every call that SDPA can run is left to it.
"""

from __future__ import annotations

import platform
from typing import NamedTuple

import torch

from ..._torch import functorch_active, has_amx
from ...masks import Causal
from .._base import Deferral
from .._problem import Problem
from . import _library

SDPA = "sdpa"

DECODE_QUERIES, SMALL = 4, 1 << 20
"""Plain float32 attention that autograd or a transform of torch.func follows is left to ``sdpa`` if it has more than
DECODE_QUERIES queries and less than SMALL multiply-adds. Otherwise it is planned and takes no longer to start."""


class Slower(NamedTuple):
    """Calls without terms, under a causal mask or none, that this kernel runs slower than torch's SDPA, as measured.

    With another mask or with a bias SDPA needs tensors of n×m numbers, and was slower in nearly every case.

    Attributes:
        isa: the instruction set that the kernel uses.
        dtypes: the dtypes.
        training: whether q, k or v require a gradient; None for either.
        ratio: the time of SDPA divided by that of the kernel, from the smallest measured to the largest.
        least: the fewest keys.
    """

    isa: str
    dtypes: tuple[torch.dtype, ...]
    training: bool | None
    ratio: tuple[float, float]
    least: int = 0


SLOWER = (
    Slower("portable", (torch.float32,), None, (0.41, 0.95)),
    Slower("portable", (torch.bfloat16,), None, (0.41, 0.86), least=512),
    Slower("portable", (torch.float16,), False, (0.48, 0.95), least=1024),
)
"""Measured on Zen 4, where with AVX2 no call was slower; 1 × 8 × n × 64 and 128, two threads, forward alone or with
backward."""
SLOW = frozenset(row.isa for row in SLOWER)


def not_measured(machine: str) -> Deferral | None:
    """Returns why every call is left to torch's SDPA on such a processor; None if the kernel was measured there."""
    if machine.lower() in ("x86_64", "amd64"):
        return None
    return Deferral(SDPA, f"left to torch's SDPA: not measured against it on {machine} yet")


NOT_MEASURED = not_measured(platform.machine())


def deferral(problem: Problem) -> Deferral | None:
    """Returns why a call is left to torch's SDPA; None if it is not.

    Args:
        problem: the facts of the call.
    """
    p = problem
    if NOT_MEASURED is not None:
        return NOT_MEASURED
    if not p.m or p.dtype == torch.float64:
        return None
    if p.terms or p.dropout or p.wants_lse:
        return None
    if p.mask is not None and not (type(p.mask) is Causal and p.aligned and p.n == p.m):
        return None
    slower = _slower(p)
    if slower is not None:
        low, high = slower.ratio
        return Deferral(SDPA, f"left to torch's SDPA, which took {low:g} to {high:g} of its time with {slower.isa}")
    if p.dtype == torch.bfloat16 and has_amx():
        return Deferral(SDPA, "left to torch's SDPA, which uses this processor's AMX: not measured against it yet")
    if p.dtype != torch.float32 or torch.compiler.is_compiling():  # a compiler would have to specialize on lengths
        return None
    small = p.n > DECODE_QUERIES and p.batch * p.heads * p.n * p.m * p.head_dim < SMALL
    if not small or not (p.wanted or functorch_active()):
        return None
    return Deferral(SDPA, "left to torch's SDPA, which takes less to start")


def _slower(problem: Problem) -> Slower | None:
    isa = _library.isa()
    if isa not in SLOW or problem.n <= DECODE_QUERIES:
        return None
    training = bool(problem.wanted & {"q", "k", "v"})
    for row in SLOWER:
        fits = row.isa == isa and problem.dtype in row.dtypes and row.training in (None, training)
        if fits and problem.m >= row.least:
            return row
    return None
