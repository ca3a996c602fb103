"""What a layer or a stack remembers of the tokens it has read: keys and values, or hidden states."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..coordinates import Coordinates
from ..errors import HeadwayError


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


def joined(past: Coordinates | None, new: Coordinates) -> Coordinates:
    """The coordinates of the tokens before and of the new ones."""
    return new if past is None else past.append(new)


def _last(length: int | Tensor) -> int | Tensor:
    return length[:, -1:] if isinstance(length, Tensor) else length


class _Tokens:
    """A tensor [batch, …, tokens, width] that grows in place: its room doubles when it is full."""

    def __init__(self) -> None:
        self.room: Tensor | None = None
        self.length = 0

    def __len__(self) -> int:
        return self.length

    def view(self) -> Tensor:
        if self.room is None:
            raise HeadwayError("the cache is empty: append keys and values before reading it")
        return self.room[..., : self.length, :]

    def append(self, new: Tensor) -> Tensor:
        """All tokens so far, the new ones last."""
        stop = self.length + new.shape[-2]
        if self.room is None:
            self.room = new.new_empty(*new.shape[:-2], 0, new.shape[-1])
        if torch.is_grad_enabled() and (new.requires_grad or self.room.requires_grad):
            # What is written in place cannot be differentiated through.
            self.room = torch.cat([self.view(), new], dim=-2)
        else:
            if stop > self.room.shape[-2]:
                capacity = max(stop, 2 * self.length)
                room = new.new_empty(*new.shape[:-2], capacity, new.shape[-1], dtype=self.room.dtype)
                room[..., : self.length, :] = self.view()
                self.room = room
            self.room[..., self.length : stop, :] = new
        self.length = stop
        return self.view()

    def select(self, rows: Tensor) -> None:
        if self.room is not None:
            self.room = self.view()[rows]

    def take(self, slots: Tensor) -> None:
        if self.length:
            self.room, self.length = _taken(self.view(), slots, -2), slots.shape[1]


class KeyValueCache:
    """Keys and values that one attention layer has computed, so that a next token costs one row of scores.

    Keys are stored as the encoding prepared them, or as projected where the encoding says that they must not
    be (``cache_prepared = False``). Room doubles when it is full, so that n tokens cost O(n) copies in all.
    With gradients the tokens are concatenated instead, which is right and slower.

        cache = KeyValueCache()
        for token in tokens:  # [batch, 1, embed_dim]
            out = layer(token, mask=Causal(), cache=cache)

    Without positions the tokens follow one after another, in each row of the batch after its own last token,
    so a left-padded batch (``Coordinates.padded``) goes on as it should.
    """

    def __init__(self) -> None:
        self._keys, self._values, self._inputs = _Tokens(), _Tokens(), _Tokens()
        self.coordinates: Coordinates | None = None
        """Where the keys are; None where the stack keeps that for all of its layers."""

    def __len__(self) -> int:
        return len(self._keys)

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
        if coordinates is not None:
            self.coordinates = joined(self.coordinates, coordinates)
        if inputs is not None:
            self._inputs.append(inputs)
        return self._keys.append(keys), self._values.append(values)

    def crop(self, length: int) -> None:
        """Forgets all but the first ``length`` tokens (speculative decoding)."""
        _need_within(length, len(self))
        if self.coordinates is not None:
            self.coordinates = cropped(self.coordinates, length)
        for tokens in (self._keys, self._values, self._inputs):
            tokens.length = min(tokens.length, length)

    def keep(self, first: int, last: int) -> None:
        """Forgets all but the first and the last tokens of each row (attention sinks and a window).

        Padding in front is no token of a row's: a row has its own first ones. The tokens keep their places in the
        stream, so that ``StreamingLLM`` can tell what was forgotten. Raises HeadwayError for counts below 0.
        """
        slots = _kept(self, self.coordinates, first, last)
        if slots is not None:
            self._take(slots)

    def _take(self, slots: Tensor) -> None:
        for tokens in (self._keys, self._values, self._inputs):
            tokens.take(slots)
        if self.coordinates is not None:
            self.coordinates = _remaining(self.coordinates, slots)

    def reorder(self, rows: Tensor) -> None:
        """Rows of the batch in another order, repeated or left out: int64 [new batch] (beams)."""
        for tokens in (self._keys, self._values, self._inputs):
            tokens.select(rows)
        if self.coordinates is not None:
            self.coordinates = self.coordinates.select(rows)


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


def _kept(cache: KeyValueCache, at: Coordinates | None, first: int, last: int) -> Tensor | None:
    """The slots [b or 1, first + last] of the first real tokens and of the last ones; None where all are kept."""
    if first < 0 or last < 0:
        raise HeadwayError(f"keep the first {first} and the last {last} tokens: give at least 0 of each")
    held = len(cache)
    if first + last >= held:
        return None
    device, latest = cache.keys.device, held - last
    start = torch.zeros(1, 1, dtype=torch.long, device=device)
    if at is not None:  # the row's own first token follows its padding, as long as there is any but the latest
        start = (at.index < 0).sum(1, keepdim=True).clamp(max=latest - first)
    window = torch.arange(latest, held, device=device).expand(start.shape[0], -1)
    return torch.cat([start + torch.arange(first, device=device), window], dim=1)


def _taken(x: Tensor, slots: Tensor, dim: int) -> Tensor:
    """The slots of x, whose first dimension is the batch; one row of slots is for all."""
    if slots.shape[0] == 1:
        return x.index_select(dim, slots[0])
    shape = [1] * x.ndim
    shape[0], shape[dim] = slots.shape
    rows = x.expand(slots.shape[0], *x.shape[1:])
    return rows.take_along_dim(slots.reshape(shape), dim)


def _remaining(coordinates: Coordinates, slots: Tensor) -> Coordinates:
    """The coordinates of the slots, which no longer follow one another; their stream is as long as before."""
    length, document = coordinates.length, coordinates.document
    per_token = isinstance(length, Tensor) and length.shape[1] > 1
    return replace(
        coordinates,
        position=_taken(coordinates.position, slots, 1),
        index=_taken(coordinates.index, slots, 1),
        document=None if document is None else _taken(document, slots, 1),
        length=_taken(length, slots, 1) if isinstance(length, Tensor) and per_token else length,
        tables=None,
        ordered=False,
        start=None,
    )


class StackCache:
    """The caches of a stack's layers, and where their tokens are.

        cache = decoder.new_cache()
        logits = decoder(prompt, cache=cache)
        logits = decoder(next_ids, cache=cache)  # ids [batch, 1]

    ``layers`` holds a KeyValueCache for each self-attention, ``context`` one for each cross-attention, which
    is filled once and then read.
    """

    def __init__(self, num_layers: int) -> None:
        self.layers = [KeyValueCache() for _ in range(num_layers)]
        self.context = [KeyValueCache() for _ in range(num_layers)]
        self.coordinates: Coordinates | None = None

    def __len__(self) -> int:
        return len(self.layers[0]) if self.layers else 0

    def crop(self, length: int) -> None:
        """Forgets all but the first ``length`` tokens; the context stays."""
        _need_within(length, len(self))
        for layer in self.layers:
            layer.crop(length)
        if self.coordinates is not None:
            self.coordinates = cropped(self.coordinates, length)

    def keep(self, first: int, last: int) -> None:
        """Forgets all but the first and the last tokens of each row in every layer; the context stays."""
        slots = _kept(self.layers[0], self.coordinates, first, last) if self.layers else None
        if slots is not None:
            for layer in self.layers:
                layer._take(slots)
            if self.coordinates is not None:
                self.coordinates = _remaining(self.coordinates, slots)

    def reorder(self, rows: Tensor) -> None:
        """Rows of the batch in another order, repeated or left out: int64 [new batch] (beams)."""
        for layer in (*self.layers, *self.context):
            layer.reorder(rows)
        if self.coordinates is not None:
            self.coordinates = self.coordinates.select(rows)


class SegmentMemory:
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

    def __len__(self) -> int:
        return self.states[0].shape[1] if self.states else 0

    def store(self, states: list[Tensor], coordinates: Coordinates) -> None:
        """Puts a segment behind what is there, and keeps the last ``length`` tokens."""
        if self.states:
            states = [torch.cat(pair, dim=1) for pair in zip(self.states, states, strict=True)]
        # A copy, so that the states that fall out are freed.
        self.states = [state[:, -self.length :].detach().clone() for state in states]
        total = coordinates.index.shape[1]
        self.coordinates = coordinates.rows(max(0, total - self.length), total)

    def reorder(self, rows: Tensor) -> None:
        """Rows of the batch in another order, repeated or left out: int64 [new batch]."""
        self.states = [state[rows] for state in self.states]
        if self.coordinates is not None:
            self.coordinates = self.coordinates.select(rows)
