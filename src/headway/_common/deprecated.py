"""Deprecated public names: an old name works for one more version, with a warning."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any


def deprecated(old: str, new: str) -> None:
    """Warns that a public name is deprecated.

    The warning is attributed to the caller of the function that calls this.

    Args:
        old: the old name, as it was called.
        new: what to use instead.
    """
    warnings.warn(
        f"{old} is deprecated and will be removed in the next version: use {new}", DeprecationWarning, stacklevel=3
    )


def deprecated_names(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Returns a ``__getattr__`` for a module in which public names have changed.

    Args:
        module: the module's ``__name__``.
        names: the new name for each old one.
    """

    def attribute(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        deprecated(f"{module}.{name}", names[name])
        return getattr(sys.modules[module], names[name])

    return attribute
