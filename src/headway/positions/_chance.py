"""Random draws of positions, shared by several encodings."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ..coordinates import Coordinates


def uniform(shape: tuple[int, ...], bound: float, device: torch.device) -> Tensor:
    """Draws from U(−bound, bound), in float64."""
    return bound * (2 * torch.rand(shape, dtype=torch.float64, device=device) - 1)


def for_each_sequence(coordinates: Coordinates, draw: Callable[[int, int], Tensor]) -> Tensor:
    """One draw for each row [b, 1], or for each document of packed rows, given to its tokens [b, n].

    b is the number of rows of the coordinates: if they have one for the whole batch, there is one draw.
    """
    rows, n = coordinates.position.shape[0], coordinates.index.shape[1]
    if coordinates.document is None:
        return draw(rows, 1)
    rows = max(rows, coordinates.document.shape[0])
    ids, order = coordinates.document.expand(rows, n).sort(dim=1, stable=True)
    number = F.pad((ids[:, 1:] != ids[:, :-1]).long().cumsum(1), (1, 0))[:, :n]
    drawn = draw(rows, n)
    return torch.zeros_like(drawn).scatter(1, order, drawn.gather(1, number))


def ordered(group: Tensor, values: Tensor) -> Tensor:
    """The slots [b, n] by ascending group, and within a group by ascending value."""
    first = values.argsort(dim=1, stable=True)
    return first.gather(1, group.gather(1, first).argsort(dim=1, stable=True))
