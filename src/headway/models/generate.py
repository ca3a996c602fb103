"""Generation of text, token by token: the most likely next id, or one that is sampled."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import index
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from .._torch import calls_forward_alone
from ..coordinates import Coordinates
from ..errors import HeadwayError, need_positive, right_call
from ..masks import Padding
from ..nn import StackCache
from ..positions import PositionEncoding
from ..sharing import sharing_of
from ._generated import Generated, Options, TokenRows
from .stack import Stack
from .transformer import Decoder, EncoderDecoder

IDLE = 0.25
"""Rows that have ended are removed once they are this share of the rows computed. Removing copies the cache; with this
share all copies together are at most four times as large as the cache was."""


class Step(NamedTuple):
    """The next id of each row and its log-probability; None for a row that has ended.

    Attributes:
        ids: the next id of each row.
        log_probs: the model's log-probability of each of these ids, before temperature, top_k and top_p.
    """

    ids: list[int | None]
    log_probs: list[float | None]


def generate(
    model: Decoder | EncoderDecoder, prompt: TokenRows, max_new_tokens: int = 128, **options: Unpack[Options]
) -> Generated:
    """Generates the continuation of each row of a prompt, or an encoder–decoder's target for each row of a source.

    The model runs in eval mode, without gradients, and then returns to the mode it was in. Its cache grows only by the
    new tokens, and rows that have ended are removed from it. Logits are processed in float32.

    Args:
        model: a Decoder or an EncoderDecoder with a head.
        prompt: the ids of each row: lists, which may differ in length and are padded on the left, or int64 [batch, n].
            For an encoder–decoder, the source: lists, or any tensor that its ``encode`` takes, such as features
            [batch, frames, width].
        max_new_tokens: the largest number of new ids of a row, at least 1; 128 by default.
        temperature: 0, the default, takes the most likely id; otherwise ids are sampled from
            softmax(logits/temperature).
        top_k: sample from the top_k most likely ids; from all if None. See ``probabilities``.
        top_p: sample from the most likely ids that together have the probability top_p; from all if None.
        stop: an id or several. A row ends at the first of them, which is not part of the result.
        decoder_start: the first ids of the targets of an encoder–decoder: an id, a list of ids, or a list for each row.
        seed: the seed of the samples.
        generator: the random generator of the samples; torch's default one if neither seed nor generator is given.

    Returns:
        The new ids of each row, their log-probabilities, and whether a stop id ended the row.

    Raises:
        HeadwayError: before any computation, if the prompt is empty, ids are not in the model's vocabulary, prompt and
            new tokens exceed the model's table of positions, or options are out of range.

    References:
        Fan et al. 2018 (top-k); Holtzman et al. 2020 (top-p).

    Example:
        generate(decoder, [[1, 2, 3], [4, 5]], 20, stop=0).ids
        generate(decoder, ids, temperature=0.8, top_p=0.95, seed=1)
        generate(encoder_decoder, source, decoder_start=0, stop=1)
    """
    run = _Run(model, prompt, max_new_tokens, **options)
    ids: list[list[int]] = [[] for _ in range(run.batch)]
    log_probs: list[list[float]] = [[] for _ in range(run.batch)]
    for step in run:
        for row, (one, log_prob) in enumerate(zip(*step, strict=True)):
            if one is not None and log_prob is not None:
                ids[row].append(one)
                log_probs[row].append(log_prob)
    return Generated(ids, log_probs, [len(row) < run.max_new_tokens for row in ids])


def stream(
    model: Decoder | EncoderDecoder, prompt: TokenRows, max_new_tokens: int = 128, **options: Unpack[Options]
) -> Iterator[Step]:
    """Generates as ``generate`` does, and yields each step until all rows have ended.

    Args:
        model: a Decoder or an EncoderDecoder with a head.
        prompt: the prompt, as in ``generate``.
        max_new_tokens: as in ``generate``.
        **options: the options of ``generate``. Wrong ones raise when ``stream`` is called, before the first step.

    Returns:
        An iterator over the next id of each row and its log-probability, None for rows that have ended.

    Example:
        for ids, log_probs in stream(decoder, [[1, 2, 3]], stop=0):
            print(ids[0])
    """
    return iter(_Run(model, prompt, max_new_tokens, **options))


def probabilities(
    logits: Tensor, *, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
) -> Tensor:
    """Returns the probabilities from which the next id is sampled, [..., vocab_size] in float32.

        p = softmax(logits/temperature) over the ids that remain

    ``top_k`` is applied first, then ``top_p``.

    Args:
        logits: [..., vocab_size].
        temperature: at least 0; 0 gives the probability 1 to the most likely id, the first of several.
        top_k: keeps the ids with the k largest logits, and those equal to the last of them; at least 1, or all if None.
        top_p: keeps the fewest most likely ids that together have at least the share top_p of what top_k kept,
            0 < top_p ≤ 1; all if None.

    Raises:
        HeadwayError: if an option is out of range.
    """
    _check_ranges(temperature, top_k, top_p)
    logits = logits.float()
    if not temperature:
        return torch.zeros_like(logits).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
    # subtract the largest first, so that a small temperature does not overflow
    logits = (logits - logits.amax(-1, keepdim=True)) / temperature
    if top_k is not None:
        least = logits.topk(min(top_k, logits.shape[-1])).values[..., -1:]
        logits = logits.masked_fill(logits < least, -math.inf)
    p = logits.softmax(-1)
    if top_p is None or top_p == 1:
        return p
    falling, order = p.sort(dim=-1, descending=True, stable=True)
    before = falling.cumsum(-1) - falling
    p = torch.zeros_like(p).scatter_(-1, order, falling.masked_fill(before >= top_p, 0.0))
    return p / p.sum(-1, keepdim=True)


class _Run:
    """One generation: options are checked when it is made, and ids are generated when it is iterated over."""

    @right_call(
        "generate(model, ids, max_new_tokens=20)",
        max_length="give max_new_tokens=, which does not count the prompt",
        do_sample="give temperature=1.0",
        eos_token_id="give stop=",
    )
    def __init__(
        self,
        model: Decoder | EncoderDecoder,
        prompt: TokenRows,
        max_new_tokens: int,
        *,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        stop: int | Collection[int] | None = None,
        decoder_start: int | Sequence[int] | TokenRows | None = None,
        seed: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        check_sampling(max_new_tokens, temperature, top_k, top_p)
        if not isinstance(model, (Decoder, EncoderDecoder)):
            raise HeadwayError(f"the model is of type {type(model).__name__}: give a Decoder or an EncoderDecoder")
        if model.head is None:
            raise HeadwayError(f"the {type(model).__name__} has no head: give a model that returns logits")
        self.device = next(model.parameters()).device
        vocab_size = _vocab_size(model.embedding)
        self.model, self.max_new_tokens = model, max_new_tokens
        self.temperature, self.top_k, self.top_p = temperature, top_k, top_p
        self.stop = _stop_ids(stop, vocab_size)
        self.generator = _generator(seed, generator, self.device)
        self.source: _Padded | None = None
        name = "prompt"
        if isinstance(model, EncoderDecoder):
            self.source = _source(model, prompt, self.device)
            if decoder_start is None:
                raise HeadwayError(
                    "decoder_start is not given: give the id or ids that targets of this model begin with"
                )
            name, prompt = "decoder_start", _starts(decoder_start, self.source.ids.shape[0])
        elif decoder_start is not None:
            raise HeadwayError("decoder_start is given but the model is a Decoder: put these ids into the prompt")
        self.prompt = _padded(name, prompt, vocab_size, self.device)
        self.batch, n = self.prompt.ids.shape
        stack = model.decoder if isinstance(model, EncoderDecoder) else model.stack
        _check_table(stack, name, n, max_new_tokens)

    @torch.no_grad()
    def __iter__(self) -> Iterator[Step]:
        reader = _Reader(self.model, self.source, self.prompt, self.max_new_tokens)
        computed = list(range(self.batch))  # the row of the results that each computed row belongs to
        going = set(computed)
        logits = reader.read(self.prompt.ids, self.prompt.at)
        for left in range(self.max_new_tokens - 1, -1, -1):
            chosen, log_probs = self._choose(logits)
            step = Step([None] * self.batch, [None] * self.batch)
            for row, one, log_prob in zip(computed, chosen.tolist(), log_probs.tolist(), strict=True):
                if one in self.stop:
                    going.discard(row)
                elif row in going:
                    step.ids[row], step.log_probs[row] = one, log_prob
            if not going:
                return
            yield step
            if not left:
                return
            if len(computed) - len(going) >= IDLE * len(computed):
                rows = torch.tensor([i for i, row in enumerate(computed) if row in going], device=self.device)
                chosen, computed = chosen[rows], [row for row in computed if row in going]
                reader.select(rows)
            logits = reader.read(chosen[:, None], None)

    def _choose(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the next id of each row of logits [rows, vocab_size], and its log-probability."""
        logits = logits.float()
        log_probs = logits.log_softmax(-1)
        if log_probs.isnan().any():
            raise HeadwayError("logits hold NaN or infinity: check the model's parameters, or run it in float32")
        if self.temperature:
            p = probabilities(logits, temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)
            chosen = torch.multinomial(p, 1, generator=self.generator)
        else:
            chosen = logits.argmax(-1, keepdim=True)
        if (shared := sharing_of(self.model)) is not None:  # processors may round logits differently
            chosen = shared.common(chosen, of_last=False)
        return chosen[:, 0], log_probs.gather(-1, chosen)[:, 0]


