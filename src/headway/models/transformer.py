"""The Transformer: as encoder, as decoder (a causal language model), and both together.

A stack owns its position encodings and hands them to its layers: one for all, or one for each. What follows
from where the tokens are is computed once for each encoding and call, and shared by the layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import Self

from ..constants import writes
from ..coordinates import Coordinates
from ..errors import HeadwayError
from ..masks import Boolean, Causal, Mask
from ..nn._places import continued, joined, need_places
from ..nn._transaction import transaction
from ..nn.attention import MultiHeadAttention, key_coordinates
from ..nn.block import Block
from ..nn.cache import StackCache
from ..nn.embedding import Embedding, Head
from ..nn.memory import SegmentMemory
from ..nn.norm import make_norm
from ..positions._base import IN_ATTENTION, PositionEncoding
from .config import TransformerConfig

Encodings = PositionEncoding | Sequence[PositionEncoding | None] | None
"""One encoding for all layers, one for each layer (None for a layer without), or none at all."""

Masks = Sequence[Mask | None] | None
"""A mask of each layer's own (None for a layer without), which joins that of the call by &; or none at all."""

M = TypeVar("M", bound=nn.Module)

RESIDUAL = ("out_proj", "down_proj")


class Stack(nn.Module):
    """The blocks of a Transformer and the encodings they share: vectors in, vectors out.

        x = norm(block_L(… block_1(dropout(entry(embed(x))))))

    Shapes: x [batch, n, width] → [batch, n, embed_dim]; the width of x is embed_dim unless ``entry`` changes it.

    blocks     one for each layer; one that stands there several times has one set of parameters (ALBERT)
    encoding   an encoding that embeds does so here, at the bottom. One that several layers use is registered once, so
               that its table is one tensor in the state_dict
    masks      one for each layer, which join that of the call by &
    entry      a module between embeddings with their positions and the first block; norm: one behind the last

    ``Stack.of`` builds the blocks of a config. Raises HeadwayError for a list of encodings or masks that is not as long
    as there are layers.
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
        self.masks = [None] * num_layers if masks is None else list(masks)
        if len(self.masks) != num_layers:
            raise HeadwayError(
                f"there are {len(self.masks)} masks but {num_layers} layers: give one for each, None for a layer "
                "without"
            )
        unique, self._encoding_of_layer = _assign(encoding, num_layers)
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
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Stack:
        """The stack of a config, its blocks there and in that dtype; raises what the constructor raises."""
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
                kernel=config.kernel,
                cross_attention=cross_attention,
                device=device,
                dtype=dtype,
            )
            for _ in range(config.num_layers)
        ]
        norm = make_norm(config.norm, config.embed_dim, device, dtype) if config.norm_first else None
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
        """The encoding of each layer, from the bottom."""
        known = self._encodings
        return [None if number is None else known[number] for number in self._encoding_of_layer]

    def new_cache(self) -> StackCache:
        """An empty cache for these layers."""
        return StackCache(len(self.layers), self.masks, self.encoding_of_layer)

    def initialise(self, std: float) -> None:
        """Linear maps N(0, std²), where they add to the residual N(0, std²/parts); biases 0, norms 1."""
        added = [name for name, _ in self.blocks.named_modules() if name.endswith(RESIDUAL)]
        for name, module in self.named_modules():
            if name.startswith("encodings."):
                continue  # an encoding begins as its paper says
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=std * len(added) ** -0.5 if name.endswith(RESIDUAL) else std)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
                module.reset_parameters()
            elif isinstance(module, MultiHeadAttention):
                module.reset_sink()

    def forward(
        self,
        x: Tensor,
        *,
        mask: Mask | Tensor | None = None,
        positions: Tensor | Coordinates | None = None,
        cache: StackCache | None = None,
        memory: SegmentMemory | None = None,
        context: Tensor | None = None,
        context_mask: Mask | Tensor | None = None,
        context_positions: Tensor | Coordinates | None = None,
    ) -> Tensor:
        """x [batch, n, width] → [batch, n, embed_dim]; a cache or a memory gains the tokens of x."""
        if cache is not None and memory is not None:
            raise HeadwayError("cache and memory are both given: keep keys and values, or segments, and leave one out")
        if cache is not None and len(cache.layers) != len(self.masks):
            raise HeadwayError(
                f"the cache has {len(cache.layers)} layers but the model {len(self.masks)}: give its own new_cache()"
            )
        before = cache if cache is not None else memory
        if memory is not None and len(memory) and memory.states[0].shape[0] != x.shape[0]:
            raise HeadwayError(
                f"the batch is {x.shape[0]} but the memory holds {memory.states[0].shape[0]} rows: start a new memory"
            )
        past = None if before is None else before.coordinates
        coordinates = continued(past, positions, x.shape[1], x.device)
        need_places(coordinates, x)
        with transaction(cache, memory):
            return self._run(x, mask, past, coordinates, cache, memory, context, context_mask, context_positions)

    def _run(
        self,
        x: Tensor,
        mask: Mask | Tensor | None,
        past: Coordinates | None,
        coordinates: Coordinates,
        cache: StackCache | None,
        memory: SegmentMemory | None,
        context: Tensor | None,
        context_mask: Mask | Tensor | None,
        context_positions: Tensor | Coordinates | None,
    ) -> Tensor:
        """The layers, one after another."""
        if cache is not None:
            everything = cache.enter(coordinates)
        else:
            everything = [coordinates if memory is None else joined(past, coordinates)] * len(self.layers)
        masks = [mask if own is None else also(own, mask) for own in self.masks]
        self._check_masks(x, masks, everything, context, context_mask)
        remembered = everything[0] if memory is not None else None
        seats = [_Seat(encoding, coordinates, remembered) for encoding in self._encodings]
        nowhere = _Seat(None, coordinates, remembered)
        for seat in seats:
            x = seat.embed(x)
        x = self.dropout(self.entry(x))
        states = []
        layers = zip(self.layers, self._encoding_of_layer, masks, strict=True)
        for layer, (block, number, shown) in enumerate(layers):
            states.append(x)
            seat = nowhere if number is None else seats[number]
            x = block(
                x,
                mask=shown,
                positions=seat.tokens,
                key_positions=None if cache is None and memory is None else seat.keys(everything[layer]),
                encoding=seat.encoding,
                cache=None if cache is None else cache.layers[layer],
                memory=None if memory is None or not len(memory) else memory.states[layer],
                context=context,
                context_mask=context_mask,
                context_positions=context_positions,
                context_cache=None if cache is None or context is None else cache.context[layer],
            )
            if cache is not None:
                cache.settle(layer)
        out: Tensor = self.norm(x)
        if memory is not None:
            memory.store(states, everything[0])
        return out

    def _check_masks(
        self,
        x: Tensor,
        masks: Sequence[Mask | Tensor | None],
        keys: Sequence[Coordinates],
        context: Tensor | None,
        context_mask: Mask | Tensor | None,
    ) -> None:
        """Raises before the first layer where a mask does not fit, which attention would raise in a later one."""
        batch, n = x.shape[:2]
        checked: list[int] = []
        for layer, (own, at) in enumerate(zip(self.masks, keys, strict=True)):
            if any(self.masks[known] is own and keys[known] is at for known in checked):
                continue
            checked.append(layer)
            mask, block = masks[layer], self.blocks[self._block_of_layer[layer]]
            if mask is not None:
                _check_mask(mask, block, "attention", batch, n, at.index.shape[1])
        if context is not None and context_mask is not None:
            _check_mask(context_mask, self.blocks[0], "cross_attention", batch, n, context.shape[1])


def _check_mask(mask: Mask | Tensor, block: nn.Module, part: str, batch: int, n: int, m: int) -> None:
    """Raises where a mask does not fit a block's attention; a block made otherwise than Block is left to itself."""
    heads = getattr(getattr(block, part, None), "num_heads", None)
    if heads is not None:
        (Boolean(mask) if isinstance(mask, Tensor) else mask).check(batch, heads, n, m)


