"""Linear maps by the faster of two matrix products, in inference and in training.

torch multiplies float32 matrices by MKL, which does not use AVX-512 on processors of AMD. oneDNN does, and it reads
weights in place, without a lasting copy. A table says where oneDNN was measured to be faster: the table of ``headway
tune`` or one that comes with headway (``tuning/shipped``). Everything else is F.linear.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from .._common import processor
from .._torch import ONEDNN_LINEAR, any_autocast, calls_forward_alone, onednn_in_float32, onednn_linear
from ..errors import HeadwayError
from ..kernels import _tuned
from ..kernels._autograd import ORDINARY, eager_apply
from ..tracing import forward_mode, watched

KERNELS = ("auto", "onednn", "torch")


class Least(NamedTuple):
    """The fewest multiply-adds of each thread for which oneDNN computes a product.

    Attributes:
        forward: of y = x·Wᵀ.
        d_input: of dx = dy·W.
        d_weight: of dW = dyᵀ·x.
        rows: the fewest tokens for any of them.
        width: the fewest features, in and out.
    """

    forward: float
    d_input: float
    d_weight: float
    rows: int = 128
    width: int = 64


NEVER = math.inf
NONE, ALL = Least(NEVER, NEVER, NEVER), Least(1, 1, 1, rows=1, width=1)


class Products(NamedTuple):
    """Which of the three products of a linear map oneDNN computes."""

    forward: bool
    d_input: bool
    d_weight: bool


NO_PRODUCT = Products(False, False, False)
_chosen: ContextVar[str | None] = ContextVar("headway_linear_kernel", default=None)


@contextmanager
def linear_kernel(name: str) -> Iterator[None]:
    """A context in which this thread computes linear maps by the matrix products of this name.

        with headway.nn.linear_kernel("torch"):
            model(ids).mean().backward()

    The environment variable HEADWAY_LINEAR_KERNEL chooses for a process. The switch ``torch.backends.mkldnn.enabled``
    is obeyed too.

    Args:
        name: "torch" for ``F.linear``; "onednn" for oneDNN wherever it computes the same, which is plain float32 on a
            CPU; "auto", the default, for whichever was measured to be faster on this processor.

    Raises:
        HeadwayError: if the name is unknown.
    """
    token = _chosen.set(_known(name, "name"))
    try:
        yield
    finally:
        _chosen.reset(token)


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
        not _compiled()
        and type(layer) in TORCHS_OWN
        and type(x) in ORDINARY
        and calls_forward_alone(layer)
        and nn.Linear.forward is _FORWARD
    ):
        own: Any = layer._parameters  # since two attributes of a module take half as long as a small product
        if "weight" in own and "bias" in own:
            short = _products(x.numel(), layer.out_features, layer.in_features) is NO_PRODUCT
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
    if _compiled() or type(x) not in ORDINARY or type(weight) not in ORDINARY:
        return None
    if weight.ndim != 2 or x.shape[-1:] != weight.shape[1:] or (bias is not None and bias.shape != weight.shape[:1]):
        return None
    takes = _products(x.numel(), *weight.shape)
    if takes is NO_PRODUCT:
        return None
    wants_x, wants_weight, wants_bias = (
        torch.is_grad_enabled() and one is not None and one.requires_grad for one in (x, weight, bias)
    )
    if not (takes.forward or (takes.d_input and wants_x) or (takes.d_weight and wants_weight)):
        return None
    if not _ordinary(x, weight, bias) or not x.is_contiguous() or not weight.is_contiguous() or _followed():
        return None
    if wants_x or wants_weight or wants_bias:
        return eager_apply(_Linear)(x, weight, bias)  # type: ignore[return-value]
    return onednn_linear(x, weight, bias)


class _Linear(torch.autograd.Function):
    """A linear map, each of whose products is the faster one; it saves what ``F.linear`` saves."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        wants_x, wants_weight, _ = ctx.needs_input_grad
        ctx.save_for_backward(x if wants_weight else None, weight if wants_x else None)
        ctx.shapes = x.shape, weight.shape
        takes = _products(x.numel(), *weight.shape)
        return onednn_linear(x, weight, bias) if takes.forward else F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        x_shape, (out_features, in_features) = ctx.shapes
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad
        rows, d_input, d_weight = grad.reshape(-1, out_features), None, None
        takes = _products(x_shape.numel(), out_features, in_features)
        # a call that is differentiated again, batched or traced is left to torch
        ours = any(takes) and not torch.is_grad_enabled() and _ordinary(grad, x, weight) and not _followed()
        if wants_x:
            d_input = _times(rows, weight.t(), ours and takes.d_input).reshape(x_shape)
        if wants_weight:
            d_weight = _times(rows.t(), x.reshape(-1, in_features).t(), ours and takes.d_weight)
        return d_input, d_weight, rows.sum(0) if wants_bias else None


