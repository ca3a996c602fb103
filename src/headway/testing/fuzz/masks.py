"""Masks with random parameters, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_

import torch
from torch import Tensor

from ...coordinates import Coordinates
from ...masks import Boolean, Causal, Chunked, Dilated, Documents, KeepFirst, Mask, Padding, Prefix, Window, from_flex


@dataclass(frozen=True)
class Draw:
    """Draws the parameters of masks for n queries and m keys."""

    generator: torch.Generator
    batch: int
    heads: int
    n: int
    m: int

    def number(self, low: int, high: int) -> int:
        """A whole number from ``low`` to ``high``."""
        return int(torch.randint(low, max(low, high) + 1, (), generator=self.generator))

    def numbers(self, low: int, high: int) -> Tensor:
        """One for each sequence."""
        return torch.randint(low, max(low, high) + 1, (self.batch,), generator=self.generator)

    def booleans(self, *shape: int) -> Tensor:
        """Booleans with a random share of True, an empty row and an empty column."""
        allowed = torch.rand(shape, generator=self.generator) < torch.rand((), generator=self.generator)
        if self.n and self.m:
            allowed[..., self.number(0, shape[-2] - 1), :] = False
            allowed[..., self.number(0, self.m - 1)] = False
        return allowed


@dataclass(frozen=True, eq=False)
class Multiples(Mask):
    """A mask as users write them: keys at multiples of a distance behind the query, and those right beside it.

    Attributes:
        step: the distance.
        width: the keys beside it.
    """

    step: int
    width: int

    def allowed(self, q: Coordinates, k: Coordinates) -> Tensor:
        behind = q.index[:, None, :, None] - k.index[:, None, None, :]
        return (behind >= 0) & ((behind % self.step == 0) | (behind <= self.width))


MASKS: dict[str, Callable[[Draw], Mask]] = {
    "causal": lambda draw: Causal(),
    "window": lambda draw: Window(draw.number(0, 70), draw.number(0, 70)),
    "window behind": lambda draw: Window(draw.number(0, 300)),
    "window ahead": lambda draw: Window(right=draw.number(0, 9)),
    "chunked": lambda draw: Chunked(draw.number(1, 40), previous=draw.number(0, 2)),
    "prefix": lambda draw: Causal() | Prefix(draw.numbers(0, draw.m)),
    "keep first": lambda draw: KeepFirst(draw.number(0, 5)),
    "dilated": lambda draw: Dilated(draw.number(1, 4)),
    "padding": lambda draw: Padding(draw.numbers(0, draw.m)),
    "padding in front": lambda draw: Padding(draw.numbers(0, draw.m), "left"),
    "documents": lambda draw: Documents(torch.randint(0, 3, (draw.batch, draw.m), generator=draw.generator).sort()[0]),
    "own": lambda draw: Multiples(draw.number(2, 5), draw.number(0, 9)),
    "own in runs": lambda draw: Multiples(1 << 40, draw.number(0, 70)),
    "function": lambda draw: _function(draw.number(1, 9), draw.number(1, draw.heads)),
    "holes": lambda draw: Boolean(draw.booleans(draw.n, draw.m)),
    "holes by sequence": lambda draw: Boolean(draw.booleans(draw.batch, 1, draw.n, draw.m)),
    "holes by head": lambda draw: Boolean(draw.booleans(1, draw.heads, draw.n, draw.m)),
    "holes for all queries": lambda draw: Boolean(draw.booleans(draw.batch, 1, 1, draw.m)),
}


def _function(size: int, heads: int) -> Mask:
    """A function of FlexAttention: the tiles of a chessboard, with colours swapped for the first heads."""
    return from_flex(lambda b, h, q_idx, kv_idx: (q_idx // size + kv_idx // size + (h < heads)) % 2 == 0)


def build(names: str, draw: Draw) -> Mask | None:
    """Returns the mask of names joined by " & " or " | ", or None for "none"."""
    if names == "none":
        return None
    joined, between = (and_, " & ") if " & " in names else (or_, " | ")
    return reduce(joined, [MASKS[name](draw) for name in names.split(between)])
