"""What the C++ kernel is spared: terms said by simpler ones, masks as intervals. Values of tensors may be looked at.

Lowering is ordinary torch code, so that the backward pass can take gradients through it by autograd.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ...coordinates import Coordinates
from ...masks import And, Causal, Chunked, Documents, KeepFirst, Mask, Or, Padding, Prefix, Window
from ...masks import _real_stop as real_stop
from ...terms import Clip, RelativeKeys, RelativeQueries, Rows, Sink, Sinusoids, Temperature
from .._problem import Call
from ._words import Slots


@dataclass(frozen=True, eq=False)
class LoweredCall(Call):
    """A call as the words say it: one dtype for q, k and v, one temperature, one sink, no sinusoids, no mask.

    intervals: up to two of key slots for each query; rest: the mask that says what they cannot
    """

    intervals: tuple[Slots, ...] = ()
    rest: Mask | None = None


def lower(call: Call) -> LoweredCall:
    """The call in the words of the kernel."""
    intervals, rest = lower_mask(call.mask, call.q_coordinates, call.k_coordinates)
    lowered = object.__new__(LoweredCall)
    vars(lowered).update(vars(call), mask=None, intervals=intervals, rest=rest)
    if not call.q.dtype == call.k.dtype == call.v.dtype:
        lowered = lowered._with(q=call.q.float(), k=call.k.float(), v=call.v.float())
    terms: tuple[Any, ...] = call.terms
    if not terms:
        return lowered
    if sum(isinstance(term, Temperature) for term in terms) > 1:
        terms = one_temperature(terms)
    sinks = sum(isinstance(term, Sink) for term in terms)
    if sinks and call.partial:
        terms = tuple([term for term in terms if not isinstance(term, Sink)])
    elif sinks > 1:
        terms = one_sink(terms)
    if terms is not call.terms:
        lowered = lowered._with(terms=terms)
    if any(isinstance(term, RelativeKeys) and isinstance(term.rows, Sinusoids) for term in terms):
        return without_sinusoids(lowered)
    return lowered


def one_temperature(terms: tuple[Any, ...]) -> tuple[Any, ...]:
    factors = [term.factor.float() for term in terms if isinstance(term, Temperature)]
    rest = [term for term in terms if not isinstance(term, Temperature)]
    return Temperature(reduce(torch.mul, factors)), *rest


def one_sink(terms: tuple[Any, ...]) -> tuple[Any, ...]:
    # the gradient of a logit for all queries is a sum over them: in float64, for its parts may cancel
    logits = [term.by_query.double() for term in terms if isinstance(term, Sink)]
    rest = [term for term in terms if not isinstance(term, Sink)]
    return *rest, Sink(torch.stack(torch.broadcast_tensors(*logits)).logsumexp(0).float())


# ---------------------------------------------------------------- masks


Bound = int | Tensor | None
"""A slot for all queries, for each [b, 1 or n], or None for the first or the last."""
Bounds = tuple[Bound, Bound]
EVERYTHING: list[Bounds] = [(None, None)]


def lower_mask(mask: Mask | None, q: Coordinates, k: Coordinates) -> tuple[tuple[Slots, ...], Mask | None]:
    """Up to two intervals of key slots for each query, and what they cannot say.

    As ``masks.lower``, in fewer steps: the kernel itself cuts intervals to the keys, sorts them and takes them apart.
    """
    n, m = q.index.shape[1], k.index.shape[1]
    if mask is None or not n or not m:
        return (), None
    if not k.ordered:
        return (), mask
    found, rest = _bounds(mask, q, k, k.index[:, :1] if k.start is None else k.start)
    if len(found) == 1 and found[0][0] is None and found[0][1] is None:
        return (), rest
    return tuple([(None if a is None else _slot(a, q), _slot(m if b is None else b, q)) for a, b in found]), rest


def _slot(bound: int | Tensor, q: Coordinates) -> Tensor:
    return q.index.new_full((1, 1), bound) if isinstance(bound, int) else bound


def _bounds(mask: Mask, q: Coordinates, k: Coordinates, first: int | Tensor) -> tuple[list[Bounds], Mask | None]:
    """Slotss, and what they cannot say; ``first`` is the index of the first slot."""
    if isinstance(mask, And):
        found, rests = EVERYTHING, []
        for part in mask.masks:
            bounds, rest = _bounds(part, q, k, first)
            if len(found) > 1 and len(bounds) > 1:
                rest = part
            else:
                found = [(_larger(a, c), _smaller(b, d)) for a, b in found for c, d in bounds]
            if rest is not None:
                rests.append(rest)
        return found, And(tuple(rests)) if len(rests) > 1 else (rests[0] if rests else None)
    if isinstance(mask, Or):
        parts = [_bounds(part, q, k, first) for part in mask.masks]
        found = [interval for intervals, _ in parts for interval in intervals]
        if len(found) == 2 and parts[0][1] is None and parts[1][1] is None:
            return found, None
        return EVERYTHING, mask
    interval = _interval(mask, q, k, first)
    return (EVERYTHING, mask) if interval is None else ([interval], None)


def _interval(mask: Mask, q: Coordinates, k: Coordinates, first: int | Tensor) -> Bounds | None:
    if isinstance(mask, Causal):
        return None, q.index + (1 - first)
    if isinstance(mask, Window):
        start = None if mask.left is None else q.index - (first + mask.left)
        return start, None if mask.right is None else q.index + (1 + mask.right - first)
    if isinstance(mask, Chunked):
        behind = (q.index // mask.size + 1) * mask.size - first
        return behind - (1 + mask.previous) * mask.size, behind
    if isinstance(mask, (Prefix, KeepFirst)):
        stop = mask.count if isinstance(mask, KeepFirst) else mask._stop()
        return _nought(first), stop - first
    if isinstance(mask, Padding):
        if mask.lengths is None:
            end = real_stop(k)
            return _nought(first), None if end is None else end - first
        lengths = torch.as_tensor(mask.lengths, device=k.index.device)[:, None]
        return (None, lengths) if mask.side == "right" else (k.index.shape[1] - lengths, None)
    if isinstance(mask, Documents):
        return _document(*mask._ids(q, k))
    return None


def _document(own: Tensor, ids: Tensor) -> Bounds | None:
    """The slots of each query's document, where documents lie one after another."""
    if not bool((ids[:, 1:] >= ids[:, :-1]).all()):
        return None
    rows = max(own.shape[0], ids.shape[0])
    ids, own = (x.expand(rows, -1).contiguous() for x in (ids, own))
    return torch.searchsorted(ids, own), torch.searchsorted(ids, own, right=True)


