"""Rotations of q, k and v in one pass over memory, with their gradient.

They come before attention and not while its programs load: a block of keys is loaded once for each block of queries,
and would be rotated as often, in registers, where tensor cores otherwise read it from shared memory.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...terms import Rotation
from ...tracing import forward_mode, watched
from .._autograd import ORDINARY, eager_apply
from . import _installed
from ._choices import DTYPES


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Returns x [batch, heads, n, head_dim] rotated, in float32 and rounded once, by a program if one can, or by torch.

    Args:
        x: what is rotated.
        rotation: the rotation, which fits x.
    """
    recorded = torch.is_grad_enabled() and x.requires_grad
    if not _supports(x, rotation):
        return rotation._of(x)
    if recorded:
        return eager_apply(Rotated)(x, rotation.cos, rotation.sin, rotation.layout, rotation.start)  # type: ignore[return-value]
    return _rotated(x, rotation)


class Rotated(torch.autograd.Function):
    """``rotate`` with a gradient for x, which is rotated by −φ."""

    @staticmethod
    def forward(x: Tensor, cos: Tensor, sin: Tensor, layout: str, start: int) -> Tensor:
        return _rotated(x, Rotation(cos, sin, layout, start))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, cos, sin, ctx.layout, ctx.start = inputs
        ctx.save_for_backward(cos, sin)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        return rotate(grad, Rotation(cos, -sin, ctx.layout, ctx.start)), None, None, None, None


def _supports(x: Tensor, rotation: Rotation) -> bool:
    cos, sin = rotation.cos, rotation.sin
    if x.dtype not in DTYPES or not x.numel() or not cos.shape[-1] or cos.stride(3) != 1 or sin.stride(3) != 1:
        return False
    if watched() or forward_mode() or any(type(one) not in ORDINARY for one in (x, cos, sin)):
        return False
    if torch.is_grad_enabled() and (cos.requires_grad or sin.requires_grad):
        return False
    return _installed.reason_against(x.device.type) is None


def _rotated(x: Tensor, rotation: Rotation) -> Tensor:
    from ._start import rotations

    return rotations(x.detach(), rotation)
