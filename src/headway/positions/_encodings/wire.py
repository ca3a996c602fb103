"""Rotary positions of the nodes of a graph."""

from __future__ import annotations

import torch
from torch import nn

from ...errors import HeadwayError, need_finite, need_positive
from .._base import PositionEncoding
from .._rotary import AxesRotary


class WIRE(AxesRotary):
    """Rotates each pair by learned frequencies times the coordinates of a node in the spectrum of its graph (WIRE).

        score[h,i,j] = s·⟨R_h(pᵢ)·qᵢ, R_h(pⱼ)·kⱼ⟩,   φ_{h,c}(p) = Σ_a p_a·f[a,h,c]

    The coordinates are those of ``graph_positions``: eigenvectors of the graph's Laplacian. Scores depend on their
    differences, so the numbering of the nodes has no effect. Queries that share a key head share its frequencies. The
    initial frequencies are headway's choice, since no code of the authors is public.

    Args:
        num_heads: the number of query heads, at least 1.
        head_dim: the width of each head, even.
        axes: the number of coordinates of a node, at least 1.
        num_kv_heads: the number of key and value heads, a divisor of num_heads; num_heads if None.
        gain: the standard deviation of the initial frequencies, above 0.
        layout: which dimensions form the pair c: (2c, 2c+1) for "interleaved", (c, c + head_dim/2) for "half".

    Attributes:
        f: [axes, num_kv_heads, head_dim/2], initially N(0, gain²).

    Shape:
        x: [batch, heads, n, head_dim]
        positions: [batch, n, axes]
        Output: [batch, heads, n, head_dim]

    Raises:
        HeadwayError: if head_dim is odd, a size is below 1, gain is not finite and above 0, or the numbers of heads do
            not fit.

    References:
        Reid et al. 2025.
    """

    name = "wire"
    citation = "reid2025wavelet"
    year = 2025
    evidence = "formula"

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        axes: int = 8,
        num_kv_heads: int | None = None,
        gain: float = 1.0,
        layout: str = "interleaved",
    ) -> None:
        super().__init__(num_heads, head_dim, num_kv_heads, layout)
        need_positive(axes=axes)
        need_finite(gain=gain)
        if gain <= 0:
            raise HeadwayError(f"gain is {gain}: no pair would rotate, give a number above 0")
        self.axes, self.gain = axes, gain
        self.f = nn.Parameter(gain * torch.randn(axes, num_kv_heads or num_heads, self.pairs))

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(4, 8), cls(6, 8, axes=3, num_kv_heads=2, layout="half")]