def _nought(first: int | Tensor) -> Bound:
    """The slot of the index 0."""
    return None if isinstance(first, int) and first == 0 else -first


def _larger(a: Bound, b: Bound) -> Bound:
    if a is None or b is None:
        return b if a is None else a
    if isinstance(a, Tensor):
        return torch.maximum(a, b) if isinstance(b, Tensor) else a.clamp(min=b)
    return b.clamp(min=a) if isinstance(b, Tensor) else max(a, b)


def _smaller(a: Bound, b: Bound) -> Bound:
    if a is None or b is None:
        return b if a is None else a
    if isinstance(a, Tensor):
        return torch.minimum(a, b) if isinstance(b, Tensor) else a.clamp(max=b)
    return b.clamp(max=a) if isinstance(b, Tensor) else min(a, b)


# ---------------------------------------------------------------- sinusoids

STEPS = 2048
"""Distances whose sines are held at once."""


def without_sinusoids(lowered: LoweredCall) -> LoweredCall:
    """Relative keys of sinusoids as rows of a table where distances are whole and few, else as columns of q and k."""
    q_at, k_at = lowered.q_coordinates, lowered.k_coordinates
    n, m = q_at.index.shape[1], k_at.index.shape[1]
    terms: list[Any] = []
    columns: list[RelativeKeys] = []
    for term in lowered.terms:
        if isinstance(term, RelativeKeys) and isinstance(term.rows, Sinusoids):
            rows, axis = term.rows, term.rows.axis
            reach = distances(lowered.intervals, q_at, k_at, axis)
            if reach is None or reach[1] - reach[0] > 4 * (n + m) + 1024:
                columns.append(term)
                continue
            table = Table.apply(rows.weight.float(), rows.frequencies, *reach)
            term = term._with(rows=Rows(table, Clip(*reach, axis)))
        terms.append(term)
    lowered = lowered._with(terms=tuple(terms))
    return with_columns(lowered, columns) if columns else lowered


