"""A stack of blocks with the position encodings that they share.

A stack owns its encodings and passes them to its layers: one for all, or one for each. In each call, an encoding
computes its tables from the coordinates once, and the layers share them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from .._torch import calls_forward_alone
from ..attention import attention, observers
from ..constants import writes
from ..coordinates import Coordinates, stream
from ..errors import HeadwayError
from ..jagged import Sequences, is_nested, need_none
from ..kernels._masks import shared_masks
from ..masks import AnyMask, Boolean, Mask, as_mask, hiding_padding, is_python, mask_or_tensor
from ..nn._coordinates import check_coordinates, continued, joined
from ..nn._transaction import transaction
from ..nn.attention import MultiHeadAttention, key_coordinates, need_last
from ..nn.block import Block
from ..nn.feed_forward import FeedForward
from ..nn.memory import SegmentMemory
from ..nn.norm import make_norm
from ..nn.parts import FirstValues, Part, parts_of
from ..nn.stack_cache import StackCache
from ..plans import needs_no_coordinates
from ..positions._base import IN_ATTENTION, PositionEncoding
from ..positions._naming import encoding as encoding_of
from ..sharing import Sharing, sharing_of
from ..tracing import watched
from .config import TransformerConfig

Encodings = PositionEncoding | str | Sequence[PositionEncoding | str | None] | None
"""One encoding for all layers, one for each layer (None for a layer without), or none at all. Where there is a config,
which has the sizes, a name stands for an encoding, as in ``headway.encoding``."""

Masks = Sequence[AnyMask] | None
"""A mask of each layer's own (None for a layer without), which joins that of the call by &; or none at all."""

M = TypeVar("M", bound=nn.Module)

RESIDUAL = ("out_proj", "down_proj")


