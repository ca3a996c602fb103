"""Helpers of the sources, which find the attention calls of a model."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from .._watch import Finder


class Observers:
    """The finders of all threads that observe one function. The function is replaced while there are any."""

    def __init__(self) -> None:
        self.finders: list[Finder] = []
        self._lock = threading.Lock()

    @contextmanager
    def joined_by(self, finder: Finder, owner: Any, name: str, replacement: Any) -> Iterator[None]:
        """Replaces ``owner.name`` by ``replacement(original)`` from the first finder's block to the end of the last."""
        with self._lock:
            if not self.finders:
                self._original = vars(owner)[name]
                setattr(owner, name, replacement(self._original))
            self.finders.append(finder)
        try:
            yield
        finally:
            with self._lock:
                self.finders.remove(finder)
                if not self.finders:
                    setattr(owner, name, self._original)

    def awake(self) -> list[Finder]:
        """The active finders of this thread, the outermost first."""
        return [finder for finder in self.finders if finder.awake()]


def mentions(kind: type[nn.Module], name: str) -> bool:
    """Whether a method of a class, or of a base below ``nn.Module``, uses a global or an attribute of this name."""
    for base in kind.__mro__:
        if base is nn.Module:
            return False
        for member in vars(base).values():
            function = getattr(member, "__wrapped__", member)
            code = getattr(function, "__code__", None)
            if code is not None and name in code.co_names:
                return True
    return False