class _Seat:
    """An encoding, and where tokens and keys are for it: computed once for all layers that use it."""

    def __init__(self, encoding: PositionEncoding | None, tokens: Coordinates, remembered: Coordinates | None) -> None:
        """remembered: where the tokens of a memory are, and behind them these; None without a memory."""
        acts = frozenset() if encoding is None else encoding.acts
        self.tokens, self._keys = tokens, [(tokens, tokens)]
        if encoding is not None and remembered is not None:  # what is drawn for a token is drawn once
            keys, count = encoding.for_one_forward(remembered), tokens.index.shape[1]
            total = remembered.index.shape[1]
            self.tokens = encoding.for_one_forward(keys.rows(total - count, total)) if total > count else keys
            self._keys = [(remembered, keys)]
        elif encoding is not None:
            self.tokens = encoding.for_one_forward(tokens)
            self._keys = [(tokens, self.tokens)]
        self._embed = encoding if "embed" in acts else None
        # What only embeds has done its work at the bottom.
        self.encoding = encoding if acts & IN_ATTENTION else None

    def keys(self, everything: Coordinates) -> Coordinates:
        """Where keys are for the encoding: computed once for layers that hold the same."""
        for known, placed in self._keys:
            if known is everything:
                return placed
        found = key_coordinates(self.encoding, everything)
        self._keys.append((everything, found))
        return found

    def embed(self, x: Tensor) -> Tensor:
        if self._embed is None:
            return x
        before = writes((x,))
        found = self._embed.embed(x, self.tokens)
        if writes((x,)) != before:
            raise HeadwayError(
                f"{self._embed.known_as} writes in embed into the embeddings it is given: write into a clone there"
            )
        return found


