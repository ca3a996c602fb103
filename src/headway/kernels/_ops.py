"""Splits a call into a list of tensors and a structure without tensors, for autograd and compilers; and back."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Sequence
from functools import lru_cache
from operator import index
from typing import Any

from torch import Tensor

from .. import masks, terms
from ..coordinates import Coordinates
from ..records import attributes
from ..terms import Part
from ._problem import Call

PARTS: dict[str, type] = {
    kind.__name__: kind
    for module in (terms, masks)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, (Part, masks.Mask)) and dataclasses.is_dataclass(kind)
} | {"Coordinates": Coordinates, "Call": Call}

FIELDS: dict[type, tuple[str, ...]] = {
    kind: tuple(field.name for field in dataclasses.fields(kind)) for kind in PARTS.values()
}


class Foreign:
    """Represents a part of a user's class in a structure, with the names of its attributes."""

    def __init__(self, part: Part, names: tuple[str, ...]) -> None:
        self.part, self.names = part, names

    def with_values(self, values: Sequence[Any]) -> Part:
        """Returns the part with these attribute values, without calling the constructor."""
        part: Part = object.__new__(type(self.part))
        for name, value in (attributes(self.part) | dict(zip(self.names, values, strict=True))).items():
            object.__setattr__(part, name, value)
        return part


def values_of(part: Any) -> Sequence[Any]:
    """Returns the values that a term, a part of one, or a mask holds; none for anything else."""
    if type(part) in FIELDS:
        return [getattr(part, field) for field in FIELDS[type(part)]]
    return tuple(attributes(part).values()) if isinstance(part, Part) else ()


LEAVES = frozenset({bool, int, float, str, type(None)})

Structure = tuple[Any, ...]
"""(kind, fields …), with ("#", number) for a tensor and ("()", items …) for a tuple. As text also ("float", hex).

The kind is the name of a class of headway, or ``Foreign`` for any other class."""


def flatten(part: Any, tensors: list[Tensor]) -> Any:
    """Returns the structure of a call and appends its tensors to ``tensors``, each once."""
    name: str | Foreign
    if isinstance(part, Tensor):
        for number, known in enumerate(tensors):
            if known is part:
                return ("#", number)
        tensors.append(part)
        return ("#", len(tensors) - 1)
    if isinstance(part, tuple):
        name, values = "()", part
    elif type(part) in FIELDS:
        name, values = type(part).__name__, tuple([getattr(part, field) for field in FIELDS[type(part)]])
    elif isinstance(part, Part):
        held = attributes(part)
        name, values = Foreign(part, tuple(held)), tuple(held.values())
    else:
        return part
    return (name, *[value if type(value) in LEAVES else flatten(value, tensors) for value in values])


def unflatten(structure: Any, tensors: Sequence[Tensor]) -> Any:
    """Makes a call from a structure and tensors."""
    if not isinstance(structure, tuple):
        return structure
    kind, *items = structure
    if kind == "#":
        return tensors[items[0]]
    if kind == "float":
        return float.fromhex(items[0])
    items = [item if type(item) in LEAVES else unflatten(item, tensors) for item in items]
    if kind == "()":
        return tuple(items)
    if isinstance(kind, Foreign):
        return kind.with_values(items)
    part: Any = object.__new__(PARTS[kind])  # without __init__: its fields were checked when it was first made
    part.__dict__.update(zip(FIELDS[PARTS[kind]], items, strict=True))
    return part


def is_plain(structure: Any) -> bool:
    """Returns whether the structure holds only numbers and strings and can therefore be written as text."""
    if isinstance(structure, tuple):
        return all(is_plain(item) for item in structure)
    return structure is None or isinstance(structure, (bool, int, float, str))


def write(structure: Any) -> str:
    """Returns the structure as text, for an operator's schema."""
    if isinstance(structure, tuple):
        return "(" + "".join(write(item) + "," for item in structure) + ")"
    if isinstance(structure, str):
        return "'" + structure + "'"
    # hex and index make a compiler specialize on numbers that are symbols
    if isinstance(structure, float):
        return "('float','" + structure.hex() + "',)"
    if isinstance(structure, int) and not isinstance(structure, bool):
        return str(index(structure))
    return str(structure)


@lru_cache(maxsize=256)
def read(text: str) -> Structure:
    """Returns the structure from the text of ``write``."""
    structure: Structure = ast.literal_eval(text)
    return structure
