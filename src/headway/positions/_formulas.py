"""Numbers, checks and lengths that the formulas of several encodings share."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ..constants import constant
from ..coordinates import Coordinates
from ..errors import HeadwayError
from ..tracing import watched


def need_base(base: float) -> None:
    """Raises HeadwayError unless a base of frequencies is above 1."""
    if not 1 < base < math.inf:
        raise HeadwayError(f"base is {base}: give a number above 1, such as 10000.0")


def need_width(x: Tensor, name: str, width: int) -> None:
    """Raises HeadwayError unless the last dimension of x has the size that the encoding was built for."""
    if x.shape[-1] != width:
        raise HeadwayError(
            f"the encoding was built with {name}={width} and is given a last dimension of {x.shape[-1]}: build it with "
            f"{name}={x.shape[-1]}"
        )


def numbers(values: tuple[float, ...], device: torch.device | str | None) -> Tensor:
    """Returns the values in float64, for ``constant``."""
    return torch.tensor(values, dtype=torch.float64, device=device)


def rates(count: int, width: int, base: float | Tensor, device: torch.device) -> Tensor:
    """Returns ω_c = base^(−2c/width), c = 0 … count − 1, in float64."""
    if isinstance(base, Tensor):
        return _rates(count, width, base, device)
    return constant(_rates, count, width, base, device=device).clone()  # cloned, since encodings return it to callers


def _rates(count: int, width: int, base: float | Tensor, device: torch.device) -> Tensor:
    if not isinstance(base, Tensor):  # ONNX would take a number in float32
        base = torch.tensor(base, dtype=torch.float64, device="cpu")
    return base ** (-2.0 / width * torch.arange(count, dtype=torch.float64, device=device))


def angles(coordinates: Coordinates, frequencies: Tensor) -> Tensor:
    """Returns p·ω, [b, n, frequencies], in float64, whatever the dtypes of the model and of autocast."""
    return coordinates.axis().double()[..., None] * frequencies


def added(x: Tensor, code: Tensor) -> Tensor:
    """Returns x + code, summed in float32 or wider, in the dtype of x."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return (x.to(wide) + code.to(wide)).to(x.dtype)


def normal(*shape: int) -> nn.Parameter:
    """Returns a parameter drawn from N(0, 0.02²)."""
    return nn.Parameter(nn.init.normal_(torch.empty(*shape), std=0.02))


def whole(positions: Tensor) -> Tensor:
    """Returns ⌊positions⌋ in int64. Integers are not rounded, since ONNX cannot round them."""
    return (positions.floor() if positions.is_floating_point() else positions).long()


def stream_length(coordinates: Coordinates) -> Tensor | int:
    """Returns the number of tokens in the stream, an int or [b, 1 or n]; if unknown, the largest position + 1."""
    if coordinates.length is not None:
        return coordinates.length
    return coordinates.axis().amax(dim=1, keepdim=True) + 1


def total_length(coordinates: Coordinates) -> Tensor:
    """Returns T, the number of tokens in the stream, in float64, [b, 1 or n]."""
    length = stream_length(coordinates)
    if isinstance(length, Tensor):
        return length.double()
    return torch.full((1, 1), length, dtype=torch.float64, device=coordinates.position.device)


def oracle_length(coordinates: Coordinates, token: int = 0) -> float:
    """Returns T for a token of one sequence as a Python number, for oracles."""
    length = coordinates.length
    if isinstance(length, Tensor):
        return float(length[0, token % length.shape[1]])
    return float(length or 1 + max(at(coordinates, i) for i in range(coordinates.index.shape[1])))


def at(coordinates: Coordinates, i: int, axis: int = 0) -> float:
    """Returns the position of token i of one sequence as a Python number, for oracles."""
    return coordinates.position[0, i, axis].item()


def readable(values: Tensor) -> bool:
    """Returns whether values can be read: in eager mode on a real device, not while a graph is traced."""
    return type(values) is Tensor and values.device.type != "meta" and not watched()
