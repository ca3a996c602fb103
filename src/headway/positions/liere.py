"""Rotations by the exponential of learned matrices, one for each axis."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ._base import Pair, PositionEncoding
from ._lie import LieRotary


class LieRE(LieRotary):
    """Each axis has a learned generator, and a position is the rotation that their weighted sum generates.

        score[i,j] = s·⟨R(pᵢ)·qᵢ, R(pⱼ)·kⱼ⟩,   R(p) = exp(Σ_a p_a·A_a),   A_a = U_a − U_aᵀ

    Shapes: x [batch, heads, n, head_dim] → the same; positions [batch, n, axes]; generators [axes, heads, blocks,
    entries], the entries of U above its diagonal, row by row, for each block of block_size dimensions; U(0, 2π) at
    first. heads is 1, or the number of key heads with per_head. block_size is head_dim where it is None (the paper's
    LieRE_64); 8 is its LieRE_8, and 2 turns pairs with learned frequencies, as MixedRoPE does.
    Scores know differences of positions alone only where the generators commute, as they do for a block_size of 2 or
    on one axis. The authors' positions run from 0 to 1 over the image: at the first values, whole positions turn by
    several full turns for each step. The authors' code subtracts ½ above and below the diagonal alike, which cancels.
    Raises HeadwayError for a block_size that does not divide head_dim, and heads that do not fit.
    Cite: Ostmeier et al. 2025; the first values are those of the released code.
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
        """U above the diagonal [axes, heads, blocks, entries], in float64."""
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