def _assign(encoding: Encodings, num_layers: int) -> tuple[list[PositionEncoding], list[int | None]]:
    """The different encodings, and for each layer which of them it uses."""
    layers = list(encoding) if isinstance(encoding, (list, tuple)) else [encoding] * num_layers
    if len(layers) != num_layers:
        raise HeadwayError(
            f"there are {len(layers)} encodings but {num_layers} layers: give one for each, or one for all"
        )
    for one in layers:
        if one is not None and not isinstance(one, PositionEncoding):
            raise HeadwayError(
                f"encoding is {one!r}: give a PositionEncoding, such as headway.encoding('rope', head_dim=64)"
            )
    unique, order = _different([one for one in layers if isinstance(one, PositionEncoding)])
    numbers = iter(order)
    return unique, [None if one is None else next(numbers) for one in layers]


def _different(modules: Sequence[M]) -> tuple[list[M], list[int]]:
    """The different modules, in order, and for each one given its number among them."""
    unique = list({id(module): module for module in modules}.values())
    numbers = {id(module): number for number, module in enumerate(unique)}
    return unique, [numbers[id(module)] for module in modules]


class Transformer(nn.Module):
    """What the three Transformers share: token embeddings, the way back to logits, and how parameters begin.

        x = embedding_scale·E[ids],  logits = E·hidden  (or W·hidden where the head is not tied)

    E begins as N(0, 1/embed_dim), so that with the scale √embed_dim embeddings have the size of one and a
    code of positions added to them does not drown them (Vaswani et al. 2017, section 3.4). Everything else
    begins as in GPT-2 (Radford et al. 2019): N(0, 0.02²), what adds to the residual smaller by the root of
    the number of such parts. In float64 torch draws other numbers from a seed than in float32.

    Each takes ``device`` and ``dtype`` for the parameters that it makes. Encodings are handed over and stay as they
    are: ``encoding.to(device)`` before, or ``model.to(device)`` afterwards, moves them too.
    """

    config: TransformerConfig | None = None
    """What the model was made of; None where it was made of parts."""

    def __init__(self, embedding: nn.Module, head: Head | None) -> None:
        super().__init__()
        self.embedding = embedding
        self.head = head

    def initialise(self) -> None:
        """First values for all parameters but those of encodings; a study replaces this to try others."""
        for part in self.children():
            if isinstance(part, (Embedding, Head)):
                part.reset_parameters()
            elif isinstance(part, Stack):
                part.initialise(0.02)

    @property
    def num_parameters(self) -> int:
        """Learned numbers, each counted once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def vectors(self, ids: Tensor, types: Tensor | None = None) -> Tensor:
        """ids [batch, n] → scaled embeddings [batch, n, embed_dim]; raises HeadwayError for other input."""
        x: Tensor = self.embedding(ids) if types is None else self.embedding(ids, types)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states [batch, n, embed_dim] → a logit for each token id, [batch, n, vocab_size]."""
        embeddings = cast(Tensor, self.embedding.weight)
        logits: Tensor = F.linear(hidden, embeddings) if self.head is None else self.head(hidden, embeddings)
        return logits

    def _out(self, hidden: Tensor) -> Tensor:
        """What a call gives: logits, and hidden states of a model without a head."""
        return hidden if self.head is None else self.logits(hidden)


