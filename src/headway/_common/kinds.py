"""The kinds of values in files of JSON objects, and the check whether a value is of a kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

__all__ = ["Kind", "fits"]

Kind: TypeAlias = Any
"""The kind of value that is wanted.

    str, bool, int      a value of that type; True is not an int
    float               a number
    None                null
    (a, b)              a or b; in an object, (a, ...) also stands for a field that is missing
    [a]                 a list of a
    [a, b, c]           a list with an a, a b and a c
    {str: a}            an object whose values are a; {int: a} and {float: a} have numbers as names
    {"x": a, "y": b}    an object with these fields, and others
    a function          a value for which it returns true
"""


def fits(value: Any, kind: Kind) -> bool:
    """Returns whether a value of JSON is of a kind."""
    if isinstance(kind, tuple):
        return any(one is not ... and fits(value, one) for one in kind)
    if isinstance(kind, list):
        if not isinstance(value, list) or len(kind) not in (1, len(value)):
            return False
        return all(map(fits, value, kind * len(value) if len(kind) == 1 else kind))
    if isinstance(kind, Mapping):
        return isinstance(value, dict) and _fields_fit(value, kind)
    if kind is None or isinstance(value, bool):
        return value is kind if kind is None else kind is bool
    if not isinstance(kind, type):
        return bool(kind(value))
    return isinstance(value, (int, float) if kind is float else kind)


def _fields_fit(value: dict[str, Any], kind: Mapping[Any, Kind]) -> bool:
    for name, its in kind.items():
        if isinstance(name, type):
            return all(_is_written(field, name) and fits(one, its) for field, one in value.items())
        missing = isinstance(its, tuple) and ... in its
        if not (fits(value[name], its) if name in value else missing):
            return False
    return True


def _is_written(name: str, kind: type) -> bool:
    """Whether the name of a field is a text or a number written as text."""
    try:
        kind(name)
    except ValueError:
        return False
    return True
