"""Caches of keys and values, for one attention layer and for a stack."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from ..coordinates import Coordinates, stream
from ..errors import HeadwayError
from ..masks import And, Chunked, KeepFirst, Mask, Or, Prefix, Window
from ..positions import Compose, PositionEncoding
from ..sharing import Sharing
from ..tracing import watched
from ._coordinates import cropped, joined, kept, remaining
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
        """Whether the tokens stand at 0, 1, 2 … in a stream that ends with them, of which no object is kept."""
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
        return f"{type(self).__name__}({len(self)} tokens{most}; {shapes}, {_kind(parts[0])}, {_size(*parts)}{made})"

    def need_room(self, n: int) -> None:
        """Checks that n tokens more fit.

        Args:
            n: the number of tokens that follow.

        Raises:
            HeadwayError: if they exceed ``max_length``.
        """
        _need_room(len(self), n, self.max_length)

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
        _need_within(length, len(self))
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


def _need_room(held: int, n: int, max_length: int | None) -> None:
    """Raises HeadwayError if n tokens do not fit beside those held."""
    if max_length is not None and held + n > max_length:
        raise HeadwayError(
            f"the cache holds {held} tokens of at most max_length={max_length} and {n} follow: give a larger "
            "max_length, or make room with crop or keep"
        )


def _need_within(length: int, held: int) -> None:
    if not 0 <= length <= held:
        raise HeadwayError(f"crop to {length} tokens but the cache holds {held}: give 0 to {held}")


def _kind(x: Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')} on {x.device}"


def _size(*tensors: Tensor) -> str:
    """The memory of tensors, in words."""
    size: float = sum(x.numel() * x.element_size() for x in tensors)
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} GiB"


class Retention(NamedTuple):
    """How many tokens of each row a cache keeps: its first ones and its last ones."""

    first: int
    last: int

    @staticmethod
    def under(mask: Mask | None) -> Retention | None:
        """Returns the tokens that a mask may show to later tokens; None if that may be all of them.

        At least the last token is kept, since the stream continues after it.
        """
        if type(mask) is Window and mask.left is not None:
            return Retention(0, max(mask.left, 1))
        if type(mask) is Chunked:
            return Retention(0, max(mask.size * (mask.previous + 1) - 1, 1))
        if type(mask) is KeepFirst:
            return Retention(mask.count, 1)
        if type(mask) is Prefix and isinstance(mask.length, int):
            return Retention(mask.length, 1)
        if type(mask) is And or type(mask) is Or:
            parts = [Retention.under(part) for part in mask.masks]
            bounded = [part for part in parts if part is not None]
            if type(mask) is And:
                return min(bounded, key=sum, default=None)
            if len(bounded) == len(parts):
                return Retention(max(part.first for part in bounded), max(part.last for part in bounded))
        return None


def reads_others(encoding: PositionEncoding | None) -> bool:
    """Whether an encoding's effect on a query and a key can depend on other tokens, such as those between them."""
    if encoding is None:
        return False
    parts = [part for part in encoding.modules() if isinstance(part, PositionEncoding)]
    moves = (type(part).relocate is not PositionEncoding.relocate for part in parts if not isinstance(part, Compose))
    return encoding.reads_input or any(moves)


