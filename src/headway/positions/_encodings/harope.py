"""Axial rotary positions in a learned basis for each head."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...coordinates import Coordinates
from ...errors import need_positive
from ...terms import Rotation
from .._base import Pair, PositionEncoding
from .._formulas import need_width
from .._lie import for_heads, need_divisor
from .axial_rope import AxialRoPE


class HARoPE(AxialRoPE):
    """Transforms queries and keys of each head by a learned matrix and its inverse, and rotates them as AxialRoPE does.

        score[h,i,j] = s·⟨R(pᵢ)·M_h·qᵢ, R(pⱼ)·M_h⁻ᵀ·kⱼ⟩,   M_h = U_h·diag(σ_h)·V_hᵀ
        U_h = exp((A − Aᵀ)/2),   V_h = exp((B − Bᵀ)/2),   σ_h = softplus(z) + 10⁻⁶

    Scores depend on relative positions only, and those of equal positions are ⟨q, k⟩, whatever M is. Queries that share
    a key head share its matrix.

    Args:
        num_heads: the number of query heads, at least 1.
        head_dim: the width of each head, a multiple of 2·axes.
        num_kv_heads: the number of key and value heads, a divisor of num_heads; num_heads if None.
        base: the base of the frequencies, above 1.
        axes: the number of axes of the positions, at least 1.
        layout: which dimensions form the pair c: (2c, 2c+1) for "interleaved", (c, c + head_dim/2) for "half".

    Attributes:
        left: A [num_kv_heads, head_dim, head_dim], initially 0.
        right: B, likewise.
        stretch: z [num_kv_heads, head_dim], initially ln(e − 1), where σ is 1 and this is AxialRoPE up to 10⁻⁶.

    Shape:
        x: [batch, heads, n, head_dim]
        positions: [batch, n, axes]
        Output: [batch, heads, n, head_dim]

    Raises:
        HeadwayError: if a size is below 1, 2·axes does not divide head_dim, or the numbers of heads do not fit.

    References:
        Li et al. 2026, section 3.
    """

    name = "harope"
    citation = "li2026head"
    year = 2025
    evidence = "authors"

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        num_kv_heads: int | None = None,
        base: float = 10000.0,
        axes: int = 2,
        layout: str = "interleaved",
    ) -> None:
        super().__init__(head_dim, base, axes, layout)
        need_positive(num_heads=num_heads)
        need_divisor(num_heads, num_kv_heads)
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        heads = num_kv_heads or num_heads
        self.left = nn.Parameter(torch.zeros(heads, head_dim, head_dim))
        self.right = nn.Parameter(torch.zeros(heads, head_dim, head_dim))
        self.stretch = nn.Parameter(torch.full((heads, head_dim), math.log(math.e - 1)))

    def learned_tables(self, coordinates: Coordinates) -> tuple[Tensor, Tensor]:
        """Returns M and M⁻ᵀ, each [1, num_kv_heads, head_dim, head_dim] in float64."""
        left, right = (
            torch.linalg.matrix_exp(0.5 * (x.double() - x.double().mT)).unsqueeze(0) for x in (self.left, self.right)
        )
        sigma = (F.softplus(self.stretch.double()) + 1e-6)[None, :, None]
        return left * sigma @ right.mT, left / sigma @ right.mT

    def split(self, side: str, x: Tensor, coordinates: Coordinates) -> tuple[Tensor, Rotation | None]:
        """Returns queries or keys in the basis of their head, and their rotation."""
        if side == "value":
            return x, None
        need_width(x, "head_dim", self.head_dim)
        matrices = self.for_one_forward(coordinates).learned
        (matrix,) = for_heads(x, self.num_heads, matrices[0 if side == "query" else 1])
        return (x.double() @ matrix.mT).to(x.dtype), super().rotation(side, x, coordinates)

    def rotation(self, side: str, x: Tensor, coordinates: Coordinates) -> Rotation | None:
        """Returns None, since ``split`` does more than rotate."""
        return None

    def prepare_query(self, q: Tensor, coordinates: Coordinates) -> Tensor:
        """Returns q [batch, num_heads, n, head_dim] transformed and rotated."""
        return self._prepared("query", q, coordinates)

    def prepare_key(self, k: Tensor, coordinates: Coordinates) -> Tensor:
        """Returns k [batch, num_kv_heads, n, head_dim] transformed by the inverse, transposed, and rotated."""
        return self._prepared("key", k, coordinates)

    def prepare(self, x: Tensor, coordinates: Coordinates) -> Tensor:
        """Returns queries [batch, heads, n, head_dim] transformed and rotated; keys take ``prepare_key``."""
        return self._prepared("query", x, coordinates)

    def _prepared(self, side: str, x: Tensor, coordinates: Coordinates) -> Tensor:
        x, rotation = self.split(side, x, coordinates)
        assert rotation is not None
        return rotation.of(x)

    def oracle(self, pair: Pair) -> float:
        h = pair.h * (self.num_kv_heads or self.num_heads) // self.num_heads
        U, V = (torch.linalg.matrix_exp((x[h].double() - x[h].double().T) / 2) for x in (self.left, self.right))
        sigma = [math.log1p(math.exp(z)) + 1e-6 for z in self.stretch[h].tolist()]
        M = U @ torch.diag(torch.tensor(sigma, dtype=torch.float64)) @ V.T
        return super().oracle(replace(pair, queries=pair.queries @ M.T, keys=pair.keys @ torch.linalg.inv(M)))

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(4, 8), cls(6, 8, num_kv_heads=3, base=100.0, axes=1, layout="half")]
