"""Base classes of frozen dataclasses that may hold tensors: equality by value, checks and cuts by named dimensions."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import Self

from ._torch import COMPILER_FOLLOWS_DICT
from .errors import HeadwayError


class Record:
    """The base class of dataclasses that may hold tensors.

    A subclass is decorated with ``dataclass(frozen=True, eq=False)``, since the equality that ``dataclass`` generates
    raises for tensors of several elements. Two records are equal if they have the same class and equal fields. Two
    tensors are equal if their shape, dtype, device and all values are.
    """

    def __eq__(self, other: object) -> bool:
        return self is other or (type(self) is type(other) and _equal(vars(self), vars(other)))

    def __hash__(self) -> int:
        return hash((type(self), *map(_hashable, vars(self).values())))

    @classmethod
    def _made(cls, fields: dict[str, Any]) -> Self:
        """Makes a record from all of its fields, without the constructor and its checks; it keeps the dictionary."""
        if torch.compiler.is_compiling():
            return cls(**fields)
        made = object.__new__(cls)
        object.__setattr__(made, "__dict__", fields)
        return made

    def _values(self) -> dict[str, Any]:
        """Returns all fields by name; the dictionary is the record's own and must not be changed."""
        if torch.compiler.is_compiling():
            return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]
        return self.__dict__

    def _with(self, **changes: Any) -> Self:
        """Returns a copy with some fields changed, without the constructor and its checks."""
        if torch.compiler.is_compiling():
            return dataclasses.replace(self, **changes)  # type: ignore[type-var]
        fields = {**self.__dict__, **changes}
        if len(fields) != len(self.__dict__):
            raise TypeError(f"{type(self).__name__} has no field {', '.join(changes.keys() - self.__dict__.keys())}")
        copy = object.__new__(type(self))
        object.__setattr__(copy, "__dict__", fields)
        return copy


def owner(kind: type, name: str) -> type:
    """Returns the class that defines an attribute, of a class and its bases.

    Args:
        kind: the class.
        name: the name of the attribute.
    """
    return next(one for one in kind.__mro__ if name in vars(one))


Dimensions = tuple[tuple[int, str, bool], ...]
"""The dimensions of a tensor: the number and the name of each, and whether it may have size 1 and broadcast."""
Sizes = Mapping[str, int | None]
"""The sizes of dimensions by name; None for a dimension that must not exist."""
NONE: Sizes = {}


def named(**tensors: str | tuple[str, ...]) -> Mapping[str, Mapping[int, Dimensions]]:
    """Names the dimensions of tensors, as ``axes`` of a class: ``named(factor="1|batch 1|heads queries")``.

    Args:
        **tensors: for each field, the names of its dimensions. Those of a call are batch, heads, kv_heads, queries,
            keys, head_dim and v_dim; for any other name, the tensors of a record must agree in size. ``1|`` before a
            name also allows size 1, which broadcasts. A tuple gives one layout for each number of dimensions; an empty
            tuple allows any shape.

    Returns:
        The layouts of each field by their numbers of dimensions.

    Raises:
        HeadwayError: if two layouts of a field have the same number of dimensions.
    """
    return {name: _layouts(name, (said,) if isinstance(said, str) else said) for name, said in tensors.items()}


def _layouts(name: str, said: tuple[str, ...]) -> Mapping[int, Dimensions]:
    layouts = [
        tuple((i, word.removeprefix("1|"), word.startswith("1|")) for i, word in enumerate(one.split())) for one in said
    ]
    found = {len(layout): layout for layout in layouts}
    if len(found) < len(said):
        raise HeadwayError(f"{name} has layouts {said}: give one for each number of dimensions")
    return found


NUMBERS = frozenset({"None", "int", "float", "str", "list[int]", "tuple[int, ...]"})
NO_RECORD = NUMBERS | {"Tensor", "tuple[Tensor, ...]", "Callable[..., Tensor]"}
"""Types of fields, as written in annotations, that hold no record."""


