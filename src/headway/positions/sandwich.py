"""The part of sinusoids' inner products that knows the distance alone."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..coordinates import Coordinates
from ..errors import HeadwayError, need_positive
from ..terms import Cosines, DistanceBias
from ._base import Input, Pair, PositionEncoding, Terms, need_base

GRIDS = {"from-zero": 0, "from-one": 1}


class Sandwich(PositionEncoding):
    """Each head adds the inner product of two sinusoidal codes, the more compressed the later the head.

        score[h,i,j] = s·⟨qᵢ, kⱼ⟩ + Σ_c cos((pⱼ − pᵢ)·ω_c) / (8h/H),   h = 1 … H,   ω_c = base^(−2c/dimension)

    Shapes: H = num_heads, nothing learned; dimension/2 waves, whose dimension d̄ is free of the model's width.
    grid says which waves: "from-zero" c = 0 … d̄/2 − 1, those of sinusoidal codes (attention-gym); "from-one"
    c = 1 … d̄/2 (NeMo, which also takes d̄ = head_dim and subtracts d̄/2 before the division, which the softmax does not
    see). The two biases differ by up to two before the division: a model needs the grid that it was trained with.
    Cosines know no sign, so both directions are alike.
    Raises HeadwayError for num_heads below 1, an odd dimension, a base of 1 or less, an unknown grid.
    Cite: Chi et al. 2023.
    """

    name = "sandwich"
    citation = "chi2023dissecting"
    year = 2022
    evidence = "independent"

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
        """What each head and wave adds, H/(8h), and the waves' frequencies, in float64."""
        device, first = coordinates.position.device, GRIDS[self.grid]
        count = torch.arange(first, first + self.dimension // 2, dtype=torch.float64, device=device)
        head = torch.arange(1, self.num_heads + 1, dtype=torch.float64, device=device)
        weight = (self.num_heads / (8 * head))[:, None].expand(-1, self.dimension // 2)
        return weight, self.base ** (-2 / self.dimension * count)

    def terms(self, q_at: Coordinates, k_at: Coordinates, q_input: Input = None, k_input: Input = None) -> Terms:
        """The sum of waves."""
        return (DistanceBias(Cosines(*self.place(q_at).tables)),)

    def oracle(self, pair: Pair) -> float:
        grid = range(self.dimension // 2) if self.grid == "from-zero" else range(1, self.dimension // 2 + 1)
        bias = sum(math.cos(pair.distance / self.base ** (2 * c / self.dimension)) for c in grid)
        return pair.scale * pair.dot + bias / (8 * (pair.h + 1) / self.num_heads)

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(4), cls(6, dimension=16, base=500.0, grid="from-one")]