class _Padded(NamedTuple):
    """Ids or features of each row, and their coordinates, which are None if no row is padded."""

    ids: Tensor
    at: Coordinates | None


class _Reader:
    """Runs a model on new tokens with a cache, and returns the logits of the next token."""

    def __init__(
        self, model: Decoder | EncoderDecoder, source: _Padded | None, prompt: _Padded, max_new_tokens: int
    ) -> None:
        self.model, self.cache = model, _cache(model, prompt.ids.shape[1], max_new_tokens - 1)
        self.mask = None if prompt.at is None else Padding()
        self.context: Tensor | None = None
        self.context_at: Coordinates | None = None
        if source is not None and isinstance(model, EncoderDecoder):
            self.context_at = source.at
            with _evaluating(model):
                self.context = model.encode(source.ids, positions=source.at, mask=self._context_mask)

    @property
    def _context_mask(self) -> Padding | None:
        return None if self.context_at is None else Padding()

    def read(self, ids: Tensor, at: Coordinates | None) -> Tensor:
        """Returns the logits [rows, vocab_size] of the token that follows ids [rows, n]."""
        model = self.model
        with _evaluating(model):
            if isinstance(model, Decoder):
                shared = sharing_of(model) if not len(self.cache) else None
                if shared is not None:
                    ids, at = shared.prompt(ids, at)
                last: dict[str, Any] = {"last": 1} if shared is None and _takes_last(model) else {}
                hidden = model.hidden(ids, positions=at, mask=self.mask, cache=self.cache, **last)[:, -1:]
                if shared is not None:
                    hidden = shared.common(hidden.contiguous(), of_last=True)
                return model.logits(hidden)[:, 0]
            assert self.context is not None
            logits = model.decode(
                ids,
                self.context,
                positions=at,
                mask=self.mask,
                context_mask=self._context_mask,
                context_positions=self.context_at,
                cache=self.cache,
            )
            return logits[:, -1]

    def select(self, rows: Tensor) -> None:
        """Continues with only these rows."""
        self.cache.reorder(rows)
        self.context = None if self.context is None else self.context[rows]
        self.context_at = None if self.context_at is None else self.context_at.select(rows)


