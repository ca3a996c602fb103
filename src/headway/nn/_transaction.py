"""Transactions on caches and memories: a call that raises leaves them as they were."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from ..errors import HeadwayError


class Transaction:
    """A context that commits what is appended to the caches in it, and rolls it back where the body raises."""

    def __init__(self, caches: Sequence[Transactional]) -> None:
        self.caches = caches

    def __enter__(self) -> None:
        for cache in self.caches:
            cache._need_whole()
        for cache in self.caches:
            cache._begin()

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        for cache in self.caches:
            if kind is None:
                cache._commit()
            else:
                cache._rollback()


_WITHIN = nullcontext()


def transaction(cache: Transactional | None, other: Transactional | None = None) -> AbstractContextManager[None]:
    """A context in which tokens are appended to these caches: all of them, or none where the body raises.

    Nested transactions on the same cache do nothing: the outermost one commits or rolls back.
    """
    if (cache is None or cache._in_call) and (other is None or other._in_call):
        return _WITHIN
    return Transaction([one for one in (cache, other) if one is not None and not one._in_call])


class Transactional:
    """The base of what takes part in transactions."""

    _in_call = False
    """Whether a transaction is under way."""
    _damaged = False
    """Whether an error interrupted a change that cannot be rolled back."""

    def _need_whole(self) -> None:
        if self._damaged:
            raise HeadwayError(
                f"the {type(self).__name__} was left half changed by an error in reorder or keep, or while a call was "
                "taken back: start a new one"
            )

    def _begin(self) -> None:
        """Starts a transaction."""
        raise NotImplementedError

    def _commit(self) -> None:
        """Ends the transaction and keeps its changes."""
        raise NotImplementedError

    def _rollback(self) -> None:
        """Ends the transaction and restores the state at ``_begin``."""
        raise NotImplementedError
