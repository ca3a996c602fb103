"""Masks that ``&`` and ``|`` join."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from ..coordinates import Coordinates
from ..errors import HeadwayError
from ._base import Mask
from ._functions import from_flex, is_of_flex


@dataclass(frozen=True, eq=False)
class Joined(Mask):
    """The base class of joined masks."""

    masks: tuple[Mask, ...]

    def _spelled(self) -> str:
        parts = (f"({one._spelled()})" if isinstance(one, Joined) else one._spelled() for one in self.masks)
        return (" & " if isinstance(self, And) else " | ").join(parts)

    def plan_key(self) -> Hashable:
        keys = [mask.plan_key() for mask in self.masks]
        return (type(self), *keys) if type(self) in (And, Or) and None not in keys else None

    def block(self, start: int, stop: int, n: int) -> Mask:
        return self._with(masks=tuple(mask.block(start, stop, n) for mask in self.masks))

    def of_keys(self, start: int, stop: int, n: int, m: int) -> Mask:
        return self._with(masks=tuple(mask.of_keys(start, stop, n, m) for mask in self.masks))

    def check(self, batch: int, heads: int, n: int, m: int) -> None:
        for mask in self.masks:
            mask.check(batch, heads, n, m)

    def for_call(self, batch: int, heads: int) -> Mask:
        masks = tuple([mask.for_call(batch, heads) for mask in self.masks])
        same = all(a is b for a, b in zip(masks, self.masks, strict=True))
        return self if same else self._with(masks=masks)


@dataclass(frozen=True, eq=False)
class And(Joined):
    """Allows what all of the masks allow.

    Args:
        masks: the masks.
    """

    def allowed(self, q: Coordinates, k: Coordinates) -> Tensor:
        return reduce(torch.logical_and, (mask.allowed(q, k) for mask in self.masks))

    def reach(self, start: int, stop: int, n: int, m: int) -> tuple[int, int]:
        lows, highs = zip(*(mask.reach(start, stop, n, m) for mask in self.masks), strict=True)
        return max(lows), max(max(lows), min(highs))


@dataclass(frozen=True, eq=False)
class Or(Joined):
    """Allows what any of the masks allows.

    Args:
        masks: the masks.
    """

    def allowed(self, q: Coordinates, k: Coordinates) -> Tensor:
        return reduce(torch.logical_or, (mask.allowed(q, k) for mask in self.masks))

    def reach(self, start: int, stop: int, n: int, m: int) -> tuple[int, int]:
        lows, highs = zip(*(mask.reach(start, stop, n, m) for mask in self.masks), strict=True)
        return min(lows), max(highs)


def both(one: Mask, other: Mask) -> And:
    """Returns one & other."""
    return And((*_parts(one, And), *_parts(other, And)))


def either(one: Mask, other: Mask) -> Or:
    """Returns one | other."""
    return Or((*_parts(one, Or), *_parts(other, Or)))


def _parts(mask: Mask, kind: type[And] | type[Or]) -> tuple[Mask, ...]:
    if is_of_flex(mask):
        mask = from_flex(mask)
    if not isinstance(mask, Mask):
        raise HeadwayError(f"a mask cannot be joined with a {type(mask).__name__}: wrap tensors in masks.Boolean")
    return mask.masks if type(mask) is kind else (mask,)


def parts_of(mask: Mask | None) -> tuple[Mask, ...]:
    """Returns the masks that & or | joined into this one; none if it is not joined.

    Args:
        mask: the mask.
    """
    return mask.masks if isinstance(mask, (And, Or)) and type(mask) in (And, Or) else ()


def conjuncts(mask: Mask | None) -> tuple[Mask, ...]:
    """Returns the masks that must all allow a key.

    Args:
        mask: the mask; None hides nothing.
    """
    if type(mask) is And:
        return mask.masks
    return () if mask is None else (mask,)
