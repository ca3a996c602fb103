"""Sandwich: the part of the inner products of sinusoids that depends on the distance only."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...coordinates import Coordinates
from ...errors import HeadwayError, need_positive
from ...terms import Cosines, DistanceBias
from .._base import Input, Pair, PositionEncoding, Terms
from .._formulas import need_base

GRIDS = {"from-zero": 0, "from-one": 1}


class Sandwich(PositionEncoding):
    """Adds the inner product of two sinusoidal encodings, divided by a number that grows with the head.

        score[h,i,j] = s·⟨qᵢ, kⱼ⟩ + Σ_c cos((pⱼ − pᵢ)·ω_c) / (8h/H),   h = 1 … H,   ω_c = base^(−2c/dimension)

    H is num_heads, and nothing is learned. The biases of the two grids differ by up to two before the division: a model
    needs the grid that it was trained with. Both directions are alike, since the cosine is even.

    Args:
        num_heads: the number of query heads, at least 1.
        dimension: d̄, twice the number of waves, even; it is independent of the model's width.
        base: the base of the frequencies, above 1.
        grid: "from-zero" for c = 0 … d̄/2 − 1, the waves of sinusoidal encodings (attention-gym); "from-one" for c = 1
            … d̄/2 (NeMo, which also uses d̄ = head_dim and subtracts d̄/2 before the division; the softmax cancels
            this).

    Raises:
        HeadwayError: if num_heads is below 1, dimension is odd, base is 1 or less, or grid is unknown.

    References:
        Chi et al. 2023.
    """

    name = "sandwich"
    citation = "chi2023dissecting"
    year = 2022
    evidence = "independent"
    same_terms = True

    def __init__(self, num_heads: int, dimension: int = 128, base: float = 10000.0, grid: str = "from-zero") -> None:
        super().__init__()
        need_positive(num_heads=num_heads, dimension=dimension)
        need_base(base)
        if dimension % 2:
            raise HeadwayError(f"dimension is {dimension}: waves need an even one, such as {dimension + 1}")
        if grid not in GRIDS:
            raise HeadwayError(f"grid is {grid!r}: give {' or '.join(map(repr, GRIDS))}")
        self.num_heads, self.dimension, self.base, self.grid = num_heads, dimension, base, grid

    def tables(self, coordinates: Coordinates) -> tuple[Tensor, Tensor]:
        """Returns the factor of each head, H/(8h), and the frequencies of the waves, in float64."""
        device, first = coordinates.position.device, GRIDS[self.grid]
        count = torch.arange(first, first + self.dimension // 2, dtype=torch.float64, device=device)
        head = torch.arange(1, self.num_heads + 1, dtype=torch.float64, device=device)
        weight = (self.num_heads / (8 * head))[:, None].expand(-1, self.dimension // 2)
        return weight, self.base ** (-2 / self.dimension * count)

    def terms(self, q_at: Coordinates, k_at: Coordinates, q_input: Input = None, k_input: Input = None) -> Terms:
        """Returns the bias that sums the waves."""
        return (DistanceBias(Cosines(*self.place(q_at).tables)),)

    def oracle(self, pair: Pair) -> float:
        grid = range(self.dimension // 2) if self.grid == "from-zero" else range(1, self.dimension // 2 + 1)
        bias = sum(math.cos(pair.distance / self.base ** (2 * c / self.dimension)) for c in grid)
        return pair.scale * pair.dot + bias / (8 * (pair.h + 1) / self.num_heads)

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(4), cls(6, dimension=16, base=500.0, grid="from-one")]