class Divisible(Record):
    """A record whose tensors have named dimensions, by which they are checked and cut."""

    axes: ClassVar[Mapping[str, Mapping[int, Dimensions]]] = {}
    """The dimensions of the tensor of each field, made by ``named``."""

    whole: ClassVar[tuple[str, ...]] = ()
    """Fields of ``axes`` whose tensors must hold integers."""

    _laid_out: ClassVar[tuple[tuple[str, Mapping[int, Dimensions], bool], ...]] = ()
    """The fields with restricted shapes: name, layouts, and whether the tensor must hold integers."""
    _knows: ClassVar[bool] = False
    """Whether the class overrides ``own_sizes``."""
    _holding: ClassVar[tuple[str, ...] | None] = None
    """The fields whose annotations allow records; None, for all fields, if the class has no annotations."""

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
        """Returns the names of the dimensions of a tensor, or () if it may have any shape.

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
        """Returns the sizes of dimensions that are not the call's, as far as the record defines them.

        Args:
            sizes: the sizes of the call.
            around: the own sizes of the record that holds this one.
        """
        return {}

    def check_tensors(self, sizes: Sizes, holder: Divisible | None = None, around: Sizes = NONE) -> None:
        """Checks the tensors of this record and of the records that it holds by ``axes`` and ``whole``.

        Args:
            sizes: the sizes of the call by the names of dimensions.
            holder: the record that messages name. Default: this one.
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
            for x in (value,) if isinstance(value, Tensor) else self._tensors_of(name, value):
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

    def _tensors_of(self, name: str, value: Any) -> list[Tensor]:
        if isinstance(value, (int, float)) and vars(type(self)).get("__annotations__", {}).get(name) == "Tensor":
            said = f"{type(self).__name__} has {name}={value}"
            raise HeadwayError(f"{said}: give a tensor, such as torch.tensor([{value}])")
        return [x for x in value if isinstance(x, Tensor)] if isinstance(value, tuple) else []

    def _misfit(self, holder: Divisible, name: str, x: Tensor, sizes: Sizes) -> HeadwayError:
        layouts = [one for one in self.axes[name].values() if all(sizes.get(word, 0) is not None for _, word, _ in one)]
        layouts = [layout for layout in layouts if len(layout) == x.ndim] or layouts
        wanted = (", ".join(_said(sizes.get(word, word), one) for _, word, one in layout) for layout in layouts)
        said = "] or [".join(wanted)
        heads = any(word == "heads" for layout in layouts for _, word, _ in layout)
        swapped = heads and x.ndim and x.shape[0] == sizes.get("queries") != sizes.get("heads")
        return HeadwayError(
            f"{type(holder).__name__} has {name} of shape {tuple(x.shape)}: give [{said}]"
            + ("; if q is [batch, tokens, heads, head_dim], give q.transpose(1, 2), and so k and v" if swapped else "")
        )

    def extent(self, axis: str) -> int:
        """Returns the largest size along ``axis`` of its tensors and of those of records that it holds, at least 1."""
        largest = 1
        for name, value in attributes(self).items():
            for x in value if isinstance(value, tuple) else (value,):
                if isinstance(x, Divisible):
                    largest = max(largest, x.extent(axis))
                elif isinstance(x, Tensor) and name in self.axes and axis in (words := self.dimensions(name, x)):
                    largest = max(largest, x.shape[words.index(axis)])
        return largest

    def full_shape(self, name: str, x: Tensor, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Returns the shape of the tensor ``x`` of the field ``name``, with the call's ``sizes`` in place of size 1."""
        return tuple([sizes.get(word, size) for word, size in zip(self.dimensions(name, x), x.shape, strict=True)])

    def along(self, axis: str, change: Callable[[Tensor, tuple[str, ...]], Tensor]) -> Self:
        """Returns the record with other tensors in place of those that have a dimension.

        Args:
            axis: the dimension. A tensor that broadcasts along it does not have it.
            change: returns the replacement of a tensor, given with the names of its dimensions. It is called for
                the tensors of this record and of those that it holds, in the order of the fields.

        Raises:
            HeadwayError: if the dimensions of a tensor are not named.
        """

        def replaced(name: str, value: Any) -> Any:
            if isinstance(value, Divisible):
                return value.along(axis, change)
            if isinstance(value, tuple):
                items = tuple([replaced(name, item) for item in value])
                return value if all(a is b for a, b in zip(items, value, strict=True)) else items
            if not isinstance(value, Tensor) or axis not in (words := self.dimensions(name, value)):
                return value
            _, _, broadcasts = self.axes[name][value.ndim][words.index(axis)]
            return value if broadcasts and value.shape[words.index(axis)] == 1 else change(value, words)

        return self._with_values({name: replaced(name, value) for name, value in attributes(self).items()})

    def _with_values(self, values: Mapping[str, Any]) -> Self:
        """Returns a copy with some values, without the constructor and its checks; itself if nothing changes."""
        changed = {name: value for name, value in values.items() if value is not getattr(self, name)}
        if not changed:
            return self
        part = copy.copy(self)
        for name, value in changed.items():
            object.__setattr__(part, name, value)
        return part

    def cut(self, axis: str, start: int, stop: int) -> Self:
        """Returns the record, and all records that it holds, for the range ``start`` … ``stop`` − 1 along ``axis``.

        Raises:
            HeadwayError: if the dimensions of a tensor are not named.
        """
        values = {name: self._cut_one(name, value, axis, start, stop) for name, value in attributes(self).items()}
        return self._with_values(values)

    def _cut_one(self, name: str, value: Any, axis: str, start: int, stop: int) -> Any:
        if isinstance(value, Divisible):
            return value.cut(axis, start, stop)
        if isinstance(value, tuple):
            items = tuple(self._cut_one(name, item, axis, start, stop) for item in value)
            return value if all(a is b for a, b in zip(items, value, strict=True)) else items
        if not isinstance(value, Tensor):
            return value
        if axis == "queries" and name not in self.axes:
            return value  # a user's class cuts it in its own ``block``
        dimensions = self.dimensions(name, value)
        if axis not in dimensions:
            return value
        number = dimensions.index(axis)
        return value if value.shape[number] == 1 else value.narrow(number, start, stop - start)


def attributes(part: Any) -> dict[str, Any]:
    """Returns the attributes of an object by name, whether it is a dataclass, with or without slots, or not.

    Args:
        part: the object.
    """
    if not dataclasses.is_dataclass(part):
        return dict(vars(part)) if hasattr(part, "__dict__") else {}
    held = {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}
    if hasattr(part, "__dict__") and (COMPILER_FOLLOWS_DICT or not torch.compiler.is_compiling()):
        held.update(vars(part))  # a user's class may set others
    return held


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
    """Returns a hashable stand-in for a value; equal values give equal ones. Of a tensor, only the shape is read."""
    if isinstance(value, Tensor):
        return value.shape
    if isinstance(value, (tuple, list)):
        return tuple(map(_hashable, value))
    return len(value) if isinstance(value, dict) else value
