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


Layout = tuple[tuple[int, str, bool], ...]
"""The dimensions of a tensor: the number of each, the word for it, and whether a size of 1 stands for all of it."""
Sizes = Mapping[str, int | None]
"""What the words for dimensions stand for; None for a dimension that must not be there."""
NONE: Sizes = {}


def named(**tensors: str | tuple[str, ...]) -> Mapping[str, Mapping[int, Layout]]:
    """The dimensions of tensors by the names of their fields: ``named(factor="1|batch 1|heads queries")``.

    Args:
        tensors: a word for each dimension. Those of the call are batch, heads, kv_heads, queries, keys, head_dim and
            v_dim; the tensors of a record agree in the size of any other. ``1|`` before a word lets a size of 1 stand
            for all. A tuple says so of tensors of several numbers of dimensions; an empty one takes any shape.

    Returns:
        The layouts of each field by their numbers of dimensions.

    Raises:
        HeadwayError: two layouts of a field have as many dimensions.
    """
    return {name: _layouts(name, (said,) if isinstance(said, str) else said) for name, said in tensors.items()}


def _layouts(name: str, said: tuple[str, ...]) -> Mapping[int, Layout]:
    layouts = [
        tuple((i, word.removeprefix("1|"), word.startswith("1|")) for i, word in enumerate(one.split())) for one in said
    ]
    found = {len(layout): layout for layout in layouts}
    if len(found) < len(said):
        raise HeadwayError(f"{name} has layouts {said}: give one for each number of dimensions")
    return found


NUMBERS = frozenset({"None", "int", "float", "str", "list[int]", "tuple[int, ...]"})
NO_RECORD = NUMBERS | {"Tensor", "tuple[Tensor, ...]", "Callable[..., Tensor]"}
"""Types of fields, as they are written, that hold no record."""


