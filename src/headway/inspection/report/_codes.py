"""Numbers as bytes of a report: codes of weights and cells, vectors in 12 bits, and their compression."""

from __future__ import annotations

import base64
import ctypes
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

STEPS, LARGEST = 2048, 65535
"""Codes of a weight in an octave, and the code of 1."""
CELL_STEPS, CELL_LARGEST = 10, 255
"""The same of a cell of a map."""
RECEIVED_STEPS, RECEIVED_ONE = 1024, 32768
ENTROPY_STEPS = 4096
HIDDEN, NAN, SMALLEST = 0, 1, 2
"""The codes of hidden weights, of NaN, and of the smallest number."""
HALF = 2047
"""The largest integer of a vector."""


def weight_codes(weights: Tensor, seen: Tensor | None = None, step: int = 1) -> Tensor:
    """Returns the codes of weights, int32, of the same shape.

    Args:
        weights: from 0 to 1, or NaN.
        seen: where a weight is not hidden. Default: where it is not 0.
        step: codes are rounded to 65535 less a multiple of it.
    """
    return _codes(weights, STEPS, LARGEST, weights != 0 if seen is None else seen, step)


def weights_of(codes: Tensor) -> Tensor:
    """Returns the weights of codes, in float64."""
    return _numbers(codes, STEPS, LARGEST)


def cell_codes(cells: Tensor, seen: Tensor | None = None) -> Tensor:
    """Returns the codes of cells, int32, like ``weight_codes``."""
    return _codes(cells, CELL_STEPS, CELL_LARGEST, cells != 0 if seen is None else seen)


def cells_of(codes: Tensor) -> Tensor:
    """Returns the cells of codes, in float64."""
    return _numbers(codes, CELL_STEPS, CELL_LARGEST)


def received_codes(sums: Tensor) -> Tensor:
    """Returns the codes of sums of weights, int32."""
    return _codes(sums, RECEIVED_STEPS, RECEIVED_ONE, sums != 0, largest=LARGEST)


def entropy_codes(entropy: Tensor) -> Tensor:
    """Returns the codes of entropies in nats, int32."""
    codes = (entropy.double().nan_to_num(0) * ENTROPY_STEPS).round().clamp(0, LARGEST - 1)
    return codes.int().masked_fill(entropy.isnan(), LARGEST)


def _codes(numbers: Tensor, steps: int, one: int, seen: Tensor, step: int = 1, largest: int | None = None) -> Tensor:
    """Codes up to ``largest``; up to that of 1 by default."""
    below = (numbers.double().log2() * (-steps / step)).round() * step
    most = one - SMALLEST
    codes = one - below.nan_to_num(most, most).clamp(one - (largest or one), most)
    return codes.int().masked_fill(~seen, HIDDEN).masked_fill(numbers.isnan(), NAN)


def _numbers(codes: Tensor, steps: int, one: int) -> Tensor:
    numbers = ((codes.double() - one) / steps).exp2()
    return numbers.masked_fill(codes == HIDDEN, 0).masked_fill(codes == NAN, torch.nan)


# ---------------------------------------------------------------- vectors


class Vectors(NamedTuple):
    """Vectors of integers with a scale each.

    Attributes:
        integers: from −2047 to 2047 in float32, [tokens, width].
        scale: [tokens] in float32.
    """

    integers: Tensor
    scale: Tensor

    @property
    def values(self) -> Tensor:
        return self.integers * self.scale[:, None]

    @property
    def packed(self) -> bytes:
        """The integers in 12 bits each, then the scales."""
        pairs = (self.integers.int() + (HALF + 1)).view(-1, 2)
        first, second = pairs[:, 0], pairs[:, 1]
        octets = torch.stack([first & 255, first >> 8 | (second & 15) << 4, second >> 4], dim=-1)
        return octets_of(octets.to(torch.uint8)) + octets_of(self.scale)


def vectors_of(x: Tensor) -> Vectors:
    """Rounds vectors [tokens, width] to 12 bits, with one scale for each token. NaN becomes 0."""
    x = x.float().nan_to_num(0, 0, 0)
    scale = (x.abs().amax(-1) / HALF).clamp(min=torch.finfo(torch.float32).tiny)
    return Vectors((x / scale[:, None]).round(), scale)


def spread(x: Tensor) -> Tensor:
    """Rotates vectors so that no component is much larger than the others, which makes rounding with one scale worse.

    It is a Hadamard rotation of groups of components, as large as the largest power of 2 that divides the width; an odd
    width gets a component of 0. Products of two rotated vectors are those of the vectors.
    """
    x = torch.nn.functional.pad(x, (0, x.shape[-1] % 2))
    width = x.shape[-1]
    size = width & -width
    groups = x.reshape(*x.shape[:-1], -1, size)
    half = 1
    while half < size:
        pairs = groups.view(*groups.shape[:-1], -1, 2, half)
        a, b = pairs[..., 0, :], pairs[..., 1, :]
        groups = torch.stack([a + b, a - b], dim=-2).view(groups.shape)
        half *= 2
    return groups.reshape(x.shape) * size**-0.5


# ---------------------------------------------------------------- bytes


def octets_of(x: Tensor) -> bytes:
    """Returns the bytes of a tensor, in the order of its elements."""
    x = x.detach().cpu().contiguous()
    return ctypes.string_at(x.data_ptr(), x.numel() * x.element_size())


def planes(x: Tensor, octets: int = 2) -> bytes:
    """Returns whole numbers as all lowest bytes, then all next ones."""
    return b"".join(octets_of((x >> 8 * i & 255).to(torch.uint8)) for i in range(octets))


def compressed(parts: Sequence[bytes]) -> str:
    """Returns parts, one after the other, in zlib's format and base64."""
    return base64.b64encode(zlib.compress(b"".join(parts), 6)).decode("ascii")
