"""Inference on a processor: weights laid out once as oneDNN reads them fastest, and few passes over memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from .._torch import onednn_linear, onednn_weight
from ..errors import HeadwayError
from ..kernels.cpu import _tokens
from ..positions._base import PositionEncoding
from ..tracing import forward_mode, refuse_script
from .embedding import Head

M = TypeVar("M", bound=nn.Module)

DTYPES = (torch.float32, torch.bfloat16)
TOKENS = 4096
"""For about as many tokens in a call the layout is chosen; it serves any number."""


class PackedLinear(nn.Module):
    """A linear map whose weight has oneDNN's own layout: y = x·Wᵀ + b, without gradients.

    Shapes: x [..., in_features] → [..., out_features], in the dtype of the weight. ``weight`` is the matrix as it was.
    Raises HeadwayError where x wants a gradient.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self._packed = onednn_weight(weight.detach(), TOKENS)
        self._bias = None if bias is None else bias.detach()

    __prepare_scriptable__ = refuse_script

    @property
    def weight(self) -> Tensor:
        """W [out_features, in_features]"""
        dense: Tensor = self._packed.to_dense()
        return dense

    @property
    def bias(self) -> Tensor | None:
        """b [out_features]"""
        return self._bias

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in_features] → [..., out_features]"""
        if torch.jit.is_tracing():
            raise HeadwayError("torch.jit.trace cannot keep packed weights: headway.nn.unpack(model) first")
        if (torch.is_grad_enabled() and x.requires_grad) or forward_mode():
            raise HeadwayError(
                "x wants a gradient, which packed weights have not: call under torch.inference_mode(), or unpack"
            )
        return onednn_linear(x, self._packed, self._bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self._bias is not None}"

    def __reduce__(self) -> tuple[Any, ...]:
        # the matrix: the layout belongs to this processor
        return PackedLinear, (self.weight, self._bias)


class PackedRMSNorm(nn.RMSNorm):
    """torch's RMSNorm, in one pass where the CPU kernel's library can take it."""

    def forward(self, x: Tensor) -> Tensor:
        """x [..., width] → the same"""
        normed = _tokens.rms_norm(x, self.weight, self.eps) if len(self.normalized_shape) == 1 else None
        return super().forward(x) if normed is None else normed


def pack(model: M) -> M:
    """Packs the weights of every linear layer of a model for inference on a CPU, in place, and returns it.

        model = headway.nn.pack(headway.load(path))

    RMS norms take one pass over memory in the CPU kernel's library, where it is there, and are rounded once.
    On an AMD EPYC (Zen 4) a map is 1.1 times as fast for many tokens in float32, 1.4 to 2 times for one to eight. A
    ``Head`` that is tied to the embeddings gets a packed copy of its own. The model has no gradients any more and its
    state_dict lacks what is packed, until ``unpack``. Weights of other dtypes than float32 and bfloat16, and those of
    position encodings, which are read by term, stay as they are.
    Raises HeadwayError where torch has no oneDNN, and for a model that is not on the CPU.
    """
    if not torch.backends.mkldnn.is_available():
        raise HeadwayError("this torch is built without oneDNN, which packs weights: leave the model as it is")
    elsewhere = next((name for name, held in model.named_parameters() if held.device.type != "cpu"), None)
    if elsewhere is not None:
        raise HeadwayError(f"{elsewhere} is not on the CPU: move the model there, or leave it as it is")
    read = {id(part) for one in model.modules() if isinstance(one, PositionEncoding) for part in one.modules()}
    for owner in list(model.modules()):
        head, embedding = getattr(owner, "head", None), getattr(owner, "embedding", None)
        if isinstance(head, Head) and head.packed is None:
            weight = head.weight if head.weight is not None else getattr(embedding, "weight", None)
            if isinstance(weight, Tensor) and weight.dtype in DTYPES:
                head.packed = PackedLinear(weight, head.bias)
    _replace(
        model,
        lambda one: type(one) is nn.Linear and one.weight.dtype in DTYPES and id(one) not in read,
        lambda one: PackedLinear(one.weight, one.bias),
    )
    for one in model.modules():
        if type(one) is nn.RMSNorm:
            one.__class__ = PackedRMSNorm
    return model


def unpack(model: M) -> M:
    """Puts the linear layers back, in place, so that the model can be trained and saved again; returns it."""
    for one in model.modules():
        if isinstance(one, Head):
            one.packed = None
        elif isinstance(one, PackedRMSNorm):
            one.__class__ = nn.RMSNorm  # type: ignore[assignment]
    _replace(model, lambda one: isinstance(one, PackedLinear), _dense)
    return model


def is_packed(model: nn.Module) -> bool:
    """Whether a part of the model is packed."""
    return any(isinstance(one, PackedLinear) for one in model.modules())


def _dense(packed: Any) -> nn.Linear:
    with torch.device("meta"):
        linear = nn.Linear(packed.in_features, packed.out_features, bias=packed.bias is not None)
    linear.weight = nn.Parameter(packed.weight)
    linear.bias = None if packed.bias is None else nn.Parameter(packed.bias)  # type: ignore[assignment]
    return linear.train(packed.training)


def _replace(model: nn.Module, wanted: Callable[[Any], bool], other: Callable[[Any], nn.Module]) -> None:
    """Another module in the place of each that is wanted; one that stands in several places stays one."""
    made: dict[int, nn.Module] = {}
    for holder in list(model.modules()):
        for name, child in list(holder._modules.items()):
            if child is not None and wanted(child):
                made[id(child)] = made.get(id(child)) or other(child)
                setattr(holder, name, made[id(child)])
