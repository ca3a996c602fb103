"""Decides which calls the Triton kernel supports, from metadata only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ...masks import And, Boolean, Causal, Chunked, Documents, KeepFirst, Mask, Or, Padding, Prefix, Window, is_python
from ...reductions import (
    ColumnSums,
    Entropy,
    MeanDistance,
    PooledMap,
    Reduction,
    RowStatistics,
    TopKeys,
    VisibleKeys,
    WeightsAt,
    WeightsByDistance,
    WeightsByLabel,
    WeightsOfMatches,
)
from ...terms import (
    Cosines,
    DenseBias,
    DistanceBias,
    Linear,
    Log,
    Piecewise,
    Power,
    QueryScale,
    RelativeKeys,
    Rows,
    Sink,
    Sinusoids,
    SoftCap,
    Stretched,
    TokenBias,
)
from ...tracing import PLAIN_ALONE, plain_alone, watched
from .._masks import MOST_BYTES
from .._problem import Problem, wants_gradient
from . import _installed
from ._choices import DTYPES, MOST_REDUCED
from ._lowered import RELATIVE, REST_LIMIT, is_small, kinds_of, would_be_large
from ._relative import why_not_by_row
from ._tables import axis_of, is_of_distances

TERMS = frozenset({DenseBias, DistanceBias, QueryScale, Sink, SoftCap, TokenBias, *RELATIVE})
INTERVALS = frozenset({Causal, Chunked, KeepFirst, Padding, Prefix, Window})
BIASES = frozenset({Cosines, Linear, Log, Piecewise, Power, Rows, Stretched})
OF_QUERIES = {RowStatistics, Entropy, VisibleKeys, MeanDistance, TopKeys, WeightsAt, WeightsByLabel, WeightsByDistance}
REDUCTIONS = frozenset({*OF_QUERIES, WeightsOfMatches, ColumnSums, PooledMap})
MAX_WIDTH = 256
MOST_CELLS = 1 << 30
"""The most cells of all maps of a call."""
MOST_TOKENS = (1 << 30) - 1024
"""The most tokens: in the programs, the sum of two slots and a block must fit into an int32."""


def reasons_against(problem: Problem) -> list[str]:
    """Returns every reason why the kernel cannot run a call."""
    reason = _installed.reason_against(problem.device) or _installed.too_old(problem.capability)
    if reason is not None:
        return [reason]
    return list(dict.fromkeys(_against(problem)))


def reasons_against_reductions(problem: Problem, reductions: Sequence[Reduction]) -> list[str]:
    """Returns every reason why the kernel cannot compute reductions of a call that it can run."""
    if watched() or torch.compiler.is_compiling():
        return ["it computes reductions only where no compiler or mode observes the call"]
    kinds = dict.fromkeys(type(one) for one in reductions)
    reasons = [f"it has no reduction {kind.__name__}" for kind in kinds if kind not in REDUCTIONS]
    if any(isinstance(one, TopKeys) and one.count > MOST_REDUCED for one in reductions):
        reasons.append(f"it finds at most {MOST_REDUCED} of the largest weights of a query")
    if any(isinstance(one, TopKeys) and one.least is not None for one in reductions):
        reasons.append("it does not leave out keys by their scores")
    cells = max((one.rows * one.columns for one in reductions if isinstance(one, PooledMap)), default=0)
    if cells * problem.batch * problem.heads > MOST_CELLS:
        reasons.append(f"its maps have at most {MOST_CELLS:,} cells, over all sequences and heads")
    return reasons


def _against(problem: Problem) -> Iterator[str]:
    if problem.dtype not in DTYPES:
        yield f"it computes in float32, and {problem.dtype} would be rounded".replace("torch.", "")
    if plain_alone():
        yield PLAIN_ALONE
    if problem.positions_want_gradient:
        yield "it computes no gradient of positions"
    if max(problem.head_dim, problem.v_head_dim) > MAX_WIDTH:
        yield f"a head_dim is above {MAX_WIDTH}"
    if min(problem.head_dim, problem.v_head_dim) < 1:
        yield "a head_dim is 0"
    if max(problem.n, problem.m) > MOST_TOKENS:
        yield f"there are more than {MOST_TOKENS:,} tokens"
    if sum(type(term) is SoftCap for term in problem.terms) > 1:
        yield "it supports at most one SoftCap"
    for kind in {type(term): None for term in problem.terms if type(term) not in TERMS}:
        yield f"it has no {kind.__name__}"
    if any(isinstance(term, RelativeKeys) and not term.scaled for term in problem.terms):
        yield "it does not support unscaled RelativeKeys"
    for values in [term.values for term in problem.terms if isinstance(term, DistanceBias)]:
        yield from _against_bias(values)
    kinds = kinds_of(problem)
    if len(kinds.stretched) > 1:
        yield "it supports at most one Stretched bias"
    yield from _against_relative(problem, problem.positions_rise_by_one)
    if any(isinstance(term, DenseBias) and callable(term.values) for term in problem.terms):
        yield "it cannot call the Python function of a DenseBias"
    if would_be_large(problem, kinds.of_pairs):
        whose = ", ".join(map(_name_of, kinds.of_pairs)) or "a sum of DenseBias"
        yield f"{whose} would be a dense bias larger than {REST_LIMIT >> 20} MiB"
    if problem.mask is not None:
        most = MOST_BYTES if is_python(problem.mask) else REST_LIMIT
        if mask_bytes(problem, problem.mask) > most:
            yield f"its mask is not an interval, and would be dense and larger than {most >> 20} MiB"


def _against_relative(problem: Problem, rising: bool) -> Iterator[str]:
    """Yields the reasons against relative keys, queries and values."""
    terms: list[Any] = [term for term in problem.terms if type(term) in RELATIVE]
    for kind in RELATIVE:
        if sum(type(term) is kind for term in terms) > 1:
            yield f"it supports at most one {kind.__name__}"
    gaps = "where positions are not known to rise by one, "
    for rows in [term.rows for term in terms]:
        if isinstance(rows, Sinusoids):
            width = problem.head_dim + 2 * rows.frequencies.numel()
            pairs = problem.batch, problem.heads, problem.n, problem.m
            if not rising and width > MAX_WIDTH and not is_small(*pairs):
                yield gaps + f"sinusoids become columns of q and k: at most {MAX_WIDTH} with head_dim, not {width}"
        elif not is_of_distances(rows, True, True):
            yield f"it has no relative vectors by {type(rows.map).__name__}"
        elif rising:
            if rows.table.shape[-1] > MAX_WIDTH:
                yield f"relative vectors are wider than {MAX_WIDTH}"
        elif (reason := why_not_by_row(rows, problem.positions_are_whole)) is not None:
            yield gaps + reason
    if not rising and len({axis_of(term.rows) for term in terms if isinstance(term.rows, Rows)}) > 1:
        yield gaps + "relative vectors must all read the same axis"


def _name_of(values: Any) -> str:
    return f"rows by {type(values.map).__name__}" if isinstance(values, Rows) else type(values).__name__


def _against_bias(values: Any) -> Iterator[str]:
    kind = type(values)
    if kind not in BIASES:
        yield f"it has no DistanceBias of {kind.__name__}"
    elif kind is Piecewise and wants_gradient(values.knots):
        yield "it computes no gradient of the knots of Piecewise"
    elif kind is Cosines and wants_gradient(values.frequencies):
        yield "it computes no gradient of the frequencies of Cosines"
    elif kind is Stretched and wants_gradient(values.edges):
        yield "it computes no gradient of the edges of Stretched"


def mask_bytes(problem: Problem, mask: Mask) -> int:
    """Returns an upper bound of the bytes of a dense mask; 0 for intervals, documents and tensors of pairs."""
    if type(mask) is Boolean or not _may_be_dense(mask, problem.keys_in_order):
        return 0
    rows = max(problem.coordinate_rows, mask.extent("batch"))
    return rows * mask.extent("heads") * problem.n * problem.m


def _may_be_dense(mask: Mask, in_order: bool) -> bool:
    """Whether lowering may leave a part of the mask that is neither intervals nor documents."""
    if type(mask) is And:
        parts = mask.masks
        return sum(type(part) is Or for part in parts) > 1 or any(_may_be_dense(part, in_order) for part in parts)
    if type(mask) is Or:
        parts = mask.masks
        return len(parts) > 2 or any(_may_be_dense(part, in_order) or _has_documents(part) for part in parts)
    return not (type(mask) is Documents or (type(mask) in INTERVALS and in_order))


def _has_documents(mask: Mask) -> bool:
    return type(mask) is Documents or any(_has_documents(part) for part in getattr(mask, "masks", ()))