def _takes_last(model: Decoder) -> bool:
    """Returns whether the model can compute only the last tokens, and nothing observes the other ones."""
    if type(model).hidden is not Decoder.hidden or "hidden" in vars(model):
        return False
    return type(model.stack).forward is Stack.forward and calls_forward_alone(model.stack)


def _cache(model: Decoder | EncoderDecoder, prompt: int, steps: int) -> StackCache:
    """Returns a cache for a prompt and steps after it.

    A growing cache copies the prompt in the first step, to storage for twice as many tokens. If that is enough for all
    steps, a static cache has only the storage that they need, and copies nothing. Layers with a window drop tokens, and
    a process that shares a prompt holds a part of it, so they take growing caches.
    """
    cache = model.new_cache()
    partial = any(cache.retention) or sharing_of(model) is not None
    return cache if partial or steps > prompt else model.new_cache(prompt + steps)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Puts the model into eval mode, and then each of its modules back into the mode it had."""
    training = [module for module in model.modules() if module.training] if model.training else []
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


# ---------------------------------------------------------------- checks


def check_sampling(max_new_tokens: int, temperature: float, top_k: int | None, top_p: float | None) -> None:
    """Raises HeadwayError for arguments of ``generate`` that no model takes."""
    need_positive(max_new_tokens=max_new_tokens)
    if not isinstance(max_new_tokens, int):
        raise HeadwayError(f"max_new_tokens is {max_new_tokens}: give a whole number")
    _check_ranges(temperature, top_k, top_p)
    if not temperature and (top_k, top_p) != (None, None):
        given = f"top_k is {top_k}" if top_p is None else f"top_p is {top_p}"
        raise HeadwayError(f"{given} but temperature is 0, which takes the likeliest id: give temperature=1.0")


def _check_ranges(temperature: float, top_k: int | None, top_p: float | None) -> None:
    if not 0 <= temperature < math.inf:
        raise HeadwayError(f"temperature is {temperature}: give 0 for the likeliest id, or a number above 0")
    if top_k is not None and top_k < 1:
        raise HeadwayError(f"top_k is {top_k}: give at least 1, or None for all ids")
    if top_p is not None and not 0 < top_p <= 1:
        raise HeadwayError(f"top_p is {top_p}: give more than 0 and at most 1")


def _generator(seed: int | None, generator: torch.Generator | None, device: torch.device) -> torch.Generator | None:
    if seed is not None:
        if generator is not None:
            raise HeadwayError("seed and generator are both given: leave one out")
        return torch.Generator(device).manual_seed(seed)
    if generator is not None and generator.device.type != device.type:
        raise HeadwayError(
            f"generator is on {generator.device} but the model on {device}: give torch.Generator({device.type!r})"
        )
    return generator


def _vocab_size(embedding: nn.Module) -> int | None:
    """Returns the number of ids in a model's embeddings; None if it is unknown."""
    weight = getattr(embedding, "weight", None)
    return weight.shape[0] if isinstance(weight, Tensor) and weight.ndim == 2 else None


