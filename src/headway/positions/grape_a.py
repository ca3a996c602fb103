"""A penalty that grows with the distance, as fast as the key or the query says."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..coordinates import Coordinates
from ..errors import HeadwayError, need_positive
from ..terms import Product
from ._base import Input, Pair, PositionEncoding, Terms
from .alibi import ALiBi

GATES = ("key", "query", "both")


class GRAPEA(PositionEncoding):
    """ALiBi whose slope content sets (GRAPE-A): a key, a query or both say how fast they are forgotten, or forget.

        score[h,i,j] = s·⟨qᵢ, kⱼ⟩ − max(pᵢ − pⱼ, 0)·m_h·softplus(ω_h)·g
        g = softplus(⟨û_h, kⱼ⟩/√head_dim) "key", softplus(⟨v̂_h, qᵢ⟩/√head_dim) "query", or the sum of both "both"

    Shapes: ω ``omega`` [num_heads], at first ln(e − 1), so that softplus gives 1; u ``key_weight`` and v
    ``query_weight`` [num_heads, head_dim] from N(0, 1/head_dim), of which the directions û and v̂ count. m_h are ALiBi's
    slopes. The authors' code takes the root-mean-square norm of q and k before all of this; that is the layer's to do.
    The bias stands beside ⟨q, k⟩ as √head_dim times itself: with a scale other than head_dim^−½ it is scaled too.
    Raises HeadwayError for sizes below 1, an unknown gate and queries of other sizes.
    Cite: Zhang et al. 2026, section 4.
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
        """⟨q, k⟩ with the gated penalty."""
        steepness = ALiBi(self.num_heads).slopes(q_at.position.device) * F.softplus(self.omega.double())
        nothing = steepness.new_zeros(0)
        weights = [
            nothing if weight is None else F.normalize(weight.double(), dim=-1, eps=1e-6) / math.sqrt(self.head_dim)
            for weight in (self.key_weight, self.query_weight)
        ]
        return (Product(_penalized, (q_at.axis(), k_at.axis(), steepness, *weights)),)

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


def _penalized(
    q: Tensor, k: Tensor, rows: Tensor, q_position: Tensor, k_position: Tensor, steepness: Tensor, *weights: Tensor
) -> Tensor:
    if q.shape[1] != steepness.shape[0]:
        raise HeadwayError(
            f"q has {q.shape[1]} heads but the encoding {steepness.shape[0]}: give num_heads={q.shape[1]}"
        )
    gate: Tensor | float = 0.0
    for weight, content, along in ((weights[0], k, -2), (weights[1], q, -1)):
        if weight.numel():
            gate = gate + F.softplus((content * weight[:, None]).sum(-1)).unsqueeze(along)
    back = (q_position[:, rows, None] - k_position[:, None]).clamp(min=0)[:, None].to(q.dtype)
    return q @ k.mT - math.sqrt(q.shape[-1]) * back * steepness[:, None, None] * gate
