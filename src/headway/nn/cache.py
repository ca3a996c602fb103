"""What a layer or a stack remembers of the tokens it has read: keys and values, or hidden states."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..coordinates import Coordinates
from ..errors import HeadwayError
from ..masks import And, Chunked, KeepFirst, Mask, Or, Prefix, Window
from ..positions import Compose, PositionEncoding


def continued(
    past: Coordinates | None,
    positions: Tensor | Coordinates | None,
    n: int,
    device: torch.device,
) -> Coordinates:
    """The coordinates of n tokens that follow ``past``: those given, else each row one after its last token.

    Plain positions get the order in the stream from ``past``. Raises HeadwayError where positions on several
    axes are to be continued: what follows a patch of a grid is not known.
    """
    if isinstance(positions, Coordinates):
        return Coordinates.of(positions, n)
    if past is None:
        return Coordinates.span(n, device=device) if positions is None else Coordinates.of(positions, n)
    past = past.as_given()  # another token follows in the stream, not where an encoding sees it
    step = torch.arange(1, n + 1, device=device)[None]
    index = past.index[:, -1:] + step
    start = None if past.start is None else past.start + past.index.shape[1]
    if positions is not None:
        return replace(Coordinates.of(positions, n), index=index, start=start)
    if past.position.shape[-1] > 1:
        raise HeadwayError(
            f"positions are not given and the tokens before have {past.position.shape[-1]} axes: give the "
            "positions of the new tokens"
        )
    return Coordinates(
        position=past.position[:, -1:] + step[..., None],
        index=index,
        document=None if past.document is None else past.document[:, -1:].expand(-1, n),
        length=None if past.length is None else _last(past.length) + n,
        ordered=True,
        start=start,
    )


def need_places(at: Coordinates, x: Tensor) -> None:
    """Raises where tokens x [batch, n, …] are said to be in another batch, or on another device."""
    rows, batch = at.position.shape[0], x.shape[0]
    if rows not in (1, batch):
        raise HeadwayError(f"positions are for a batch of {rows} but there is a batch of {batch}: give 1 or {batch}")
    if at.position.device != x.device:
        raise HeadwayError(f"positions are on {at.position.device} but the tokens on {x.device}: move them there")


def joined(past: Coordinates | None, new: Coordinates) -> Coordinates:
    """The coordinates of the tokens before and of the new ones."""
    return new if past is None else past.append(new)


def _last(length: int | Tensor) -> int | Tensor:
    return length[:, -1:] if isinstance(length, Tensor) else length


class Slots(NamedTuple):
    """The tokens that a cache keeps: some first ones of each row, and all from one slot on."""

    first: Tensor
    """int64 [b or 1, count]"""
    latest: int

    def of(self, x: Tensor, dim: int) -> Tensor:
        """The slots of x, whose first dimension is the batch; one row of slots is for all."""
        last = x.narrow(dim, self.latest, x.shape[dim] - self.latest)
        if not self.first.shape[1]:
            return last
        first = self.first_of(x, dim)
        return torch.cat([first, last.expand(first.shape[0], *last.shape[1:])], dim)

    def first_of(self, x: Tensor, dim: int) -> Tensor:
        """A copy of the first ones alone."""
        if self.first.shape[0] == 1:
            return x.index_select(dim, self.first[0])
        shape = [1] * x.ndim
        shape[0], shape[dim] = self.first.shape
        rows = x.expand(self.first.shape[0], *x.shape[1:])
        return rows.take_along_dim(self.first.reshape(shape), dim)


class _Undo:
    """A call of several caches: what it adds stays where it succeeds, and is taken back where it raises."""

    def __init__(self, caches: Sequence[_Cache]) -> None:
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


def undone_on_error(cache: _Cache | None, other: _Cache | None = None) -> AbstractContextManager[None]:
    """A call that adds tokens to these caches: all or, where anything is raised on the way, none.

    Within another such call of a cache it does nothing: the outermost call decides.
    """
    if (cache is None or cache._in_call) and (other is None or other._in_call):
        return _WITHIN
    return _Undo([one for one in (cache, other) if one is not None and not one._in_call])


class _Cache:
    """What a call can add to, and take back."""

    _in_call = False
    """Whether a call is under way that can still be taken back."""
    _damaged = False
    """Whether an error came in the midst of a change that could not be taken back."""

    def _need_whole(self) -> None:
        if self._damaged:
            raise HeadwayError(
                f"the {type(self).__name__} was left half changed by an error in reorder or keep, or while a call was "
                "taken back: start a new one"
            )

    def _begin(self) -> None:
        """From here on all can be taken back."""
        raise NotImplementedError

    def _commit(self) -> None:
        """The call has succeeded."""
        raise NotImplementedError

    def _rollback(self) -> None:
        """All is as it was at ``_begin``."""
        raise NotImplementedError


class _Tokens:
    """A tensor [batch, …, tokens, width] that grows in place and can forget what lies before its latest tokens.

    The tokens stand together somewhere in a room. When it is full, they move into a new one of twice their number; so
    what forgets as much as it gains stays in rooms of one size, and moves once in a room's length.
    """

    def __init__(self) -> None:
        self.room: Tensor | None = None
        self.start = 0
        self.length = 0
        self.written = 0
        """From this slot of the room on nothing was ever held, nor seen in a view."""
        self.saved = False
        """Whether a backward pass may have saved a view of the room, so that what was seen must not be changed."""
        self.before: tuple[Tensor | None, int, int, int, bool] | None = None
        """Where a rollback goes back to; None outside of a call."""

    def __len__(self) -> int:
        return self.length

    def view(self) -> Tensor:
        if self.room is None:
            raise HeadwayError("the cache is empty: append keys and values before reading it")
        if torch.is_grad_enabled():
            if _of_inference_mode(self.room):
                self.room = self.room.clone()  # which a backward pass could not save
            self.saved = True
        return self._held()

    def append(self, new: Tensor) -> Tensor:
        """All tokens so far, the new ones last."""
        if self.room is None:
            self.room = new.new_empty(*new.shape[:-2], 0, new.shape[-1])
        if torch.is_grad_enabled() and (new.requires_grad or self.room.requires_grad):
            # What is written in place cannot be differentiated through.
            self.hold(torch.cat([self.view(), new], dim=-2))
            return self.view()
        length = self.length + new.shape[-2]
        if self.start + length > self.room.shape[-2] or not self._may_write(self.start + self.length):
            self._grow(new, max(length, 2 * self.length))
        at = self.start + self.length
        # Past what was ever seen, a write changes nothing that a backward pass reads: .data does not count it as one.
        room = self.room.data if self.saved else self.room
        room[..., at : self.start + length, :] = new
        self.length = length
        self.written = max(self.written, self.start + length)
        return self.view()

    def select(self, rows: Tensor) -> Tensor | None:
        return None if self.room is None else self._held()[rows]

    def keep(self, slots: Slots) -> None:
        if not self.length or self.room is None:
            return
        held, count = self._held(), slots.first.shape[1]
        length = count + self.length - slots.latest
        at = self.start + slots.latest - count
        if self.before is not None or self.room.shape[-2] > 2 * length or (count and not self._may_write(at)):
            room = self.room
            # A copy, so that a room too large is freed, and what a rollback or a backward pass reads stays.
            self.hold(slots.of(held, -2).clone())
            if self.before is not None and self.before[0] is room:
                _, start, before, _, _ = self.before
                own = room[..., start : start + before, :].clone()
                self.before = (own, 0, before, before, own.requires_grad)
        else:
            if count:  # they move up to the latest
                held[..., slots.latest - count : slots.latest, :] = slots.first_of(held, -2)
            self.start, self.length = at, length

    def crop(self, length: int) -> None:
        self.length = min(self.length, length)
        if not self.length:
            self.hold(None)

    def begin(self) -> None:
        self.before = (self.room, self.start, self.length, self.written, self.saved)

    def rollback(self) -> None:
        assert self.before is not None
        room = self.room
        self.room, self.start, self.length, written, saved = self.before
        if self.room is not room:
            self.written, self.saved = written, saved
        self.before = None

    def _held(self) -> Tensor:
        assert self.room is not None
        return self.room[..., self.start : self.start + self.length, :]

    def hold(self, room: Tensor | None) -> None:
        """These tokens, in a room that has no other."""
        self.room, self.start = room, 0
        self.length = self.written = 0 if room is None else room.shape[-2]
        self.saved = room is not None and room.requires_grad

    def _may_write(self, at: int) -> bool:
        """Whether the room may be written to from this slot on."""
        assert self.room is not None
        return (not self.saved or at >= self.written) and not _of_inference_mode(self.room)

    def _grow(self, new: Tensor, capacity: int) -> None:
        """The same tokens in a room of their own, for ``capacity`` of them."""
        assert self.room is not None
        old, start, length = self.room, self.start, self.length
        room = new.new_empty(*new.shape[:-2], capacity, new.shape[-1], dtype=old.dtype)
        room[..., :length, :] = self._held()
        self.hold(room)
        self.length = self.written = length
        if self.before is not None and self.before[0] is old and self.before[1] == start:
            self.before = (room, 0, self.before[2], length, False)  # so that the old room is freed


def _of_inference_mode(room: Tensor) -> bool:
    """Whether a tensor was made in inference mode and is met outside of it."""
    # a compiler cannot ask, and compiles for the one or the other
    return not torch.compiler.is_compiling() and room.is_inference() and not torch.is_inference_mode_enabled()


class KeyValueCache(_Cache):
    """Keys and values that one attention layer has computed, so that a next token costs one row of scores.

    Keys are stored as the encoding prepared them, or as projected where the encoding says that they must not
    be (``cache_prepared = False``). Room doubles when it is full, so that n tokens cost O(n) copies in all; where
    ``keep`` bounds the tokens, it bounds the room too. Keys or values that want a gradient are concatenated instead,
    which is right and slower; tokens appended without gradients, under ``torch.no_grad``, cut off those before them.

    A layer, block or model that raises, for whatever reason, leaves the cache as it was before the call, so that the
    call can be made again. A cache belongs to one call at a time: nothing locks it for threads.

        cache = KeyValueCache()
        for token in tokens:  # [batch, 1, embed_dim]
            out = layer(token, mask=Causal(), cache=cache)

    Without positions the tokens follow one after another, in each row of the batch after its own last token,
    so a left-padded batch (``Coordinates.padded``) goes on as it should.
    """

    def __init__(self) -> None:
        self._keys, self._values, self._inputs = self._parts = _Tokens(), _Tokens(), _Tokens()
        self.coordinates: Coordinates | None = None
        """Where the keys are; None where the stack keeps that for all of its layers."""
        self.prepared_by: PositionEncoding | None = None
        """The encoding that has prepared keys and values; None for keys and values as projected."""
        self._coordinates_before: Coordinates | None = None

    def __len__(self) -> int:
        return len(self._keys)

    def __deepcopy__(self, memo: dict[int, Any]) -> KeyValueCache:
        """A copy, whose keys are of the same encoding; of its copy, where that has been made along with this one."""
        other = memo[id(self)] = KeyValueCache()
        for name, value in vars(self).items():
            setattr(other, name, memo.get(id(value), value) if name == "prepared_by" else copy.deepcopy(value, memo))
        return other

    def need_prepared_by(self, encoding: PositionEncoding | None) -> None:
        """Raises unless the keys held, and those to come, are prepared by the same encoding."""
        if len(self) and self.prepared_by is not encoding:
            held, asked = (
                "as projected" if each is None else f"prepared by a {type(each).__name__}"
                for each in (self.prepared_by, encoding)
            )
            another = " that is another object" if type(encoding) is type(self.prepared_by) else ""
            raise HeadwayError(
                f"the cache holds keys {held} and this call needs them {asked}{another}: start a new cache, or read it "
                "with the encoding that filled it (cache.prepared_by)"
            )
        self.prepared_by = encoding

    @property
    def keys(self) -> Tensor:
        """[batch, kv_heads, tokens, head_dim]"""
        return self._keys.view()

    @property
    def values(self) -> Tensor:
        """[batch, kv_heads, tokens, v's head_dim]"""
        return self._values.view()

    @property
    def inputs(self) -> Tensor | None:
        """[batch, tokens, embed_dim]: the layer's inputs, kept for encodings that read them."""
        return self._inputs.view() if len(self._inputs) else None

    def append(
        self,
        keys: Tensor,
        values: Tensor,
        *,
        coordinates: Coordinates | None = None,
        inputs: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Adds tokens and returns keys and values of all; raises HeadwayError where the batch differs."""
        if len(self) and keys.shape[0] != self.keys.shape[0]:
            raise HeadwayError(
                f"the batch is {keys.shape[0]} but the cache holds {self.keys.shape[0]} rows: start a new "
                "cache, or reorder this one"
            )
        with undone_on_error(self):
            if coordinates is not None:
                self.coordinates = joined(self.coordinates, coordinates).as_given()
            if inputs is not None:
                self._inputs.append(inputs)
            return self._keys.append(keys), self._values.append(values)

    def crop(self, length: int) -> None:
        """Forgets all but the first ``length`` tokens (speculative decoding)."""
        _need_within(length, len(self))
        if self.coordinates is not None:
            self.coordinates = cropped(self.coordinates, length)
        for tokens in self._parts:
            tokens.crop(length)

    def keep(self, first: int, last: int) -> None:
        """Forgets all but the first and the last tokens of each row (attention sinks and a window).

        Padding in front is no token of a row's: a row has its own first ones. The tokens keep their places in the
        stream, so that ``StreamingLLM`` can tell what was forgotten. Called after each step it copies nothing but the
        first tokens, and the room stays below twice the tokens kept. Raises HeadwayError for counts below 0.
        """
        at = self.coordinates
        if at is None:
            at = Coordinates.span(len(self), device=self.keys.device if len(self) else None)
        slots = kept(at, first, last)
        if slots is not None:
            self.take(slots)
            if self.coordinates is not None:
                self.coordinates = remaining(self.coordinates, slots)

    def take(self, slots: Slots) -> None:
        """Forgets all but these slots; the coordinates, if any are held, stay as they are."""
        self._need_whole()
        self._damaged = True
        for tokens in self._parts:
            tokens.keep(slots)
        self._damaged = False

    def reorder(self, rows: Tensor) -> None:
        """Rows of the batch in another order, repeated or left out: int64 [new batch] (beams)."""
        self._need_whole()
        chosen = [tokens.select(rows) for tokens in self._parts]
        coordinates = None if self.coordinates is None else self.coordinates.select(rows)
        self._damaged = True
        for tokens, room in zip(self._parts, chosen, strict=True):
            tokens.hold(room)
        self.coordinates, self._damaged = coordinates, False

    def _begin(self) -> None:
        self._in_call, self._coordinates_before = True, self.coordinates
        for tokens in self._parts:
            tokens.begin()

    def _commit(self) -> None:
        self._in_call, self._coordinates_before = False, None
        for tokens in self._parts:
            tokens.before = None

    def _rollback(self) -> None:
        self._in_call, self._damaged = False, True
        for tokens in self._parts:
            tokens.rollback()
        self._damaged = False
        self.coordinates, self._coordinates_before = self._coordinates_before, None


def _need_within(length: int, held: int) -> None:
    if not 0 <= length <= held:
        raise HeadwayError(f"crop to {length} tokens but the cache holds {held}: give 0 to {held}")


def cropped(coordinates: Coordinates, length: int) -> Coordinates | None:
    """The first ``length`` tokens, in a stream that much shorter; None where no token is left."""
    removed = coordinates.index.shape[1] - length
    total = coordinates.length
    return (
        replace(coordinates.rows(0, length), length=None if total is None else _last(total) - removed)
        if length
        else None
    )


class Held(NamedTuple):
    """How many tokens of each row a cache holds: its first ones and its last ones."""

    first: int
    last: int

    @staticmethod
    def under(mask: Mask | None) -> Held | None:
        """What a mask lets later tokens see of those before them; None where that may be all.

        At least the last token is held, since it tells where the stream goes on.
        """
        if type(mask) is Window and mask.left is not None:
            return Held(0, max(mask.left, 1))
        if type(mask) is Chunked:
            return Held(0, max(mask.size * (mask.previous + 1) - 1, 1))
        if type(mask) is KeepFirst:
            return Held(mask.count, 1)
        if type(mask) is Prefix and isinstance(mask.length, int):
            return Held(mask.length, 1)
        if type(mask) is And or type(mask) is Or:
            parts = [Held.under(part) for part in mask.masks]
            bounded = [part for part in parts if part is not None]
            if type(mask) is And:
                return min(bounded, key=sum, default=None)
            if len(bounded) == len(parts):
                return Held(max(part.first for part in bounded), max(part.last for part in bounded))
        return None


def reads_others(encoding: PositionEncoding | None) -> bool:
    """Whether what an encoding makes of a query and a key can depend on tokens beside them: on what lies between."""
    if encoding is None:
        return False
    parts = [part for part in encoding.modules() if isinstance(part, PositionEncoding)]
    moves = (type(part).relocate is not PositionEncoding.relocate for part in parts if not isinstance(part, Compose))
    return encoding.reads_input or any(moves)


def kept(at: Coordinates, first: int, last: int) -> Slots | None:
    """The slots of each row's first real tokens and of its last ones; None where those are all."""
    if first < 0 or last < 0:
        raise HeadwayError(f"keep the first {first} and the last {last} tokens: give at least 0 of each")
    latest = at.index.shape[1] - last
    if first >= latest:
        return None
    # A row's own first token follows its padding, as long as there is any but the latest.
    start = (at.index < 0).sum(1, keepdim=True).clamp(max=latest - first)
    return Slots(start + torch.arange(first, device=at.index.device), latest)


def remaining(coordinates: Coordinates, slots: Slots) -> Coordinates:
    """The coordinates of the slots; their stream is as long as before."""
    if not slots.first.shape[1]:
        return coordinates.rows(slots.latest, coordinates.index.shape[1])
    length, document = coordinates.length, coordinates.document
    per_token = isinstance(length, Tensor) and length.shape[1] > 1
    return replace(
        coordinates,
        position=slots.of(coordinates.position, 1),
        index=slots.of(coordinates.index, 1),
        document=None if document is None else slots.of(document, 1),
        length=slots.of(length, 1) if isinstance(length, Tensor) and per_token else length,
        ordered=False,
        start=None,
    )


class StackCache(_Cache):
    """The caches of a stack's layers, and where their tokens are.

        cache = decoder.new_cache()
        logits = decoder(prompt, cache=cache)
        logits = decoder(next_ids, cache=cache)  # ids [batch, 1]

    ``layers`` holds a KeyValueCache for each self-attention, ``context`` one for each cross-attention, which
    is filled once and then read.

    masks and encodings: each layer's own, as the stack has them (None for a layer without). A layer whose mask hides
    all but the last tokens, as Window and Chunked do, or the first and the last ones, as ``Window(255) | KeepFirst(4)``
    does, holds those alone: what is decoded is the same, and its room stays below twice these tokens. It holds all
    where its encoding makes of two tokens what others beside them decide.

    A model that raises leaves the cache as it was before the call. A cache belongs to one call at a time: a second one
    that comes while the first is in its layers is refused, and nothing else guards it between threads.
    """

    def __init__(
        self,
        num_layers: int,
        masks: Sequence[Mask | None] | None = None,
        encodings: Sequence[PositionEncoding | None] | None = None,
    ) -> None:
        self.layers = [KeyValueCache() for _ in range(num_layers)]
        self.context = [KeyValueCache() for _ in range(num_layers)]
        nothing = [None] * num_layers
        pairs = zip(masks or nothing, encodings or nothing, strict=True)
        self.held = [None if reads_others(encoding) else Held.under(mask) for mask, encoding in pairs]
        """What each layer holds; None for one that holds all tokens."""
        self._places: dict[Held | None, Coordinates] = {}
        self._entered: dict[Held | None, tuple[Slots | None, Coordinates]] = {}
        self._settled: set[int] = set()
        self._unfilled: list[KeyValueCache] = []
        self._forgot = False

    def __len__(self) -> int:
        return max((len(layer) for layer in self.layers), default=0)

    @property
    def coordinates(self) -> Coordinates | None:
        """Where the tokens are in the layers that hold most."""
        most = None
        for at in self._places.values():
            most = at if most is None or at.index.shape[1] > most.index.shape[1] else most
        return most

    @coordinates.setter
    def coordinates(self, at: Coordinates | None) -> None:
        self._places = {} if at is None else dict.fromkeys(self.held, at.as_given())

    def enter(self, new: Coordinates) -> list[Coordinates]:
        """New tokens come: where the keys of each layer are, theirs among them; one object for layers that hold alike.

        To be called within ``undone_on_error``. A layer that has attended may be settled.
        """
        if self._entered:
            raise HeadwayError("the StackCache is in use by another call: give each call, in whatever thread, its own")
        keys = {held: joined(self._places.get(held), new) for held in dict.fromkeys(self.held)}
        slots = {held: None if held is None else kept(at, *held) for held, at in keys.items()}
        self._entered = {
            held: (chosen, keys[held].as_given() if chosen is None else remaining(keys[held].as_given(), chosen))
            for held, chosen in slots.items()
        }
        return [keys[held] for held in self.held]

    def settle(self, layer: int) -> None:
        """The layer has the tokens that entered, and forgets what its mask hides from all tokens to come.

        At once where that frees most of its room, as after a long prompt; else when the call has succeeded, in place.
        """
        slots, left = self._entered[self.held[layer]]
        if slots is not None and len(self.layers[layer]) > 2 * left.index.shape[1]:
            self.layers[layer].take(slots)
            self._settled.add(layer)

    def _begin(self) -> None:
        self._in_call = True
        self._unfilled = [context for context in self.context if not len(context)]
        for layer in self.layers:
            layer._begin()

    def _commit(self) -> None:
        self._in_call, self._damaged = False, True
        entered = self._entered
        for number, (layer, held) in enumerate(zip(self.layers, self.held, strict=True)):
            layer._commit()
            slots = entered[held][0] if entered and held is not None else None
            if slots is not None:
                self._forgot = True
                if number not in self._settled:
                    layer.take(slots)
        if entered:
            self._places = {held: at for held, (_, at) in entered.items()}
        self._leave()

    def _rollback(self) -> None:
        self._in_call, self._damaged = False, True
        for layer in self.layers:
            layer._rollback()
        for context in self._unfilled:
            context.crop(0)
        self._leave()

    def _leave(self) -> None:
        """The call is over, one way or the other."""
        self._entered, self._settled, self._unfilled = {}, set(), []
        self._damaged = False

    def crop(self, length: int) -> None:
        """Forgets all but the first ``length`` tokens; the context stays.

        Raises HeadwayError where a layer has forgotten tokens that would be in sight again.
        """
        _need_within(length, len(self))
        if self._forgot and length:
            raise HeadwayError(
                f"crop to {length} tokens but layers with a window have forgotten some that would be in sight again: "
                f"decode with StackCache({len(self.layers)}), which forgets nothing"
            )
        for layer in self.layers:
            layer.crop(length)
        places = {held: cropped(at, length) for held, at in self._places.items()}
        self._places = {held: at for held, at in places.items() if at is not None}
        self._forgot = False

    def keep(self, first: int, last: int) -> None:
        """Forgets all but the first and the last tokens of each row in every layer; the context stays."""
        self._need_whole()
        slots = {held: kept(at, first, last) for held, at in self._places.items()}
        self._damaged = True
        for held, layer in zip(self.held, self.layers, strict=True):
            taken = slots.get(held)
            if taken is not None:
                layer.take(taken)
        for held, taken in slots.items():
            if taken is not None:
                self._places[held] = remaining(self._places[held], taken)
        self._damaged = False

    def reorder(self, rows: Tensor) -> None:
        """Rows of the batch in another order, repeated or left out: int64 [new batch] (beams)."""
        self._need_whole()
        places = {held: at.select(rows) for held, at in self._places.items()}
        for layer in (*self.layers, *self.context):
            layer.reorder(rows)
            self._damaged = True  # until all are
        self._places, self._damaged = places, False


class SegmentMemory(_Cache):
    """Hidden states of the last ``length`` tokens before this segment, without gradients, for every layer.

        h̃ = [stop-gradient(memory) ∘ h],  q from h, k and v from h̃

    A stack that is called with ``memory=`` reads it and then puts its own segment behind it. With a causal
    mask and room for all that came before, segments one by one give what one pass over all gives; with less
    room, each layer looks ``length`` tokens further back than the one below it.
    Raises HeadwayError for a length below 1.
    Cite: Dai et al. 2019 (Transformer-XL), section 3.2.
    """

    def __init__(self, length: int) -> None:
        if length < 1:
            raise HeadwayError(f"memory length is {length}: give at least 1")
        self.length = length
        self.states: list[Tensor] = []
        """One [batch, tokens, embed_dim] for each layer: what went into it."""
        self.coordinates: Coordinates | None = None
        self._before: tuple[list[Tensor], Coordinates | None] | None = None

    def __len__(self) -> int:
        return self.states[0].shape[1] if self.states else 0

    def store(self, states: list[Tensor], coordinates: Coordinates) -> None:
        """Puts a segment behind what is there, and keeps the last ``length`` tokens."""
        if self.states:
            states = [torch.cat(pair, dim=1) for pair in zip(self.states, states, strict=True)]
        # A copy, so that the states that fall out are freed.
        states = [state[:, -self.length :].detach().clone() for state in states]
        total = coordinates.index.shape[1]
        self.states = states
        self.coordinates = coordinates.as_given().rows(max(0, total - self.length), total)

    def reorder(self, rows: Tensor) -> None:
        """Rows of the batch in another order, repeated or left out: int64 [new batch]."""
        coordinates = None if self.coordinates is None else self.coordinates.select(rows)
        self.states, self.coordinates = [state[rows] for state in self.states], coordinates

    def _begin(self) -> None:
        self._in_call, self._before = True, (self.states, self.coordinates)

    def _commit(self) -> None:
        self._in_call, self._before = False, None

    def _rollback(self) -> None:
        assert self._before is not None
        self.states, self.coordinates = self._before
        self._commit()