def distances(intervals: tuple[Slots, ...], q: Coordinates, k: Coordinates, axis: int) -> tuple[int, int] | None:
    """The least and the largest distance from a query to the keys it may see; None where positions are not whole."""
    at, to = q.axis(axis), k.axis(axis)
    if at.is_floating_point() or to.is_floating_point():
        return None
    m = to.shape[1]
    if not at.numel() or not m:
        return 0, 0
    if not intervals or not bool((to[:, 1:] >= to[:, :-1]).all()):
        return int(to.min()) - int(at.max()), int(to.max()) - int(at.min())
    reach = []
    for start, stop in intervals:  # of rising positions the ends of an interval are the least and the largest
        start = at.new_zeros(1, 1) if start is None else start
        low, high = start.clamp(0, m - 1), stop.clamp(1, m) - 1
        seen = (low <= high) & (start < m) & (stop > 0)
        batch = max(x.shape[0] for x in (at, to, seen))
        seen = seen.expand(batch, at.shape[1])
        if bool(seen.any()):
            ends = [to.expand(batch, m).gather(1, slot.expand(seen.shape)) - at for slot in (low, high)]
            reach.append((int(ends[0][seen].min()), int(ends[1][seen].max())))
    return (min(low for low, _ in reach), max(high for _, high in reach)) if reach else (0, 0)


