"""Functions by which long work reports its progress: they receive the share that is done."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Share", "Tell", "nobody", "part_of"]

Share = Callable[[float], None]
"""A function that gets the share of the work that is done, 0 … 1."""
Tell = Callable[[str, float], None]
"""A function that gets what is done at the moment, and the share of all work that is done, 0 … 1."""


def nobody(*told: object) -> None:
    """Receives progress and does nothing.

    Args:
        *told: what is told.
    """


def part_of(watch: Share, start: float, size: float) -> Share:
    """Returns a function that reports a part of the work, whose own progress runs from 0 to 1.

    Args:
        watch: is told of the whole.
        start: where the part begins in the whole.
        size: its share of the whole.
    """
    return lambda part: watch(start + size * part)
