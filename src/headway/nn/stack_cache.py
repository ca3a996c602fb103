"""The caches of keys and values of all layers of a stack."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ..coordinates import Coordinates, stream
from ..errors import HeadwayError
from ..masks import Mask
from ..positions import PositionEncoding
from ..sharing import Sharing
from ._coordinates import cropped, joined, kept, remaining
from ._retention import Retention, reads_others
from ._token_buffer import Slots
from ._transaction import Transactional
from .cache import KeyValueCache, need_room, need_within, size_of, type_of


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
            f"{type(self).__name__}({len(self.layers)} layers; {rows} of {tokens} tokens{read}, {type_of(parts[0])}, "
            f"{size_of(*parts)})"
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

        They do if the tokens begin at the start of a stream and every layer keeps all of them.
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
            need_room(0 if at is None else at.index.shape[1], n, self.max_length)

    def need_filled_in(self, shared: Sharing | None) -> None:
        """Checks that earlier tokens were computed in the same context as those that follow.

        Args:
            shared: the context of several processes, where each holds the keys of its tokens; None outside of one.

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
        need_within(length, len(self))
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
