"""The program of rotations of pairs of dimensions, in Triton."""

import triton
import triton.language as tl

from ._blocks import last_stride, place_of, unpacked


@triton.jit(do_not_specialize=["n", "heads", "start"])
def rotations(
    x, y, cos, sin, n, heads, start,
    width: tl.constexpr, pairs: tl.constexpr, padded: tl.constexpr, wide: tl.constexpr, interleaved: tl.constexpr,
    rows: tl.constexpr,
):  # fmt: skip
    """y is x with 2·pairs of its dimensions, from ``start`` on, rotated, for a block of tokens of a head.

    padded and wide are pairs and width as powers of 2; wide is 0 if there are no other dimensions.
    """
    blocks = tl.cdiv(n, rows)
    which = tl.program_id(0) // blocks
    b, h = which // heads, which % heads
    i = (tl.program_id(0) % blocks) * rows + tl.arange(0, rows)
    inside = (i < n)[:, None]
    pair = tl.arange(0, padded)[None, :]
    real = inside & (pair < pairs)
    at = place_of(x, b, h) + i.to(tl.int64)[:, None] * last_stride(x.n, x.layout)
    to = place_of(y, b, h) + i.to(tl.int64)[:, None] * last_stride(y.n, y.layout)
    angles = i.to(tl.int64)[:, None] * unpacked(cos.n) + pair
    c = tl.load(place_of(cos, b, h) + angles, mask=real, other=0.0).to(tl.float32)
    angles = i.to(tl.int64)[:, None] * unpacked(sin.n) + pair
    s = tl.load(place_of(sin, b, h) + angles, mask=real, other=0.0).to(tl.float32)
    if interleaved:
        both = tl.arange(0, 2 * padded)[None, :]
        place = at + start + both
        value = tl.load(place, mask=inside & (both < 2 * pairs), other=0.0).to(tl.float32)
        first, second = tl.split(tl.reshape(value, [rows, padded, 2]))
        turned = tl.reshape(tl.join(first * c - second * s, first * s + second * c), [rows, 2 * padded])
        tl.store(to + start + both, turned.to(y.at.dtype.element_ty), mask=inside & (both < 2 * pairs))
    else:
        first = tl.load(at + start + pair, mask=real, other=0.0).to(tl.float32)
        second = tl.load(at + start + pairs + pair, mask=real, other=0.0).to(tl.float32)
        tl.store(to + start + pair, (first * c - second * s).to(y.at.dtype.element_ty), mask=real)
        tl.store(to + start + pairs + pair, (first * s + second * c).to(y.at.dtype.element_ty), mask=real)
    if wide > 0:
        column = tl.arange(0, wide)[None, :]
        other = inside & (column < width) & ((column < start) | (column >= start + 2 * pairs))
        tl.store(to + column, tl.load(at + column, mask=other, other=0.0), mask=other)
