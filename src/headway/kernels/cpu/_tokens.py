"""RMS norm and rotary rotations in the C++ library, each in one pass over memory.

torch computes them without the library, under a compiler or a transform, and for any but plain CPU tensors. The norm
is for inference only; a rotation can be differentiated.
"""

from __future__ import annotations

from array import array
from typing import Any

import torch
from torch import Tensor

from ..._torch import writes_of
from ...errors import HeadwayError
from ...terms import Rotation
from ...tracing import forward_mode, watched
from .._autograd import ORDINARY, eager_apply
from . import _library
from ._descriptor import DTYPES, double_bits

FLOATS = frozenset({torch.float32, torch.bfloat16, torch.float16})
WIDEST = 4096
"""The most numbers of a row that are rotated: csrc/tokens.h keeps them on the stack."""
AT_X, AT_Y = 2, 6
"""The places of the addresses of x and y in the words of Rows."""
AT_COS, AT_SIN = 17, 21
"""The places of the addresses of cos and sin in the words of Rotate."""
FLOAT32_EPS = torch.finfo(torch.float32).eps


def rms_norm(x: Tensor, weight: Tensor | None, eps: float | None) -> Tensor | None:
    """Returns w·x / √(mean(x²) + eps), computed in float32 and rounded once; None if the library does not support x.

    x: [..., width] of one to four dimensions. A dense x gives a result of the same layout.
    weight: [width] in x's dtype.
    eps: the epsilon; None for torch's epsilon of float32.
    """
    if weight is None:
        fits = _fits(x) and not _recorded(x)
    else:
        fits = _fits(x, weight) and not _recorded(x, weight)
        fits = fits and weight.dtype == x.dtype and weight.shape == x.shape[-1:] and weight.is_contiguous()
    # the default epsilon of other dtypes differs between versions of torch
    if not fits or (eps is None and x.dtype != torch.float32):
        return None
    y = torch.empty_like(x)
    row = _rows(x, y)
    row += (0 if weight is None else weight.data_ptr(), double_bits(FLOAT32_EPS if eps is None else eps))
    _library.rms_norm(row)
    return y


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Returns x [batch, heads, n, head_dim] rotated, computed in float32 and rounded once, by the library or by torch.

    A dense x gives a result of the same layout. The library also rotates the gradient of x back; torch computes the
    gradients of cos and sin.
    """
    cos, sin = rotation.cos, rotation.sin
    if not _supports(x, cos, sin, rotation.start) or _recorded(cos, sin):
        return rotation._of(x)
    if _recorded(x):
        return Rotated.of(x, rotation, None)
    return _rotate(x, cos, sin, rotation.layout, rotation.start)


class Rotated(torch.autograd.Function):
    """``rotate`` with a gradient of x, which is rotated by −φ.

    It uses a prepared rotation if there is one, and saves the same tensors either way.
    """

    @staticmethod
    def of(x: Tensor, rotation: Rotation, prepared: PreparedRotation | None) -> Tensor:
        """Returns x rotated."""
        given = (x, rotation.cos, rotation.sin, rotation.layout, rotation.start, prepared)
        return eager_apply(Rotated)(*given)  # type: ignore[return-value]

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, layout: str, start: int, prepared: PreparedRotation | None
    ) -> Tensor:
        ctx.layout, ctx.start, ctx.back = layout, start, None if prepared is None else prepared.back
        ctx.save_for_backward(cos, sin)
        return _rotate(x, cos, sin, layout, start) if prepared is None else prepared.run(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        if ctx.back is not None and not torch.is_grad_enabled() and ctx.back.takes(grad):
            rotated = ctx.back.run(grad)
        else:
            grad = grad if grad.stride(-1) == 1 else grad.contiguous()
            rotated = rotate(grad, Rotation(cos, -sin, ctx.layout, ctx.start))
        return rotated, None, None, None, None, None


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, layout: str, start: int) -> Tensor:
    """Rotates x, which ``_supports`` accepts. Calls that differ only in addresses share the words."""
    y = torch.empty_like(x)
    laid_out = x.shape, x.stride(), x.dtype, cos.shape, cos.stride(), sin.stride(), layout, start
    words = _words.get(laid_out)
    if words is None:
        if len(_words) >= MOST_WORDS:
            _words.clear()
        words = _words[laid_out] = array("q", _rotation_words(x, y, cos, sin, layout, start))
    words = words[:]
    words[0], words[AT_X], words[AT_Y] = torch.get_num_threads(), x.data_ptr(), y.data_ptr()
    words[AT_COS], words[AT_SIN] = cos.data_ptr(), sin.data_ptr()
    _library.rotate(words)
    return y


_words: dict[tuple[object, ...], array[int]] = {}
MOST_WORDS = 64


def _rotation_words(x: Tensor, y: Tensor, cos: Tensor, sin: Tensor, layout: str, start: int) -> list[int]:
    """Returns the words of Rotate in csrc/tokens.h."""
    *among, pairs = cos.shape
    words = _rows(x, y)
    words += (pairs, int(layout == "interleaved"), start)
    for table in (cos, sin):
        words.append(table.data_ptr())
        words += (0 if size == 1 else step for size, step in zip(among, table.stride()[:3], strict=True))
    return words


class PreparedRotation:
    """A rotation for tensors of the same shape, strides and dtype.

    Args:
        x: the first x.
        rotation: the rotation.
        recorded: whether autograd records it.
    """

    __slots__ = ("back", "dtype", "item", "rotation", "shape", "strides", "words")

    def __init__(self, x: Tensor, rotation: Rotation, recorded: bool) -> None:
        self.shape, self.strides, self.dtype, self.item = x.shape, x.stride(), x.dtype, x.itemsize
        self.rotation, y = rotation, torch.empty_like(x)
        cos, sin = rotation.cos, rotation.sin
        self.words = array("q", _rotation_words(x, y, cos, sin, rotation.layout, rotation.start))
        self.back = PreparedRotation(y, rotation._with(sin=-sin), False) if recorded else None

    @staticmethod
    def of(x: Tensor, rotation: Rotation) -> PreparedRotation | None:
        """Returns the prepared rotation of ``x``; None if torch would compute it."""
        fits = _supports(x, rotation.cos, rotation.sin, rotation.start)
        return PreparedRotation(x.detach(), rotation, _recorded(x)) if fits else None

    def __call__(self, x: Tensor) -> Tensor | None:
        """Returns ``x`` rotated; None if its numbers are not aligned to their size."""
        if x.data_ptr() % self.item:
            return None
        return self.run(x) if self.back is None else Rotated.of(x, self.rotation, self)

    def takes(self, x: Tensor) -> bool:
        """Returns whether any tensor ``x`` is like the first one."""
        if x.shape != self.shape or x.stride() != self.strides or x.dtype != self.dtype or not x.is_cpu or x.is_neg():
            return False
        return type(x) in ORDINARY and not x.data_ptr() % self.item and not watched()

    def run(self, x: Tensor) -> Tensor:
        """Returns ``x`` rotated, without a gradient."""
        y, words = torch.empty_like(x), self.words[:]
        words[AT_X], words[AT_Y] = x.data_ptr(), y.data_ptr()
        _library.rotate(words)
        return y


class RotationByRows:
    """Rotates plain tensors, without gradients, by consecutive rows of a rotation that all heads share.

    Args:
        rotation: the rotation of all positions, which the rows of a batch and the heads share.
    """

    __slots__ = ("rotation", "row_bytes", "rows", "version", "width", "words")

    def __init__(self, rotation: Rotation) -> None:
        cos, sin = rotation.cos, rotation.sin
        self.rotation, self.rows, self.row_bytes = rotation, cos.shape[2], cos.stride(2) * cos.itemsize
        self.version, self.width = writes_of(cos) + writes_of(sin), rotation.start + 2 * cos.shape[3]
        first = torch.empty(1, 1, self.rows, self.width)
        self.words = array("q", _rotation_words(first, first, cos, sin, rotation.layout, rotation.start))

    @staticmethod
    def of(rotation: Rotation) -> RotationByRows | None:
        """Returns the rotations; None if cos and sin are not plain, or differ between heads."""
        cos, sin = rotation.cos, rotation.sin
        if cos.shape[:2] != (1, 1) or cos.is_inference() or sin.is_inference():
            return None
        like = cos.new_empty(1, 1, cos.shape[2], rotation.start + 2 * cos.shape[3], dtype=torch.float32)
        fits = _supports(like, cos, sin, rotation.start) and cos.stride() == sin.stride() and not _recorded(cos, sin)
        return RotationByRows(rotation) if fits else None

    def __call__(self, x: Tensor, row: int, out: Tensor | None = None) -> Tensor | None:
        """Returns x [batch, heads, n, head_dim] rotated by n rows; None if the library cannot read x or lacks rows.

        Args:
            x: a plain tensor on a CPU.
            row: the first of the rows.
            out: a tensor of the shape and dtype of x for the result. Default: a new one.
        """
        cos, sin = self.rotation.cos, self.rotation.sin
        shape, strides = x.shape, x.stride()
        if row < 0 or row + shape[2] > self.rows or writes_of(cos) + writes_of(sin) != self.version:
            return None
        address = x.data_ptr()
        if strides[3] != 1 or shape[3] < self.width or x.dtype not in FLOATS or address % x.itemsize:
            return None
        y, words = torch.empty_like(x) if out is None else out, self.words[:]
        laid_out = y.stride()
        words[0], words[1], words[AT_X], words[AT_Y] = (
            torch.get_num_threads(),
            DTYPES[x.dtype][0],
            address,
            y.data_ptr(),
        )
        words[3], words[4], words[5] = strides[:3]
        words[7], words[8], words[9] = laid_out[:3]
        words[10], words[11], words[12], words[13] = shape
        words[AT_COS] += row * self.row_bytes
        words[AT_SIN] += row * self.row_bytes
        _library.rotate(words)
        return y


def _supports(x: Tensor, cos: Tensor, sin: Tensor, start: int) -> bool:
    fits = _fits(x, cos, sin) and x.ndim == cos.ndim == 4 and cos.dtype == sin.dtype == torch.float64
    if not fits or cos.shape != sin.shape or cos.stride(3) != 1 or sin.stride(3) != 1:
        return False
    batch, heads, n, width = x.shape
    rows, tables, tokens, pairs = cos.shape
    if not 2 <= 2 * pairs <= WIDEST or not 0 <= start <= width - 2 * pairs:
        return False
    return rows in (1, batch) and tables in (1, heads) and tokens in (1, n)


def _fits(x: Tensor, *others: Tensor) -> bool:
    """Returns whether the library can read x and the others in this context."""
    if x.dtype not in FLOATS or not 1 <= x.ndim <= 4 or not x.shape[-1] or x.stride(-1) != 1:
        return False
    if watched() or forward_mode():
        return False
    for one in (x, *others):
        if type(one) not in ORDINARY or not one.is_cpu or one.data_ptr() % one.itemsize:
            return False
    return _library.why_not() is None


def _recorded(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(one.requires_grad for one in tensors)


def _rows(x: Tensor, y: Tensor) -> list[int]:
    """Returns the words of Rows in csrc/tokens.h; x is read and y is written."""
    if y.stride(-1) != 1:
        raise HeadwayError(f"y has strides {y.stride()}, which is a fault in headway: its last must be 1")
    missing = 4 - x.ndim
    front, none = (1,) * missing, (0,) * missing
    return [
        torch.get_num_threads(),
        DTYPES[x.dtype][0],
        x.data_ptr(),
        *none,
        *x.stride()[:-1],
        y.data_ptr(),
        *none,
        *y.stride()[:-1],
        *front,
        *x.shape,
    ]
