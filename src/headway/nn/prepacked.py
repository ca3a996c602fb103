"""Inference on a CPU: weights prepacked once in the layout of oneDNN, and fewer passes over memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from .._torch import onednn_linear, onednn_weight
from ..errors import HeadwayError
from ..kernels.cpu import _tokens
from ..positions._base import PositionEncoding
from ..tracing import forward_mode, refuse_script, to_onnx
from .embedding import Head
from .linear import Linear

M = TypeVar("M", bound=nn.Module)

DTYPES = (torch.float32, torch.bfloat16)
TOKENS = 4096
"""The layout is chosen for about this many tokens in a call; it works for any number."""


class PrepackedLinear(nn.Module):
    """Applies a linear map y = x·Wᵀ + b whose weight has the layout of oneDNN, without gradients.

    Args:
        weight: W [out_features, in_features].
        bias: b [out_features], or None.

    Shape:
        x: [..., in_features]
        Output: [..., out_features], in the dtype of the weight
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self._prepacked = onednn_weight(weight.detach(), TOKENS)
        self._bias = None if bias is None else bias.detach()

    __prepare_scriptable__ = refuse_script

    @property
    def weight(self) -> Tensor:
        """The weight as an ordinary matrix, W [out_features, in_features]."""
        dense: Tensor = self._prepacked.to_dense()
        return dense

    @property
    def bias(self) -> Tensor | None:
        """The bias, b [out_features], or None."""
        return self._bias

    def forward(self, x: Tensor) -> Tensor:
        """Returns y [..., out_features] for x [..., in_features].

        Raises:
            HeadwayError: if x requires a gradient, or torch.jit.trace or torch.onnx.export records the call.
        """
        if to_onnx():
            raise HeadwayError("ONNX cannot keep prepacked weights: call headway.nn.unprepack(model) first")
        if torch.jit.is_tracing():
            raise HeadwayError("torch.jit.trace cannot keep prepacked weights: call headway.nn.unprepack(model) first")
        if (torch.is_grad_enabled() and x.requires_grad) or forward_mode():
            raise HeadwayError(
                "x requires a gradient, which prepacked weights do not have: call under torch.inference_mode(), or "
                "call headway.nn.unprepack(model) first"
            )
        return onednn_linear(x, self._prepacked, self._bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self._bias is not None}"

    def __reduce__(self) -> tuple[Any, ...]:
        # the ordinary matrix, since the layout is that of this processor
        return PrepackedLinear, (self.weight, self._bias)


class PrepackedRMSNorm(nn.RMSNorm):
    """Applies torch's RMSNorm, in one pass over memory where the library of the CPU kernel supports the input."""

    def forward(self, x: Tensor) -> Tensor:
        """Returns the normalized x [..., width]."""
        normed = _tokens.rms_norm(x, self.weight, self.eps) if len(self.normalized_shape) == 1 else None
        return super().forward(x) if normed is None else normed


def prepack(model: M) -> M:
    """Prepacks the weights of all linear layers of a model for inference on a CPU, in place.

    They are stored in the layout that oneDNN reads fastest. On an AMD EPYC (Zen 4) a linear layer is 1.1 times as fast
    for many tokens in float32, and 1.4 to 2 times for one to eight. RMS norms take one pass over memory if the library
    of the CPU kernel is built, and round once.

    A prepacked model has no gradients, and its state_dict lacks the prepacked weights, until ``unprepack`` restores
    them. A ``Head`` that is tied to the embeddings gets a prepacked copy of its own. Weights in other dtypes than
    float32 and bfloat16, and those of position encodings, stay as they are.

    Args:
        model: a model whose parameters are on the CPU.

    Returns:
        The same model.

    Raises:
        HeadwayError: if model is not a module, torch is built without oneDNN, or a parameter is sharded or not on the
            CPU.

    Example:
        model = headway.nn.prepack(headway.load(path))
    """
    if not isinstance(model, nn.Module):
        raise HeadwayError(f"model is {model!r:.60}: give a model, such as headway.load(path)")
    if not torch.backends.mkldnn.is_available():
        raise HeadwayError("this torch is built without oneDNN, which prepacks weights: leave the model as it is")
    elsewhere = next((name for name, held in model.named_parameters() if held.device.type != "cpu"), None)
    if elsewhere is not None:
        raise HeadwayError(f"{elsewhere} is not on the CPU: move the model there, or leave it as it is")
    sharded = next((name for name, held in model.named_parameters() if hasattr(held, "full_tensor")), None)
    if sharded is not None:
        raise HeadwayError(f"{sharded} is sharded over processes: prepack models that one process has as a whole")
    read = {id(part) for one in model.modules() if isinstance(one, PositionEncoding) for part in one.modules()}
    for owner in list(model.modules()):
        head, embedding = getattr(owner, "head", None), getattr(owner, "embedding", None)
        if isinstance(head, Head) and head.prepacked is None:
            weight = head.weight if head.weight is not None else getattr(embedding, "weight", None)
            if isinstance(weight, Tensor) and weight.dtype in DTYPES:
                head.prepacked = PrepackedLinear(weight, head.bias)
    _replace(
        model,
        lambda one: type(one) in (nn.Linear, Linear) and one.weight.dtype in DTYPES and id(one) not in read,
        lambda one: PrepackedLinear(one.weight, one.bias),
    )
    for one in model.modules():
        if type(one) is nn.RMSNorm:
            one.__class__ = PrepackedRMSNorm
    return model


def unprepack(model: M) -> M:
    """Restores the linear layers and norms of a prepacked model in place, so that it can be trained and saved.

    Args:
        model: a model. Layers that are not prepacked do not change.

    Returns:
        The same model.
    """
    for one in model.modules():
        if isinstance(one, Head):
            one.prepacked = None
        elif isinstance(one, PrepackedRMSNorm):
            one.__class__ = nn.RMSNorm  # type: ignore[assignment]
    _replace(model, lambda one: isinstance(one, PrepackedLinear), _dense)
    return model


def is_prepacked(model: nn.Module) -> bool:
    """Whether a linear layer of the model is prepacked."""
    return any(isinstance(one, PrepackedLinear) for one in model.modules())


def _dense(prepacked: Any) -> nn.Linear:
    with torch.device("meta"):
        linear = nn.Linear(prepacked.in_features, prepacked.out_features, bias=prepacked.bias is not None)
    linear.weight = nn.Parameter(prepacked.weight)
    linear.bias = None if prepacked.bias is None else nn.Parameter(prepacked.bias)  # type: ignore[assignment]
    return linear.train(prepacked.training)


def _replace(model: nn.Module, wanted: Callable[[Any], bool], other: Callable[[Any], nn.Module]) -> None:
    """Replaces each module that ``wanted`` selects; a module that occurs several times is replaced by one."""
    made: dict[int, nn.Module] = {}
    for holder in list(model.modules()):
        for name, child in list(holder._modules.items()):
            if child is not None and wanted(child):
                made[id(child)] = made.get(id(child)) or other(child)
                setattr(holder, name, made[id(child)])
