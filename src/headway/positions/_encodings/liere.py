"""LieRE: rotations by the exponential of learned matrices, one for each axis."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from .._base import Pair, PositionEncoding
from .._lie import LieRotary


class LieRE(LieRotary):
    """Rotates queries and keys by the exponential of learned generators, weighted by the position on each axis.

        score[i,j] = s·⟨R(pᵢ)·qᵢ, R(pⱼ)·kⱼ⟩,   R(p) = exp(Σ_a p_a·A_a),   A_a = U_a − U_aᵀ

    Scores depend on relative positions only where the generators commute, as they do for a block_size of 2 or on one
    axis. The authors' positions run from 0 to 1 over the image: with the initial values, whole positions rotate by
    several full turns for each step. The authors' code subtracts ½ both above and below the diagonal, which cancels.

    Args:
        head_dim: the width of each head, at least 1.
        axes: the number of axes of the positions, at least 1.
        block_size: the number of dimensions that are rotated together; head_dim if None (the paper's LieRE_64). 8 is
            its LieRE_8, and 2 rotates pairs with learned frequencies, as MixedRoPE does.
        num_heads: the number of query heads, at least 1.
        num_kv_heads: the number of key and value heads, a divisor of num_heads; num_heads if None.
        per_head: whether each key head has generators of its own.

    Attributes:
        upper: [axes, heads, blocks, entries], the entries of U above its diagonal, by rows, for each block of
            block_size dimensions; initially U(0, 2π). heads is 1, or the number of key heads with per_head.

    Shape:
        x: [batch, heads, n, head_dim]
        positions: [batch, n, axes]
        Output: [batch, heads, n, head_dim]

    Raises:
        HeadwayError: if block_size does not divide head_dim, or the numbers of heads do not fit.

    References:
        Ostmeier et al. 2025; the initial values are those of the released code.
    """

    name = "liere"
    citation = "ostmeier2025liere"
    year = 2024
    evidence = "authors"

    def __init__(
        self,
        head_dim: int,
        axes: int = 2,
        block_size: int | None = None,
        num_heads: int = 1,
        num_kv_heads: int | None = None,
        per_head: bool = False,
    ) -> None:
        super().__init__(head_dim, block_size or head_dim, axes, num_heads, num_kv_heads)
        self.per_head = per_head
        heads = (num_kv_heads or num_heads) if per_head else 1
        self.upper = nn.Parameter(2 * math.pi * torch.rand(axes, heads, self.blocks, self.entries))

    def generators(self) -> Tensor:
        """Returns the entries of U above its diagonal, [axes, heads, blocks, entries] in float64."""
        return self.upper.double()

    def oracle_generator(self, pair: Pair, axis: int, block: int) -> Tensor:
        h = pair.h * self.upper.shape[1] // self.num_heads if self.per_head else 0
        U = torch.zeros(self.block_size, self.block_size, dtype=torch.float64)
        entries = iter(self.upper[axis, h, block].tolist())
        for i in range(self.block_size):
            for j in range(i + 1, self.block_size):
                U[i, j] = next(entries)
        return U - U.T

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(8, num_heads=4), cls(8, axes=3, block_size=4, num_heads=6, num_kv_heads=3, per_head=True)]