def _need_ids(name: str, ids: Iterable[int], vocab_size: int | None) -> None:
    for one in ids:
        if one < 0 or (vocab_size is not None and one >= vocab_size):
            has = "ids begin at 0" if vocab_size is None else f"the model has ids 0 to {vocab_size - 1}"
            raise HeadwayError(f"{name} holds the id {one} but {has}: use the tokenizer that belongs to the model")


def _stop_ids(stop: int | Collection[int] | None, vocab_size: int | None) -> frozenset[int]:
    try:
        ids = frozenset(map(index, () if stop is None else [stop] if isinstance(stop, int) else stop))
    except TypeError as error:
        raise HeadwayError(f"stop is {stop!r:.60}: give an id or several, such as 0 or [0, 2]") from error
    _need_ids("stop", ids, vocab_size)
    return ids


def _padded(name: str, given: TokenRows, vocab_size: int | None, device: torch.device) -> _Padded:
    """Returns the rows as one tensor on the model's device, padded on the left."""
    if isinstance(given, Tensor):
        if given.ndim != 2 or given.dtype not in (torch.int64, torch.int32):
            raise HeadwayError(
                f"{name} is {given.dtype} of shape {tuple(given.shape)}: give int64 [batch, n]"
                + (", such as ids[None] for one row" if given.ndim == 1 else "")
            )
        given = given.tolist()
    try:
        rows = [[index(one) for one in row] for row in given]
    except TypeError as error:
        raise HeadwayError(
            f"{name} is {given!r:.60}: give ids in rows, such as [[1, 2, 3], [4, 5]], or an int64 tensor [batch, n]"
        ) from error
    if not rows:
        raise HeadwayError(f"{name} has no rows: give at least one")
    for row in rows:
        _need_ids(name, row, vocab_size)
    lengths = [len(row) for row in rows]
    n = max(lengths)
    if not min(lengths):
        raise HeadwayError(
            f"{name} is empty in row {lengths.index(0)}: give at least one id, such as the one that begins a text"
        )
    ids = torch.tensor([[0] * (n - len(row)) + row for row in rows], device=device)
    return _Padded(ids, Coordinates.padded(lengths, n, device=device) if min(lengths) < n else None)


def _source(model: EncoderDecoder, source: TokenRows, device: torch.device) -> _Padded:
    """Returns the source of an encoder–decoder: padded ids, or an unchanged tensor of features."""
    embedding = model.embedding if model.source_embedding is None else model.source_embedding
    if isinstance(source, Tensor) and (source.ndim != 2 or source.is_floating_point()):
        if source.ndim < 2 or not source.numel():
            raise HeadwayError(f"the source has shape {tuple(source.shape)}: give a batch of ids or features")
        return _Padded(source.to(device), None)
    padded = _padded("source", source, _vocab_size(embedding), device)
    _check_table(model.encoder, "source", padded.ids.shape[1], 1)
    return padded


def _starts(given: int | Sequence[int] | TokenRows, batch: int) -> TokenRows:
    """Returns the first ids of each target of a batch, given once for all or for each row."""
    if isinstance(given, int):
        return [[given]] * batch
    if isinstance(given, Tensor):
        given = given.tolist()
    if all(isinstance(one, int) for one in given):
        return [cast(Sequence[int], given)] * batch
    if len(given) != batch:
        raise HeadwayError(
            f"decoder_start has {len(given)} rows but the source {batch}: give one for all, or one for each"
        )
    return cast(TokenRows, given)


def _check_table(stack: nn.Module, name: str, n: int, new: int) -> None:
    """Raises HeadwayError if a table of positions ends before the tokens do; the last new token is never read."""
    parts = [part for part in stack.modules() if isinstance(part, PositionEncoding)]
    if any("locate" in part.acts for part in parts):
        return  # the table is read at other positions than those of the tokens
    ends = [part.sizes.max_length for part in parts if part.ends and getattr(part, "extend", None) is None]
    end = min((end for end in ends if end is not None), default=None)
    if end is None or n + new - 1 <= end:
        return
    if n > end:
        raise HeadwayError(f"{name} has {n} ids but the model's table of positions ends at {end}: give at most {end}")
    raise HeadwayError(
        f"{name} of {n} ids and max_new_tokens {new} need {n + new - 1} positions but the model's table has {end}: "
        f"give max_new_tokens={end - n + 1}"
    )
