"""The tensor in which a cache holds the keys, values or inputs of its tokens."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import HeadwayError


class Slots(NamedTuple):
    """The slots that a cache keeps: the first tokens of each row, and all slots from ``latest`` on."""

    first: Tensor
    """int64 [b or 1, count]"""
    latest: int

    def of(self, x: Tensor, dim: int) -> Tensor:
        """Returns these slots of x along ``dim``; the first dimension of x is the batch."""
        last = x.narrow(dim, self.latest, x.shape[dim] - self.latest)
        if not self.first.shape[1]:
            return last
        first = self.first_of(x, dim)
        return torch.cat([first, last.expand(first.shape[0], *last.shape[1:])], dim)

    def first_of(self, x: Tensor, dim: int) -> Tensor:
        """Returns a copy of only the first tokens."""
        if self.first.shape[0] == 1:
            return x.index_select(dim, self.first[0])
        shape = [1] * x.ndim
        shape[0], shape[dim] = self.first.shape
        rows = x.expand(self.first.shape[0], *x.shape[1:])
        return rows.take_along_dim(self.first.reshape(shape), dim)


class TokenBuffer:
    """A tensor [batch, …, tokens, width] that grows in place and can drop tokens from its front.

    The tokens are one slice of a larger storage. A full storage is replaced by one for twice as many tokens, so that n
    tokens cost O(n) copies. A buffer that drops as many tokens as it appends keeps storages of one size.

    Args:
        capacity: the tokens for which every storage has room; as many as are needed if None.
    """

    def __init__(self, capacity: int | None = None) -> None:
        self.capacity = capacity
        self.storage: Tensor | None = None
        self.start = 0
        self.length = 0
        self.written = 0
        """Slots of the storage from this one on were never part of a view."""
        self.saved = False
        """Whether a backward pass may have saved a view of the storage: slots below ``written`` are then read-only."""
        self.before: tuple[Tensor | None, int, int, int, bool] | None = None
        """The state that ``rollback`` restores; None outside of a transaction."""

    def __len__(self) -> int:
        return self.length

    def view(self) -> Tensor:
        """Returns all tokens, [batch, …, tokens, width]. Raises HeadwayError if the buffer is empty."""
        if self.storage is None:
            raise HeadwayError("the cache is empty: append keys and values before reading it")
        if torch.is_grad_enabled():
            if _of_inference_mode(self.storage):
                self.storage = self.storage.clone()  # autograd cannot save an inference tensor
            self.saved = True
        return self._tokens()

    def append(self, new: Tensor) -> Tensor:
        """Appends tokens and returns all of them."""
        if self.storage is None:
            self.storage = new.new_empty(*new.shape[:-2], self.capacity or 0, new.shape[-1])
        if torch.is_grad_enabled() and (new.requires_grad or self.storage.requires_grad):
            # autograd does not follow writes into the storage
            self.reset(torch.cat([self.view(), new], dim=-2))
            return self.view()
        length = self.length + new.shape[-2]
        if self.start + length > self.storage.shape[-2] or not self._may_write(self.start + self.length):
            self._grow(new, self.capacity or max(length, 2 * self.length))
        at, stop = self.start + self.length, self.start + length
        # no backward pass reads the slots from ``written`` on; a write through .data does not raise the version counter
        storage = self.storage.data if self.saved else self.storage
        storage[..., at:stop, :] = new
        self.length, self.written = length, max(self.written, stop)
        return self.view()

    def next_slots(self, count: int) -> Tensor | None:
        """Returns the slots of tokens that follow, for a caller that writes them; None if there are no free ones.

        Nothing is appended before ``take_slots``.
        """
        storage, at = self.storage, self.start + self.length
        if storage is None or self.saved or at + count > storage.shape[-2]:
            return None
        return storage.narrow(-2, at, count)

    def first(self, count: int) -> Tensor:
        """Returns the first slots, of the tokens and of those that follow."""
        assert self.storage is not None
        return self.storage.narrow(-2, self.start, count)

    def takes(self, new: Tensor) -> bool:
        """Returns whether the storage takes tokens without a conversion."""
        held = self.storage
        if held is None or held.dtype != new.dtype or _of_inference_mode(held):
            return False
        return held.shape[:-2] == new.shape[:-2] and held.shape[-1] == new.shape[-1]

    def take_slots(self, count: int) -> None:
        """Appends tokens that have been written into the next slots."""
        self.length += count
        self.written = max(self.written, self.start + self.length)

    def select(self, rows: Tensor) -> Tensor | None:
        """Returns a copy of some rows of the batch; None if the buffer is empty."""
        return None if self.storage is None else self._tokens()[rows]

    def keep(self, slots: Slots) -> None:
        """Drops all but these slots."""
        if not self.length or self.storage is None:
            return
        tokens, count = self._tokens(), slots.first.shape[1]
        length = count + self.length - slots.latest
        at = self.start + slots.latest - count
        too_large = self.capacity is None and self.storage.shape[-2] > 2 * length
        if self.before is not None or too_large or (count and not self._may_write(at)):
            storage = self.storage
            # a copy frees a storage that is too large, and keeps the tokens that a rollback or a backward pass reads
            self.reset(slots.of(tokens, -2).clone())
            if self.before is not None and self.before[0] is storage:
                _, start, before, _, _ = self.before
                own = storage[..., start : start + before, :].clone()
                self.before = (own, 0, before, before, own.requires_grad)
        else:
            if count:  # the first tokens move up to the latest
                tokens[..., slots.latest - count : slots.latest, :] = slots.first_of(tokens, -2)
            self.start, self.length = at, length

    def crop(self, length: int) -> None:
        """Drops all but the first ``length`` tokens."""
        self.length = min(self.length, length)
        if not self.length:
            self.reset(None)

    def begin(self) -> None:
        """Remembers the state for ``rollback``."""
        self.before = (self.storage, self.start, self.length, self.written, self.saved)

    def rollback(self) -> None:
        """Restores the state at ``begin``."""
        assert self.before is not None
        storage = self.storage
        self.storage, self.start, self.length, written, saved = self.before
        if self.storage is not storage:
            self.written, self.saved = written, saved
        self.before = None

    def _tokens(self) -> Tensor:
        assert self.storage is not None
        return self.storage[..., self.start : self.start + self.length, :]

    def replace(self, tokens: Tensor | None) -> None:
        """Replaces the tokens by as many others, of the same or other rows."""
        fixed = self.capacity is not None and self.storage is not None and tokens is not None
        if fixed and tokens.shape == (held := self._tokens()).shape and self._may_write(self.start):  # type: ignore[union-attr]
            held.copy_(tokens)  # type: ignore[arg-type]
        else:
            self.reset(tokens)

    def reset(self, storage: Tensor | None) -> None:
        """Replaces the tokens by all tokens of ``storage``."""
        self.storage, self.start = storage, 0
        self.length = self.written = 0 if storage is None else storage.shape[-2]
        self.saved = storage is not None and storage.requires_grad

    def _may_write(self, at: int) -> bool:
        """Whether slots from this one on may be overwritten."""
        assert self.storage is not None
        return (not self.saved or at >= self.written) and not _of_inference_mode(self.storage)

    def _grow(self, new: Tensor, capacity: int) -> None:
        """Moves the tokens into a new storage for ``capacity`` tokens."""
        assert self.storage is not None
        old, start, length = self.storage, self.start, self.length
        storage = new.new_empty(*new.shape[:-2], capacity, new.shape[-1], dtype=old.dtype)
        storage[..., :length, :] = self._tokens()
        self.reset(storage)
        self.length = self.written = length
        if self.before is not None and self.before[0] is old and self.before[1] == start:
            self.before = (storage, 0, self.before[2], length, False)  # so that the old storage is freed


def _of_inference_mode(storage: Tensor) -> bool:
    """Whether a tensor was created in inference mode, which has since ended."""
    # torch.compile cannot trace is_inference, and compiles for one mode only
    return not torch.compiler.is_compiling() and storage.is_inference() and not torch.is_inference_mode_enabled()
