"""What the library does to each token by itself, in one pass over memory: RMS norm, and the turn of rotary encodings.

Both are for inference alone, and give None where they do not fit the call: then torch has to do it. They do not fit
without the library, where autograd or a compiler takes part, and for other tensors than ordinary ones on a processor.
"""

from __future__ import annotations

from array import array

import torch
from torch import Tensor

from ...errors import HeadwayError
from . import _library, as_operator, transformed
from ._words import DTYPES, real

FLOATS = frozenset({torch.float32, torch.bfloat16, torch.float16})
WIDEST = 4096
"""Numbers of a row that are turned, at most; csrc/tokens.h has them on its stack."""
FLOAT32_EPS = torch.finfo(torch.float32).eps


def rms_norm(x: Tensor, weight: Tensor | None, eps: float | None) -> Tensor | None:
    """y = w·x / √(mean(x²) + eps), in float32 and rounded once.

    Shapes: x [..., width] of one to four dimensions, weight [width] in x's dtype; y is laid out as x where x is dense.
    eps: torch's for float32 if None.
    """
    if weight is None:
        fits = _fits(x)
    else:
        fits = _fits(x, weight) and weight.dtype == x.dtype and weight.shape == x.shape[-1:] and weight.is_contiguous()
    if not fits or (eps is None and x.dtype != torch.float32):  # torch's versions differ in what they take there
        return None
    y = torch.empty_like(x)
    row = _rows(x, y)
    row += (0 if weight is None else weight.data_ptr(), real(FLOAT32_EPS if eps is None else eps))
    _library.rms_norm(array("q", row))
    return y


def turn(x: Tensor, cos: Tensor, sin: Tensor, layout: str) -> Tensor | None:
    """x with its first 2·pairs dimensions turned, in float32 and rounded once.

    Shapes: x [batch, heads, n, head_dim]; cos, sin [1 or batch, 1 or heads, n, pairs] in float64; the result is laid
    out as x where x is dense. layout: which dimensions are the pair c, (2c, 2c+1) "interleaved" or (c, c+pairs) "half".
    """
    fits = _fits(x, cos, sin) and x.ndim == cos.ndim == 4 and cos.dtype == sin.dtype == torch.float64
    if not fits or cos.shape != sin.shape or cos.stride(3) != 1 or sin.stride(3) != 1:
        return None
    *among, pairs = cos.shape
    if not 2 <= 2 * pairs <= min(x.shape[3], WIDEST) or any(
        a not in (1, b) for a, b in zip(among, x.shape[:3], strict=True)
    ):
        return None
    y = torch.empty_like(x)
    row = _rows(x, y)
    row += (pairs, int(layout == "interleaved"))
    for table in (cos, sin):
        row.append(table.data_ptr())
        row += (0 if size == 1 else step for size, step in zip(among, table.stride()[:3], strict=True))
    _library.turn(array("q", row))
    return y


def _fits(x: Tensor, *others: Tensor) -> bool:
    """Whether the library can read x and the others here and now."""
    if x.dtype not in FLOATS or x.device.type != "cpu" or not 1 <= x.ndim <= 4 or not x.shape[-1] or x.stride(-1) != 1:
        return False
    every = (x, *others)
    if as_operator(every) or transformed() or any(other.device.type != "cpu" for other in others):
        return False
    if torch.is_grad_enabled() and any(one.requires_grad for one in every):
        return False
    return _library.why_not() is None


def _rows(x: Tensor, y: Tensor) -> list[int]:
    """The words of csrc/tokens.h's Rows: x is read, y is written."""
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
