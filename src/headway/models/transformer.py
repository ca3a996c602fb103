"""The Transformer: as an encoder, as a decoder (a causal language model), and both together.

A stack owns its position encodings and passes them to its layers: one for all, or one for each. What an encoding
computes from coordinates is computed once in each call and shared by the layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, cast

import torch
from torch import Tensor, nn
from typing_extensions import Never, Self, Unpack

from .._common.devices import need_numbers
from ..constants import writes
from ..coordinates import Coordinates
from ..errors import HeadwayError, refuse, refuses_others, right_call
from ..masks import Boolean, Causal, Mask, hiding_padding
from ..nn._coordinates import check_coordinates, continued, joined
from ..nn._transaction import transaction
from ..nn.attention import MultiHeadAttention, key_coordinates
from ..nn.block import Block
from ..nn.cache import StackCache
from ..nn.embedding import Embedding, Head, tied
from ..nn.memory import SegmentMemory
from ..nn.norm import make_norm
from ..positions._base import IN_ATTENTION, PositionEncoding
from ..tracing import refuse_tracers
from ._generated import Generated, Options, TokenRows
from .config import TransformerConfig

Encodings = PositionEncoding | Sequence[PositionEncoding | None] | None
"""One encoding for all layers, one for each layer (None for a layer without), or none at all."""

Masks = Sequence[Mask | None] | None
"""A mask of each layer's own (None for a layer without), which joins that of the call by &; or none at all."""

M = TypeVar("M", bound=nn.Module)

RESIDUAL = ("out_proj", "down_proj")


CONFIG = "TransformerConfig(vocab_size=1000, embed_dim=64, num_layers=2, num_heads=4)"
"""What errors show as a config."""


class Stack(nn.Module):
    """Applies the blocks of a Transformer and the position encodings they share to vectors.

        x = norm(block_L(… block_1(dropout(entry(embed(x))))))

    ``Stack.of`` builds the blocks of a config.

    Args:
        blocks: one for each layer. A block that occurs several times has one set of parameters (ALBERT).
        encoding: one for all layers, one for each, or none. An encoding that embeds is added to x. One that several
            layers use is registered once, so that its table is one tensor in the state_dict.
        masks: one for each layer, joined to the mask of the call by &; none if None.
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
        """Returns the stack of a config.

        Args:
            config: the sizes and options of the blocks.
            encoding: as in the constructor.
            masks: as in the constructor.
            cross_attention: whether each block attends to a context, too.
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
        """The encoding of each layer, from the bottom; None for a layer without one."""
        known = self._encodings
        return [None if number is None else known[number] for number in self._encoding_of_layer]

    def new_cache(self) -> StackCache:
        """Returns an empty cache for these layers."""
        return StackCache(len(self.layers), self.masks, self.encoding_of_layer)

    def initialise(self, std: float) -> None:
        """Initializes linear maps from N(0, std²), or N(0, std²/parts) if they add to the residual; biases 0, norms 1.

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
        """Returns the output of the last layer, [batch, n, embed_dim].

        Args:
            x: [batch, n, width].
            mask: which keys each token may see; all if None.
            positions: the positions of x; if None, they start at 0 or continue those of the cache or the memory.
            cache: the keys and values of past tokens, to which those of x are appended.
            memory: the hidden states of past segments, to which those of x are appended.
            context: the states [batch, m, embed_dim] that cross-attention reads.
            context_mask: which tokens of the context each token of x may see; all if None.
            context_positions: the positions of the context.

        Raises:
            HeadwayError: before the first layer, if positions, masks, cache or memory do not fit x, or both cache and
                memory are given.
        """
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
        check_coordinates(coordinates, x)
        if before is not None and not coordinates.padding:
            before.need_new_lengths(mask, 0 if past is None else past.index.shape[1], x.shape[1])
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
        """Applies the layers, one after another."""
        if cache is not None:
            all_keys = cache.enter(coordinates)
        else:
            all_keys = [coordinates if memory is None else joined(past, coordinates)] * len(self.layers)
        masks = [mask if own is None else also(own, mask) for own in self.masks]
        self._check_masks(x, masks, all_keys, context, context_mask)
        with_memory = all_keys[0] if memory is not None else None
        placed_encodings = [_PlacedEncoding(encoding, coordinates, with_memory) for encoding in self._encodings]
        no_encoding = _PlacedEncoding(None, coordinates, with_memory)
        for placed in placed_encodings:
            x = placed.embed(x)
        x = self.dropout(self.entry(x))
        states = []
        layers = zip(self.layers, self._encoding_of_layer, masks, strict=True)
        for layer, (block, number, shown) in enumerate(layers):
            states.append(x)
            placed = no_encoding if number is None else placed_encodings[number]
            x = block(
                x,
                mask=shown,
                positions=placed.tokens,
                key_positions=None if cache is None and memory is None else placed.keys(all_keys[layer]),
                encoding=placed.encoding,
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
            memory.store(states, all_keys[0])
        return out

    def _check_masks(
        self,
        x: Tensor,
        masks: Sequence[Mask | Tensor | None],
        keys: Sequence[Coordinates],
        context: Tensor | None,
        context_mask: Mask | Tensor | None,
    ) -> None:
        """Raises HeadwayError before the first layer if the mask of any layer does not fit."""
        batch, n = x.shape[:2]
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
            _check_mask(context_mask, self.blocks[0], "cross_attention", batch, n, context.shape[1])


def _check_mask(mask: Mask | Tensor, block: nn.Module, part: str, batch: int, n: int, m: int) -> None:
    """Raises HeadwayError if a mask does not fit a block's attention; a block without num_heads is not checked."""
    heads = getattr(getattr(block, part, None), "num_heads", None)
    if heads is not None:
        (Boolean(mask) if isinstance(mask, Tensor) else mask).check(batch, heads, n, m)


