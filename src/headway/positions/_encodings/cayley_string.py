"""Cayley-STRING: rotary positions on any number of axes in a learned basis."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from ...coordinates import Coordinates
from ...errors import need_positive
from ...terms import rotate
from .._base import Pair, PositionEncoding
from .._formulas import need_base, need_width
from .._lie import for_heads, skew
from .._rotary import AxesRotary


class CayleySTRING(AxesRotary):
    """Transforms queries and keys to a learned orthogonal basis and rotates pairs in it.

        score[h,i,j] = s·⟨R_h(pᵢ)·P_h·qᵢ, R_h(pⱼ)·P_h·kⱼ⟩,   P = (I − S)·(I + S)⁻¹,   S = −Sᵀ
        R_h(p) rotates the pair c by Σ_a p_a·f[a,h,c]

    Each layer learns f and S, and queries that share a key head share them. In another basis this is every rotation by
    commuting generators, so that scores depend on relative positions only. As P Pᵀ = I, it changes nothing where
    queries and keys are not rotated. The paper gives no initial values. Here f[a,h,c] is base^(−2c/head_dim) on every
    axis, as in RoPE, so that scores initially depend on the sum of the axes, and S is 0.

    Args:
        num_heads: the number of query heads, at least 1.
        head_dim: the width of each head, even.
        axes: the number of axes of the positions, at least 1.
        num_kv_heads: the number of key and value heads, a divisor of num_heads; num_heads if None.
        base: the base of the frequencies, above 1.
        layout: which dimensions form the pair c: (2c, 2c+1) for "interleaved", (c, c + head_dim/2) for "half".

    Attributes:
        f: [axes, num_kv_heads, head_dim/2].
        upper: [num_kv_heads, head_dim·(head_dim − 1)/2], S above its diagonal, by rows.

    Shape:
        x: [batch, heads, n, head_dim]
        positions: [batch, n, axes]
        Output: [batch, heads, n, head_dim]

    Raises:
        HeadwayError: if head_dim is odd, base is 1 or less, or the numbers of heads do not fit.

    References:
        Schenck et al. 2025, section 3.2, equations 5, 9 and 10.
    """

    name = "cayley-string"
    citation = "schenck2025learning"
    year = 2025
    evidence = "independent"
    axes = 2

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        axes: int = 2,
        num_kv_heads: int | None = None,
        base: float = 10000.0,
        layout: str = "interleaved",
    ) -> None:
        super().__init__(num_heads, head_dim, num_kv_heads, layout)
        need_positive(axes=axes)
        need_base(base)
        self.axes, self.base = axes, base
        heads = num_kv_heads or num_heads
        frequencies = base ** (-2 / head_dim * torch.arange(self.pairs))
        self.f = nn.Parameter(frequencies.repeat(axes, heads, 1))
        self.upper = nn.Parameter(torch.zeros(heads, head_dim * (head_dim - 1) // 2))

    def waves(self, coordinates: Coordinates) -> tuple[Tensor, ...]:
        """Returns cos φ, sin φ [b, num_kv_heads, n, pairs] and Pᵀ [1, num_kv_heads, head_dim, head_dim] in float64."""
        S = skew(self.upper.double(), self.head_dim)[None]
        identity = torch.eye(self.head_dim, dtype=S.dtype, device=S.device)
        # Pᵀ = (I + Sᵀ)⁻¹·(I − Sᵀ), and both factors commute
        return *super().waves(coordinates), torch.linalg.solve(identity - S, identity + S)

    def prepare(self, x: Tensor, coordinates: Coordinates) -> Tensor:
        """Returns x [batch, num_heads or num_kv_heads, n, head_dim] in the new basis, in float64, and rotated."""
        need_width(x, "head_dim", self.head_dim)
        cos, sin, basis = for_heads(x, self.num_heads, *self.for_one_forward(coordinates).learned)
        return rotate(x.double() @ basis, cos, sin, self.layout).to(x.dtype)

    def oracle(self, pair: Pair) -> float:
        d, h = self.head_dim, pair.h * self.f.shape[1] // self.num_heads
        S = torch.zeros(d, d, dtype=torch.float64)
        entries = iter(self.upper[h].tolist())
        for i in range(d):
            for j in range(i + 1, d):
                S[i, j] = next(entries)
                S[j, i] = -S[i, j]
        identity = torch.eye(d, dtype=torch.float64)
        P = (identity - S) @ torch.linalg.inv(identity + S)
        return super().oracle(replace(pair, queries=pair.queries @ P.T, keys=pair.keys @ P.T))

    @classmethod
    def examples(cls) -> list[PositionEncoding]:
        return [cls(4, 8), cls(6, 8, axes=3, num_kv_heads=2, base=50.0, layout="half")]
