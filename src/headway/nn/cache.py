"""What a layer or a stack remembers of the tokens it has read: keys and values."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from ..coordinates import Coordinates
from ..deprecated import deprecated
from ..errors import HeadwayError
from ..masks import And, Chunked, KeepFirst, Mask, Or, Prefix, Window
from ..positions import Compose, PositionEncoding
from ._places import cropped, joined, kept, remaining
from ._token_buffer import Slots, TokenBuffer
from ._transaction import Transactional, transaction


class KeyValueCache(Transactional):
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
        self._keys, self._values, self._inputs = self._parts = TokenBuffer(), TokenBuffer(), TokenBuffer()
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
        with transaction(self):
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
        for tokens, storage in zip(self._parts, chosen, strict=True):
            tokens.reset(storage)
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


class Retention(NamedTuple):
    """How many tokens of each row a cache holds: its first ones and its last ones."""

    first: int
    last: int

    @staticmethod
    def under(mask: Mask | None) -> Retention | None:
        """What a mask lets later tokens see of those before them; None where that may be all.

        At least the last token is held, since it tells where the stream goes on.
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
    """Whether what an encoding makes of a query and a key can depend on tokens beside them: on what lies between."""
    if encoding is None:
        return False
    parts = [part for part in encoding.modules() if isinstance(part, PositionEncoding)]
    moves = (type(part).relocate is not PositionEncoding.relocate for part in parts if not isinstance(part, Compose))
    return encoding.reads_input or any(moves)


class StackCache(Transactional):
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
        self.retention = [None if reads_others(encoding) else Retention.under(mask) for mask, encoding in pairs]
        """What each layer holds; None for one that holds all tokens."""
        self._places: dict[Retention | None, Coordinates] = {}
        self._entered: dict[Retention | None, tuple[Slots | None, Coordinates]] = {}
        self._settled: set[int] = set()
        self._unfilled: list[KeyValueCache] = []
        self._forgot = False

    @property
    def held(self) -> list[Retention | None]:
        """Deprecated: ``retention``."""
        deprecated("StackCache.held", "StackCache.retention")
        return self.retention

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
        self._places = {} if at is None else dict.fromkeys(self.retention, at.as_given())

    def enter(self, new: Coordinates) -> list[Coordinates]:
        """New tokens come: where the keys of each layer are, theirs among them; one object for layers that hold alike.

        To be called within ``transaction``. A layer that has attended may be settled.
        """
        if self._entered:
            raise HeadwayError("the StackCache is in use by another call: give each call, in whatever thread, its own")
        keys = {retention: joined(self._places.get(retention), new) for retention in dict.fromkeys(self.retention)}
        for retention, at in keys.items():
            slots = None if retention is None else kept(at, *retention)
            self._entered[retention] = slots, at.as_given() if slots is None else remaining(at.as_given(), slots)
        return [keys[retention] for retention in self.retention]

    def settle(self, layer: int) -> None:
        """The layer has the tokens that entered, and forgets what its mask hides from all tokens to come.

        At once where that frees most of its room, as after a long prompt; else when the call has succeeded, in place.
        """
        slots, left = self._entered[self.retention[layer]]
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
        for number, (layer, retention) in enumerate(zip(self.layers, self.retention, strict=True)):
            layer._commit()
            slots = entered[retention][0] if entered and retention is not None else None
            if slots is not None:
                self._forgot = True
                if number not in self._settled:
                    layer.take(slots)
        if entered:
            self._places = {retention: at for retention, (_, at) in entered.items()}
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
        places = {retention: cropped(at, length) for retention, at in self._places.items()}
        self._places = {retention: at for retention, at in places.items() if at is not None}
        self._forgot = False

    def keep(self, first: int, last: int) -> None:
        """Forgets all but the first and the last tokens of each row in every layer; the context stays."""
        self._need_whole()
        slots = {retention: kept(at, first, last) for retention, at in self._places.items()}
        self._damaged = True
        for retention, layer in zip(self.retention, self.layers, strict=True):
            taken = slots.get(retention)
            if taken is not None:
                layer.take(taken)
        for retention, taken in slots.items():
            if taken is not None:
                self._places[retention] = remaining(self._places[retention], taken)
        self._damaged = False

    def reorder(self, rows: Tensor) -> None:
        """Rows of the batch in another order, repeated or left out: int64 [new batch] (beams)."""
        self._need_whole()
        places = {retention: at.select(rows) for retention, at in self._places.items()}
        for layer in (*self.layers, *self.context):
            layer.reorder(rows)
            self._damaged = True  # until all are
        self._places, self._damaged = places, False
