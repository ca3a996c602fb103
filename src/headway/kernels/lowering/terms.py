"""Lowers terms to simpler ones: several query scales or sinks to one, slopes by content to slopes of tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ...records import named
from ...terms import ContentSlope, Part, QueryScale, RelativeKeys, Sink


def one_temperature(terms: tuple[Any, ...]) -> tuple[Any, ...]:
    factors = [term.factor.float() for term in terms if isinstance(term, QueryScale)]
    rest = [term for term in terms if not isinstance(term, QueryScale)]
    return QueryScale(reduce(torch.mul, factors)), *rest


def one_sink(terms: tuple[Any, ...]) -> tuple[Any, ...]:
    # the gradient of a logit shared by queries is a sum over them, in float64, since the addends may cancel
    logits = [term.by_query.double() for term in terms if isinstance(term, Sink)]
    rest = [term for term in terms if not isinstance(term, Sink)]
    return *rest, Sink(torch.stack(torch.broadcast_tensors(*logits)).logsumexp(0).float())


def as_scaled(term: RelativeKeys, q: Tensor, scale: float) -> RelativeKeys:
    """Returns scaled relative keys with the same products as unscaled ones."""
    query = (q if term.query is None else term.query).float() / scale
    query_bias = None if term.query_bias is None else term.query_bias.float() / scale
    return term._with(query=query, query_bias=query_bias, scaled=True)


@dataclass(frozen=True, eq=False)
class PastSlopes(Part):
    """Adds (aᵢ + bⱼ)·min(δ, 0) to ⟨qᵢ, kⱼ⟩, with the slopes a of queries and b of keys.

    queries: [b, heads, n], or None
    keys: [b, heads, m], or None
    axis: the axis of the positions
    """

    axes = named(queries="1|batch 1|heads queries", keys="1|batch 1|heads keys")

    queries: Tensor | None
    keys: Tensor | None
    axis: int


def as_slopes(term: ContentSlope, q: Tensor, k: Tensor) -> PastSlopes:
    """Returns the term with the slope of each token, [batch, heads, tokens].

    Args:
        term: the term.
        q: queries, [batch, heads, n, head_dim].
        k: keys, [batch, kv_heads, m, head_dim].
    """
    heads, kv_heads = q.shape[1], k.shape[1]
    slope = (math.sqrt(q.shape[-1]) * term.slope.float()).unsqueeze(-1)
    queries = keys = None
    if term.query_weight is not None:
        queries = slope * F.softplus((q.float() * term.query_weight.float()[:, None]).sum(-1))
    if term.key_weight is not None:
        weight = term.key_weight.float().unflatten(0, (kv_heads, heads // kv_heads))
        keys = slope * F.softplus(weight @ k.float().mT).flatten(1, 2)
    return PastSlopes(queries, keys, term.axis)
