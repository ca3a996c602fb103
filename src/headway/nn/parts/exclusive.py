"""Exclusive self-attention: the output without its part along the token's own value."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import HeadwayError, need_positive
from ._base import Part


class ExclusiveSelfAttention(Part):
    """Removes from the output of each token its component along the token's own value.

        y[h,i] = out[h,i] − tanh(α_h)·⟨out[h,i], v̂ᵢ⟩·v̂ᵢ,   v̂ᵢ = vᵢ/‖vᵢ‖

    Args:
        num_heads: the number of heads of the output.
        alpha: the initial value of each learned α_h; None for the factor 1, without parameters, as in the paper.
        device: the device of the parameters.
        dtype: the dtype of the parameters.

    Raises:
        HeadwayError: if num_heads is below 1. A call of cross-attention, or with a memory, raises it too.

    References:
        2026, arXiv:2603.09078.
    """

    alpha: nn.Parameter | None

    def __init__(
        self,
        num_heads: int,
        alpha: float | None = None,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        need_positive(num_heads=num_heads)
        super().__init__()
        self._first_alpha = alpha
        learned = None if alpha is None else nn.Parameter(torch.empty(num_heads, device=device, dtype=dtype))
        self.register_parameter("alpha", learned)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Resets α to its initial value, if it is learned."""
        if self.alpha is not None and self._first_alpha is not None:
            nn.init.constant_(self.alpha, self._first_alpha)

    def output(self, out: Tensor, x: Tensor, v: Tensor | None) -> Tensor:
        """Removes the component along each token's own value; see ``Part.output`` for ``out``, ``x`` and ``v``.

        Raises:
            HeadwayError: if v is None.
        """
        if v is None:
            raise HeadwayError(
                "ExclusiveSelfAttention needs the values of the queries' own tokens: leave out key, value and memory"
            )
        # in float32 or wider: in float16 the square of a norm would underflow or overflow
        own = F.normalize(v.to(torch.promote_types(v.dtype, torch.float32)), dim=-1)
        own = own.repeat_interleave(out.shape[1] // v.shape[1], dim=1)
        along = (out * own).sum(-1, keepdim=True)
        if self.alpha is not None:
            along = torch.tanh(self.alpha)[:, None, None] * along
        return (out - along * own).to(out.dtype)
