"""Gates of the output of attention, computed from the layer's input."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...errors import need_positive
from ..linear import apply_linear
from ._base import Part


class HeadGate(Part):
    """Multiplies the output of each head by a gate that is computed from the layer's input.

        y[h,i] = σ(⟨w_h, xᵢ⟩)·out[h,i]

    Args:
        embed_dim: the width of the layer's input.
        num_heads: the number of heads of the output.
        device: the device of the parameters.
        dtype: the dtype of the parameters.

    Raises:
        HeadwayError: if a size is below 1.

    References:
        Qiu et al. 2025, arXiv:2505.06708, position G1, by head.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        need_positive(embed_dim=embed_dim, num_heads=num_heads)
        super().__init__()
        self.gate_proj = nn.Linear(embed_dim, num_heads, bias=False, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Resets the projection to uniform values of variance 2/(in + out) (Glorot and Bengio 2010)."""
        nn.init.xavier_uniform_(self.gate_proj.weight)

    def output(self, out: Tensor, x: Tensor, v: Tensor | None) -> Tensor:
        gates = apply_linear(self.gate_proj, x).unflatten(-1, (out.shape[1], -1)).transpose(1, 2)
        return out * torch.sigmoid(gates)


class ElementGate(HeadGate):
    """Multiplies each element of the output by a gate that is computed from the layer's input.

        y[h,i] = σ(W_h·xᵢ) ⊙ out[h,i]

    Args:
        embed_dim: the width of the layer's input.
        num_heads: the number of heads of the output.
        head_dim: the width of each head of the output.
        device: the device of the parameters.
        dtype: the dtype of the parameters.

    Raises:
        HeadwayError: if a size is below 1.

    References:
        Qiu et al. 2025, arXiv:2505.06708, position G1, element-wise; Qwen3-Next.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        head_dim: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        need_positive(num_heads=num_heads, head_dim=head_dim)
        super().__init__(embed_dim, num_heads * head_dim, device=device, dtype=dtype)
