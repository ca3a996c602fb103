"""The positions that papers give to the tokens of texts with images and videos."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..errors import HeadwayError, need_finite, unknown

Part = int | Sequence[int]
Placed = tuple[Tensor, float]
"""The positions of a part, [tokens, axes] in float64, and the number of the token after it."""


def multimodal_positions(
    parts: Sequence[Part],
    scheme: str = "m-rope",
    stride: float | Sequence[float] = 1.0,
    radius: float = 10.0,
    alpha: float = 0.5,
    device: torch.device | str | None = None,
) -> Tensor:
    """Returns the positions of the tokens of a text with images and videos, in the scheme of a paper.

        multimodal_positions([5, (1, 4, 6), 3], "videorope")      # 5 words, an image of 4 × 6 patches, 3 words

    The patches of an image or video are in the order frame, row, column. Text has one number on all axes, which rises
    by 1. With n for the number of the first patch, (t, r, c) for its frame, row and column, and T × H × W for the size,
    a patch is at:

    - "m-rope" (Qwen2-VL, MM-RoPE): (n + s·t, n + r, n + c). Text goes on at the largest number + 1.
    - "reset" (IL-RoPE, OmniRoPE, MHRoPE): (n + s·t, r, c). Text goes on at n + max(s·(T − 1) + 1, H, W).
    - "videorope" (also HoPE of vision-language models): n + s·t on all axes, plus r − ⌊(H − 1)/2⌋ for the row and
      c − ⌊(W − 1)/2⌋ for the column. Text goes on one after the last frame.
    - "v2pe": n − 1 + s·k for the patch k = 1, 2, …, on one axis. Text goes on at the next whole number that is free.
    - "circle" (Circle-RoPE): on a circle around the line of the text, in the plane at a right angle to it; frames are
      s apart. Text goes on at the largest number + 1.
    - "vrope": n + t·(H + W − 1) on four axes, plus r + c, r + c', r' + c and r' + c', where r' = H − 1 − r and
      c' = W − 1 − c. Text goes on at n + T·(H + W − 1).

    Args:
        parts: the parts of the sequence in order: the number of tokens of a text, or the frames, rows and columns of an
            image (of one frame) or video.
        scheme: a name from above.
        stride: s, above 0: the step from frame to frame, or for "v2pe" from patch to patch. VideoRoPE uses 2.0. For
            "m-rope" also three numbers, for time, row and column, as MM-RoPE has.
        radius: the radius of the circle, above 0.
        alpha: from 0, where patches are at equal distances on the circle, to 1, where they keep the angle that they
            have in the image.
        device: the device of the result; the current default one if None.

    Shape:
        Output: [tokens, axes], with three axes (time, row, column), one for "v2pe", four for "vrope"; int64, or float64
            if some are not integers

    Raises:
        HeadwayError: if scheme is unknown, a part is neither a number of tokens nor three sizes, or a number is out of
            range.

    References:
        Wang et al. 2024 (Qwen2-VL); Huang et al. 2025; Wei et al. 2025 (VideoRoPE); Ge et al. 2024 (V2PE); Wang et al.
        2025 (Circle-RoPE); Liu et al. 2025 (VRoPE); Liao et al. 2025 (IL-RoPE); Yuan et al. 2025 (MM-RoPE).
    """
    if scheme not in SCHEMES:
        raise unknown("scheme", scheme, SCHEMES)
    strides = (stride, 1.0, 1.0) if isinstance(stride, (int, float)) else tuple(stride)
    if len(strides) != 3 or (scheme != "m-rope" and not isinstance(stride, (int, float))):
        raise HeadwayError(f"stride is {stride} for {scheme!r}: give one number, or three for 'm-rope'")
    need_finite(radius=radius, alpha=alpha, **{f"stride {axis}": one for axis, one in enumerate(strides)})
    if min(strides) <= 0 or radius <= 0 or not 0 <= alpha <= 1:
        raise HeadwayError(
            f"stride is {stride}, radius {radius} and alpha {alpha}: give a stride and a radius above 0, and an alpha "
            "from 0 to 1"
        )
    axes, place = SCHEMES[scheme]
    device = torch.get_default_device() if device is None else device
    found, start = [torch.zeros(0, axes, dtype=torch.float64, device=device)], 0.0
    for part in parts:
        if isinstance(part, int) and not isinstance(part, bool):
            _need_sizes(part, (part,))
            own = (start + torch.arange(part, dtype=torch.float64, device=device))[:, None].expand(-1, axes)
            after = start + part
        else:
            sizes = tuple(part) if isinstance(part, Sequence) else ()
            _need_sizes(part, sizes)
            if len(sizes) != 3:
                raise HeadwayError(f"a part is {part}: give a number of tokens, or frames, rows and columns")
            own, after = place(_Patches(sizes, start, strides, radius, alpha, device))
        found.append(own)
        start = after
    whole = torch.cat(found)
    return whole.long() if scheme != "circle" and all(float(s).is_integer() for s in strides) else whole


def _need_sizes(part: Part, sizes: tuple[int, ...]) -> None:
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        raise HeadwayError(f"a part is {part}: give numbers of at least 1")


class _Patches:
    """An image or video: the frame, row and column of each patch, [tokens] in float64, and the options of a scheme."""

    def __init__(
        self,
        sizes: tuple[int, ...],
        start: float,
        strides: tuple[float, ...],
        radius: float,
        alpha: float,
        device: torch.device | str,
    ) -> None:
        self.frames, self.rows, self.columns = sizes
        self.start, self.strides, self.radius, self.alpha = start, strides, radius, alpha
        each = [torch.arange(size, dtype=torch.float64, device=device) for size in sizes]
        self.frame, self.row, self.column = (x.flatten() for x in torch.meshgrid(*each, indexing="ij"))


def _m_rope(at: _Patches) -> Placed:
    scaled = [x * stride for x, stride in zip((at.frame, at.row, at.column), at.strides, strict=True)]
    own = at.start + torch.stack(scaled, dim=-1)
    last = max((size - 1) * s for size, s in zip((at.frames, at.rows, at.columns), at.strides, strict=True))
    return own, at.start + last + 1


def _reset(at: _Patches) -> Placed:
    own = torch.stack([at.start + at.strides[0] * at.frame, at.row, at.column], dim=-1)
    return own, at.start + max(at.strides[0] * (at.frames - 1) + 1, at.rows, at.columns)


def _videorope(at: _Patches) -> Placed:
    time = at.start + at.strides[0] * at.frame
    row, column = at.row - (at.rows - 1) // 2, at.column - (at.columns - 1) // 2
    return torch.stack([time, time + row, time + column], dim=-1), at.start + at.strides[0] * (at.frames - 1) + 1


def _v2pe(at: _Patches) -> Placed:
    steps = torch.arange(1, at.frame.numel() + 1, dtype=torch.float64, device=at.frame.device)
    last = at.start - 1 + at.strides[0] * at.frame.numel()
    return (at.start - 1 + at.strides[0] * steps)[:, None], math.ceil(last - 1e-9) + 1.0  # a sum of steps may round up


def _circle(at: _Patches) -> Placed:
    one = at.rows * at.columns
    x, y = at.column[:one] - (at.columns - 1) / 2, at.row[:one] - (at.rows - 1) / 2
    angle = torch.atan2(y, x)
    spread = angle.max() - angle.min()
    seen = torch.where(spread > 0, (angle - angle.min()) / spread.where(spread > 0, torch.ones_like(spread)), angle)
    full = torch.where(spread > 0, 2 * math.pi, 1.0)
    equal = torch.arange(one, dtype=torch.float64, device=x.device) / one
    theta = at.alpha * full * seen + (1 - at.alpha) * 2 * math.pi * equal
    across, along = at.radius * theta.cos(), at.radius * theta.sin()
    # unit vectors at right angles to (1, 1, 1), for (column, row, time): (−1, 1, 0)/√2 and (−1, −1, 2)/√6
    column = -across / math.sqrt(2) - along / math.sqrt(6)
    row = across / math.sqrt(2) - along / math.sqrt(6)
    time = 2 * along / math.sqrt(6)
    own = torch.stack([time, row, column], dim=-1).repeat(at.frames, 1) + (at.strides[0] * at.frame)[:, None]
    return at.start + own, at.start + own.max().item() + 1


def _vrope(at: _Patches) -> Placed:
    reach = at.rows + at.columns - 1
    row, column = (at.row, at.rows - 1 - at.row), (at.column, at.columns - 1 - at.column)
    sums = torch.stack([r + c for r in row for c in column], dim=-1)
    return at.start + reach * at.frame[:, None] + sums, at.start + at.frames * reach


SCHEMES: dict[str, tuple[int, Callable[[_Patches], Placed]]] = {
    "m-rope": (3, _m_rope),
    "reset": (3, _reset),
    "videorope": (3, _videorope),
    "v2pe": (1, _v2pe),
    "circle": (3, _circle),
    "vrope": (4, _vrope),
}
"""The schemes by name: the number of axes, and the function that places an image or video."""
