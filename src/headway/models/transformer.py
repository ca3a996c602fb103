"""The Transformer: as an encoder, as a decoder (a causal language model), and both together."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Never, Self, Unpack

from .._common.devices import need_numbers
from ..coordinates import Coordinates
from ..errors import HeadwayError, refuse, refuses_others, right_call
from ..jagged import is_nested, tokenwise
from ..masks import AnyMask, Causal
from ..nn._transaction import transaction
from ..nn.embedding import Embedding, Head, tied
from ..nn.memory import SegmentMemory
from ..nn.stack_cache import StackCache
from ..sharing import sharing_of
from ..tracing import refuse_tracers
from ._generated import Generated, Options, TokenRows
from .config import TransformerConfig
from .stack import Encodings, Masks, Stack, also

CONFIG = "TransformerConfig(vocab_size=1000, embed_dim=64, num_layers=2, num_heads=4)"
"""What errors show as a config."""
CAUSAL = Causal()
"""The mask of every decoder, made once, since steps notice it."""


class Transformer(nn.Module):
    """Base class of the three Transformers: token embeddings, the head, and the initialization.

        x = embedding_scale·E[ids],  logits = E·hidden  (or W·hidden if the head is not tied)

    E is initialized from N(0, 1/embed_dim). With the scale √embed_dim, elements of the embeddings have variance 1, so a
    position code that is added to them does not dominate (Vaswani et al. 2017, section 3.4). Everything else is
    initialized as in GPT-2 (Radford et al. 2019): N(0, 0.02²), or N(0, 0.02²/parts) for the weights of the parts that
    add to the residual. In float64, torch draws other numbers from a seed than in float32.

    Subclasses take ``device`` and ``dtype`` for the parameters they create. Encodings that are passed in keep their
    own: ``encoding.to(device)`` before, or ``model.to(device)`` afterwards, moves them too.

    Args:
        embedding: the module that computes embeddings from ids.
        head: the module that computes logits from hidden states; a call returns hidden states if None.
    """

    config: TransformerConfig
    """The config the model was made from. A model of parts, as ``headway.load`` makes them, has no such attribute: peft
    and other libraries read a config if there is one."""

    checkpoint: Any
    """The ``headway.checkpoints.Checkpoint`` that ``headway.load`` made the model of; other models have none."""

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
        if is_nested(ids, types):
            return tokenwise(self.vectors, ids, types)
        x: Tensor = self.embedding(ids) if types is None else self.embedding(ids, types)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """Returns a logit for each token id, [batch, n, vocab_size].

        Args:
            hidden: hidden states [batch, n, embed_dim].
        """
        if is_nested(hidden):
            return tokenwise(self.logits, hidden)
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
        self.stack = Stack.of(config, encoding, masks, bidirectional=not with_head, device=device, dtype=dtype)
        self.config = config
        self.initialise()

    @classmethod
    def of_parts(cls, embedding: nn.Module, stack: Stack, head: Head | None = None) -> Self:
        """Returns a model of parts made elsewhere, which it does not change.

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

    def new_cache(self, max_length: int | None = None) -> StackCache:
        """Returns an empty cache for decoding with this model.

        Args:
            max_length: the most tokens that it holds, for which it has room from the start; no limit if None.

        Raises:
            HeadwayError: if max_length is below 1.
        """
        return self.stack.new_cache(max_length)


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
        encoder = Encoder(TransformerConfig(vocab_size=256), encoding="rope")
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
        mask: AnyMask = None,
        **others: Never,
    ) -> Tensor:
        """Returns hidden states [batch, n, embed_dim], or logits [batch, n, vocab_size] if the model has a head.

        Args:
            ids: int64 [batch, n], or a jagged tensor of sequences of different lengths (``torch.nested``), as then are
                types and positions; the output is one too.
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
        mask: AnyMask = None,
    ) -> Tensor:
        """Returns hidden states [batch, n, embed_dim], whether the model has a head or not.

        ``ids``, ``types``, ``positions`` and ``mask`` are those of a call.
        """
        out: Tensor = self.stack(self.vectors(ids, types), positions=positions, mask=mask)
        return out


class _Generating:
    """The base of the models that generate text."""

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
    ids are the tokens that come next; with a SegmentMemory, they are the next segment. Pad rows of different lengths on
    the left, ``decoder(ids, positions=Coordinates.padded(lengths, n), cache=cache)``; each later step,
    ``decoder(next_ids, cache=cache)``, continues them. No token attends to padding that coordinates state.

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
        mask: AnyMask = None,
        cache: StackCache | None = None,
        memory: SegmentMemory | None = None,
        **others: Never,
    ) -> Tensor:
        """Returns the logits of each next token, [batch, n, vocab_size].

        Args:
            ids: int64 [batch, n], or a jagged tensor of sequences of different lengths (``torch.nested``).
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
        mask: AnyMask = None,
        cache: StackCache | None = None,
        memory: SegmentMemory | None = None,
        last: int | None = None,
    ) -> Tensor:
        """Returns the hidden states from which the logits are computed, [batch, n, embed_dim].

        ``ids``, ``positions``, ``mask``, ``cache`` and ``memory`` are those of a call. With ``last``, it returns only
        the hidden states of that many last tokens. The last layer then computes only these, unless it is observed or
        has modules that are not headway's.
        """
        options = {} if last is None else {"last": last}  # a stack of another class need not know it
        out: Tensor = self.stack(
            self.vectors(ids), positions=positions, mask=also(CAUSAL, mask), cache=cache, memory=memory, **options
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

    context_parts = ("encoder", "source_embedding")
    """The parts whose tokens are those of the source."""

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
        decoder = Stack.of(
            config, decoder_encoding, cross_attention=True, bidirectional=False, device=device, dtype=dtype
        )
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
        """Returns a model of parts made elsewhere, which it does not change.

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

    def new_cache(self, max_length: int | None = None) -> StackCache:
        """Returns an empty cache for decoding with this model.

        Args:
            max_length: the most tokens that it holds, for which it has room from the start; no limit if None.

        Raises:
            HeadwayError: if max_length is below 1.
        """
        return self.decoder.new_cache(max_length)

    @refuses_others
    def forward(
        self,
        ids: Tensor,
        decoder_ids: Tensor,
        *,
        positions: Tensor | Coordinates | None = None,
        decoder_positions: Tensor | Coordinates | None = None,
        mask: AnyMask = None,
        decoder_mask: AnyMask = None,
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
        mask: AnyMask = None,
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
        mask: AnyMask = None,
        context_mask: AnyMask = None,
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
        apart = is_nested(context) or sharing_of(self.decoder) is not None
        if context_positions is not None and not apart:  # attention takes coordinates even where only a mask reads them
            context_positions = Coordinates.of(context_positions, context.shape[1])
        with transaction(cache):
            hidden = self.decoder(
                self.vectors(decoder_ids),
                positions=positions,
                mask=also(CAUSAL, mask),
                cache=cache,
                context=context,
                context_mask=context_mask,
                context_positions=context_positions,
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
