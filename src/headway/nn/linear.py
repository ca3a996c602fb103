"""Linear maps by the faster of two matrix products, in inference and in training."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from .._torch import calls_forward_alone, onednn_linear
from ..kernels._autograd import ORDINARY, eager_apply
from ..kernels._products import NO_PRODUCT, compiled, followed, ordinary, products_for, times


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Returns ``F.linear(x, weight, bias)``, y = x·Wᵀ + b, by the faster matrix products.

    Args:
        x: [..., in_features].
        weight: W [out_features, in_features].
        bias: b [out_features]; none if None.
    """
    y = _by_onednn(x, weight, bias)
    return F.linear(x, weight, bias) if y is None else y


TORCHS_OWN = frozenset({nn.Linear, NonDynamicallyQuantizableLinear})
_FORWARD = nn.Linear.forward


def apply_linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """Returns ``layer(x)``, by the faster matrix products if the layer is torch's own and its call does nothing else.

    Models therefore keep torch's own class of layers, which tools that quantize, adapt or count layers look for. If
    such a tool replaces a layer or adds a hook, the layer itself is called.

    Args:
        layer: an ``nn.Linear``, or a module that replaces one.
        x: [..., in_features].
    """
    if (
        not compiled()
        and type(layer) in TORCHS_OWN
        and type(x) in ORDINARY
        and calls_forward_alone(layer)
        and nn.Linear.forward is _FORWARD
    ):
        own: Any = layer._parameters  # looking up two attributes of a module takes half the time of a small product
        if "weight" in own and "bias" in own:
            short = products_for(x.numel(), layer.out_features, layer.in_features) is NO_PRODUCT
            return (F.linear if short else linear)(x, own["weight"], own["bias"])
    out: Tensor = layer(x)
    return out


def reset_projections(*layers: nn.Linear) -> None:
    """Resets linear maps to uniform values of variance 2/(in + out) (Glorot and Bengio 2010), and biases to 0.

    Args:
        *layers: the maps, in the order in which numbers are drawn.
    """
    for layer in layers:
        nn.init.xavier_uniform_(layer.weight)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


class Linear(nn.Linear):
    """``nn.Linear`` by the faster matrix products; ``headway.integrations.torch.swap_attention`` makes it from one."""

    def forward(self, input: Tensor) -> Tensor:
        """Returns y [..., out_features] for input [..., in_features]."""
        return linear(input, self.weight, self.bias)


# ---------------------------------------------------------------- the products


def _by_onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor | None:
    """Returns y if oneDNN computes it, or a gradient of it; else None."""
    if compiled() or type(x) not in ORDINARY or type(weight) not in ORDINARY:
        return None
    if weight.ndim != 2 or x.shape[-1:] != weight.shape[1:] or (bias is not None and bias.shape != weight.shape[:1]):
        return None
    takes = products_for(x.numel(), *weight.shape)
    if takes is NO_PRODUCT:
        return None
    wants_x, wants_weight, wants_bias = (
        torch.is_grad_enabled() and one is not None and one.requires_grad for one in (x, weight, bias)
    )
    if not (takes.forward or (takes.d_input and wants_x) or (takes.d_weight and wants_weight)):
        return None
    if not ordinary(x, weight, bias) or not x.is_contiguous() or not weight.is_contiguous() or followed():
        return None
    if wants_x or wants_weight or wants_bias:
        return eager_apply(_Linear)(x, weight, bias)  # type: ignore[return-value]
    return onednn_linear(x, weight, bias)


class _Linear(torch.autograd.Function):
    """A linear map that computes each product by the faster library. It saves the same tensors as ``F.linear``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        wants_x, wants_weight, _ = ctx.needs_input_grad
        ctx.save_for_backward(x if wants_weight else None, weight if wants_x else None)
        ctx.shapes = x.shape, weight.shape
        takes = products_for(x.numel(), *weight.shape)
        return onednn_linear(x, weight, bias) if takes.forward else F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        x_shape, (out_features, in_features) = ctx.shapes
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad
        rows, d_input, d_weight = grad.reshape(-1, out_features), None, None
        takes = products_for(x_shape.numel(), out_features, in_features)
        # a call that is differentiated again, batched or traced is left to torch
        ours = any(takes) and not torch.is_grad_enabled() and ordinary(grad, x, weight) and not followed()
        if wants_x:
            d_input = times(rows, weight.t(), ours and takes.d_input).reshape(x_shape)
        if wants_weight:
            d_weight = times(rows.t(), x.reshape(-1, in_features).t(), ours and takes.d_weight)
        return d_input, d_weight, rows.sum(0) if wants_bias else None
