"""Cuts a call into parts along the batch, the heads, the queries or the keys; merges results over disjoint keys.

    row_max = maxₚ row_maxₚ,  row_sum = Σₚ row_sumₚ·exp(row_maxₚ − row_max),
    out = Σₚ outₚ·row_sumₚ·exp(row_maxₚ − row_max) / row_sum

Every part computes its gradients from the merged results: P = exp(score − row_max)/row_sum does not need the other
keys. A sink does not belong to a part. The merge adds it, forward and backward.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import HeadwayError
from ..masks import Mask
from ..terms import NORMALIZERS, SCANS, ChannelDecay, DenseBias, HeadNetwork, HouseholderPath, Product, ScoreMap, Sink
from ..tracing import without_autocast
from . import _ops
from ._autograd import NATIVE, through_lowering
from ._base import Native
from ._choose import choose
from ._masks import evaluated
from ._problem import Call, Problem, without_tables
from ._results import ForwardResults, Gradients

WHOLE = (Product, HouseholderPath, ChannelDecay, HeadNetwork, ScoreMap, *SCANS, *NORMALIZERS)
"""Terms that read all keys at once."""


def why_not_in_parts(call: Call) -> str | None:
    """Returns why a call cannot be cut into parts (a term takes all keys at once); None if it can be cut.

    Args:
        call: the call.
    """
    for term in call.terms:
        name = type(term).__name__
        if isinstance(term, WHOLE):
            return f"{name} is a function of all keys at once"
        if isinstance(term, DenseBias) and not isinstance(term.values, Tensor):
            return f"{name} holds a function that returns all keys at once"
    return None


def cut(call: Call, axis: str, start: int, stop: int) -> Call:
    """Returns a part of a call.

    A part of the batch or of the heads has the seed of the whole call and drops the same weights. A part of the keys
    leaves out the sink, which ``merged`` adds.

    Args:
        call: the call.
        axis: "batch", "heads" (in groups that share keys), "queries" or "keys".
        start: the first row, head, query or key.
        stop: the one after the last.

    Raises:
        HeadwayError: if terms or masks cannot be cut along this axis, or, for every axis except the keys, if the
            encoding restores the output.
    """
    n, m = call.q.shape[2], call.k.shape[2]
    sizes = {"batch": call.q.shape[0], "heads": call.q.shape[1], "queries": n, "keys": m}
    if axis not in sizes:
        raise HeadwayError(f"axis is {axis!r}: give one of {', '.join(map(repr, sizes))}")
    if not 0 <= start <= stop <= sizes[axis]:
        raise HeadwayError(
            f"start={start}, stop={stop} is not a range of {axis}: give 0 ≤ start ≤ stop ≤ {sizes[axis]}"
        )
    why = why_not_in_parts(call)
    if why is not None:
        raise HeadwayError(f"the {axis} cannot be cut into parts: {why}")
    if call.restore is not None and axis != "keys":
        raise HeadwayError(
            f"the {axis} cannot be cut into parts: the encoding's restore_output is a function of the whole output"
        )
    q, k, v = call.q, call.k, call.v
    changes: dict[str, Any] = {"restore": call.restore}
    if axis == "batch":
        q, k, v = (x[start:stop] for x in (q, k, v))
        rows = torch.arange(start, stop, device=q.device)
        q_at, k_at = (side.select(rows) for side in (call.q_coordinates, call.k_coordinates))
        changes |= {"q_coordinates": q_at, "k_coordinates": k_at, "batch_offset": call.batch_offset + start}
    elif axis == "heads":
        group = q.shape[1] // k.shape[1]
        if start % group or stop % group:
            raise HeadwayError(f"heads {start} to {stop} cut a group of {group} that share keys: give multiples of it")
        q, k, v = q[:, start:stop], *(x[:, start // group : stop // group] for x in (k, v))
        changes["head_offset"] = call.head_offset + start
    elif axis == "queries":
        q = q[:, :, start:stop]
        changes |= {"q_coordinates": call.q_coordinates.rows(start, stop), "aligned": call.aligned and stop == n}
    else:
        k, v = (x[:, :, start:stop] for x in (k, v))
        changes |= {"k_coordinates": call.k_coordinates.rows(start, stop), "aligned": False, "include_sink": False}
    changes |= _cut_rotations(call, axis, start, stop, q.shape[1] // k.shape[1])
    terms = tuple(_cut_term(term, axis, start, stop, q.shape[1] // k.shape[1]) for term in call.terms)
    mask = None if call.mask is None else _cut_mask(call.mask, axis, start, stop, n, m)
    return without_tables(call)._with(q=q, k=k, v=v, terms=terms, mask=mask, **changes)


def _cut_rotations(call: Call, axis: str, start: int, stop: int, group: int) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    for name, tokens, shared in (
        ("q_rotation", "queries", 1),
        ("k_rotation", "keys", group),
        ("v_rotation", "keys", group),
        ("out_rotation", "queries", 1),
    ):
        rotation = getattr(call, name)
        if rotation is not None and axis in ("batch", "heads", tokens):
            along = "tokens" if axis == tokens else axis
            fewer = shared if axis == "heads" else 1
            rotation = rotation.cut(along, start // fewer, stop // fewer)
        changes[name] = rotation
    return changes


def _cut_term(term: Any, axis: str, start: int, stop: int, group: int) -> Any:
    if axis == "queries":
        return term.block(start, stop)
    term = term.cut(axis, start, stop)
    return term.cut("kv_heads", start // group, stop // group) if axis == "heads" else term


def _cut_mask(mask: Mask, axis: str, start: int, stop: int, n: int, m: int) -> Mask:
    if axis == "keys":
        return mask.of_keys(start, stop, n, m)
    return mask.block(start, stop, n) if axis == "queries" else mask.cut(axis, start, stop)


def merged(results: Sequence[ForwardResults], sinks: Sequence[Sink] = ()) -> ForwardResults:
    """Merges results over disjoint sets of keys.

    Args:
        results: the results of the parts.
        sinks: the sinks of the whole call.
    """
    row_max = torch.stack([part.row_max for part in results]).amax(0)
    logits = [sink.by_query.to(row_max.dtype).expand(row_max.shape) for sink in sinks]
    for logit in logits:
        row_max = torch.maximum(row_max, logit)
    base = row_max.masked_fill(row_max == -math.inf, 0)
    shares = [part.row_sum * (part.row_max - base).exp() for part in results]
    row_sum = torch.stack(shares + [(logit - base).exp() for logit in logits]).sum(0)
    divisor = row_sum.masked_fill(row_sum == 0, 1)
    out = torch.zeros_like(results[0].out, dtype=row_max.dtype)
    for part, share in zip(results, shares, strict=True):
        # a NaN sink must not reach the output of queries that see no key
        weight = (share / divisor).masked_fill(part.row_sum == 0, 0)
        out = out + part.out * weight[..., None]
    return ForwardResults(out, row_max, row_sum)


def merge_into(whole: ForwardResults, part: ForwardResults) -> None:
    """Merges results over further keys into ``whole``, in place.

    Args:
        whole: the results so far, with the output in the dtype of the statistics.
        part: the results over keys that are not in ``whole``.
    """
    row_max = torch.maximum(whole.row_max, part.row_max)
    base = row_max.masked_fill(row_max == -math.inf, 0)
    shares = [one.row_sum * (one.row_max - base).exp() for one in (whole, part)]
    row_sum = shares[0] + shares[1]
    divisor = row_sum.masked_fill(row_sum == 0, 1)
    old, new = (
        (share / divisor).masked_fill(one.row_sum == 0, 0)[..., None]
        for one, share in zip((whole, part), shares, strict=True)
    )
    whole.out.mul_(old).addcmul_(part.out.to(whole.out.dtype), new)
    whole.row_max.copy_(row_max)
    whole.row_sum.copy_(row_sum)


def merge_sinks(whole: ForwardResults, sinks: Sequence[Sink]) -> None:
    """Adds sinks to the results over all keys, in place.

    Args:
        whole: the results.
        sinks: the sinks of the call.
    """
    for sink in sinks:
        logits = sink.by_query.to(whole.row_max.dtype).expand(whole.row_max.shape)
        merge_into(whole, ForwardResults(whole.out.new_zeros(()), logits, torch.ones_like(logits)))


def sink_gradients(sinks: Sequence[Sink], whole: ForwardResults, d_out: Tensor, d_lse: Tensor | None) -> Gradients:
    """Returns the gradients of the sinks' logits for each query, −P·δ."""
    sinks = [sink for sink in sinks if sink.by_query.requires_grad]
    if not sinks:
        return []
    delta = (d_out * whole.out).sum(-1)
    delta = delta if d_lse is None else delta - d_lse
    seeing = whole.row_sum != 0
    gradients = []
    for sink in sinks:
        logits = sink.by_query
        share = (logits.detach() - whole.row_max).exp() / whole.row_sum
        gradients.append((logits, torch.where(seeing, -share * delta, 0)))
    return gradients


