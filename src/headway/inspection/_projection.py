"""The output projection of an attention layer, and the lengths of projected values."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..kernels import Call
from ..nn.linear import Linear
from ..nn.prepacked import PrepackedLinear
from ..terms import RelativeValues
from ._record import AttentionRecord


class Awaited(NamedTuple):
    """An attention call whose heads' outputs may be projected next."""

    record: AttentionRecord
    call: Call
    outputs: Tensor
    """The heads' outputs side by side, [batch, n, heads·v_dim]."""

    def are_in(self, x: Any) -> bool:
        """Whether the input of a linear map is the heads' outputs, unchanged."""
        width = self.outputs.shape[-1]
        if not isinstance(x, Tensor) or x.shape[-1:] != (width,) or x.numel() != self.outputs.numel():
            return False
        tokens_first = x.ndim == 3 and x.shape[:2] != self.outputs.shape[:2]
        given = x.transpose(0, 1) if tokens_first else x
        return torch.equal(given.reshape(-1, width).nan_to_num(), self.outputs.reshape(-1, width).nan_to_num())


def weight_of(module: nn.Module) -> Tensor | None:
    """The weight [out, in] of a module that computes only x·Wᵀ + b; None for other modules, or on the meta device."""
    kind = type(module)
    computes = (nn.Linear.forward, Linear.forward)
    if isinstance(module, PrepackedLinear) or (isinstance(module, nn.Linear) and kind.forward in computes):
        weight = module.weight
    elif kind.__name__ == "Conv1D" and kind.__module__.startswith("transformers."):
        weight = module.weight.T  # type: ignore[assignment]
    else:
        return None
    return weight if weight.is_floating_point() and not weight.is_meta else None


def why_no_norms(call: Call) -> str:
    """Why the output of a head is not a sum of A[h,i,j]·vⱼ, so that a value has no single length; "" if it is."""
    if any(isinstance(term, RelativeValues) for term in call.terms):
        return "its encoding adds vectors to the values by distance"
    if call.v_rotation is not None or call.out_rotation is not None or call.restore is not None:
        return "its encoding transforms the values by position"
    return ""


@torch.no_grad()
def value_norms(v: Tensor, weight: Tensor, heads: int) -> Tensor:
    """‖vⱼ·W_O^h‖ of each key and query head, [batch, heads, m], in float64 for float64 and else in float32.

    v is [batch, kv_heads, m, v_dim], the weight of the output projection [width, heads·v_dim]. The norm is ‖R·vⱼ‖ with
    the QR decomposition W_O^hᵀ = Q·R, which needs no vector of the model's width for each key.
    """
    wide = torch.float64 if v.dtype == torch.float64 else torch.float32
    by_head = weight.detach().double().unflatten(1, (heads, v.shape[-1])).transpose(0, 1)  # [heads, width, v_dim]
    triangle = torch.linalg.qr(by_head, mode="r").R.to(wide)
    norms = [(v[:, head * v.shape[1] // heads].to(wide) @ triangle[head].T).norm(dim=-1) for head in range(heads)]
    return torch.stack(norms, dim=1)