def _times(a: Tensor, b: Tensor, by_onednn: bool) -> Tensor:
    """Returns a·bᵀ for two matrices."""
    return onednn_linear(a, b, None) if by_onednn else a @ b.t()


# ---------------------------------------------------------------- which of them are oneDNN's


def _products(numbers: int, out_features: int, in_features: int) -> Products:
    """Returns which products are oneDNN's, for an input of so many numbers."""
    least, work = _least(_chosen.get()), numbers * out_features
    if work < least.forward and work < least.d_input:
        return NO_PRODUCT
    if work < least.rows * in_features * out_features or min(in_features, out_features) < least.width:
        return NO_PRODUCT
    work //= torch.get_num_threads()
    return Products(work >= least.forward, work >= least.d_input, work >= least.d_weight)


@cache
def _least(chosen: str | None) -> Least:
    name = chosen or _known(os.environ.get("HEADWAY_LINEAR_KERNEL") or "auto", "HEADWAY_LINEAR_KERNEL")
    if name == "torch" or not ONEDNN_LINEAR:
        return NONE
    if name == "onednn":
        return ALL
    isa = onednn_isa()
    return _measured(isa) if isa else NONE


def onednn_isa() -> str:
    """Returns oneDNN's instruction set as tables name it; empty if it is restricted, for which there is no table.

    It is that of the processor: HEADWAY_ISA changes only headway's own kernel.
    """
    if "ONEDNN_MAX_CPU_ISA" in os.environ:
        return ""
    return "avx512" if processor.has("avx512f") else "others"


def _measured(isa: str) -> Least:
    """Returns where the tables for this processor have oneDNN as the faster one.

    isa: the instruction set, as tables name it.
    """
    rows, width, work = 0.0, 0.0, []
    for product in Products._fields:
        sizes = _tuned.from_which("onednn", (("product", product), ("isa", isa), ("dtype", "float32")), "work")
        work.append(NEVER if sizes is None else sizes.get("work", 0))
        rows, width = max(rows, (sizes or {}).get("rows", 0)), max(width, (sizes or {}).get("width", 0))
    forward, d_input, d_weight = work
    return Least(forward, d_input, d_weight, int(rows), int(width)) if min(work) < NEVER else NONE


def _compiled() -> bool:
    """Returns whether a compiler, which chooses products itself, reads the code, or sizes are traced."""
    return torch.compiler.is_dynamo_compiling() or torch.jit.is_tracing()


def _known(name: str, argument: str) -> str:
    if name not in KERNELS:
        raise HeadwayError(f"{argument}={name!r} is not a kernel of linear maps: choose from {', '.join(KERNELS)}")
    return name


def _ordinary(*tensors: Tensor | None) -> bool:
    """Returns whether all are plain dense tensors of float32 on a CPU."""
    return all(
        type(one) in ORDINARY
        and one.dtype == torch.float32
        and one.device.type == "cpu"
        and one.layout == torch.strided
        for one in tensors
        if one is not None
    )


def _followed() -> bool:
    """Returns whether something follows torch's own operations, or they must use another precision."""
    return watched() or forward_mode() or any_autocast() or not onednn_in_float32()
