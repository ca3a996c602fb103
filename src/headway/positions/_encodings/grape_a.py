"""Additive GRAPE: a linear bias whose slope content determines."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from ...coordinates import Coordinates
from ...errors import HeadwayError, need_positive
from ...terms import ContentSlope
from .._base import Input, Pair, PositionEncoding, Terms
from .alibi import ALiBi

GATES = ("key", "query", "both")


class GRAPEA(PositionEncoding):
    """Subtracts a penalty linear in the distance, as ALiBi does, with a slope that key or query determines (GRAPE-A).

        score[h,i,j] = s·⟨qᵢ, kⱼ⟩ − max(pᵢ − pⱼ, 0)·m_h·softplus(ω_h)·g
        g = softplus(⟨û_h, kⱼ⟩/√head_dim) "key", softplus(⟨v̂_h, qᵢ⟩/√head_dim) "query", or the sum of both "both"

    m_h are ALiBi's slopes, and û and v̂ the directions of u and v. The authors' code first applies a root-mean-square
    norm to q and k, which is up to the layer. The bias is added to ⟨q, k⟩ as √head_dim times itself: with a scale other
    than head_dim^−½ it is scaled too.

    Args:
        num_heads: the number of query heads, at least 1.
        head_dim: the width of each head, at least 1.
        gate: "key", "query" or "both", as above.

    Attributes:
        omega: ω [num_heads], initially ln(e − 1), so that its softplus is 1.
        key_weight: u [num_heads, head_dim], initially N(0, 1/head_dim); None for "query".
        query_weight: v, likewise; None for "key".

    Raises:
        HeadwayError: if a size is below 1, gate is unknown, or queries have other sizes.

    References:
        Zhang et al. 2026, section 4.
    """

    name = "grape-a"
    citation = "zhang2026group"
    year = 2025
    evidence = "authors"
    extrapolates = True
    causal_only = True
    key_weight: nn.Parameter | None
    query_weight: nn.Parameter | None

    def __init__(self, num_heads: int, head_dim: int, gate: str = "key") -> None:
        super().__init__()
        need_positive(num_heads=num_heads, head_dim=head_dim)
        if gate not in GATES:
            raise HeadwayError(f"gate is {gate!r}: give one of {', '.join(map(repr, GATES))}")
        self.num_heads, self.head_dim, self.gate = num_heads, head_dim, gate
        self.omega = nn.Parameter(torch.full((num_heads,), math.log(math.e - 1)))
        for name in ("key", "query"):
            drawn = nn.Parameter(head_dim**-0.5 * torch.randn(num_heads, head_dim)) if gate in (name, "both") else None
            self.register_parameter(f"{name}_weight", drawn)

    def terms(self, q_at: Coordinates, k_at: Coordinates, q_input: Input = None, k_input: Input = None) -> Terms:
        """Returns the product of query and key with the gated penalty."""
        steepness = ALiBi(self.num_heads).slopes(q_at.position.device) * F.softplus(self.omega.double())
        of_keys, of_queries = (
            None if weight is None else F.normalize(weight.double(), dim=-1, eps=1e-6) / math.sqrt(self.head_dim)
            for weight in (self.key_weight, self.query_weight)
        )
        return (ContentSlope(steepness, of_keys, of_queries),)

    def oracle(self, pair: Pair) -> float:
        gate, d = 0.0, self.head_dim
        for weight, content in ((self.key_weight, pair.key), (self.query_weight, pair.query)):
            if weight is not None:
                along = float(weight[pair.h].double() @ content) / math.sqrt(
                    float((weight[pair.h].double() ** 2).sum())
                )
                gate += math.log1p(math.exp(along / math.sqrt(d)))
        slope = ALiBi(self.num_heads).slopes()[pair.h].item() * math.log1p(math.exp(self.omega[pair.h].item()))
        return pair.scale * pair.dot - max(-pair.distance, 0) * slope * gate

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(4, 8), cls(6, 8, gate="both")]