def attend_in_parts(parts: Sequence[Call], kernel: str = "auto") -> tuple[Tensor, Tensor]:
    """Computes attention over the keys of all parts together, and its log-sum-exp.

    Every tensor of every part gets a gradient. These gradients cannot be differentiated again.

    Args:
        parts: calls with the same queries and disjoint keys, from ``cut``. The sinks of the first part and its changes
            of the output apply once, to the whole.
        kernel: "auto", or the name of a native kernel.

    Returns:
        The output [batch, heads, n, v's head_dim] in q's dtype, and the log-sum-exp [batch, heads, n].

    Raises:
        HeadwayError: if there are no parts, or no native kernel can run one of them.
    """
    if not parts:
        raise HeadwayError("parts is empty: give at least one call")
    parts = [part._with(include_sink=False) if part.include_sink else part for part in parts]
    names = tuple(kernel_of_part(part, kernel) for part in parts)
    tensors: list[Tensor] = []
    with without_autocast(parts[0].q):
        turned = (NATIVE[name].rotated(evaluated(part)) for name, part in zip(names, parts, strict=True))
        structure = _ops.flatten(tuple(map(without_tables, turned)), tensors)
        out, lse, *_ = _InParts.apply(structure, names, *tensors)
    out = NATIVE[names[0]].restored(parts[0], out)
    return out.to(parts[0].q.dtype), lse


