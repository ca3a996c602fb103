"""Scores and values straight from an encoding's hooks, dense, for measuring its properties.

The specification of the scores is the reference kernel, which this package does not know. This is what measuring
needs of it: one sequence, every term that changes a score before sinks and caps, no masks and no gradients.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..coordinates import Coordinates
from ..terms import (
    Bias,
    Cosines,
    DenseBias,
    DistanceBias,
    Linear,
    Log,
    Piecewise,
    Product,
    RelativeKeys,
    RelativeQueries,
    RelativeValues,
    Rows,
    ScoreMap,
    Sinusoids,
    Stretched,
    Temperature,
    Term,
    TokenBias,
    distance,
)
from ._base import PositionEncoding


@dataclass(frozen=True)
class Pairs:
    """One encoding at work between queries and keys of one sequence; q [heads, n, d] and k [heads, m, d], raw."""

    q: Tensor
    k: Tensor
    prepared_q: Tensor
    prepared_k: Tensor
    q_at: Coordinates
    k_at: Coordinates
    terms: tuple[Term, ...]
    scale: float
    encoding: PositionEncoding

    @staticmethod
    def of(
        encoding: PositionEncoding,
        q: Tensor,
        k: Tensor,
        q_at: Coordinates,
        k_at: Coordinates,
        q_input: Tensor | None = None,
        k_input: Tensor | None = None,
    ) -> Pairs:
        q_at, k_at = encoding.place(q_at), encoding.place(k_at)
        q_at, k_at = encoding.relocate(q_at, k_at, q_input, k_input)
        return Pairs(
            q,
            k,
            encoding.prepare_query(q[None], q_at)[0],
            encoding.prepare_key(k[None], k_at)[0],
            q_at,
            k_at,
            encoding.terms(q_at, k_at, q_input, k_input),
            encoding.default_scale(q.shape[-1]),
            encoding,
        )

    def content(self) -> Tensor:
        """s·⟨q, k⟩ of the prepared queries and keys alone: [heads, n, m]"""
        return self.scale * self.prepared_q @ self.prepared_k.transpose(-1, -2)

    def scores(self) -> Tensor:
        """The finished scores, before sinks and caps: [heads, n, m]"""
        slots = torch.arange(self.q.shape[1])
        total = self.prepared_q @ self.prepared_k.transpose(-1, -2)
        for term in self.terms:
            if isinstance(term, Product):
                total = term.function(self.prepared_q[None], self.prepared_k[None], slots, *term.tensors)[0]
        for term in self.terms:
            if isinstance(term, RelativeKeys):
                query = self.q if term.query is None else term.query[0]
                query = query if term.query_bias is None else query + term.query_bias[:, None]
                total = total + self._keys(query, term.rows)
            if isinstance(term, RelativeQueries):
                key = self.k if term.key is None else term.key[0]
                total = total + torch.einsum("hjd,hijd->hij", key, self._vectors(term.rows, len(key)))
        total = self.scale * total
        for term in self.terms:
            if isinstance(term, Temperature):
                total = total * term.factor[0][..., None]
        for term in self.terms:
            if isinstance(term, DistanceBias):
                total = total + distance_bias(term.values, self.q_at, self.k_at)
            if isinstance(term, TokenBias):
                total = total if term.queries is None else total + term.queries[0][..., :, None]
                total = total if term.keys is None else total + term.keys[0][..., None, :]
            if isinstance(term, DenseBias):
                dense = term.values if isinstance(term.values, Tensor) else term.values(slots, *term.tensors)
                total = (total[None] + dense)[0]
        for term in self.terms:
            if isinstance(term, ScoreMap):
                allowed = torch.ones_like(total, dtype=torch.bool)[None]
                allowed = allowed.tril() if self.encoding.causal_only else allowed
                total = term.function(total[None], allowed, self.prepared_q[None], slots, *term.tensors)[0]
        return total

    def values(self) -> list[Tensor]:
        """What joins the value of each pair, by term: [heads or 1, n, m, head_dim]"""
        return [self._vectors(term.rows) for term in self.terms if isinstance(term, RelativeValues)]

    def transformed(self, v: Tensor) -> Tensor:
        """T_i⁻¹·T_j·v_j of every pair; v [heads, m, head_dim] gives [heads, n, m, head_dim]"""
        prepared = self.encoding.prepare_value(v[None], self.k_at)[0]
        each_key = prepared.transpose(0, 1)[:, :, None].expand(-1, -1, self.q.shape[1], -1)
        return self.encoding.restore_output(each_key, self.q_at).permute(1, 2, 0, 3)

    def _vectors(self, rows: Rows, heads: int | None = None) -> Tensor:
        found = rows.table[:, rows.map.rows(self.q_at, self.k_at)[0]]
        return found if heads is None else found.expand(heads, *found.shape[1:])

    def _keys(self, query: Tensor, rows: Rows | Sinusoids) -> Tensor:
        """⟨query, a[ρ(i,j)]⟩: [heads, n, m]"""
        if isinstance(rows, Rows):
            return torch.einsum("hid,hijd->hij", query, self._vectors(rows, len(query)))
        turns = -distance(self.q_at, self.k_at, rows.axis)[0].double()[..., None] * rows.frequencies
        waves = torch.cat([turns.sin(), turns.cos()], dim=-1)
        return torch.einsum("hiw,ijw->hij", query @ rows.weight, waves)


def distance_bias(values: Bias, q_at: Coordinates, k_at: Coordinates) -> Tensor:
    """b_h[ρ(i,j)] of one sequence: [heads or 1, n, m]"""
    if isinstance(values, Rows):
        return values.table[:, values.map.rows(q_at, k_at)[0]]
    delta = distance(q_at, k_at, values.axis)[0].double()
    far = delta.abs()
    if isinstance(values, Cosines):
        return torch.einsum("hc,ijc->hij", values.weight, (delta[..., None] * values.frequencies).cos())
    if isinstance(values, Stretched):
        t = torch.log1p(values.rate * far) * values.stretch[0][:, None]
        piece = (t[..., None] >= values.edges).sum(-1)
        return values.intercept[:, piece] + values.slope[:, piece] * t
    if isinstance(values, Linear):
        return -far * torch.where(delta > 0, values.future[:, None, None], values.past[:, None, None])
    if isinstance(values, Log):
        return -values.weight[:, None, None] * torch.log1p(values.rate[:, None, None] * far)
    if isinstance(values, Piecewise):
        right = torch.searchsorted(values.knots, delta.contiguous()).clamp(1, len(values.knots) - 1)
        low, high = values.knots[right - 1], values.knots[right]
        share = ((delta - low) / (high - low)).clamp(0, 1)
        return torch.lerp(values.values[:, right - 1], values.values[:, right], share)
    return -values.weight[:, None, None] * far ** values.exponent[:, None, None]
