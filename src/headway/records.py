"""Records: frozen dataclasses that may hold tensors, with equality by value."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self


class Record:
    """The base of dataclasses that may hold tensors; a subclass is decorated with ``dataclass(frozen=True, eq=False)``.

    Two records are equal where they are of one class and all their fields are equal; two tensors are equal where
    shape, dtype, device and all values are. The equality that ``dataclass`` writes would raise for tensors of several
    elements.
    """

    def __eq__(self, other: object) -> bool:
        return self is other or (type(self) is type(other) and _equal(vars(self), vars(other)))

    def __hash__(self) -> int:
        return hash((type(self), *map(_hashable, vars(self).values())))

    def _with(self, **changes: Any) -> Self:
        """A copy in which some fields have other values. No constructor is called, so that nothing is checked again."""
        if torch.compiler.is_compiling():
            return dataclasses.replace(self, **changes)  # type: ignore[type-var]
        copy = object.__new__(type(self))
        held = vars(copy)
        held.update(vars(self))
        count = len(held)
        held.update(changes)
        if len(held) != count:
            raise TypeError(f"{type(self).__name__} has no field {', '.join(changes.keys() - vars(self).keys())}")
        return copy


def _equal(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        return a.dtype == b.dtype and a.device == b.device and torch.equal(a, b)
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(_equal, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    return bool(a == b)


def _hashable(value: Any) -> Any:
    """What stands for a value in a hash: equal values give equal ones, in time that does not grow with a tensor."""
    if isinstance(value, Tensor):
        return value.shape
    if isinstance(value, (tuple, list)):
        return tuple(map(_hashable, value))
    return len(value) if isinstance(value, dict) else value