class _PlacedEncoding:
    """An encoding with the coordinates it has placed, computed once for all layers that use it."""

    def __init__(self, encoding: PositionEncoding | None, tokens: Coordinates, with_memory: Coordinates | None) -> None:
        """``with_memory``: the coordinates of a memory's tokens and of these after them; None without a memory."""
        acts = frozenset() if encoding is None else encoding.acts
        self.tokens, self._keys = tokens, [(tokens, tokens)]
        if encoding is not None and with_memory is not None:  # so that random positions are drawn once for each token
            keys, count = encoding.for_one_forward(with_memory), tokens.index.shape[1]
            total = with_memory.index.shape[1]
            self.tokens = encoding.for_one_forward(keys.rows(total - count, total)) if total > count else keys
            self._keys = [(with_memory, keys)]
        elif encoding is not None:
            self.tokens = encoding.for_one_forward(tokens)
            self._keys = [(tokens, self.tokens)]
        self._embed = encoding if "embed" in acts else None
        # an encoding that only embeds does nothing in the layers
        self.encoding = encoding if acts & IN_ATTENTION else None

    def keys(self, all_keys: Coordinates) -> Coordinates:
        """Returns the keys' coordinates placed by the encoding, computed once for layers that keep the same tokens."""
        for known, placed in self._keys:
            if known is all_keys:
                return placed
        found = key_coordinates(self.encoding, all_keys)
        self._keys.append((all_keys, found))
        return found

    def embed(self, x: Tensor) -> Tensor:
        if self._embed is None:
            return x
        before = writes((x,))
        found = self._embed.embed(x, self.tokens)
        if writes((x,)) != before:
            raise HeadwayError(
                f"{self._embed.known_as}.embed writes into the embeddings it is given: write into a clone of them"
            )
        return found


