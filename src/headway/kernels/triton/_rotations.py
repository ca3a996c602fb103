"""Rotations of q, k and v in one pass over memory, with their gradient.

They run before attention, not while its programs load. A block of keys is loaded once for each block of queries and
would be rotated as often. It would also have to pass through registers, although tensor cores can read it from shared
memory.
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
    """Returns x [batch, heads, n, head_dim] rotated in float32 and rounded once, by a program if possible, or by torch.

    Args:
        x: queries, keys, values or an output.
        rotation: the rotation, which fits x.
    """
    recorded = torch.is_grad_enabled() and x.requires_grad
    if not supports(x, rotation):
        return rotation._of(x)
    if recorded:
        given = x, rotation.cos, rotation.sin, rotation.layout, rotation.start, None
        return eager_apply(Rotated)(*given)  # type: ignore[return-value]
    return _rotated(x, rotation)


class Rotated(torch.autograd.Function):
    """``rotate`` with a gradient of x, which is rotated by −φ.

    It uses a prepared rotation if there is one, and saves the same tensors either way.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, layout: str, start: int, prepared: PreparedRotation | None
    ) -> Tensor:
        ctx.layout, ctx.start, ctx.prepared = layout, start, prepared
        ctx.save_for_backward(cos, sin)
        if prepared is not None:
            return prepared.run(x, prepared.rotation)
        return _rotated(x, Rotation(cos, sin, layout, start))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (cos, sin), rotated = ctx.saved_tensors, None
        if ctx.prepared is not None and not torch.is_grad_enabled() and not watched():
            rotated = ctx.prepared.rotated_back(grad)
        if rotated is None:
            rotated = rotate(grad, Rotation(cos, -sin, ctx.layout, ctx.start))
        return rotated, None, None, None, None, None


def supports(x: Tensor, rotation: Rotation) -> bool:
    """Returns whether a program can rotate x."""
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


class PreparedRotation:
    """A rotation of tensors of one shape and dtype.

    Args:
        rotation: the rotation.
        back: the sines of the rotation by −φ, if autograd records it.
    """

    def __init__(self, rotation: Rotation, back: Tensor | None) -> None:
        from ._start import Programs

        self.rotation, self.programs = rotation, Programs()
        self.back = None if back is None else rotation._with(sin=back)

    def __call__(self, x: Tensor) -> Tensor:
        """Returns x rotated."""
        if self.back is None:
            return self.run(x, self.rotation)
        one = self.rotation
        return eager_apply(Rotated)(x, one.cos, one.sin, one.layout, one.start, self)  # type: ignore[return-value]

    @staticmethod
    def like(x: Tensor) -> Tensor:
        """Allocates the result of rotating x."""
        from ._start import new_rotated

        return new_rotated(x)

    def run(self, x: Tensor, rotation: Rotation) -> Tensor:
        """Returns x rotated, without a gradient, by this rotation or by the one back."""
        from ._start import alignment, on_device_of, rotations

        starts = self.programs.starts((rotation is self.back, x.stride(), alignment(x)))
        with on_device_of(x):
            y = rotations(x.detach(), rotation, starts)
        starts.end()
        return y

    def rotated_back(self, gradient: Tensor) -> Tensor | None:
        """Returns the gradient of x from that of the result; None if it is not a plain tensor."""
        if self.back is None or not is_plain(gradient) or gradient.dtype not in DTYPES:
            return None
        return self.run(gradient, self.back)


def is_plain(x: Tensor) -> bool:
    """Returns whether kept programs may read a gradient in place.

    They may not while a graph is captured: it would read kept tensors later, when they may be gone.
    """
    if type(x) not in ORDINARY or x.is_neg():
        return False
    return not (x.is_cuda and torch.cuda.is_current_stream_capturing())
