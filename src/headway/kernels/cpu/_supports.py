"""Decides which calls the C++ kernel supports, from metadata only."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ..._torch import constant_in_graphs
from ...masks import (
    And,
    Bits,
    Boolean,
    Causal,
    Chunked,
    Dilated,
    Documents,
    Function,
    Interval,
    KeepFirst,
    Mask,
    Or,
    Padding,
    Prefix,
    Window,
    is_python,
)
from ...tracing import PLAIN_ALONE, plain_alone
from .._masks import MOST_BYTES, bytes_of
from .._pieces import reasons_against as against_pieces
from .._problem import Problem
from ..lowering import reasons_against as against_lowering
from . import _library
from ._descriptor import MAX_DEPTH, MAX_NODES, MAX_WIDTH
from ._terms import reasons_against as against_terms

MASKS = frozenset({Bits, Boolean, Causal, Chunked, Dilated, Documents, Interval, KeepFirst, Padding, Prefix, Window})


@constant_in_graphs  # computed once, in the first call
def missing() -> str | None:
    """Returns why there is no compiled library; None if there is one."""
    return _library.why_not()


def reasons_against(problem: Problem) -> list[str]:
    """Returns every reason why the kernel cannot run a call."""
    reasons = []
    reason = missing()
    if reason:
        reasons.append(reason)
    if problem.device != "cpu":
        reasons.append(f"it runs on a CPU and q is on {problem.device}")
    if problem.dtype == torch.float64:
        reasons.append("it computes in float32, and float64 would be rounded")
    if plain_alone():
        reasons.append(PLAIN_ALONE)
    if problem.positions_want_gradient:
        reasons.append("it computes no gradient of positions")
    if problem.head_dim > MAX_WIDTH or problem.v_head_dim > MAX_WIDTH:
        reasons.append(f"a head_dim is above {MAX_WIDTH:,}")
    if problem.terms:
        for against in (against_terms(problem.terms), against_lowering(problem), against_pieces(problem)):
            reasons.extend(against)  # torch 2.11's compiler cannot add a generator to a list
    if problem.mask is not None:
        reasons.extend(_against_mask(problem, problem.mask))
    return list(dict.fromkeys(reasons)) if len(reasons) > 1 else reasons


def _against_mask(problem: Problem, mask: Mask) -> Iterator[str]:
    if type(mask) in MASKS and type(mask) is not Chunked:
        return
    parts, depth = _parts(mask)
    for kind, part in {type(part): part for part in parts}.items():
        if kind not in MASKS and not part.foreign and not isinstance(part, Function):
            yield f"it does not support the mask {kind.__name__}"
    if is_python(mask) and bytes_of(problem, mask) > MOST_BYTES:
        yield f"its mask is a Python function, which would take more than {MOST_BYTES >> 20:,} MiB as a tensor"
    nodes = sum(2 * (part.previous + 1) if isinstance(part, Chunked) else 2 for part in parts)
    if nodes > MAX_NODES or depth > MAX_DEPTH:
        yield f"the mask joins more than {MAX_NODES // 2} masks, or nests deeper than {MAX_DEPTH}"


def _parts(mask: Mask) -> tuple[list[Mask], int]:
    """Returns the masks that a mask joins, and the depth of the stack that its postfix form needs."""
    if type(mask) not in (And, Or):
        return [mask], 1
    joined = [_parts(part) for part in mask.masks]  # type: ignore[attr-defined]
    depths = [depth + (1 if number else 0) for number, (_, depth) in enumerate(joined)]
    return [part for parts, _ in joined for part in parts], max(depths)
