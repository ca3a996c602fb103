"""Heads, queries and calls by number."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import HeadwayError


def index_of(number: int, count: int, what: str, *, negative: bool = False) -> int:
    """A number from 0 to count − 1. Raises HeadwayError for another one; the message names the nearest."""
    if isinstance(number, int) and not isinstance(number, bool):
        if 0 <= number < count:
            return number
        if negative and -count <= number < 0:
            return number + count
    near = f"the nearest is {0 if isinstance(number, int) and number < 0 else count - 1}" if count else "there is none"
    raise HeadwayError(f"there is no {what} {number!r}: {near}")


def slots_of(rows: slice | int | Sequence[int], n: int) -> list[int]:
    """The slots of queries that are given by numbers, of which negative ones count from the end, or by a slice."""
    if isinstance(rows, slice):
        return list(range(n))[rows]
    numbers = [rows] if isinstance(rows, int) else list(rows)
    return [index_of(number, n, "row", negative=True) for number in numbers]
