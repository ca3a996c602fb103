"""Lowering of terms to simpler ones: several query scales to one, several sinks to one, slopes by content to rows."""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ...terms import Clip, ContentSlope, QueryScale, RelativeKeys, RelativeQueries, Rows, Sink


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
    """Returns relative keys that are scaled and give the products of those that are not."""
    query = (q if term.query is None else term.query).float() / scale
    query_bias = None if term.query_bias is None else term.query_bias.float() / scale
    return term._with(query=query, query_bias=query_bias, scaled=True)


def as_rows(term: ContentSlope, q: Tensor, k: Tensor, low: int, high: int) -> tuple[Any, ...]:
    """Returns relative queries and keys that add the penalty.

    The slope that a key gives is multiplied with the distance in the table. Each query head that shares the key has a
    slope of its own, and so a column.

    Args:
        term: the term.
        q: queries, [batch, heads, n, head_dim].
        k: keys, [batch, kv_heads, m, head_dim].
        low: the smallest distance.
        high: the largest distance.
    """
    back = torch.arange(low, high + 1, device=q.device).clamp(max=0)
    penalty = math.sqrt(q.shape[-1]) * term.slope[:, None] * back  # [heads, distances]
    clip = Clip(low, high, term.axis)
    terms: list[Any] = []
    if term.key_weight is not None:
        heads, kv_heads = q.shape[1], k.shape[1]
        columns = torch.eye(heads // kv_heads, dtype=penalty.dtype, device=q.device).repeat(kv_heads, 1)
        weight = term.key_weight.float().unflatten(0, (kv_heads, -1))
        gate = F.softplus(k.float() @ weight.mT)
        terms.append(RelativeQueries(Rows(penalty[..., None] * columns[:, None], clip), key=gate))
    if term.query_weight is not None:
        gate = F.softplus((q.float() * term.query_weight.float()[:, None]).sum(-1, keepdim=True))
        terms.append(RelativeKeys(Rows(penalty[..., None], clip), query=gate))
    return tuple(terms)
