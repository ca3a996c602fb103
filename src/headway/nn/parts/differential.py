"""Differential attention: the difference of two attention maps of each head."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ...errors import HeadwayError
from ._base import FirstValues, LayerSizes, Part


class DifferentialAttention(Part):
    """Subtracts the second attention map of each pair of heads from the first; the pair shares one value.

        out[p,i] = (1 − λ_init)·norm( Σⱼ (A[2p,i,j] − λ·A[2p+1,i,j])·vⱼ[p] ),   vⱼ[p] of width 2·head_dim
        λ = exp⟨λ_q1, λ_k1⟩ − exp⟨λ_q2, λ_k2⟩ + λ_init,   λ_init = 0.8 − 0.6·exp(−0.3·layer)

    norm is an RMSNorm of each pair. The projections of the layer keep their sizes: two heads of values of width
    head_dim are one of width 2·head_dim.

    Args:
        num_heads: the number of heads, even: twice the number of pairs.
        num_kv_heads: the number of key heads, even.
        head_dim: the width of each head.
        layer: the number of the layer in its stack, from 0, which decides λ_init.
        device: the device of the parameters.
        dtype: the dtype of the parameters.

    Raises:
        HeadwayError: if a number of heads is odd.

    References:
        Ye et al. 2024, arXiv:2410.05258, equations 1 to 3.
    """

    def __init__(
        self,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        layer: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        for name, heads in (("num_heads", num_heads), ("num_kv_heads", num_kv_heads)):
            if heads % 2:
                raise HeadwayError(f"{name} is {heads}: differential attention needs pairs, give an even number")
        super().__init__()
        self.lambda_init = 0.8 - 0.6 * math.exp(-0.3 * layer)
        self.lambda_q1, self.lambda_k1, self.lambda_q2, self.lambda_k2 = (
            nn.Parameter(torch.empty(head_dim, device=device, dtype=dtype)) for _ in range(4)
        )
        self.norm = nn.RMSNorm(2 * head_dim, eps=1e-5, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Resets the vectors of λ to values from N(0, 0.1²), and the norm to 1."""
        for vector in (self.lambda_q1, self.lambda_k1, self.lambda_q2, self.lambda_k2):
            nn.init.normal_(vector, std=0.1)
        self.norm.reset_parameters()

    def output_sizes(self, sizes: LayerSizes) -> LayerSizes:
        return sizes._replace(num_heads=sizes.num_heads // 2, head_dim=2 * sizes.head_dim)

    def values(self, v: Tensor, first: FirstValues | None) -> Tensor:
        return v.unflatten(1, (-1, 2)).transpose(2, 3).flatten(3)

    def attended(self, v: Tensor) -> Tensor:
        return v.repeat_interleave(2, dim=1)

    def output(self, out: Tensor, x: Tensor, v: Tensor | None) -> Tensor:
        difference = out[:, 0::2] - self.factor().to(out.dtype) * out[:, 1::2]
        normed: Tensor = self.norm(difference)
        return (1 - self.lambda_init) * normed

    def factor(self) -> Tensor:
        """Returns λ, in float32 or wider."""
        wide = torch.promote_types(self.lambda_q1.dtype, torch.float32)
        first, second = (
            (q.to(wide) * k.to(wide)).sum().exp()
            for q, k in ((self.lambda_q1, self.lambda_k1), (self.lambda_q2, self.lambda_k2))
        )
        return first - second + self.lambda_init