class Table(torch.autograd.Function):
    """weight_h·[sin(−δω), cos(−δω)] for δ = low … high: [heads or 1, high − low + 1, head_dim], by parts.

    Sines are odd and cosines even, so that one step serves the past, δ = −step, and the future, δ = step.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, frequencies: Tensor, low: int, high: int) -> Tensor:
        ctx.save_for_backward(weight, frequencies)
        ctx.reach = low, high
        count = frequencies.shape[0]
        of_sines, of_cosines = weight[..., :count].mT, weight[..., count:].mT
        table = weight.new_empty(weight.shape[0], high - low + 1, weight.shape[1])
        for steps, past, future in _parts(low, high):
            sin, cos, _ = _waves(steps, frequencies, weight)
            odd, even = sin @ of_sines, cos @ of_cosines
            if past is not None:
                torch.add(even, odd, out=table[:, past])
            if future is not None:
                table[:, future] = (even - odd).flip(1)
        return table

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        weight, frequencies = ctx.saved_tensors
        of_weight, of_frequencies = ctx.needs_input_grad[:2]
        count = frequencies.shape[0]
        to_weight, to_frequencies = torch.zeros_like(weight), frequencies.new_zeros(count, dtype=torch.float64)
        for steps, past, future in _parts(*ctx.reach):
            sin, cos, step = _waves(steps, frequencies, weight)
            back = gradient.new_zeros(1) if past is None else gradient[:, past]
            ahead = gradient.new_zeros(1) if future is None else gradient[:, future].flip(1)
            odd, even = back - ahead, back + ahead
            if of_weight:
                to_weight[..., :count] += odd.mT @ sin
                to_weight[..., count:] += even.mT @ cos
            if of_frequencies:
                to_sin, to_cos = (odd @ weight[..., :count]).sum(0), (even @ weight[..., count:]).sum(0)
                to_frequencies += step @ (to_sin * cos - to_cos * sin).double()
        return to_weight if of_weight else None, to_frequencies if of_frequencies else None, None, None


def _parts(low: int, high: int) -> Iterator[tuple[range, slice | None, slice | None]]:
    """Falling steps, and the rows of the table that they fill in the past, in this order, and in the future."""
    past, future = range(max(0, -high), -low + 1), range(max(1, low), high + 1)
    edges = sorted({edge for side in (past, future) if side for edge in (side.start, side.stop)})
    for start, stop in pairwise(edges):
        for first in range(start, stop, STEPS):
            last = min(first + STEPS, stop) - 1
            yield (
                range(last, first - 1, -1),
                slice(-last - low, -first - low + 1) if first in past else None,
                slice(first - low, last - low + 1) if first in future else None,
            )


def _waves(steps: range, frequencies: Tensor, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """sin and cos of step·ω [steps, frequencies], rounded once, and the steps."""
    step = torch.arange(steps.start, steps.stop, steps.step, device=like.device, dtype=torch.float64)
    angle = step[:, None] * frequencies.double()
    return angle.sin().to(like.dtype), angle.cos().to(like.dtype), step


def with_columns(lowered: LoweredCall, terms: list[RelativeKeys]) -> LoweredCall:
    """Sines of a difference by angle addition, at any positions.

    The query, turned by its own angle, meets the key's sines and cosines; both become further columns of q and k.
    """
    q, k, v = lowered.q.float(), lowered.k.float(), lowered.v.float()
    q_columns, k_columns = [q], [k]
    for term in terms:
        rows = term.rows
        assert isinstance(rows, Sinusoids)
        query = q if term.query is None else term.query.float()
        if term.query_bias is not None:
            query = query + term.query_bias.float()[:, None]
        rates = rows.frequencies.double()
        at, to = (side.axis(rows.axis).double() for side in (lowered.q_coordinates, lowered.k_coordinates))
        q_columns.append(Turned.apply(query, rows.weight.float(), rates, at))
        angle = (to[..., None] * rates)[:, None]
        code = torch.cat([angle.sin(), angle.cos()], dim=-1).float()
        k_columns.append(code.expand(*k.shape[:3], -1))
    return lowered._with(
        q=torch.cat(q_columns, dim=-1),
        k=torch.cat(k_columns, dim=-1),
        v=v,
        terms=tuple(_with_own(term, q, k) for term in lowered.terms),
    )


def _with_own(term: Any, q: Tensor, k: Tensor) -> Any:
    """A relative term that reads q or k itself goes on reading it without the further columns."""
    if isinstance(term, RelativeKeys) and term.query is None:
        return term._with(query=q)
    return term._with(key=k) if isinstance(term, RelativeQueries) and term.key is None else term


class Turned(torch.autograd.Function):
    """The query as it meets [sin(pⱼω), cos(pⱼω)]: [batch, heads, n, 2·frequencies]"""

    @staticmethod
    def forward(ctx: Any, query: Tensor, weight: Tensor, rates: Tensor, at: Tensor) -> Tensor:
        ctx.save_for_backward(query, weight, rates, at)
        return _turned(query, weight, rates, at)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        *saved, at = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:3]
        query, weight, rates = (x.detach().requires_grad_(want) for x, want in zip(saved, wanted, strict=True))
        with torch.enable_grad():
            # a query that sees nothing has no gradient, and must not give one where it is not a number
            seeing = query.masked_fill((gradient == 0).all(-1, keepdim=True), 0)
            turned = _turned(seeing, weight, rates, at)
        found = iter(torch.autograd.grad(turned, [x for x in (query, weight, rates) if x.requires_grad], gradient))
        return *(next(found) if want else None for want in wanted), None


def _turned(query: Tensor, weight: Tensor, rates: Tensor, at: Tensor) -> Tensor:
    angle = (at[..., None] * rates)[:, None]
    sin, cos = angle.sin().to(query.dtype), angle.cos().to(query.dtype)
    into_sin, into_cos = (query @ weight).chunk(2, dim=-1)
    return torch.cat([into_cos * sin - into_sin * cos, into_sin * sin + into_cos * cos], dim=-1)
