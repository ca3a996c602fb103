"""ComRoPE: rotations by the exponential of learned matrices that commute."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...errors import HeadwayError
from .._base import Pair, PositionEncoding
from .._lie import LieRotary

VARIANTS = ("linearly-dependent", "axial-partition")


class ComRoPE(LieRotary):
    """Rotates by the exponential of commuting learned generators, so that scores depend on relative positions only.

        score[h,i,j] = s·⟨R_h(pᵢ)·qᵢ, R_h(pⱼ)·kⱼ⟩ = s·⟨qᵢ, R_h(pⱼ − pᵢ)·kⱼ⟩,   R_h(p) = exp(Σ_a p_a·A_a,h)
        block β of A_a,h = θ[a,β]·(P_hβ − P_hβᵀ)                        variant "linearly-dependent" (ComRoPE-LD)
                         = P_hβ − P_hβᵀ where β mod axes = a, else 0    variant "axial-partition" (ComRoPE-AP)

    Each layer has an encoding of its own. Positions of the authors' images are (p + ½)/grid.

    Args:
        num_heads: the number of query heads, at least 1.
        head_dim: the width of each head, at least 1.
        axes: the number of axes of the positions, at least 1.
        block_size: the number of dimensions that are rotated together, at least 2, a divisor of head_dim; for
            "axial-partition" the number of blocks must be a multiple of axes.
        num_kv_heads: the number of key and value heads, a divisor of num_heads; num_heads if None.
        variant: "linearly-dependent" or "axial-partition", as above.

    Attributes:
        upper: [num_kv_heads, blocks, entries], the entries of P − Pᵀ above the diagonal, by rows; P is initially N(0,
            1).
        theta: θ [axes, blocks], shared by the heads, initially N(0, 1); None for "axial-partition".

    Shape:
        x: [batch, heads, n, head_dim]
        positions: [batch, n, axes]
        Output: [batch, heads, n, head_dim]

    Raises:
        HeadwayError: if block_size does not divide head_dim, the axes do not divide the blocks evenly, the numbers of
            heads do not fit, or variant is unknown.

    References:
        Yu et al. 2025, ComRoPE-AP and ComRoPE-LD; the initial values are those of the released code.
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
        """Returns the entries of A above the diagonal, [axes, num_kv_heads, blocks, entries] in float64."""
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