class Stack(nn.Module):
    """Applies the blocks of a Transformer and the position encodings they share to vectors.

        x = norm(block_L(… block_1(dropout(entry(embed(x))))))

    ``Stack.of`` builds the blocks of a config.

    Args:
        blocks: a block for each layer. A block that occurs several times has one set of parameters (ALBERT).
        encoding: an encoding for all layers, one for each layer, or none. An encoding that embeds is added to x. An
            encoding that several layers use is registered once, so its table is one tensor in the state_dict.
        masks: a mask for each layer, joined to the mask of the call by &; none if None.
        entry: a module between the embeddings with their positions and the first block.
        norm: a module after the last block.
        dropout: the probability of dropping an element of the first block's input in training.

    Shape:
        x: [batch, n, width], where width is embed_dim unless ``entry`` changes it
        Output: [batch, n, embed_dim]

    Raises:
        HeadwayError: if the numbers of encodings or masks differ from that of the layers, or one of the encodings is
            not a PositionEncoding.
    """

    def __init__(
        self,
        blocks: Sequence[nn.Module],
        encoding: Encodings = None,
        masks: Masks = None,
        *,
        entry: nn.Module | None = None,
        norm: nn.Module | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        num_layers = len(blocks)
        self.masks = [None] * num_layers if masks is None else list(map(as_mask, masks))
        if len(self.masks) != num_layers:
            raise HeadwayError(
                f"there are {len(self.masks)} masks but {num_layers} layers: give one for each, None for a layer "
                "without"
            )
        head_dim = getattr(getattr(next(iter(blocks), None), "attention", None), "head_dim", 64)
        unique, self._encoding_of_layer = _assign(encoding, num_layers, head_dim)
        self.encodings = nn.ModuleList(unique)
        different, self._block_of_layer = _different(blocks)
        self.blocks = nn.ModuleList(different)
        self.entry = entry or nn.Identity()
        self.norm = norm or nn.Identity()
        self.dropout = nn.Dropout(dropout)

    @classmethod
    def of(
        cls,
        config: TransformerConfig,
        encoding: Encodings = None,
        masks: Masks = None,
        *,
        cross_attention: bool = False,
        bidirectional: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Stack:
        """Returns the stack of a config.

        Args:
            config: the sizes and options of the blocks.
            encoding: as in the constructor, or by names, as in ``headway.encoding``.
            masks: as in the constructor.
            cross_attention: whether each block attends to a context, too.
            bidirectional: whether tokens see later ones, for encodings that are made by name.
            device: the device of the parameters created here; encodings keep their own.
            dtype: the dtype of the parameters created here, likewise.

        Raises:
            HeadwayError: if a block or the constructor raises it.
        """
        blocks = [
            Block(
                config.embed_dim,
                config.num_heads,
                feed_forward_dim=config.feed_forward_dim,
                num_kv_heads=config.num_kv_heads,
                head_dim=config.head_dim,
                activation=config.activation,
                norm=config.norm,
                norm_first=config.norm_first,
                bias=config.bias,
                dropout=config.dropout,
                scale=config.attention_scale,
                soft_cap=config.soft_cap,
                sink=config.sink,
                parts=config.parts,
                layer=layer,
                kernel=config.kernel,
                cross_attention=cross_attention,
                device=device,
                dtype=dtype,
            )
            for layer in range(config.num_layers)
        ]
        norm = make_norm(config.norm, config.embed_dim, device, dtype) if config.norm_first else None
        encoding = _named(encoding, config, bidirectional=bidirectional, device=device, dtype=dtype)
        return cls(blocks, encoding, masks, norm=norm, dropout=config.dropout)

    @property
    def layers(self) -> list[nn.Module]:
        """The block of each layer, from the bottom."""
        return [self.blocks[number] for number in self._block_of_layer]

    @property
    def _encodings(self) -> list[PositionEncoding]:
        return cast(list[PositionEncoding], list(self.encodings))

    @property
    def encoding_of_layer(self) -> list[PositionEncoding | None]:
        """The encoding of each layer, from the bottom; None for a layer without one."""
        known = self._encodings
        return [None if number is None else known[number] for number in self._encoding_of_layer]

    def new_cache(self, max_length: int | None = None) -> StackCache:
        """Returns an empty cache for these layers.

        Args:
            max_length: the most tokens that it holds, for which it has room from the start; no limit if None.

        Raises:
            HeadwayError: if max_length is below 1.
        """
        return StackCache(len(self.layers), self.masks, self.encoding_of_layer, max_length=max_length)

    def initialise(self, std: float) -> None:
        """Initializes linear maps from N(0, std²), or N(0, std²/parts) if they add to the residual; biases 0, norms 1.

        Parts of layers, such as gates, reset everything that is not a linear map.

        Args:
            std: the standard deviation of the weights.
        """
        added = [name for name, _ in self.blocks.named_modules() if name.endswith(RESIDUAL)]
        for name, module in self.named_modules():
            if name.startswith("encodings."):
                continue  # an encoding has initialized itself as its paper says
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=std * len(added) ** -0.5 if name.endswith(RESIDUAL) else std)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
                module.reset_parameters()
            elif isinstance(module, MultiHeadAttention):
                module.reset_sink()
            elif isinstance(module, Part):
                module.reset_parameters()

    def forward(
        self,
        x: Tensor,
        *,
        mask: AnyMask = None,
        positions: Tensor | Coordinates | None = None,
        cache: StackCache | None = None,
        memory: SegmentMemory | None = None,
        context: Tensor | None = None,
        context_mask: AnyMask = None,
        context_positions: Tensor | Coordinates | None = None,
        last: int | None = None,
    ) -> Tensor:
        """Returns the output of the last layer, [batch, n, embed_dim].

        Args:
            x: [batch, n, width], or a jagged tensor of sequences of different lengths (``torch.nested``). The context
                and the output are jagged then.
            mask: which keys each token may see; all if None.
            positions: the positions of x; if None, they start at 0 or continue those of the cache or the memory.
            cache: the keys and values of past tokens, to which those of x are appended.
            memory: the hidden states of past segments, to which those of x are appended.
            context: the states [batch, m, embed_dim] that cross-attention reads.
            context_mask: which tokens of the context each token of x may see; all if None.
            context_positions: the positions of the context.
            last: the number of last tokens whose output is returned, [batch, last, embed_dim]; all if None. The last
                layer then computes only these, unless it is observed or has modules that are not headway's.

        Raises:
            HeadwayError: before the first layer, if positions, masks, cache or memory do not fit x, or both cache and
                memory are given.
        """
        shown, context_shown = map(mask_or_tensor, (mask, context_mask))
        masks = [shown if own is None else also(own, shown) for own in self.masks]
        cross: dict[str, Any] = {
            "context": context,
            "context_mask": context_shown,
            "context_positions": context_positions,
        }
        if is_nested(x, context):
            need_none({"cache": cache, "memory": memory, "last": last})
            return self._of_sequences(x, masks, positions, cross)
        if last is not None:
            need_last(last, x.shape[1])
            last = None if last == x.shape[1] else last
        self._check_past(x, cache, memory)
        before = cache if cache is not None else memory
        shared = sharing_of(self)
        if shared is not None:
            shared.refuse(self, memory=memory, cache=None if context is None else cache)
        if cache is not None:
            cache.need_filled_in(shared)
        alone = shared is None and positions is None and context is None
        if alone and cache is not None and self._needs_no_coordinates(x, masks, cache) and cache.count():
            cache.need_room(x.shape[1])
            with transaction(cache):
                out = self._step(x, masks, cache)
                return out if last is None else out[:, -last:]
        past = None if before is None else before.coordinates
        if shared is None or past is not None:  # every process has all tokens after the prompt
            coordinates = continued(past, positions, x.shape[1], x.device)
        else:
            coordinates = shared.coordinates(positions, x.shape[1], x.device)
            if context is not None:
                cross["context_positions"] = shared.context_coordinates(context_positions, context)
        check_coordinates(coordinates, x)
        if cache is not None:
            cache.need_room((coordinates if coordinates.shard is None else coordinates.shard.whole).index.shape[1])
        if before is not None and not coordinates.padding:
            before.need_new_lengths(shown, 0 if past is None else past.index.shape[1], x.shape[1])
        with transaction(cache, memory), _sharing(*masks, context_shown):
            return self._run(x, masks, past, coordinates, cache, memory, cross, last)

    def _check_past(self, x: Tensor, cache: StackCache | None, memory: SegmentMemory | None) -> None:
        """Raises HeadwayError unless cache and memory fit x and the layers."""
        if cache is not None and memory is not None:
            raise HeadwayError("cache and memory are both given: keep keys and values, or segments, and leave one out")
        if cache is not None and len(cache.layers) != len(self.masks):
            raise HeadwayError(
                f"the cache has {len(cache.layers)} layers but the model {len(self.masks)}: give its own new_cache()"
            )
        if memory is not None and len(memory) and memory.states[0].shape[0] != x.shape[0]:
            raise HeadwayError(
                f"the batch is {x.shape[0]} but the memory holds {memory.states[0].shape[0]} rows: start a new memory"
            )

    def _needs_no_coordinates(self, x: Tensor, masks: Sequence[Mask | Tensor | None], cache: StackCache) -> bool:
        """Returns whether layers that count their tokens compute a call as fast as layers that share coordinates."""
        modules: Any = self._modules
        if observers() or watched():
            return False
        for block in modules["blocks"]._modules.values():
            if not _takes_defaults(block):
                return False
        held = len(cache)
        for one in (None, *modules["encodings"]._modules.values()):
            if not needs_no_coordinates(one, x, held):
                return False
        before = None
        for mask in masks:
            if mask is not before and mask is not None and not (isinstance(mask, Mask) and mask.plan_key() is not None):
                return False
            before = mask
        return True

    def _step(self, x: Tensor, masks: Sequence[Mask | Tensor | None], cache: StackCache) -> Tensor:
        """Applies the layers to tokens that follow those in the cache, all of one stream that starts at 0."""
        modules: Any = self._modules  # since each attribute that is a module takes a microsecond, which steps notice
        encodings, blocks = list(modules["encodings"]._modules.values()), list(modules["blocks"]._modules.values())
        cache.enter_step()
        for one in encodings:
            if "embed" in one.acts:
                held = len(cache)
                x = _PlacedEncoding(one, stream(x.shape[1], held, held + x.shape[1], x.device), None, None).embed(x)
        x = modules["dropout"](modules["entry"](x))
        used = [one if one.acts & IN_ATTENTION else None for one in encodings]
        reads_first = any(block._modules["attention"].reads_first_values for block in blocks)
        options = {"first_values": FirstValues()} if reads_first else {}
        layers = zip(self._block_of_layer, self._encoding_of_layer, masks, cache.layers, strict=True)
        for block, number, mask, layer in layers:
            encoding = None if number is None else used[number]
            x = blocks[block](x, mask=mask, encoding=encoding, cache=layer, **options)
        out: Tensor = modules["norm"](x)
        return out

    def _of_sequences(
        self,
        x: Tensor,
        masks: Sequence[Mask | Tensor | None],
        positions: Tensor | Coordinates | None,
        cross: dict[str, Any],
    ) -> Tensor:
        """Returns the output of jagged tensors, whose sequences are computed as one row."""
        rows = Sequences.of("x", x)
        if cross["context"] is not None:
            keys = Sequences.of("context", cross["context"])
            cross = {
                "context": keys.row,
                "context_mask": rows.mask(cross["context_mask"], keys),
                "context_positions": keys.coordinates("context_positions", cross["context_positions"]),
            }
        at = rows.coordinates("positions", positions)
        shown = {id(mask): rows.mask(mask) for mask in masks}
        with _sharing(*masks, cross["context_mask"]):
            return rows.jagged(self._run(rows.row, [shown[id(mask)] for mask in masks], None, at, None, None, cross))

    def _run(
        self,
        x: Tensor,
        masks: Sequence[Mask | Tensor | None],
        past: Coordinates | None,
        coordinates: Coordinates,
        cache: StackCache | None,
        memory: SegmentMemory | None,
        cross: dict[str, Any],
        last: int | None = None,
    ) -> Tensor:
        """Applies the layers, one after another. ``cross`` has the arguments of cross-attention."""
        shared = sharing_of(self) if past is None else None
        if cache is not None:
            all_keys = cache.enter(coordinates if coordinates.shard is None else coordinates.shard.whole)
        else:
            all_keys = [coordinates if memory is None else joined(past, coordinates)] * len(self.layers)
        self._check_masks(x, masks, all_keys, cross["context"], cross["context_mask"], shared)
        with_memory = all_keys[0] if memory is not None else None
        placed_encodings = [_PlacedEncoding(one, coordinates, with_memory, shared) for one in self._encodings]
        no_encoding = _PlacedEncoding(None, coordinates, with_memory, shared)
        for placed in placed_encodings:
            x = placed.embed(x)
        x = self.dropout(self.entry(x))
        if any(getattr(getattr(block, "attention", None), "reads_first_values", False) for block in self.blocks):
            cross = {**cross, "first_values": FirstValues()}
        states = []
        layers = zip(self.layers, self._encoding_of_layer, masks, strict=True)
        cuts = last is not None and memory is None and cross["context"] is None and self._computes_last()
        for layer, (block, number, shown) in enumerate(layers):
            states.append(x)
            if cuts and layer == len(self.masks) - 1:
                cross = {**cross, "last": last}
            placed = no_encoding if number is None else placed_encodings[number]
            x = block(
                x,
                mask=shown,
                positions=placed.tokens,
                key_positions=None if cache is None and memory is None else placed.keys(all_keys[layer]),
                encoding=placed.encoding,
                cache=None if cache is None else cache.layers[layer],
                memory=None if memory is None or not len(memory) else memory.states[layer],
                context_cache=None if cache is None or cross["context"] is None else cache.context[layer],
                **cross,
            )
            if cache is not None:
                cache.settle(layer)
        out: Tensor = self.norm(x)
        if memory is not None:
            memory.store(states, all_keys[0])
        return out if last is None or cuts else out[:, -last:]

    def _computes_last(self) -> bool:
        """Returns whether the last layer and the norm may compute only some of the tokens, with the same results."""
        if sharing_of(self) is not None or observers() or not self._block_of_layer:
            return False
        block: Any = self.blocks[self._block_of_layer[-1]]
        part, feed = block._modules.get("attention"), block._modules.get("feed_forward")
        # modules of other authors may mix tokens
        for one, kind in ((block, Block), (part, MultiHeadAttention), (feed, FeedForward)):
            if not isinstance(one, kind) or type(one).forward is not kind.forward:
                return False
        if not all(type(one).__module__.startswith("headway.") for one in parts_of(part.parts)):
            return False
        return _attends_alone(part) and all(map(calls_forward_alone, (*block.modules(), *self.norm.modules())))

    def _check_masks(
        self,
        x: Tensor,
        masks: Sequence[Mask | Tensor | None],
        keys: Sequence[Coordinates],
        context: Tensor | None,
        context_mask: Mask | Tensor | None,
        shared: Sharing | None,
    ) -> None:
        """Raises HeadwayError before the first layer if the mask of any layer does not fit."""
        batch, n = x.shape[:2]
        m = 0 if context is None else context.shape[1]
        if shared is not None:  # masks are those of the whole sequence
            n, m = shared.whole_sizes(n, m, cross=context is not None)
            keys = [at if at.shard is None else at.shard.whole for at in keys[:1]] * len(keys)
        checked: list[int] = []
        for layer, (own, at) in enumerate(zip(self.masks, keys, strict=True)):
            if any(self.masks[known] is own and keys[known] is at for known in checked):
                continue
            checked.append(layer)
            mask, block = masks[layer], self.blocks[self._block_of_layer[layer]]
            if mask is not None:
                _check_mask(mask, block, "attention", batch, n, at.index.shape[1])
                if not isinstance(mask, Tensor):
                    hiding_padding(mask, at)
        if context is not None and context_mask is not None:
            _check_mask(context_mask, self.blocks[0], "cross_attention", batch, n, m)


def _takes_defaults(block: nn.Module) -> bool:
    """Returns whether a block computes the same without positions if these are the default ones."""
    part = block._modules.get("attention")
    if type(block).forward is not Block.forward or not isinstance(part, MultiHeadAttention):
        return False
    return type(part).forward is MultiHeadAttention.forward and _attends_alone(part)


def _attends_alone(part: MultiHeadAttention) -> bool:
    """Whether a layer computes attention by itself. ``headway.parallel`` would take the word in a method for a call."""
    return part.attend is attention


def _sharing(*masks: Mask | Tensor | None) -> AbstractContextManager[None]:
    """A context in which layers share the evaluated values of masks that are written in Python."""
    python = not watched() and any(isinstance(one, Mask) and is_python(one) for one in masks)
    return shared_masks() if python else nullcontext()


def _check_mask(mask: Mask | Tensor, block: nn.Module, part: str, batch: int, n: int, m: int) -> None:
    """Raises HeadwayError if a mask does not fit a block's attention; a block without num_heads is not checked."""
    heads = getattr(getattr(block, part, None), "num_heads", None)
    if heads is not None:
        (Boolean(mask) if isinstance(mask, Tensor) else mask).check(batch, heads, n, m)


class _PlacedEncoding:
    """An encoding with the coordinates it has placed, computed once for all layers that use it."""

    def __init__(
        self,
        encoding: PositionEncoding | None,
        tokens: Coordinates,
        with_memory: Coordinates | None,
        shared: Sharing | None,
    ) -> None:
        """``with_memory``: the coordinates of a memory's tokens followed by these; None without a memory."""
        acts = frozenset() if encoding is None else encoding.acts
        self.tokens, self._keys = tokens, [(tokens, tokens)]
        if encoding is not None and with_memory is not None:  # so that random positions are drawn once for each token
            keys, count = encoding.for_one_forward(with_memory), tokens.index.shape[1]
            total = with_memory.index.shape[1]
            self.tokens = encoding.for_one_forward(keys.rows(total - count, total)) if total > count else keys
            self._keys = [(with_memory, keys)]
        elif encoding is not None:
            place = encoding.for_one_forward if shared is None else partial(shared.placed, encoding)
            self.tokens = place(tokens)
            self._keys = [(tokens, self.tokens)]
        self._embed = encoding if "embed" in acts else None
        # an encoding that only embeds does nothing in the layers
        self.encoding = encoding if acts & IN_ATTENTION else None

    def keys(self, all_keys: Coordinates) -> Coordinates:
        """Returns the keys' coordinates placed by the encoding, computed once for layers that keep the same tokens."""
        for known, placed in self._keys:
            if known is all_keys:
                return placed
        placed = key_coordinates(self.encoding, all_keys)
        self._keys.append((all_keys, placed))
        return placed

    def embed(self, x: Tensor) -> Tensor:
        if self._embed is None:
            return x
        before = writes((x,))
        embedded = self._embed.embed(x, self.tokens)
        if writes((x,)) != before:
            raise HeadwayError(
                f"{self._embed.known_as}.embed writes into the embeddings it is given: write into a clone of them"
            )
        return embedded


def _named(
    encoding: Encodings,
    config: TransformerConfig,
    *,
    bidirectional: bool,
    device: torch.device | str | None,
    dtype: torch.dtype | None,
) -> Encodings:
    """Returns the encodings of a stack; for a name, one made with the sizes of a config."""
    head_dim = config.head_dim or config.embed_dim // config.num_heads
    sizes = {"num_heads": config.num_heads, "head_dim": head_dim, "embed_dim": config.embed_dim}

    def made(one: PositionEncoding | str | None) -> PositionEncoding | None:
        if not isinstance(one, str):
            return one
        return encoding_of(one, **sizes, bidirectional=bidirectional).to(device=device, dtype=dtype)

    return list(map(made, encoding)) if isinstance(encoding, (list, tuple)) else made(encoding)  # type: ignore[arg-type]


def _assign(encoding: Encodings, num_layers: int, head_dim: int) -> tuple[list[PositionEncoding], list[int | None]]:
    """Returns the different encodings, and for each layer the number of the one it uses."""
    layers = list(encoding) if isinstance(encoding, (list, tuple)) else [encoding] * num_layers
    if len(layers) != num_layers:
        raise HeadwayError(
            f"there are {len(layers)} encodings but {num_layers} layers: give one for each, or one for all"
        )
    for one in layers:
        if one is not None and not isinstance(one, PositionEncoding):
            raise HeadwayError(
                f"encoding is {one!r}: give a PositionEncoding, such as headway.encoding('rope', head_dim={head_dim})"
            )
    unique, order = _different([one for one in layers if isinstance(one, PositionEncoding)])
    numbers = iter(order)
    return unique, [None if one is None else next(numbers) for one in layers]


def _different(modules: Sequence[M]) -> tuple[list[M], list[int]]:
    """Returns the different modules in order, and for each given one its number among them."""
    unique = list({id(module): module for module in modules}.values())
    numbers = {id(module): number for number, module in enumerate(unique)}
    return unique, [numbers[id(module)] for module in modules]


def also(own: Mask, mask: AnyMask) -> Mask:
    """Returns a mask joined to another one by &, if there is another one."""
    other = as_mask(mask)
    return own if other is None else own & other