class _OneStack(Transformer):
    """A Transformer of one stack."""

    def __init__(
        self,
        config: TransformerConfig,
        encoding: Encodings,
        masks: Masks,
        *,
        with_head: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        head = _head(config, device, dtype) if with_head else None
        super().__init__(_embedding(config, device, dtype), head)
        self.stack = Stack.of(config, encoding, masks, device=device, dtype=dtype)
        self.config = config
        self.initialise()

    @classmethod
    def of_parts(cls, embedding: nn.Module, stack: Stack, head: Head | None = None) -> Self:
        """The model of parts made elsewhere, as they are; hidden states come out where there is no head.

        embedding   any module that makes [batch, n, width] of what the model is called with; with a tied head its
                    ``weight`` is that of the token embeddings
        """
        model = cls.__new__(cls)
        Transformer.__init__(model, embedding, head)
        model.stack = stack
        return model

    def new_cache(self) -> StackCache:
        """An empty cache for decoding with this model."""
        return self.stack.new_cache()


class Encoder(_OneStack):
    """Every token sees every other: ids [batch, n] → hidden states [batch, n, embed_dim].

        encoder = Encoder(TransformerConfig(vocab_size=256), encoding=headway.encoding("rope", head_dim=64))
        hidden = encoder(ids, mask=masks.Padding(lengths))

    ``encoder.logits(hidden)`` gives a logit for each token id (masked language models), which is what a call gives
    where the model was made with a head (``of_parts``). ``masks``, one for each layer, join that of the call by &.
    Cite: Devlin et al. 2019.
    """

    def __init__(
        self,
        config: TransformerConfig,
        encoding: Encodings = None,
        masks: Masks = None,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(config, encoding, masks, with_head=False, device=device, dtype=dtype)

    def forward(
        self,
        ids: Tensor,
        *,
        types: Tensor | None = None,
        positions: Tensor | Coordinates | None = None,
        mask: Mask | Tensor | None = None,
    ) -> Tensor:
        """ids int64 [batch, n], and types alike where tokens have types → [batch, n, embed_dim], logits with a head."""
        return self._out(self.hidden(ids, types=types, positions=positions, mask=mask))

    def hidden(
        self,
        ids: Tensor,
        *,
        types: Tensor | None = None,
        positions: Tensor | Coordinates | None = None,
        mask: Mask | Tensor | None = None,
    ) -> Tensor:
        """The hidden states [batch, n, embed_dim], with a head or without."""
        out: Tensor = self.stack(self.vectors(ids, types), positions=positions, mask=mask)
        return out


class Decoder(_OneStack):
    """A causal language model: ids [batch, n] → the logits of each next token [batch, n, vocab_size].

        decoder = Decoder(TransformerConfig(vocab_size=256), encoding=headway.encoding("alibi", num_heads=4))
        logits = decoder(ids)

    A ``mask`` is joined to the causal one by &, and so are ``masks``, one for each layer. With a cache
    (``new_cache()``) ids are the tokens that come next; with a SegmentMemory they are the next segment. Rows of
    several lengths are padded in front: ``decoder(ids, positions=Coordinates.padded(lengths, n),
    mask=masks.Padding())``, and in each step that follows ``decoder(next_ids, mask=masks.Padding(), cache=cache)``.
    Cite: Radford et al. 2019; Dai et al. 2019 (memory).
    """

    def __init__(
        self,
        config: TransformerConfig,
        encoding: Encodings = None,
        masks: Masks = None,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(config, encoding, masks, with_head=True, device=device, dtype=dtype)

    def forward(
        self,
        ids: Tensor,
        *,
        positions: Tensor | Coordinates | None = None,
        mask: Mask | Tensor | None = None,
        cache: StackCache | None = None,
        memory: SegmentMemory | None = None,
    ) -> Tensor:
        """ids int64 [batch, n] → logits [batch, n, vocab_size]."""
        with transaction(cache, memory):
            return self._out(self.hidden(ids, positions=positions, mask=mask, cache=cache, memory=memory))

    def hidden(
        self,
        ids: Tensor,
        *,
        positions: Tensor | Coordinates | None = None,
        mask: Mask | Tensor | None = None,
        cache: StackCache | None = None,
        memory: SegmentMemory | None = None,
    ) -> Tensor:
        """The hidden states [batch, n, embed_dim] of which the logits are made."""
        out: Tensor = self.stack(
            self.vectors(ids), positions=positions, mask=also(Causal(), mask), cache=cache, memory=memory
        )
        return out


class EncoderDecoder(Transformer):
    """A source is encoded, a target is decoded with a view of it: (ids, decoder_ids) → logits of each next
    token.

        both, causal = (headway.encoding("t5", num_heads=4, bidirectional=b) for b in (True, False))
        model = EncoderDecoder(config, both, causal)
        logits = model(ids, decoder_ids, mask=masks.Padding(lengths))

    Each side has its own encodings; source and target share the token embeddings. To decode step by step,
    encode once:

        context, cache = model.encode(ids, mask=padding), model.new_cache()
        logits = model.decode(first_ids, context, context_mask=padding, cache=cache)

    Raises HeadwayError where one encoding with state is handed to both sides.
    Cite: Vaswani et al. 2017; Raffel et al. 2020.
    """

    def __init__(
        self,
        config: TransformerConfig,
        encoding: Encodings,
        decoder_encoding: Encodings,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(_embedding(config, device, dtype), _head(config, device, dtype))
        encoder = Stack.of(config, encoding, device=device, dtype=dtype)
        decoder = Stack.of(config, decoder_encoding, cross_attention=True, device=device, dtype=dtype)
        self._join(encoder, decoder, None)
        self.config = config
        self.initialise()

    @classmethod
    def of_parts(
        cls,
        embedding: nn.Module,
        encoder: Stack,
        decoder: Stack,
        head: Head | None = None,
        *,
        source_embedding: nn.Module | None = None,
    ) -> Self:
        """The model of parts made elsewhere, as they are; hidden states come out where there is no head.

        source_embedding   makes [batch, m, width] of the source, which may then be anything: features of speech,
                           ids of another vocabulary; the source shares the target's embeddings if None
        """
        model = cls.__new__(cls)
        Transformer.__init__(model, embedding, head)
        model._join(encoder, decoder, source_embedding)
        return model

    def _join(self, encoder: Stack, decoder: Stack, source_embedding: nn.Module | None) -> None:
        self.source_embedding = source_embedding
        self.encoder = encoder
        self.decoder = decoder
        for one in encoder.encodings:
            if one.state_dict() and any(one is other for other in decoder.encodings):
                raise HeadwayError(
                    f"{type(one).__name__} is handed to encoder and decoder and would be stored twice: give "
                    "each its own"
                )

    def new_cache(self) -> StackCache:
        """An empty cache for decoding with this model."""
        return self.decoder.new_cache()

    def forward(
        self,
        ids: Tensor,
        decoder_ids: Tensor,
        *,
        positions: Tensor | Coordinates | None = None,
        decoder_positions: Tensor | Coordinates | None = None,
        mask: Mask | Tensor | None = None,
        decoder_mask: Mask | Tensor | None = None,
    ) -> Tensor:
        """ids [batch, m], decoder_ids [batch, n] → logits [batch, n, vocab_size].

        ``mask`` says which source tokens may be seen, by source and target alike, so that it must be alike
        for every query, as Padding is; ``decoder_mask`` is joined to the causal one.
        """
        return self.decode(
            decoder_ids,
            self.encode(ids, positions=positions, mask=mask),
            positions=decoder_positions,
            mask=decoder_mask,
            context_mask=mask,
            context_positions=positions,
        )

    def encode(
        self,
        ids: Tensor,
        *,
        positions: Tensor | Coordinates | None = None,
        mask: Mask | Tensor | None = None,
    ) -> Tensor:
        """ids [batch, m], or what ``source_embedding`` takes → hidden states of the source [batch, m, embed_dim]."""
        x = self.vectors(ids) if self.source_embedding is None else self.source_embedding(ids)
        out: Tensor = self.encoder(x, positions=positions, mask=mask)
        return out

    def decode(
        self,
        decoder_ids: Tensor,
        context: Tensor,
        *,
        positions: Tensor | Coordinates | None = None,
        mask: Mask | Tensor | None = None,
        context_mask: Mask | Tensor | None = None,
        context_positions: Tensor | Coordinates | None = None,
        cache: StackCache | None = None,
    ) -> Tensor:
        """decoder_ids [batch, n] and the hidden states of the source [batch, m, embed_dim] → logits."""
        with transaction(cache):
            hidden = self.decoder(
                self.vectors(decoder_ids),
                positions=positions,
                mask=also(Causal(), mask),
                cache=cache,
                context=context,
                context_mask=context_mask,
                context_positions=None if context_positions is None else _places(context_positions, context),
            )
            return self._out(hidden)


def _embedding(config: TransformerConfig, device: torch.device | str | None, dtype: torch.dtype | None) -> Embedding:
    scale = config.embed_dim**0.5 if config.embedding_scale is None else config.embedding_scale
    return Embedding(config.vocab_size, config.embed_dim, scale=scale, device=device, dtype=dtype)


def _head(config: TransformerConfig, device: torch.device | str | None, dtype: torch.dtype | None) -> Head:
    return Head(config.embed_dim, config.vocab_size, tied=config.tied_head, device=device, dtype=dtype)


def also(own: Mask, mask: Mask | Tensor | None) -> Mask:
    """A mask, and another one joined to it where there is one."""
    return own if mask is None else own & (Boolean(mask) if isinstance(mask, Tensor) else mask)


def _places(positions: Tensor | Coordinates, x: Tensor) -> Coordinates:
    """Coordinates, which attention takes also where nothing but a mask reads them."""
    return Coordinates.of(positions, x.shape[1])
