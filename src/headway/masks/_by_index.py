"""Masks that depend only on the ``index`` of the query and of the key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..coordinates import FAR, Coordinates
from ..errors import HeadwayError
from ..records import named
from ._base import Bounds, Mask, Slot


def _difference(q: Coordinates, k: Coordinates) -> Tensor:
    """Returns the key's index minus the query's, [b, 1, n, m]."""
    return (k.index[:, None, :] - q.index[:, :, None])[:, None]


def _first(k: Coordinates) -> int | Tensor:
    """Returns the index of the first key: an int if it is known, else a tensor [b, 1]."""
    return k.index[:, :1] if k.start is None else k.start


def from_zero(k: Coordinates, stop: int | Tensor | None) -> Bounds:
    """Returns the key slots of the indices 0 … stop − 1, or of all from 0 on if stop is None."""
    first_slot = -_first(k)
    return None if k.start == 0 else first_slot, None if stop is None else stop + first_slot


def _slot_beside(q: Coordinates, k: Coordinates, offset: int) -> Slot | Tensor:
    """Returns the key slot whose index is the query's plus offset; a ``Slot`` if no tensor has to be read for that."""
    if q is k:
        return Slot(offset)
    if q.ordered and q.start is not None and k.start is not None:
        return Slot(q.start - k.start + offset)
    return q.index + (offset - _first(k))


def _count(mask: Mask, name: str, least: int) -> None:
    """Checks a field that counts tokens: a whole number of at least ``least``, which is clamped to FAR."""
    value = getattr(mask, name)
    if not isinstance(value, int) or value < least:
        raise HeadwayError(f"{name} is {value!r}: give a whole number of at least {least}")
    if value > FAR:
        object.__setattr__(mask, name, FAR)


@dataclass(frozen=True, eq=False)
class Causal(Mask):
    """A query attends to the keys up to its own index."""

    def allowed(self, q: Coordinates, k: Coordinates) -> Tensor:
        return _difference(q, k) <= 0

    def interval(self, q: Coordinates, k: Coordinates) -> Bounds | None:
        return (None, _slot_beside(q, k, 1)) if k.ordered else None

    def reach(self, start: int, stop: int, n: int, m: int) -> tuple[int, int]:
        return 0, stop + m - n


@dataclass(frozen=True, eq=False)
class Window(Mask):
    """A query attends to the keys around its own index.

    Args:
        left: keys before the query's own index; None for all of them.
        right: keys after it; None for all of them.

    Raises:
        HeadwayError: for a number below 0.
    """

    left: int | None = None
    right: int | None = None

    def __post_init__(self) -> None:
        for name in ("left", "right"):
            if getattr(self, name) is not None:
                _count(self, name, 0)

    def allowed(self, q: Coordinates, k: Coordinates) -> Tensor:
        difference = _difference(q, k)
        allowed = torch.ones_like(difference, dtype=torch.bool)
        if self.left is not None:
            allowed = difference >= -self.left
        if self.right is not None:
            allowed = allowed & (difference <= self.right)
        return allowed

    def interval(self, q: Coordinates, k: Coordinates) -> Bounds | None:
        if not k.ordered:
            return None
        start = None if self.left is None else _slot_beside(q, k, -self.left)
        return start, None if self.right is None else _slot_beside(q, k, self.right + 1)

    def reach(self, start: int, stop: int, n: int, m: int) -> tuple[int, int]:
        low = 0 if self.left is None else max(0, start + m - n - self.left)
        return low, m if self.right is None else min(m, stop + m - n + self.right)


def sliding_window(size: Any) -> Window:
    """Returns the window of a Hugging Face config's ``sliding_window``, which counts the query itself.

    Args:
        size: the value of sliding_window.

    Raises:
        HeadwayError: if it is not a whole number above 0.
    """
    if type(size) is not int or size < 1:
        raise HeadwayError(f"the config's sliding_window is {size!r}: give a whole number above 0, or None")
    return Window(size - 1)


@dataclass(frozen=True, eq=False)
class Chunked(Mask):
    """A query attends to the keys of its own chunk, and of some chunks before it.

        0 ≤ ⌊i/size⌋ − ⌊j/size⌋ ≤ previous

    ``Causal() & Chunked(size, previous=1)`` is blockwise causal attention, which xPos uses beyond its trained length in
    blocks of half of that length.

    Args:
        size: tokens in a chunk, at least 1.
        previous: chunks before the query's own, at least 0.

    Raises:
        HeadwayError: for smaller numbers.

    References:
        Sun et al. 2023, section 2.3.
    """

    size: int
    previous: int = 0

    def __post_init__(self) -> None:
        _count(self, "size", 1)
        _count(self, "previous", 0)

    def allowed(self, q: Coordinates, k: Coordinates) -> Tensor:
        back = q.index[:, None, :, None] // self.size - k.index[:, None, None, :] // self.size
        return (back >= 0) & (back <= self.previous)

    def interval(self, q: Coordinates, k: Coordinates) -> Bounds | None:
        if not k.ordered:
            return None
        stop = (q.index // self.size + 1) * self.size - _first(k)
        return stop - min((1 + self.previous) * self.size, 4 * FAR), stop


@dataclass(frozen=True, eq=False)
class Prefix(Mask):
    """Every query attends to the first tokens; ``Causal() | Prefix(length)`` is the mask of a prefix language model.

    Args:
        length: tokens in the prefix: an int, or integers [batch].

    Raises:
        HeadwayError: for a number below 0.
    """

    axes = named(length="1|batch")

    whole: ClassVar[tuple[str, ...]] = ("length",)

    length: int | Tensor

    def __post_init__(self) -> None:
        if not isinstance(self.length, Tensor):
            _count(self, "length", 0)

    def _stop(self) -> int | Tensor:
        return self.length[:, None].long().clamp(max=FAR) if isinstance(self.length, Tensor) else self.length

    def allowed(self, q: Coordinates, k: Coordinates) -> Tensor:
        return ((k.index >= 0) & (k.index < self._stop()))[:, None, None, :]

    def interval(self, q: Coordinates, k: Coordinates) -> Bounds | None:
        return from_zero(k, self._stop()) if k.ordered else None


@dataclass(frozen=True, eq=False)
class KeepFirst(Mask):
    """Every query attends to the first tokens (attention sinks): ``Causal() & (Window(left=255) | KeepFirst(4))``.

    Args:
        count: the number of these tokens, at least 0.

    Raises:
        HeadwayError: for a number below 0.
    """

    count: int

    def __post_init__(self) -> None:
        _count(self, "count", 0)

    def allowed(self, q: Coordinates, k: Coordinates) -> Tensor:
        return ((k.index >= 0) & (k.index < self.count))[:, None, None, :]

    def interval(self, q: Coordinates, k: Coordinates) -> Bounds | None:
        return from_zero(k, self.count) if k.ordered else None


@dataclass(frozen=True, eq=False)
class Dilated(Mask):
    """A query attends to every ``step``-th key, counted from its own index.

    Args:
        step: at least 1.

    Raises:
        HeadwayError: for a smaller number.
    """

    step: int

    def __post_init__(self) -> None:
        _count(self, "step", 1)

    def allowed(self, q: Coordinates, k: Coordinates) -> Tensor:
        return _difference(q, k) % self.step == 0
