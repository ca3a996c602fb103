"""Transactions on caches and memories: a call that raises leaves them unchanged."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor

from .._torch import backward_pass
from ..constants import writes
from ..errors import HeadwayError
from ..masks import AnyMask, Mask, Padding, conjuncts
from ..tracing import watched


class Transaction:
    """A context that commits what its body appends to the caches, or rolls it back if the body raises."""

    def __init__(self, caches: Sequence[Transactional]) -> None:
        self.caches = caches

    def __enter__(self) -> None:
        for cache in self.caches:
            cache._need_whole()
            cache._need_first_pass()
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
    """Returns a context whose body appends to all of these caches, or to none if it raises.

    A nested transaction on the same cache does nothing: the outermost one commits or rolls back.
    """
    if (cache is None or cache._in_call) and (other is None or other._in_call):
        return _WITHIN
    return Transaction([one for one in (cache, other) if one is not None and not one._in_call])


class Transactional:
    """Base class of caches and memories that take part in transactions."""

    def __init__(self) -> None:
        # set here, since a compiler treats an attribute of the class and one of the object as two states
        self._in_call = False
        """Whether a transaction is under way."""
        self._damaged = False
        """Whether an error interrupted a change that cannot be rolled back."""
        self._filled_in = -1
        """The backward pass that has filled it; −1 if none has."""
        self._lengths: tuple[Tensor, int, Tensor, int] | None = None
        """The lengths of the last call's ``Padding``, its writes, a copy of its contents, and the tokens of its keys.
        """

    def need_new_lengths(self, mask: AnyMask, held: int, new: int) -> None:
        """Checks that ``Padding`` does not hold the lengths of an earlier call.

        Args:
            mask: the mask of the call.
            held: the tokens that are held.
            new: the tokens that follow.

        Raises:
            HeadwayError: if the lengths are the same and there are more tokens, as far as that is known without waiting
                for a device.
        """
        total = held + new
        for part in conjuncts(mask) if isinstance(mask, Mask) else ():
            if type(part) is not Padding or not isinstance(part.lengths, Tensor):
                continue
            now, before = part.lengths, self._lengths if held else None
            if before is not None and total > before[3] and _same(now, *before[:3]):
                raise HeadwayError(
                    f"Padding has the lengths of an earlier call, of {before[3]} tokens, and there are {total} now: "
                    "give positions=Coordinates.padded(lengths, n) in the first call, which later ones continue, and "
                    "masks.Padding() in each"
                )
            readable = now.is_cpu and not watched()
            self._lengths = now, writes([now]), now.clone() if readable else now, total

    def __len__(self) -> int:
        """The number of tokens held."""
        raise NotImplementedError

    def _need_first_pass(self) -> None:
        now = backward_pass()
        if now < 0:
            return
        if len(self) and now != self._filled_in:
            raise HeadwayError(
                f"a {type(self).__name__} is given to a forward pass that a backward pass computes again, and it still "
                "holds the tokens of the first pass: checkpoint without it, or make it in the checkpointed function"
            )
        self._filled_in = now

    def _need_whole(self) -> None:
        if self._damaged:
            raise HeadwayError(
                f"the {type(self).__name__} was left half changed by an error in reorder, in keep or in a rollback: "
                "start a new one"
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


def _same(lengths: Tensor, before: Tensor, writes_before: int, held: Tensor) -> bool:
    """Whether lengths are known, without waiting for a device, to equal the earlier ones."""
    if lengths.is_cpu and held.is_cpu and lengths.shape == held.shape and not watched():
        return bool((lengths == held).all())
    return lengths is before and writes([lengths]) == writes_before
