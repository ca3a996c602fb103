"""Lowers sinusoidal relative keys to rows of a table, or to additional columns of q and k."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, TypeVar

import torch
from torch import Tensor

from ...constants import constant
from ...coordinates import Coordinates
from ...masks import Bounds
from ...terms import Clip, RelativeKeys, RelativeQueries, Rows, Sinusoids
from ...tracing import watched
from .._problem import Call
from .._products import product
from .masks import slots

C = TypeVar("C", bound=Call)

STEPS = 2048
"""The number of distances whose sines are computed at once."""
KEPT = 1 << 20
"""The most angles, of the steps from 0 on, whose sines and cosines are kept between calls: 8 MiB in float32."""
CPU = torch.device("cpu")


def without_sinusoids(call: C, intervals: tuple[Bounds, ...]) -> C:
    """Lowers sinusoidal relative keys to rows of a table if distances are few integers, else to columns of q and k.

    intervals: the key slots that queries see; empty if unknown.
    """
    q_at, k_at = call.q_coordinates, call.k_coordinates
    n, m = q_at.index.shape[1], k_at.index.shape[1]
    terms: list[Any] = []
    columns: list[RelativeKeys] = []
    for term in call.terms:
        if isinstance(term, RelativeKeys) and isinstance(term.rows, Sinusoids):
            rows, axis = term.rows, term.rows.axis
            reach = distances(intervals, q_at, k_at, axis)
            if reach is None or reach[1] - reach[0] > 4 * (n + m) + 1024:
                columns.append(term)
                continue
            table = SinusoidTable.apply(rows.weight.float(), rows.frequencies, *reach)
            term = term._with(rows=Rows(table, Clip(*reach, axis)))
        terms.append(term)
    call = call._with(terms=tuple(terms))
    return with_columns(call, columns) if columns else call


def distances(intervals: tuple[Bounds, ...], q: Coordinates, k: Coordinates, axis: int) -> tuple[int, int] | None:
    """Returns the smallest and the largest distance from a query to a key that it may see, from the positions.

    None for positions that are not integers, and on a device with streams, where reading them would synchronize.
    """
    at, to = q.axis(axis), k.axis(axis)
    if not at.is_cpu or at.is_floating_point() or to.is_floating_point():
        return None
    n, m = at.shape[1], to.shape[1]
    if not at.numel() or not m:
        return 0, 0
    if not intervals or not bool((to[:, 1:] >= to[:, :-1]).all()):
        return int(to.min()) - int(at.max()), int(to.max()) - int(at.min())
    reach = []
    for (
        start,
        stop,
    ) in intervals:  # positions rise, so the smallest and the largest distance are at the ends of an interval
        start = slots(0 if start is None else start, q, k)
        stop = slots(m if stop is None else stop, q, k)
        low, high = start.clamp(0, m - 1), stop.clamp(1, m) - 1
        seen = (low <= high) & (start < m) & (stop > 0)
        sizes = [x.shape[0] for x in (at, to, seen)]
        batch = max(sizes) if all(sizes) else 0
        seen = seen.expand(batch, n)
        if bool(seen.any()):
            least, largest = (to.expand(batch, m).gather(1, slot.expand(seen.shape)) - at for slot in (low, high))
            reach.append((int(least[seen].min()), int(largest[seen].max())))
    return (min(low for low, _ in reach), max(high for _, high in reach)) if reach else (0, 0)


class SinusoidTable(torch.autograd.Function):
    """Computes weight_h·[sin(−δω), cos(−δω)] for δ = low … high, [heads or 1, high − low + 1, head_dim], in parts.

    One product computes all heads. If a step serves both the past (δ = −step) and the future (δ = step), sines and
    cosines are multiplied separately, since sines are odd and cosines even.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, frequencies: Tensor, low: int, high: int) -> Tensor:
        ctx.save_for_backward(weight, frequencies)
        ctx.reach = low, high
        flat = weight.flatten(0, 1)
        table = weight.new_empty(high - low + 1, len(flat))
        for steps, past, future in _parts(low, high):
            waves = _waves(steps, max(-low, high), frequencies, weight)
            if future is None:
                table[past] = product(waves, flat)
                continue
            odd, even = (product(x, y) for x, y in zip(_halves(waves), _halves(flat), strict=True))
            if past is not None:
                torch.add(even, odd, out=table[past])
            table[future] = (even - odd).flip(0)
        return table.unflatten(1, weight.shape[:2]).transpose(0, 1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        weight, frequencies = ctx.saved_tensors
        of_weight, of_frequencies = ctx.needs_input_grad[:2]
        flat, grad = weight.flatten(0, 1), gradient.transpose(0, 1).flatten(1)
        of_sines, of_cosines = flat.chunk(2, 1)
        to_flat, to_frequencies = torch.zeros_like(flat), torch.zeros_like(frequencies, dtype=torch.float64)
        count = len(frequencies)
        for steps, past, future in _parts(*ctx.reach):
            waves = _waves(steps, max(-ctx.reach[0], ctx.reach[1]), frequencies, weight)
            odd = even = grad.new_zeros(1) if past is None else grad[past]
            if future is not None:
                ahead = grad[future].flip(0)
                odd, even = odd - ahead, even + ahead
            if of_weight and future is None:
                to_flat += product(grad[past].t(), waves.t())
            elif of_weight:
                sin, cos = _halves(waves)
                to_flat[:, :count] += product(odd.t(), sin.t())
                to_flat[:, count:] += product(even.t(), cos.t())
            if of_frequencies:
                sin, cos = waves.chunk(2, 1)
                turned = (odd @ of_sines) * cos - (even @ of_cosines) * sin
                to_frequencies += _numbers(steps, frequencies.device) @ turned.double()
        return to_flat.view_as(weight) if of_weight else None, to_frequencies if of_frequencies else None, None, None


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the columns of sines and the columns of cosines, as contiguous matrices."""
    sines, cosines = x.chunk(2, dim=1)
    return sines.contiguous(), cosines.contiguous()


def _parts(low: int, high: int) -> Iterator[tuple[range, slice | None, slice | None]]:
    """Yields falling steps, and the rows of the table that they fill in the past (in this order) and in the future."""
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


def _waves(steps: range, furthest: int, frequencies: Tensor, like: Tensor) -> Tensor:
    """Returns [sin, cos] of step·ω for falling steps, [steps, 2·frequencies], rounded once.

    The results of all steps up to ``furthest`` are kept between calls if they have at most ``KEPT`` angles.
    """
    size = 1 << max(furthest, STEPS - 1).bit_length()
    if size * len(frequencies) > KEPT or watched() or not like.is_cpu:
        return _falling(steps, frequencies, like.dtype)
    kept = constant(_kept, size, tuple(frequencies.tolist()), like.dtype, device=CPU)
    return kept[size - 1 - steps.start :][: len(steps)]


def _kept(size: int, frequencies: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    rates = torch.tensor(frequencies, dtype=torch.float64, device=device)
    return _falling(range(size - 1, -1, -1), rates, dtype)


def _falling(steps: range, frequencies: Tensor, dtype: torch.dtype) -> Tensor:
    angle = _numbers(steps, frequencies.device)[:, None] * frequencies.double()
    return torch.cat((angle.sin().to(dtype), angle.cos().to(dtype)), 1)


def _numbers(steps: range, device: torch.device) -> Tensor:
    return torch.arange(steps.start, steps.stop, steps.step, device=device, dtype=torch.float64)


def with_columns(call: C, terms: list[RelativeKeys]) -> C:
    """Lowers sinusoidal relative keys to additional columns of q and k by angle addition, for any positions.

    The columns of k are the sines and cosines of the key; those of q are the query's products rotated by its angle.
    """
    q, k, v = call.q.float(), call.k.float(), call.v.float()
    q_columns, k_columns = [q], [k]
    for term in terms:
        rows = term.rows
        assert isinstance(rows, Sinusoids)
        query = q if term.query is None else term.query.float()
        if term.query_bias is not None:
            query = query + term.query_bias.float()[:, None]
        rates = rows.frequencies.double()
        at, to = (side.axis(rows.axis).double() for side in (call.q_coordinates, call.k_coordinates))
        q_columns.append(RotatedQuery.apply(query, rows.weight.float(), rates, at))
        angle = (to[..., None] * rates)[:, None]
        code = torch.cat([angle.sin(), angle.cos()], dim=-1).float()
        k_columns.append(code.expand(*k.shape[:3], -1))
    return call._with(
        q=torch.cat(q_columns, dim=-1),
        k=torch.cat(k_columns, dim=-1),
        v=v,
        terms=tuple(with_own(term, q, k) for term in call.terms),
    )


def with_own(term: Any, q: Tensor, k: Tensor) -> Any:
    """Returns a term that holds the q or k which it reads, so that the call's own may change."""
    if isinstance(term, RelativeKeys) and term.query is None:
        return term._with(query=q)
    return term._with(key=k) if isinstance(term, RelativeQueries) and term.key is None else term


class RotatedQuery(torch.autograd.Function):
    """Computes the columns of the query that multiply [sin(pⱼω), cos(pⱼω)], [batch, heads, n, 2·frequencies]."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, weight: Tensor, rates: Tensor, at: Tensor) -> Tensor:
        ctx.save_for_backward(query, weight, rates, at)
        return _rotated(query, weight, rates, at)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        *saved, at = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:3]
        query, weight, rates = (x.detach().requires_grad_(want) for x, want in zip(saved, wanted, strict=True))
        with torch.enable_grad():
            # the gradient of a query that sees no key is 0, even if its position is NaN
            seeing = query.masked_fill((gradient == 0).all(-1, keepdim=True), 0)
            rotated = _rotated(seeing, weight, rates, at)
        gradients = iter(torch.autograd.grad(rotated, [x for x in (query, weight, rates) if x.requires_grad], gradient))
        return *(next(gradients) if want else None for want in wanted), None


def _rotated(query: Tensor, weight: Tensor, rates: Tensor, at: Tensor) -> Tensor:
    angle = (at[..., None] * rates)[:, None]
    sin, cos = angle.sin().to(query.dtype), angle.cos().to(query.dtype)
    into_sin, into_cos = (query @ weight).chunk(2, dim=-1)
    return torch.cat([into_cos * sin - into_sin * cos, into_sin * sin + into_cos * cos], dim=-1)
