"""Writes the descriptor of a call: its int64 words, in the order of the fields in csrc/call.h."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ...terms import GatedPath, StickWeights
from .._results import ForwardResults
from ..lowering import LoweredCall
from ._descriptor import ABSENT, DTYPES, ONE, CallDescriptor, double_bits
from ._library import VERSION
from ._terms import write_terms


def begin(call: LoweredCall, backward: bool, partial_keys: bool = False) -> CallDescriptor:
    """Returns a descriptor with the words up to q, k and v."""
    q, k, v = call.q, call.k, call.v
    batch, heads, n, width = q.shape
    _, kv_heads, m, v_width = v.shape
    drop_below, keep_scale, seed = 0, ONE, 0
    if call.dropout and call.seed is not None:
        drop_below, keep_scale, seed = int(call.dropout * 2**32), double_bits(1 / (1 - call.dropout)), int(call.seed)
    descriptor = CallDescriptor(call.q_coordinates, call.k_coordinates, backward)
    descriptor.words = [
        *(VERSION, int(backward), torch.get_num_threads(), DTYPES[q.dtype][0]),
        *(batch, heads, kv_heads, n, m, width, v_width, double_bits(call.scale), drop_below, keep_scale, seed),
        *(call.batch_offset, call.head_offset, int(partial_keys)),
    ]
    descriptor.tensor(q)
    descriptor.tensor(k)
    descriptor.tensor(v)
    return descriptor


def finish(
    descriptor: CallDescriptor, call: LoweredCall, add_reductions: Callable[[CallDescriptor], None] | None = None
) -> None:
    """Appends the words that follow the results. ``add_reductions`` appends those of the reductions."""
    batch, heads, n, _ = call.q.shape
    _, kv_heads, m, _ = call.v.shape
    own = any(isinstance(term, (StickWeights, GatedPath)) for term in call.terms)  # these compare indices
    index = call.rest is not None or call.dropout > 0 or add_reductions is not None or own
    descriptor.coordinates(position=bool(call.terms), index=index)
    descriptor.mask(call.intervals, call.rest)
    sizes = {"batch": batch, "heads": heads, "kv_heads": kv_heads, "queries": n, "keys": m}
    write_terms(descriptor, call.terms, sizes)
    if add_reductions is None:
        descriptor.words.append(0)
    else:
        add_reductions(descriptor)


def describe_forward(call: LoweredCall, results: ForwardResults) -> CallDescriptor:
    """Returns the descriptor of a forward pass that writes ``results``; the statistics may be None."""
    descriptor = begin(call, False)
    descriptor.fresh(results.out)
    for x in (results.row_max, results.row_sum):
        if x is None:
            descriptor.words += ABSENT
        else:
            descriptor.fresh(x)
    finish(descriptor, call)
    return descriptor


def describe_backward(
    call: LoweredCall, results: ForwardResults, d_out: Tensor, d_lse: Tensor | None, partial_keys: bool = False
) -> CallDescriptor:
    """Returns the descriptor of a backward pass that writes the gradients of the tensors that require one."""
    descriptor = begin(call, True, partial_keys)
    out, row_max, row_sum = results
    for x in (out.to(call.q.dtype), row_max, row_sum, d_out.to(call.q.dtype), d_lse):
        descriptor.tensor(x)
    for x in (call.q, call.k, call.v):
        descriptor.gradient(x)
    finish(descriptor, call)
    return descriptor
