"""A bias that each query mixes from learned curves over the distance."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from ...coordinates import Coordinates
from ...errors import need_positive
from ...terms import Bucketize, Clip, Map, RelativeKeys, Rows
from .._base import Input, Pair, PositionEncoding, Terms
from .._content import Contextual, projected_once
from .._formulas import normal


class RelativeProjection(Contextual):
    """Adds a mixture of learned curves over the distance, with weights that the query computes for each head.

        score[h,i,j] = s·⟨qᵢ, kⱼ⟩ + Σ_r w_h(xᵢ)_r·bank[r, pᵢ − pⱼ],   0 unless 0 ≤ pᵢ − pⱼ < max_distance
        w_h(x) = W_h·x + b_h,   x the layer's input

    16 curves over 1024 distances, and b, are those of x-transformers; Hugging Face's Inkling has no b. The bias is not
    multiplied by the scale of the scores. A distance that is not a whole number is rounded down.

    Args:
        embed_dim: the width of the layer's input, at least 1.
        num_heads: the number of query heads, at least 1.
        curves: the number of curves, at least 1.
        max_distance: the number of distances that a curve has, at least 1.
        bias: whether b is learned.

    Attributes:
        weight: W [num_heads·curves, embed_dim], initialized as nn.Linear does.
        bias: b [num_heads·curves], likewise, or None.
        bank: [curves, max_distance], initially N(0, 0.02²).

    Raises:
        HeadwayError: if a size is below 1, or inputs have another embed_dim.

    References:
        Thinking Machines 2026, the released model's code; there is no paper.
    """

    name = "relative-projection"
    citation = "thinkingmachines2026inkling"
    year = 2026
    evidence = "independent"
    extrapolates = True
    axes = 1
    causal_only = False
    across_shards = True

    def __init__(
        self, embed_dim: int, num_heads: int, curves: int = 16, max_distance: int = 1024, bias: bool = True
    ) -> None:
        super().__init__()
        need_positive(embed_dim=embed_dim, num_heads=num_heads, curves=curves, max_distance=max_distance)
        self.embed_dim, self.num_heads, self.curves, self.max_distance = embed_dim, num_heads, curves, max_distance
        linear = nn.Linear(embed_dim, num_heads * curves, bias=bias)
        self.weight, self.bias = linear.weight, linear.bias
        self.bank = normal(curves, max_distance)

    def terms(self, q_at: Coordinates, k_at: Coordinates, q_input: Input = None, k_input: Input = None) -> Terms:
        """Returns products of the weights with the curves at each distance, with rows of 0 on both sides."""
        mixed = projected_once(self.given(q_input), self.weight, self.bias)
        mixed = mixed.unflatten(-1, (self.num_heads, self.curves)).transpose(1, 2)
        table = F.pad(self.bank.t().flip(0), (0, 0, 1, 1))
        return (RelativeKeys(Rows(table[None], self._rows(q_at, k_at)), query=mixed, scaled=False),)

    def _rows(self, q_at: Coordinates, k_at: Coordinates) -> Map:
        """Returns the map of −max_distance … 1, where a query's distance to a key, not the key's to it, is rounded."""
        if not (q_at.axis().is_floating_point() or k_at.axis().is_floating_point()):
            return Clip(-self.max_distance, 1)
        ends = torch.arange(-self.max_distance, 1, dtype=torch.float64, device=q_at.index.device)
        return Bucketize(torch.nextafter(ends, ends.new_tensor(math.inf)), reach=self.max_distance + 1)

    def oracle(self, pair: Pair) -> float:
        assert pair.x is not None
        back, total = int(-pair.distance // 1), 0.0
        for r in range(self.curves if 0 <= back < self.max_distance else 0):
            row = pair.h * self.curves + r
            constant = 0.0 if self.bias is None else self.bias[row].item()
            total += (float(self.weight[row].double() @ pair.x[pair.i]) + constant) * self.bank[r, back].item()
        return pair.scale * pair.dot + total

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(32, 4, max_distance=30), cls(48, 6, curves=3, max_distance=5, bias=False)]