class StackCache(Transactional):
    """The caches of all layers of a stack, and the coordinates of their tokens.

    ``layers`` holds a KeyValueCache for each self-attention, and ``context`` one for each cross-attention, which the
    first call fills and later calls read.

    A layer keeps only the tokens that its mask can still show: the last ones with Window and Chunked, the first and the
    last ones with ``Window(255) | KeepFirst(4)``. Outputs do not change, and the storage of the layer stays below twice
    that many tokens. A layer keeps all tokens if its encoding's effect on two tokens depends on others.

    With ``max_length`` the caches are static, as KeyValueCache describes, and every layer keeps all tokens. Processes
    that share a sequence count the tokens of all of them.

    A model that raises leaves the cache as it was before the call. A cache serves one call at a time. A second call
    that starts while the first is in its layers raises an error; otherwise no lock protects the cache between threads.

    Args:
        num_layers: the number of layers.
        masks: the mask of each layer, None for a layer without one; no masks if None.
        encodings: the encoding of each layer, None for a layer without one; no encodings if None.
        max_length: the most tokens that the cache holds, for which it has room from the start; no limit if None.

    Raises:
        HeadwayError: if max_length is below 1.

    Example:
        cache = decoder.new_cache()
        logits = decoder(prompt, cache=cache)
        logits = decoder(next_ids, cache=cache)  # ids [batch, 1]
    """

    def __init__(
        self,
        num_layers: int,
        masks: Sequence[Mask | None] | None = None,
        encodings: Sequence[PositionEncoding | None] | None = None,
        *,
        max_length: int | None = None,
    ) -> None:
        super().__init__()
        self.max_length = max_length
        self.layers = [KeyValueCache(max_length) for _ in range(num_layers)]
        self.context = [KeyValueCache() for _ in range(num_layers)]
        nothing = [None] * num_layers
        pairs = zip(masks or nothing, encodings or nothing, strict=True)
        self.retention = [
            None if max_length is not None or reads_others(encoding) else Retention.under(mask)
            for mask, encoding in pairs
        ]
        """The tokens that each layer keeps; None for a layer that keeps all."""
        self._coordinates: dict[Retention | None, Coordinates] = {}
        self._counts = False
        """Whether all layers count their tokens, so that no coordinates are kept."""
        self._in_layers = False
        """Whether a call has entered and not left."""
        self._entered: dict[Retention | None, tuple[Slots | None, Coordinates]] = {}
        self._settled: set[int] = set()
        self._shares: object = None
        self._unfilled: list[KeyValueCache] = []
        self._before: tuple[dict[Retention | None, Coordinates], bool] = {}, False
        self._forgot = False

    def __len__(self) -> int:
        return max([len(layer) for layer in self.layers], default=0)

    def __repr__(self) -> str:
        filled = [layer for layer in (*self.layers, *self.context) if len(layer)]
        if not filled:
            return f"{type(self).__name__}({len(self.layers)} layers; empty)"
        parts = [x for layer in filled for x in (layer.keys, layer.values)]
        counts = list(dict.fromkeys(len(layer) for layer in self.layers))
        tokens = " or ".join(map(str, counts[:3]))
        context = max((len(layer) for layer in self.context), default=0)
        rows = f"{parts[0].shape[0]} {'row' if parts[0].shape[0] == 1 else 'rows'}"
        read = f" and {context} of a context" if context else ""
        return (
            f"{type(self).__name__}({len(self.layers)} layers; {rows} of {tokens} tokens{read}, {_kind(parts[0])}, "
            f"{_size(*parts)})"
        )

    @property
    def coordinates(self) -> Coordinates | None:
        """The coordinates of the tokens in the layers that keep the most; None for an empty cache."""
        if self._counts:
            return self._counted()
        most = None
        for at in self._coordinates.values():
            most = at if most is None or at.index.shape[1] > most.index.shape[1] else most
        return most

    @coordinates.setter
    def coordinates(self, at: Coordinates | None) -> None:
        self._write_coordinates()
        self._coordinates = {} if at is None else dict.fromkeys(self.retention, at.as_given())

    def count(self) -> bool:
        """Returns whether the layers count their tokens from now on, so that a step needs no coordinates.

        They do if the tokens are those of a stream from its start, all of which every layer keeps.
        """
        if self._in_layers or not self.layers:
            return False
        held = len(self.layers[0])
        for layer in self.layers:
            if len(layer) != held or not held:
                return False
        if not self._counts:
            at = self._coordinates.get(None)
            if at is None or len(self._coordinates) > 1 or not at.is_stream or (at.start, at.length) != (0, held):
                return False
            self._coordinates = {}
            self._let_layers_count(True)
        return True

    def _counted(self) -> Coordinates | None:
        """Returns the coordinates of tokens that the layers have counted; None if there are none."""
        held = len(self)
        return stream(held, 0, held, self.layers[0].keys.device) if held else None

    def _write_coordinates(self) -> None:
        """Writes the coordinates of tokens that the layers have counted, and stops counting."""
        if not self._counts:
            return
        at = self._counted()
        if at is not None:
            self._coordinates = {None: at}
        self._let_layers_count(False)

    def _let_layers_count(self, counts: bool) -> None:
        self._counts = counts
        for layer in self.layers:
            layer._coordinates, layer._counts = None, counts

    def need_room(self, n: int) -> None:
        """Checks that n tokens more fit.

        Args:
            n: the number of tokens that follow, those of every process included.

        Raises:
            HeadwayError: if they exceed ``max_length``.
        """
        if self._shares is None:
            for layer in self.layers[:1]:  # all layers hold as many
                layer.need_room(n)
        else:  # every process counts the tokens of all, so that all refuse the same call
            at = self.coordinates
            _need_room(0 if at is None else at.index.shape[1], n, self.max_length)

    def need_filled_in(self, shared: Sharing | None) -> None:
        """Checks that earlier tokens were computed in the same context as those that follow.

        Args:
            shared: the context of several processes, of which each holds the keys of its tokens; None outside of one.

        Raises:
            HeadwayError: if they were not, or if a layer in a context would drop keys.
        """
        here = None if shared is None else shared.tokens
        if not any(len(layer) for layer in self.layers):  # a compiler does not follow the largest of lengths
            self._shares = here
        if self._shares is not here:
            raise HeadwayError(
                "the cache was filled in another headway.parallel.context, or outside of one: decode where the prompt "
                "was computed, or start a new cache"
            )
        if here is not None and any(self.retention):
            raise HeadwayError(
                f"a layer with a window drops keys, which processes that share them cannot: decode with "
                f"StackCache({len(self.layers)}), which keeps all tokens"
            )

    def _need_own(self, name: str) -> None:
        if self._shares is not None:
            raise HeadwayError(f"{name} removes tokens whose keys several processes share: start a new cache")

    def enter(self, new: Coordinates) -> list[Coordinates]:
        """Announces new tokens and returns the coordinates of each layer's keys, those of the new tokens included.

        Layers that keep the same tokens share one object. Call it inside ``transaction``; then call ``settle`` for each
        layer that has attended.

        Args:
            new: the coordinates of the new tokens.

        Raises:
            HeadwayError: if another call is using the cache.
        """
        self.enter_step()
        self._write_coordinates()
        keys = {retention: joined(self._coordinates.get(retention), new) for retention in dict.fromkeys(self.retention)}
        for retention, at in keys.items():
            slots = None if retention is None else kept(at, *retention)
            self._entered[retention] = slots, at.as_given() if slots is None else remaining(at.as_given(), slots)
        return [keys[retention] for retention in self.retention]

    def enter_step(self) -> None:
        """Announces new tokens whose coordinates are those that the layers count.

        Raises:
            HeadwayError: if another call is using the cache.
        """
        if self._in_layers:
            raise HeadwayError("the StackCache is in use by another call: give each concurrent call its own")
        self._in_layers = True

    def settle(self, layer: int) -> None:
        """Removes the tokens of a layer that its mask hides from all later tokens, once the layer has attended.

        They are removed at once if that frees most of the storage, as after a long prompt; otherwise in place when the
        call has succeeded.

        Args:
            layer: the number of the layer, from 0.
        """
        slots, left = self._entered[self.retention[layer]]
        if slots is not None and len(self.layers[layer]) > 2 * left.index.shape[1]:
            self.layers[layer].take(slots)
            self._settled.add(layer)

    def _begin(self) -> None:
        self._in_call, self._before = True, (self._coordinates, self._counts)
        self._unfilled = [context for context in self.context if not len(context)]
        for layer in self.layers:
            layer._begin()

    def _commit(self) -> None:
        self._in_call, self._damaged = False, True
        entered = self._entered
        for number, (layer, retention) in enumerate(zip(self.layers, self.retention, strict=True)):
            layer._commit()
            slots = entered[retention][0] if entered and retention is not None else None
            if slots is not None:
                self._forgot = True
                if number not in self._settled:
                    layer.take(slots)
        if entered:
            self._coordinates = {retention: at for retention, (_, at) in entered.items()}
        self._leave()

    def _rollback(self) -> None:
        self._in_call, self._damaged = False, True
        for layer in self.layers:
            layer._rollback()
        self._coordinates, self._counts = self._before
        for context in self._unfilled:
            context.crop(0)
        self._leave()

    def _leave(self) -> None:
        """Ends the call, whether it succeeded or not."""
        self._entered, self._settled, self._unfilled, self._in_layers = {}, set(), [], False
        self._before = {}, False
        self._damaged = False

    def crop(self, length: int) -> None:
        """Removes all but the first ``length`` tokens; the context stays.

        Args:
            length: the number of tokens to keep, 0 to ``len(cache)``.

        Raises:
            HeadwayError: if ``length`` is out of range, or a layer has removed tokens that would be visible again.
        """
        _need_within(length, len(self))
        if length:
            self._need_own("crop")
        if self._forgot and length:
            raise HeadwayError(
                f"crop to {length} tokens but layers with a window have removed some that would be visible again: "
                f"decode with StackCache({len(self.layers)}), which keeps all tokens"
            )
        self._write_coordinates()
        for layer in self.layers:
            layer.crop(length)
        coordinates = {retention: cropped(at, length) for retention, at in self._coordinates.items()}
        self._coordinates = {retention: at for retention, at in coordinates.items() if at is not None}
        self._forgot = False

    def keep(self, first: int, last: int) -> None:
        """Removes all but the first and the last tokens of each row in every layer; the context stays.

        Args:
            first: the number of first tokens to keep, at least 0.
            last: the number of last tokens to keep, at least 0.

        Raises:
            HeadwayError: if a number is below 0.
        """
        self._need_whole()
        self._need_own("keep")
        self._write_coordinates()
        slots = {retention: kept(at, first, last) for retention, at in self._coordinates.items()}
        self._damaged = True
        for retention, layer in zip(self.retention, self.layers, strict=True):
            taken = slots.get(retention)
            if taken is not None:
                layer.take(taken)
        for retention, taken in slots.items():
            if taken is not None:
                self._coordinates[retention] = remaining(self._coordinates[retention], taken)
        self._damaged = False

    def reorder(self, rows: Tensor) -> None:
        """Selects rows of the batch in every layer and in the context, as beam search needs.

        Args:
            rows: int64 [new batch], the numbers of the rows in their new order; rows may be repeated or left out.
        """
        self._need_whole()
        self._write_coordinates()
        coordinates = {retention: at.select(rows) for retention, at in self._coordinates.items()}
        for layer in (*self.layers, *self.context):
            layer.reorder(rows)
            self._damaged = True  # until all layers are reordered
        self._coordinates, self._damaged = coordinates, False
