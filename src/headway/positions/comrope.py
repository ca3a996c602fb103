"""Rotations by the exponential of learned matrices that commute."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..errors import HeadwayError
from ._base import Pair, PositionEncoding
from ._lie import LieRotary

VARIANTS = ("linearly-dependent", "axial-partition")


class ComRoPE(LieRotary):
    """The generators of the axes commute, so that scores know the difference of two positions alone.

        score[h,i,j] = s·⟨R_h(pᵢ)·qᵢ, R_h(pⱼ)·kⱼ⟩ = s·⟨qᵢ, R_h(pⱼ − pᵢ)·kⱼ⟩,   R_h(p) = exp(Σ_a p_a·A_a,h)
        block β of A_a,h = θ[a,β]·(P_hβ − P_hβᵀ)                        variant "linearly-dependent" (ComRoPE-LD)
                         = P_hβ − P_hβᵀ where β mod axes = a, else 0    variant "axial-partition" (ComRoPE-AP)

    Shapes: x [batch, heads, n, head_dim] → the same; positions [batch, n, axes]; upper [num_kv_heads, blocks, entries],
    P − Pᵀ above the diagonal, row by row; theta [axes, blocks], shared by the heads, N(0, 1) at first as are all
    numbers of P. Each layer has an encoding of its own. Positions of the authors' images are (p + ½)/grid.
    Raises HeadwayError for a block_size that does not divide head_dim, blocks that the axes do not share out evenly,
    heads that do not fit, an unknown variant.
    Cite: Yu et al. 2025, ComRoPE-AP and ComRoPE-LD; the first values are those of the released code.
    """

    name = "comrope"
    citation = "yu2025comrope"
    year = 2025
    evidence = "authors"

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        axes: int = 2,
        block_size: int = 2,
        num_kv_heads: int | None = None,
        variant: str = "linearly-dependent",
    ) -> None:
        super().__init__(head_dim, block_size, axes, num_heads, num_kv_heads)
        if variant not in VARIANTS:
            raise HeadwayError(f"variant is {variant!r}: give {' or '.join(map(repr, VARIANTS))}")
        if variant == "axial-partition" and self.blocks % axes:
            raise HeadwayError(
                f"there are {self.blocks} blocks for {axes} axes: give a block_size that shares them out"
            )
        self.variant = variant
        # the difference of two numbers of N(0, 1)
        self.upper = nn.Parameter(2**0.5 * torch.randn(num_kv_heads or num_heads, self.blocks, self.entries))
        learned = variant == "linearly-dependent"
        self.theta = nn.Parameter(torch.randn(axes, self.blocks)) if learned else None

    def generators(self) -> Tensor:
        """A above the diagonal [axes, num_kv_heads, blocks, entries], in float64."""
        axes, blocks = self.axes or 1, self.blocks
        if self.theta is None:
            theta = torch.eye(axes, dtype=torch.float64, device=self.upper.device).repeat(1, blocks // axes)
        else:
            theta = self.theta.double()
        return theta[:, None, :, None] * self.upper.double()

    def oracle_generator(self, pair: Pair, axis: int, block: int) -> Tensor:
        h = pair.h * self.upper.shape[0] // self.num_heads
        size, axes = self.block_size, pair.coordinates.position.shape[-1]
        A = torch.zeros(size, size, dtype=torch.float64)
        entries = iter(self.upper[h, block].tolist())
        for i in range(size):
            for j in range(i + 1, size):
                A[i, j] = next(entries)
                A[j, i] = -A[i, j]
        if self.theta is None:
            return A if block % axes == axis else torch.zeros_like(A)
        return self.theta[axis, block].item() * A

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(4, 8), cls(6, 8, block_size=4, num_kv_heads=2, variant="axial-partition")]
