"""The bias that a term gives each pair of a query and a key, as a dense tensor, computed from coordinates."""

from __future__ import annotations

import torch
from torch import Tensor

from .coordinates import Coordinates
from .terms import Bias, Cosines, Linear, Log, Piecewise, Power, Rows, Stretched, distance
from .tracing import searchsorted


def rows_of_pairs(rows: Rows, q: Coordinates, k: Coordinates) -> Tensor:
    """Looks up the row of the table for each pair.

    Args:
        rows: the table and the map from coordinates to its rows.
        q: the queries' coordinates.
        k: the keys' coordinates.

    Returns:
        [batch, heads or 1, n, m], or [batch, heads or 1, n, m, width] if the rows have a width.
    """
    row = rows.map.rows(q, k)
    # the gradient of index_select is several times faster than that of indexing
    return rows.table.index_select(1, row.flatten()).unflatten(1, row.shape).transpose(0, 1)


def distance_bias(values: Bias, q: Coordinates, k: Coordinates, dtype: torch.dtype) -> Tensor:
    """Computes the bias b_h[ρ(i,j)] of each pair.

    Args:
        values: the bias as a function of distance.
        q: the queries' coordinates.
        k: the keys' coordinates.
        dtype: the dtype of the computation.

    Returns:
        [batch, heads or 1, n, m].
    """
    if isinstance(values, Rows):
        return rows_of_pairs(values, q, k)
    if isinstance(values, Cosines):
        return cosines(values, q, k, dtype)
    delta = distance(q, k, values.axis).to(dtype)[:, None]
    far = delta.abs()

    def per_head(parameter: Tensor) -> Tensor:
        return parameter[:, None, None]

    if isinstance(values, Linear):
        return -far * torch.where(delta > 0, per_head(values.future), per_head(values.past))
    if isinstance(values, Log):
        return -per_head(values.weight) * torch.log1p(per_head(values.rate) * far)
    if isinstance(values, Power):
        # 0^e has no finite gradient with respect to e, so a pair at distance 0 gets 0 without a power
        near = torch.where(far == 0, torch.ones_like(far), far)
        return -per_head(values.weight) * torch.where(far == 0, 0.0, near ** per_head(values.exponent))
    if isinstance(values, Stretched):
        return stretched(values, far)
    return piecewise(values, delta)


def cosines(values: Cosines, q: Coordinates, k: Coordinates, dtype: torch.dtype) -> Tensor:
    """Computes Σ_c weight_c·cos(δ·ω_c) by angle addition.

    Args:
        values: the weights and frequencies.
        q: the queries' coordinates.
        k: the keys' coordinates.
        dtype: the dtype of the result; the angles are computed in float64.

    Returns:
        [batch, heads, n, m].
    """
    rates = values.frequencies.double()
    q_angle, k_angle = (side.axis(values.axis).double()[:, None, :, None] * rates for side in (q, k))
    weight = values.weight[:, None].to(dtype)
    turned = torch.cat([q_angle.cos().to(dtype) * weight, q_angle.sin().to(dtype) * weight], dim=-1)
    return turned @ torch.cat([k_angle.cos(), k_angle.sin()], dim=-1).to(dtype).transpose(-1, -2)


def stretched(values: Stretched, far: Tensor) -> Tensor:
    """Computes intercept[s] + slope[s]·t with t = ln(1 + rate·|δ|)·stretch, where s is the piece that t lies in.

    Args:
        values: the edges of the pieces, their intercepts and slopes, the rate and the stretch of each query.
        far: distances |δ|, [batch, 1, n, m].

    Returns:
        [batch, heads, n, m].
    """
    t = torch.log1p(values.rate * far[:, 0]) * values.stretch[..., None].to(far.dtype)
    piece = searchsorted(values.edges.to(t.dtype), t.detach(), right=True)
    intercept, slope = (
        table.index_select(1, piece.flatten()).unflatten(1, piece.shape).transpose(0, 1)
        for table in (values.intercept, values.slope)
    )
    return intercept + slope * t[:, None]


def piecewise(values: Piecewise, delta: Tensor) -> Tensor:
    """Interpolates values linearly between knots; beyond the outermost knots they are constant.

    Args:
        values: the knots and each head's values there.
        delta: signed distances δ, [batch, 1, n, m].

    Returns:
        [batch, heads, n, m].
    """
    knots = values.knots.to(delta.dtype)
    right = searchsorted(knots, delta.detach()).clamp(1, len(knots) - 1)
    share = ((delta - knots[right - 1]) / (knots[right] - knots[right - 1])).clamp(0, 1)
    table = values.values
    low, high = table[:, right[:, 0] - 1].transpose(0, 1), table[:, right[:, 0]].transpose(0, 1)
    return low + share * (high - low)