class Divisible(Record):
    """A record whose tensors name their dimensions, by which they are checked, and cut along one of them."""

    axes: ClassVar[Mapping[str, Mapping[int, Layout]]] = {}
    """The dimensions of each tensor by its name, as ``named`` makes them."""

    whole: ClassVar[tuple[str, ...]] = ()
    """Fields of ``axes`` whose tensors hold whole numbers."""

    _laid_out: ClassVar[tuple[tuple[str, Mapping[int, Layout], bool], ...]] = ()
    """The fields whose tensors cannot have any shape, their layouts, and whether they hold whole numbers."""
    _knows: ClassVar[bool] = False
    """Whether the class has own sizes."""
    _holding: ClassVar[tuple[str, ...] | None] = None
    """The fields that may hold records, by their types; None for all, where the class says no types."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        cls._laid_out = tuple((name, layouts, name in cls.whole) for name, layouts in cls.axes.items() if layouts)
        cls._knows = cls.own_sizes is not Divisible.own_sizes
        types: dict[str, object] = {}
        for kind in reversed(cls.__mro__):
            types |= vars(kind).get("__annotations__", {})
        fields = {name: str(one) for name, one in types.items() if not str(one).startswith("ClassVar")}
        holding = tuple(name for name, one in fields.items() if not NO_RECORD.issuperset(one.split(" | ")))
        cls._holding = holding if "__annotations__" in vars(cls) else None

    def dimensions(self, name: str, x: Tensor) -> tuple[str, ...]:
        """The names of the dimensions of a tensor.

        Args:
            name: the field that holds it.
            x: the tensor.

        Raises:
            HeadwayError: if ``axes`` does not name them.
        """
        if name not in self.axes:
            raise HeadwayError(
                f"{type(self).__name__} holds the tensor {name!r} and does not say which of its dimensions are batch, "
                f'heads, queries and keys: give the class axes = headway.records.named({name}="…")'
            )
        layouts = self.axes[name]
        if layouts and x.ndim not in layouts:
            raise self._misfit(self, name, x, {})
        return tuple([word for _, word, _ in layouts[x.ndim]]) if layouts else ()

    def own_sizes(self, sizes: Sizes, around: Sizes) -> dict[str, int | None]:
        """The sizes of dimensions that are not the call's; where it gives none, the tensors of a record must agree.

        Args:
            sizes: those of the call.
            around: the own sizes of the record that holds this one.
        """
        return {}

    def check_tensors(self, sizes: Sizes, holder: Divisible | None = None, around: Sizes = NONE) -> None:
        """Checks the tensors of this record, and of records that it holds, by ``axes`` and ``whole``.

        Args:
            sizes: those of the call, by the words for dimensions.
            holder: the record that the message names. Default: this one.
            around: the own sizes of the record that holds this one.

        Raises:
            HeadwayError: if a tensor does not fit.
        """
        holder = self if holder is None else holder
        own = self.own_sizes(sizes, around) if self._knows else {}
        for name, layouts, whole in self._laid_out:
            value = getattr(self, name, None)
            if value is None:
                continue
            for x in (value,) if isinstance(value, Tensor) else _tensors(value):
                shape = x.shape
                layout = layouts.get(len(shape))
                if layout is None:
                    raise self._misfit(holder, name, x, {**own, **sizes})
                for number, word, one in layout:
                    size = shape[number]
                    if size == sizes.get(word) or (one and size == 1):
                        continue
                    if word in sizes or own.setdefault(word, size) != size:
                        raise self._misfit(holder, name, x, {**own, **sizes})
                if whole and (x.is_floating_point() or x.is_complex()):
                    raise HeadwayError(f"{type(holder).__name__} has {name} of {x.dtype}: give whole numbers")
        for name in attributes(self) if self._holding is None else self._holding:
            value = getattr(self, name, None)
            if isinstance(value, Divisible):
                if value._laid_out or value._holding != ():
                    value.check_tensors(sizes, holder, own)
            elif isinstance(value, tuple):
                for part in value:
                    if isinstance(part, Divisible):
                        part.check_tensors(sizes, holder, own)

    def _misfit(self, holder: Divisible, name: str, x: Tensor, sizes: Sizes) -> HeadwayError:
        layouts = [one for one in self.axes[name].values() if all(sizes.get(word, 0) is not None for _, word, _ in one)]
        layouts = [layout for layout in layouts if len(layout) == x.ndim] or layouts
        wanted = (", ".join(_said(sizes.get(word, word), one) for _, word, one in layout) for layout in layouts)
        said = "] or [".join(wanted)
        return HeadwayError(f"{type(holder).__name__} has {name} of shape {tuple(x.shape)}: give [{said}]")

    def extent(self, axis: str) -> int:
        """The largest size of its tensors, and of those of records that it holds, along ``axis``; at least 1."""
        largest = 1
        for name, value in attributes(self).items():
            for x in value if isinstance(value, tuple) else (value,):
                if isinstance(x, Divisible):
                    largest = max(largest, x.extent(axis))
                elif isinstance(x, Tensor) and name in self.axes and axis in (words := self.dimensions(name, x)):
                    largest = max(largest, x.shape[words.index(axis)])
        return largest

    def full_shape(self, name: str, x: Tensor, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The shape of tensor ``x`` of field ``name`` with the call's ``sizes`` in place of 1."""
        return tuple([sizes.get(word, size) for word, size in zip(self.dimensions(name, x), x.shape, strict=True)])

    def cut(self, axis: str, start: int, stop: int) -> Self:
        """The record, with all records that it holds, for the range ``start`` … ``stop`` − 1 along ``axis``.

        Raises:
            HeadwayError: if the dimensions of a tensor are not named.
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


def _tensors(value: Any) -> list[Tensor]:
    return [x for x in value if isinstance(x, Tensor)] if isinstance(value, tuple) else []


def _said(size: int | str | None, one: bool) -> str:
    return f"1 or {size}" if one and size != 1 else str(size)


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
