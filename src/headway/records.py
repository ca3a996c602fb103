"""Records: frozen dataclasses that may hold tensors, with equality by value."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import Self

from .errors import HeadwayError


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

    @classmethod
    def _made(cls, fields: dict[str, Any]) -> Self:
        """A record of all its fields, which it keeps. No constructor is called: whoever calls this has checked them."""
        if torch.compiler.is_compiling():
            return cls(**fields)
        made = object.__new__(cls)
        object.__setattr__(made, "__dict__", fields)
        return made

    def _fields(self) -> dict[str, Any]:
        """All fields by name; the record's own, not to be changed."""
        if torch.compiler.is_compiling():
            return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]
        return self.__dict__

    def _with(self, **changes: Any) -> Self:
        """A copy in which some fields have other values. No constructor is called, so that nothing is checked again."""
        if torch.compiler.is_compiling():
            return dataclasses.replace(self, **changes)  # type: ignore[type-var]
        fields = {**self.__dict__, **changes}
        if len(fields) != len(self.__dict__):
            raise TypeError(f"{type(self).__name__} has no field {', '.join(changes.keys() - self.__dict__.keys())}")
        copy = object.__new__(type(self))
        object.__setattr__(copy, "__dict__", fields)
        return copy


def owner(kind: type, name: str) -> type:
    """The class that a method comes from."""
    return next(one for one in kind.__mro__ if name in vars(one))


def named(**dimensions: str) -> Mapping[str, tuple[str, ...]]:
    """The dimensions of tensors by name: ``named(q_class="batch queries")``."""
    return {name: tuple(words.split()) for name, words in dimensions.items()}


class Divisible(Record):
    """A record whose tensors name their dimensions, so that it can be cut along one of them."""

    axes: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """The dimensions of each tensor by its name, as ``named`` makes them: batch, heads, kv_heads, queries, keys, or any
    other word for one that is never cut. A tensor with fewer has the last of them; a size of 1 stands for all."""

    def dimensions(self, name: str, x: Tensor) -> tuple[str, ...]:
        """The dimensions of a tensor that is held by that name."""
        if name not in self.axes:
            raise HeadwayError(
                f"{type(self).__name__} holds the tensor {name!r} and does not say which of its dimensions are batch, "
                f'heads, queries and keys: give the class axes = headway.records.named({name}="…")'
            )
        return self.axes[name][-x.ndim :]

    def cut(self, axis: str, start: int, stop: int) -> Self:
        """The same for the range start … stop − 1 along one of the dimensions, with all records that it holds.

        Raises HeadwayError for a tensor whose dimensions are not named.
        """
        changes = {name: self._cut_one(name, value, axis, start, stop) for name, value in attributes(self).items()}
        changed = {name: value for name, value in changes.items() if value is not getattr(self, name)}
        if not changed:
            return self
        part = copy.copy(self)
        for name, value in changed.items():
            object.__setattr__(part, name, value)
        return part

    def _cut_one(self, name: str, value: Any, axis: str, start: int, stop: int) -> Any:
        if isinstance(value, Divisible):
            return value.cut(axis, start, stop)
        if isinstance(value, tuple):
            items = tuple(self._cut_one(name, item, axis, start, stop) for item in value)
            return value if all(a is b for a, b in zip(items, value, strict=True)) else items
        if not isinstance(value, Tensor):
            return value
        if axis == "queries" and name not in self.axes:
            return value  # a user's own record says what it holds for each query by its ``block``
        dimensions = self.dimensions(name, value)
        if axis not in dimensions:
            return value
        number = dimensions.index(axis)
        return value if value.shape[number] == 1 else value.narrow(number, start, stop - start)


def attributes(part: Any) -> dict[str, Any]:
    """What an object holds by name, of a class of headway's or of a user's, a dataclass or not."""
    held = dict(vars(part)) if hasattr(part, "__dict__") else {}
    if dataclasses.is_dataclass(part):  # one with slots has its fields beside
        held.update((field.name, getattr(part, field.name)) for field in dataclasses.fields(part))
    return held


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
