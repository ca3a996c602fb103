"""The cache of keys and values of one attention layer."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor

from ..coordinates import Coordinates, stream
from ..errors import HeadwayError
from ..masks import Mask
from ..positions import PositionEncoding
from ..tracing import watched
from ._coordinates import cropped, joined, kept, remaining
from ._retention import Retention, reads_others
from ._token_buffer import Slots, TokenBuffer
from ._transaction import Transactional, transaction


class KeyValueCache(Transactional):
    """A cache of the keys and values of one attention layer, so that a new token costs one row of scores.

    Keys are stored as the encoding has prepared them, or as projected if the encoding requires that (``cache_prepared =
    False``). The storage doubles when it is full, so n tokens cost O(n) copies in total. If ``keep`` bounds the tokens,
    it bounds the storage too. Keys or values that require a gradient are concatenated instead, which is slower.
    Appending tokens without gradients, under ``torch.no_grad``, detaches the earlier ones.

    With ``max_length`` the cache is static: the first call allocates the storage for that many tokens, and later ones
    write into it. No step copies earlier tokens, and a compiled step serves every length. A call that would exceed
    ``max_length`` raises an error before it computes anything.

    By default the cache keeps every token, since a later call may have another mask and ``crop`` may return to an
    earlier state. If you give the ``mask`` of all calls, each call removes the tokens that the mask hides from all
    later ones. The cache then holds a window, and the first tokens that KeepFirst or Prefix show, in storage for less
    than twice as many tokens. Outputs do not change. Once tokens have been removed, ``crop`` and a call whose mask may
    show more raise errors. The cache keeps all tokens if the mask bounds nothing, or if the effect of the layer's
    encoding on two tokens depends on others. Statistics and pictures of such a layer see the tokens that are left.

    Activation checkpointing computes a forward pass again. The second pass refuses a cache that the first one has
    filled.

    A layer, block or model that raises leaves the cache as it was before the call, so you may repeat the call. A cache
    serves one call at a time: no lock protects it between threads.

    Without positions, the tokens of each row of the batch continue after the row's own last token, so a left-padded
    batch (``Coordinates.padded``) continues correctly.

    Args:
        max_length: the most tokens that the cache holds, for which it has room from the start; no limit if None.
        mask: the mask of every call that uses this cache, such as ``Causal() & Window(255)``; the cache removes tokens
            that it hides. Default: all tokens are kept.

    Raises:
        HeadwayError: if max_length is below 1, or both arguments are given.

    Example:
        cache = KeyValueCache()
        for token in tokens:  # [batch, 1, embed_dim]
            out = layer(token, mask=Causal(), cache=cache)
    """

    def __init__(self, max_length: int | None = None, *, mask: Mask | None = None) -> None:
        super().__init__()
        need_max_length(max_length)
        if max_length is not None and mask is not None:
            raise HeadwayError(
                f"max_length is {max_length} and mask is given: a cache of fixed size keeps all tokens, leave one out"
            )
        self.max_length = max_length
        self.retention = Retention.under(mask)
        """The tokens that remain after a call; None for all."""
        self._forgot = False
        """Whether tokens that an earlier mask would show have been removed under ``mask``."""
        self._parts = tuple(TokenBuffer(max_length) for _ in range(3))
        self._keys, self._values, self._inputs = self._parts
        self._coordinates: Coordinates | None = None
        self._counts = False
        """Whether the tokens stand at 0, 1, 2 … in a stream that ends with them and has no object."""
        self.prepared_by: PositionEncoding | None = None
        """The encoding that prepared the keys and values; None for keys and values as projected."""
        self.placed: Coordinates | None = None
        """Where that encoding has placed the tokens of the last call, if it may draw places; else None."""
        self._before: tuple[Coordinates | None, bool] = None, False
        self._step: object = None
        """What the last decoding step has prepared for later ones, as ``_step`` says."""

    def __len__(self) -> int:
        return self._keys.length

    def __deepcopy__(self, memo: dict[int, Any]) -> KeyValueCache:
        """Returns a copy for the same encoding, or for the encoding's copy if both are copied together."""
        other = memo[id(self)] = KeyValueCache()
        for name, value in vars(self).items():
            setattr(other, name, memo.get(id(value), value) if name == "prepared_by" else copy.deepcopy(value, memo))
        return other

    def __repr__(self) -> str:
        if not len(self):
            return f"{type(self).__name__}(empty)"
        parts = self.keys, self.values
        shapes = ", ".join(f"{name} {list(x.shape)}" for name, x in zip(("keys", "values"), parts, strict=True))
        made = "" if self.prepared_by is None else f"; prepared by {type(self.prepared_by).__name__}"
        most = "" if self.max_length is None else f" of {self.max_length}"
        held = f"{len(self)} tokens{most}; {shapes}, {type_of(parts[0])}, {size_of(*parts)}{made}"
        return f"{type(self).__name__}({held})"

    def need_room(self, n: int) -> None:
        """Checks that n tokens more fit.

        Args:
            n: the number of tokens that follow.

        Raises:
            HeadwayError: if they exceed ``max_length``.
        """
        need_room(len(self), n, self.max_length)

    def need_mask(self, mask: Mask | Tensor | None, encoding: PositionEncoding | None) -> None:
        """Checks that removed tokens are hidden by the mask of a call, and do not act on the encoding.

        Args:
            mask: the mask of the call.
            encoding: the encoding of the call.

        Raises:
            HeadwayError: if tokens have been removed and that is not known.
        """
        if self.retention is None:
            return
        if reads_others(encoding):
            if not self._forgot:
                self.retention = None
                return
            said = f"a {type(encoding).__name__} reads tokens between others"
        else:
            shown = Retention.under(mask if isinstance(mask, Mask) else None)
            if shown is not None and shown.first <= self.retention.first and shown.last <= self.retention.last:
                return
            said = "the mask of this call may show others"
        held = f"its first {self.retention.first} and last {self.retention.last} tokens"
        raise HeadwayError(
            f"the cache was made with a mask and keeps {held} of each row, and {said}: use KeyValueCache()"
        )

    def need_prepared_by(self, encoding: PositionEncoding | None) -> None:
        """Sets the encoding that prepares keys and values, which must be that of the tokens already stored.

        Args:
            encoding: the encoding object; None for keys and values as projected.

        Raises:
            HeadwayError: if the cache holds keys that another encoding prepared.
        """
        if len(self) and self.prepared_by is not encoding:
            held, asked = (
                "as projected" if each is None else f"prepared by a {type(each).__name__}"
                for each in (self.prepared_by, encoding)
            )
            another = ", another object" if type(encoding) is type(self.prepared_by) else ""
            raise HeadwayError(
                f"the cache holds keys {held} and this call needs them {asked}{another}: start a new cache, or read it "
                "with the encoding that filled it (cache.prepared_by)"
            )
        self.prepared_by = encoding

    @property
    def coordinates(self) -> Coordinates | None:
        """The coordinates of the tokens; None for an empty cache, and if a StackCache keeps them for all layers."""
        if not self._counts:
            return self._coordinates
        count = len(self)
        return stream(count, 0, count, self.keys.device) if count else None

    @coordinates.setter
    def coordinates(self, at: Coordinates | None) -> None:
        self._coordinates, self._counts = at, False

    def count(self, new: Tensor, prepared_by: PositionEncoding | None) -> bool:
        """Returns whether coordinates are, from now on, known by the number of tokens.

        They are if no call has given any and no token was removed from the stream, on a CPU and outside of a compiler.

        Args:
            new: the input of the tokens that follow.
            prepared_by: the encoding that prepares their keys; None if the cache holds them as projected.
        """
        started = len(self) > 0 or self._coordinates is not None  # keep(0, 0) leaves no token, but the stream goes on
        if (started and not self._counts) or not new.is_cpu or watched():
            return False
        if prepared_by is not None and prepared_by.plan_key() is None:
            return False  # it may draw positions, and keys and queries must share one draw
        self._coordinates, self._counts = None, True
        return True

    @property
    def keys(self) -> Tensor:
        """The keys of all tokens, [batch, kv_heads, tokens, head_dim]."""
        return self._keys.view()

    @property
    def values(self) -> Tensor:
        """The values of all tokens, [batch, kv_heads, tokens, value head_dim]."""
        return self._values.view()

    @property
    def inputs(self) -> Tensor | None:
        """The layer's inputs, [batch, tokens, embed_dim], kept for encodings that read them; None if there are none."""
        return self._inputs.view() if len(self._inputs) else None

    def append(
        self,
        keys: Tensor,
        values: Tensor,
        *,
        coordinates: Coordinates | None = None,
        inputs: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Appends tokens and returns the keys and values of all tokens.

        Args:
            keys: [batch, kv_heads, n, head_dim].
            values: [batch, kv_heads, n, value head_dim].
            coordinates: the coordinates of the new tokens, if this cache keeps coordinates.
            inputs: the layer's inputs [batch, n, embed_dim], for encodings that read them.

        Raises:
            HeadwayError: if the batch size differs from that of the tokens in the cache, or there is no room.
        """
        self.need_room(keys.shape[2])
        held = self._keys.storage
        if held is not None and self._keys.length and keys.shape[0] != held.shape[0]:
            raise HeadwayError(
                f"the batch is {keys.shape[0]} but the cache holds {held.shape[0]} rows: start a new "
                "cache, or reorder this one"
            )
        with transaction(self):
            self.placed = None
            if coordinates is not None:
                self.coordinates = joined(self.coordinates, coordinates).as_given()
            if inputs is not None:
                self._inputs.append(inputs)
            return self._keys.append(keys), self._values.append(values)

    def crop(self, length: int) -> None:
        """Removes all but the first ``length`` tokens, as speculative decoding needs.

        Args:
            length: the number of tokens to keep, 0 to ``len(cache)``.

        Raises:
            HeadwayError: if ``length`` is out of range, or tokens that would be visible again were removed under
                ``mask``.
        """
        need_within(length, len(self))
        if self._forgot and length:
            raise HeadwayError(
                f"crop to {length} tokens but those that the cache's mask hides were removed, and some would be "
                "visible again: use KeyValueCache(), which keeps all"
            )
        self._forgot, self.placed = False, None
        if self._coordinates is not None:
            self._coordinates = cropped(self._coordinates, length)
        for tokens in self._parts:
            tokens.crop(length)

    def keep(self, first: int, last: int) -> None:
        """Removes all but the first and the last tokens of each row, as attention sinks with a window need.

        Left padding does not count as tokens: each row keeps its own first real tokens. The tokens keep their positions
        in the stream, so ``StreamingLLM`` knows what was removed. If you call it after each step, it copies only the
        first tokens, and the storage stays below twice the tokens kept.

        Args:
            first: the number of first tokens to keep, at least 0.
            last: the number of last tokens to keep, at least 0.

        Raises:
            HeadwayError: if a number is below 0.
        """
        at = self.coordinates
        if at is None:
            at = Coordinates.span(len(self), device=self.keys.device if len(self) else None)
        slots = kept(at, first, last)
        if slots is not None:
            self.take(slots)
            if self._counts or self._coordinates is not None:
                self.coordinates = remaining(at, slots)

    def take(self, slots: Slots) -> None:
        """Removes all tokens except those in ``slots``; coordinates do not change."""
        self._need_whole()
        self._damaged, self.placed = True, None
        for tokens in self._parts:
            tokens.keep(slots)
        self._damaged = False

    def reorder(self, rows: Tensor) -> None:
        """Selects rows of the batch, as beam search needs.

        Args:
            rows: int64 [new batch], the numbers of the rows in their new order; rows may be repeated or left out.
        """
        self._need_whole()
        chosen = [tokens.select(rows) for tokens in self._parts]
        coordinates = None if self._coordinates is None else self._coordinates.select(rows)
        self._damaged = True
        for tokens, storage in zip(self._parts, chosen, strict=True):
            tokens.replace(storage)
        self._coordinates, self._damaged, self.placed = coordinates, False, None

    def _begin(self) -> None:
        self._in_call, self._before = True, (self._coordinates, self._counts)
        for tokens in self._parts:
            tokens.begin()

    def _commit(self) -> None:
        self._in_call, self._before = False, (None, False)
        for tokens in self._parts:
            tokens.before = None
        if self.retention is not None and self.coordinates is not None:
            before = len(self)
            self.keep(*self.retention)
            self._forgot = self._forgot or len(self) < before

    def _rollback(self) -> None:
        self._in_call, self._damaged = False, True
        for tokens in self._parts:
            tokens.rollback()
        self._damaged = False
        self._coordinates, self._counts = self._before
        self._before, self.placed = (None, False), None


def need_max_length(max_length: int | None) -> None:
    """Raises HeadwayError if the number of tokens for which a cache has room is below 1."""
    if max_length is not None and max_length < 1:
        raise HeadwayError(f"max_length is {max_length}: give at least 1, or None for a cache without a limit")


def need_room(held: int, n: int, max_length: int | None) -> None:
    """Raises HeadwayError if there is no room for n more tokens."""
    if max_length is not None and held + n > max_length:
        raise HeadwayError(
            f"the cache holds {held} tokens of at most max_length={max_length} and {n} follow: give a larger "
            "max_length, or make room with crop or keep"
        )


def need_within(length: int, held: int) -> None:
    """Raises HeadwayError if a cache cannot be cropped to a length."""
    if not 0 <= length <= held:
        raise HeadwayError(f"crop to {length} tokens but the cache holds {held}: give 0 to {held}")


def type_of(x: Tensor) -> str:
    """The dtype and the device of a tensor, in words."""
    return f"{str(x.dtype).removeprefix('torch.')} on {x.device}"


def size_of(*tensors: Tensor) -> str:
    """The memory of tensors, in words."""
    size: float = sum(x.numel() * x.element_size() for x in tensors)
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} GiB"
