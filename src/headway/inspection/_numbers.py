"""Heads, queries and calls by number."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import HeadwayError


def whole(number: Any) -> int | None:
    """A whole number, which may be one of numpy or of torch, as an int; None for anything else."""
    if isinstance(number, bool) or (isinstance(number, Tensor) and number.dtype == torch.bool):
        return None
    try:
        return operator.index(number)
    except TypeError:
        return None


def numbers_of(given: Any, name: str) -> list[int]:
    """A whole number, or some, as ints. Raises HeadwayError for anything else; the message names the argument."""
    parsed = [whole(one) for one in (given if isinstance(given, Iterable) and whole(given) is None else [given])]
    numbers = [number for number in parsed if number is not None]
    if len(numbers) < len(parsed):
        raise HeadwayError(f"{name} is {given!r}: give whole numbers, such as 0 or [0, 3]")
    return numbers


def index_of(number: Any, count: int, what: str, *, negative: bool = False) -> int:
    """A number from 0 to count − 1. Raises HeadwayError for another one; the message names the nearest."""
    index = whole(number)
    if index is None:
        raise HeadwayError(f"there is no {what} {number!r}: give a whole number")
    if 0 <= index < count:
        return index
    if negative and -count <= index < 0:
        return index + count
    near = f"the nearest is {0 if index < 0 else count - 1}" if count else "there is none"
    raise HeadwayError(f"there is no {what} {index}: {near}")


def slots_of(rows: slice | int | Sequence[int], n: int, what: str = "row") -> list[int]:
    """Returns the slots of tokens that are given by a slice or by numbers. Negative numbers count from the end."""
    if isinstance(rows, slice):
        return list(range(n))[rows]
    return [index_of(number, n, what, negative=True) for number in numbers_of(rows, f"{what}s")]