def kernel_of_part(call: Call, name: str = "auto") -> str:
    """Returns the name of the native kernel that computes a part of the keys.

    Args:
        call: the part.
        name: "auto", or the name of the kernel.

    Raises:
        HeadwayError: if no native kernel can run it.
    """
    chosen = choose(NATIVE, Problem.of(call._with(wants_lse=True)), name).kernel
    if chosen is None:
        raise HeadwayError(f"kernel {name!r} cannot run a part of the keys: leave kernel='auto'")
    return chosen


def forward_part(call: Call, name: str = "auto") -> ForwardResults:
    """Returns the results of a part of the keys, without a sink, in the kernel's dtype.

    Args:
        call: the part, whose rotations have been applied.
        name: "auto", or the name of a native kernel.
    """
    call = evaluated(call)
    native: Native[Any] = NATIVE[kernel_of_part(call, name)]
    return native.forward(native.lower(call), True)


def backward_part(
    call: Call, whole: ForwardResults, d_out: Tensor, d_lse: Tensor | None, leaves: list[Tensor], name: str = "auto"
) -> list[Tensor]:
    """Returns the gradients of a part of the keys from the results over all of them.

    Args:
        call: the part, made of the leaves with autograd enabled.
        whole: the results over all keys, with the sink.
        d_out: the gradient of the output.
        d_lse: that of the log-sum-exp, or None.
        leaves: the tensors whose gradients are wanted.
        name: "auto", or the name of a native kernel.
    """
    call = evaluated(call)
    native: Native[Any] = NATIVE[kernel_of_part(call, name)]
    gradients = native.backward(native.lower(call), whole, d_out, d_lse, partial_keys=True)
    return through_lowering(gradients, leaves)


def sinks_of(call: Call) -> list[Sink]:
    """Returns the sinks of a call, which belong to none of its parts.

    Args:
        call: the call.
    """
    return [term for term in call.terms if isinstance(term, Sink)]


class _InParts(torch.autograd.Function):
    """Merged results. Each part computes its gradients from them, so graphs of parts are not kept."""

    @staticmethod
    def forward(ctx: Any, structure: Any, names: tuple[str, ...], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.structure, ctx.names = structure, names
        parts = _ops.unflatten(structure, tensors)
        results = []
        for name, part in zip(names, parts, strict=True):
            native: Native[Any] = NATIVE[name]
            results.append(native.forward(native.lower(part), True))
        whole = merged(results, sinks_of(parts[0]))
        ctx.save_for_backward(*tensors, *whole)
        ctx.mark_non_differentiable(whole.row_max, whole.row_sum)
        return whole.out, whole.log_sum_exp, whole.row_max, whole.row_sum

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_out: Tensor, d_lse: Tensor, *unused: Any) -> tuple[Tensor | None, ...]:
        *tensors, out, row_max, row_sum = ctx.saved_tensors
        whole = ForwardResults(out, row_max, row_sum)
        needed = ctx.needs_input_grad[2:]
        gradients: Gradients = []
        with torch.enable_grad(), without_autocast(out):
            leaves = [x.detach().requires_grad_(need) for x, need in zip(tensors, needed, strict=True)]
            parts = _ops.unflatten(ctx.structure, leaves)
            for name, part in zip(ctx.names, parts, strict=True):
                native: Native[Any] = NATIVE[name]
                gradients += native.backward(native.lower(part), whole, d_out, d_lse, partial_keys=True)
            gradients += sink_gradients(sinks_of(parts[0]), whole, d_out, d_lse)
            grads = iter(through_lowering(gradients, [x for x, need in zip(leaves, needed, strict=True) if need]))
        return None, None, *(next(grads) if need else None for need in needed)
