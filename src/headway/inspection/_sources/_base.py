"""What sources, the methods of finding the attention calls of a model, have in common."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from .._watch import Watch


class Observers:
    """The watches of all threads that look on at one function, which is replaced while there are any."""

    def __init__(self) -> None:
        self.watches: list[Watch] = []
        self._lock = threading.Lock()

    @contextmanager
    def joined_by(self, watch: Watch, owner: Any, name: str, replacement: Any) -> Iterator[None]:
        """``owner.name`` is ``replacement(original)`` from the first watch's block to the end of the last."""
        with self._lock:
            if not self.watches:
                self._original = vars(owner)[name]
                setattr(owner, name, replacement(self._original))
            self.watches.append(watch)
        try:
            yield
        finally:
            with self._lock:
                self.watches.remove(watch)
                if not self.watches:
                    setattr(owner, name, self._original)

    def awake(self) -> list[Watch]:
        """The watches of this thread that take an attention call, the outermost first."""
        return [watch for watch in self.watches if watch.awake()]


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