def _assign(encoding: Encodings, num_layers: int) -> tuple[list[PositionEncoding], list[int | None]]:
    """Returns the different encodings, and for each layer the number of the one it uses."""
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
    """Returns the different modules in order, and for each given one its number among them."""
    unique = list({id(module): module for module in modules}.values())
    numbers = {id(module): number for number, module in enumerate(unique)}
    return unique, [numbers[id(module)] for module in modules]


class Transformer(nn.Module):
    """Base class of the three Transformers: token embeddings, the head, and the initialization.

        x = embedding_scale·E[ids],  logits = E·hidden  (or W·hidden if the head is not tied)

    E is initialized from N(0, 1/embed_dim): with the scale √embed_dim, elements of the embeddings have variance 1, so
    that a position code added to them does not dominate (Vaswani et al. 2017, section 3.4). Everything else is
    initialized as in GPT-2 (Radford et al. 2019): N(0, 0.02²), or N(0, 0.02²/parts) for the weights of the parts that
    add to the residual. In float64, torch draws other numbers from a seed than in float32.

    Subclasses take ``device`` and ``dtype`` for the parameters they create. Encodings that are passed in keep their
    own: ``encoding.to(device)`` before, or ``model.to(device)`` afterwards, moves them too.

    Args:
        embedding: the module that computes embeddings from ids.
        head: the module that computes logits from hidden states; a call returns hidden states if None.
    """

    config: TransformerConfig | None = None
    """The config the model was made from; None if it was made of parts."""

    def __init__(self, embedding: nn.Module, head: Head | None) -> None:
        super().__init__()
        self.embedding = embedding
        self.head = head

    def initialise(self) -> None:
        """Initializes all parameters but those of encodings; override it to study other initial values."""
        for part in self.children():
            if isinstance(part, (Embedding, Head)):
                part.reset_parameters()
            elif isinstance(part, Stack):
                part.initialise(0.02)

    @property
    def num_parameters(self) -> int:
        """The number of learned parameters, each counted once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def vectors(self, ids: Tensor, types: Tensor | None = None) -> Tensor:
        """Returns the scaled embeddings of token ids, [batch, n, embed_dim].

        Args:
            ids: int64 [batch, n].
            types: int64 [batch, n], for embeddings with token types.

        Raises:
            HeadwayError: if ids or types do not fit the embedding.
        """
        x: Tensor = self.embedding(ids) if types is None else self.embedding(ids, types)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """Returns a logit for each token id, [batch, n, vocab_size].

        Args:
            hidden: hidden states [batch, n, embed_dim].
        """
        if self.head is None:
            return tied(self.embedding)(hidden, None)
        if type(self.head).forward is Head.forward:
            logits: Tensor = self.head(hidden, tied(self.embedding))
        else:  # a subclass takes the matrix
            need_numbers(self.embedding, hidden.device, "the token embeddings, which the head reads,")
            logits = self.head(hidden, self.embedding.weight)
        return logits

    def _out(self, hidden: Tensor) -> Tensor:
        """Returns the logits of hidden states, or the hidden states themselves if there is no head."""
        return hidden if self.head is None else self.logits(hidden)


class _OneStack(Transformer):
    """Base class of a Transformer of one stack."""

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
        _check_config(self, config)
        head = _head(config, device, dtype) if with_head else None
        super().__init__(_embedding(config, device, dtype), head)
        self.stack = Stack.of(config, encoding, masks, device=device, dtype=dtype)
        self.config = config
        self.initialise()

    @classmethod
    def of_parts(cls, embedding: nn.Module, stack: Stack, head: Head | None = None) -> Self:
        """Returns a model of parts made elsewhere, which stay as they are.

        Args:
            embedding: a module that computes [batch, n, width] from what the model is called with. With a tied head,
                its ``weight`` is the matrix of the token embeddings.
            stack: the blocks.
            head: computes the logits; a call returns hidden states if None.
        """
        model = cls.__new__(cls)
        Transformer.__init__(model, embedding, head)
        model.stack = stack
        return model

    def new_cache(self) -> StackCache:
        """Returns an empty cache for decoding with this model."""
        return self.stack.new_cache()


class Encoder(_OneStack):
    """A Transformer encoder: every token attends to every other, and a call returns hidden states.

    ``encoder.logits(hidden)`` returns a logit for each token id, for masked language models. A model that is made with
    a head (``of_parts``) returns these logits from a call.

    Args:
        config: the sizes and options of the model.
        encoding: a position encoding for all layers, one for each layer, or none.
        masks: a mask for each layer, joined to the mask of the call by &; none if None.
        device: the device of the parameters created here; encodings keep their own.
        dtype: the dtype of the parameters created here, likewise.

    Shape:
        ids: int64 [batch, n]
        Output: [batch, n, embed_dim], or [batch, n, vocab_size] with a head

    Raises:
        HeadwayError: if a block or a stack of the config cannot be built.

    References:
        Devlin et al. 2019.

    Example:
        encoder = Encoder(TransformerConfig(vocab_size=256), encoding=headway.encoding("rope", head_dim=64))
        hidden = encoder(ids, mask=masks.Padding(lengths))
    """

    @right_call(f"Encoder({CONFIG}, encoding)")
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

    @refuses_others
    def forward(
        self,
        ids: Tensor,
        *,
        types: Tensor | None = None,
        positions: Tensor | Coordinates | None = None,
        mask: Mask | Tensor | None = None,
        **others: Never,
    ) -> Tensor:
        """Returns hidden states [batch, n, embed_dim], or logits [batch, n, vocab_size] if the model has a head.

        Args:
            ids: int64 [batch, n].
            types: the token types, int64 [batch, n], for embeddings that have types.
            positions: the positions of the tokens; 0, 1, 2, … if None.
            mask: which tokens each token may see; all if None.
        """
        refuse_tracers(ids)
        if others:
            refuse(type(self).__name__, self.forward, others)
        return self._out(self.hidden(ids, types=types, positions=positions, mask=mask))

    def hidden(
        self,
        ids: Tensor,
        *,
        types: Tensor | None = None,
        positions: Tensor | Coordinates | None = None,
        mask: Mask | Tensor | None = None,
    ) -> Tensor:
        """Returns hidden states [batch, n, embed_dim], whether the model has a head or not.

        Args:
            ids: int64 [batch, n].
            types: the token types, int64 [batch, n], for embeddings that have types.
            positions: the positions of the tokens; 0, 1, 2, … if None.
            mask: which tokens each token may see; all if None.
        """
        out: Tensor = self.stack(self.vectors(ids, types), positions=positions, mask=mask)
        return out


class _Generating:
    """What the models that generate text have in common."""

    def generate(self, prompt: TokenRows, max_new_tokens: int = 128, **options: Unpack[Options]) -> Generated:
        """Generates the continuation of each row of a prompt: ``headway.models.generate`` of this model.

        Args:
            prompt: the ids of each row, or the source of an encoder–decoder.
            max_new_tokens: the largest number of new ids of a row.
            **options: those of ``headway.models.generate``, such as temperature and stop.

        Returns:
            The new ids of each row without the prompt, their log-probabilities, and whether a stop id ended the row.
        """
        from .generate import generate  # here, since that module imports the models

        return generate(self, prompt, max_new_tokens, **options)  # type: ignore[arg-type]


class Decoder(_Generating, _OneStack):
    """A Transformer decoder, which is a causal language model: it returns the logits of each next token.

    A mask is joined to the causal mask by &, and so are ``masks``, one for each layer. With a cache (``new_cache()``),
    ids are the tokens that come next; with a SegmentMemory, they are the next segment. Rows of different lengths are
    padded on the left, ``decoder(ids, positions=Coordinates.padded(lengths, n), cache=cache)``, and each step that
    follows, ``decoder(next_ids, cache=cache)``, continues them. No token attends to padding that coordinates state.

    Args:
        config: the sizes and options of the model.
        encoding: a position encoding for all layers, one for each layer, or none.
        masks: a mask for each layer; none if None.
        device: the device of the parameters created here; encodings keep their own.
        dtype: the dtype of the parameters created here, likewise.

    Shape:
        ids: int64 [batch, n]
        Output: [batch, n, vocab_size]

    Raises:
        HeadwayError: if a block or a stack of the config cannot be built.

    References:
        Radford et al. 2019; Dai et al. 2019 (memory).

    Example:
        decoder = Decoder(TransformerConfig(vocab_size=256), encoding=headway.encoding("alibi", num_heads=4))
        logits = decoder(ids)
    """

    @right_call(f"Decoder({CONFIG}, encoding)")
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

    @refuses_others
    def forward(
        self,
        ids: Tensor,
        *,
        positions: Tensor | Coordinates | None = None,
        mask: Mask | Tensor | None = None,
        cache: StackCache | None = None,
        memory: SegmentMemory | None = None,
        **others: Never,
    ) -> Tensor:
        """Returns the logits of each next token, [batch, n, vocab_size].

        Args:
            ids: int64 [batch, n].
            positions: the positions of ids; if None, they start at 0 or continue those of the cache or the memory.
            mask: joined to the causal mask by &.
            cache: the keys and values of past tokens, to which those of ids are appended.
            memory: the hidden states of past segments, to which those of ids are appended.
        """
        refuse_tracers(ids)
        if others:
            refuse(type(self).__name__, self.forward, others)
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
        """Returns the hidden states from which the logits are computed, [batch, n, embed_dim].

        Args:
            ids: int64 [batch, n].
            positions: as in a call.
            mask: joined to the causal mask by &.
            cache: the keys and values of past tokens, to which those of ids are appended.
            memory: the hidden states of past segments, to which those of ids are appended.
        """
        out: Tensor = self.stack(
            self.vectors(ids), positions=positions, mask=also(Causal(), mask), cache=cache, memory=memory
        )
        return out


class EncoderDecoder(_Generating, Transformer):
    """A Transformer that encodes a source and decodes a target that attends to it.

    Source and target share the token embeddings; each side has its own encodings.

    Args:
        config: the sizes and options of both stacks.
        encoding: the encoder's position encoding for all layers, one for each layer, or none.
        decoder_encoding: the decoder's position encoding, likewise.
        device: the device of the parameters created here; encodings keep their own.
        dtype: the dtype of the parameters created here, likewise.

    Shape:
        ids: int64 [batch, m]
        decoder_ids: int64 [batch, n]
        Output: [batch, n, vocab_size], the logits of each next token of the target

    Raises:
        HeadwayError: if one encoding that has parameters or buffers is given to both sides, or a block or a stack of
            the config cannot be built.

    References:
        Vaswani et al. 2017; Raffel et al. 2020.

    Example:
        both, causal = (headway.encoding("t5", num_heads=4, bidirectional=b) for b in (True, False))
        model = EncoderDecoder(config, both, causal)
        logits = model(ids, decoder_ids, mask=masks.Padding(lengths))

        # step by step: encode once, then decode with a cache
        context, cache = model.encode(ids, mask=padding), model.new_cache()
        logits = model.decode(first_ids, context, context_mask=padding, cache=cache)
    """

    @right_call(f"EncoderDecoder({CONFIG}, encoding, decoder_encoding)")
    def __init__(
        self,
        config: TransformerConfig,
        encoding: Encodings,
        decoder_encoding: Encodings,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        _check_config(self, config)
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
        """Returns a model of parts made elsewhere, which stay as they are.

        Args:
            embedding: computes [batch, n, width] from the ids of the target. With a tied head, its ``weight`` is the
                matrix of the token embeddings.
            encoder: the blocks of the encoder.
            decoder: the blocks of the decoder, with cross-attention.
            head: computes the logits; a call returns hidden states if None.
            source_embedding: computes [batch, m, width] from the source, which may be anything, such as features of
                speech or ids of another vocabulary; the source shares the target's embeddings if None.

        Raises:
            HeadwayError: if one encoding that has parameters or buffers is given to both sides.
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
                    f"{type(one).__name__} is given to encoder and decoder and would be stored twice: give each its own"
                )

    def new_cache(self) -> StackCache:
        """Returns an empty cache for decoding with this model."""
        return self.decoder.new_cache()

    @refuses_others
    def forward(
        self,
        ids: Tensor,
        decoder_ids: Tensor,
        *,
        positions: Tensor | Coordinates | None = None,
        decoder_positions: Tensor | Coordinates | None = None,
        mask: Mask | Tensor | None = None,
        decoder_mask: Mask | Tensor | None = None,
        **others: Never,
    ) -> Tensor:
        """Returns the logits of each next token of the target, [batch, n, vocab_size].

        Args:
            ids: the source, int64 [batch, m], or what ``source_embedding`` takes.
            decoder_ids: the target, int64 [batch, n].
            positions: the positions of the source; 0, 1, 2, … if None.
            decoder_positions: the positions of the target; 0, 1, 2, … if None.
            mask: which source tokens source and target may see. It has to be the same for every query, as Padding is.
            decoder_mask: joined to the causal mask of the target by &.
        """
        refuse_tracers(ids)
        if others:
            refuse(type(self).__name__, self.forward, others)
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
        """Returns the hidden states of the source, [batch, m, embed_dim].

        Args:
            ids: int64 [batch, m], or what ``source_embedding`` takes.
            positions: the positions of the source; 0, 1, 2, … if None.
            mask: which source tokens each source token may see; all if None.
        """
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
        """Returns the logits of each next token of the target, [batch, n, vocab_size].

        Args:
            decoder_ids: the target, int64 [batch, n]; with a cache, its next tokens.
            context: the hidden states of the source, [batch, m, embed_dim].
            positions: the positions of the target; if None, they start at 0 or continue those of the cache.
            mask: joined to the causal mask of the target by &.
            context_mask: which source tokens the target may see; all if None.
            context_positions: the positions of the source; 0, 1, 2, … if None.
            cache: the keys and values of past tokens, to which those of decoder_ids are appended.
        """
        with transaction(cache):
            hidden = self.decoder(
                self.vectors(decoder_ids),
                positions=positions,
                mask=also(Causal(), mask),
                cache=cache,
                context=context,
                context_mask=context_mask,
                context_positions=None if context_positions is None else _as_coordinates(context_positions, context),
            )
            return self._out(hidden)


def _check_config(model: nn.Module, config: object) -> None:
    if not isinstance(config, TransformerConfig):
        raise HeadwayError(f"config is {config!r}: give {type(model).__name__}({CONFIG}, encoding)")


def _embedding(config: TransformerConfig, device: torch.device | str | None, dtype: torch.dtype | None) -> Embedding:
    scale = config.embed_dim**0.5 if config.embedding_scale is None else config.embedding_scale
    return Embedding(config.vocab_size, config.embed_dim, scale=scale, device=device, dtype=dtype)


def _head(config: TransformerConfig, device: torch.device | str | None, dtype: torch.dtype | None) -> Head:
    return Head(config.embed_dim, config.vocab_size, tied=config.tied_head, device=device, dtype=dtype)


def also(own: Mask, mask: Mask | Tensor | None) -> Mask:
    """Returns a mask joined to another one by &, if there is another one."""
    return own if mask is None else own & (Boolean(mask) if isinstance(mask, Tensor) else mask)


def _as_coordinates(positions: Tensor | Coordinates, x: Tensor) -> Coordinates:
    """Returns coordinates, which attention takes even where only a mask reads them."""
    return Coordinates.of(positions, x.shape[1])
