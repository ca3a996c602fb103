"""From a prompt onwards, token by token: the likeliest next id, or one that is drawn."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import index
from typing import NamedTuple, TypedDict, cast

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from ..coordinates import Coordinates
from ..errors import HeadwayError
from ..masks import Padding
from ..positions import PositionEncoding
from .transformer import Decoder, EncoderDecoder

Rows = Sequence[Sequence[int]] | Tensor
"""Ids of each row: lists, which may differ in length, or int64 [batch, n]."""

IDLE = 0.25
"""Rows that have ended are dropped once they are this share of those computed. Dropping copies the cache: this way all
copies together are at most four times as large as it was."""


class Options(TypedDict, total=False):
    """What ``generate`` and ``stream`` take besides the model and the prompt."""

    max_new_tokens: int
    temperature: float
    top_k: int | None
    top_p: float | None
    stop: int | Collection[int] | None
    decoder_start: int | Sequence[int] | Rows | None
    seed: int | None
    generator: torch.Generator | None


@dataclass(frozen=True)
class Generated:
    """What came after each prompt."""

    ids: list[list[int]]
    """The new ids of each row: neither the prompt, nor the stop id that ended it, nor padding."""
    log_probs: list[list[float]]
    """For each of these ids the logarithm of the model's own probability, before temperature, top-k and top-p."""
    stopped: list[bool]
    """Whether a stop id ended the row, and not max_new_tokens."""


class Step(NamedTuple):
    """The next id of each row, and its log-probability; None for a row that has ended."""

    ids: list[int | None]
    log_probs: list[float | None]


def generate(model: Decoder | EncoderDecoder, prompt: Rows, **options: Unpack[Options]) -> Generated:
    """Continues each row of a prompt; with an encoder–decoder, writes the target of each row of a source.

        generate(decoder, [[1, 2, 3], [4, 5]], max_new_tokens=20, stop=0).ids
        generate(decoder, ids, temperature=0.8, top_p=0.95, seed=1)
        generate(encoder_decoder, source, decoder_start=0, stop=1)

    prompt          ids of the rows, as lists, which may differ in length and are padded in front, or as int64
                    [batch, n]. For an encoder–decoder the source: lists, or any tensor that its ``encode`` takes, such
                    as features [batch, frames, width]
    max_new_tokens  how many ids a row gets at most; 128
    temperature     0, the default, takes the likeliest id; else ids are drawn from softmax(logits/temperature)
    top_k, top_p    draw from the top_k likeliest ids, from the likeliest that together have top_p: see
                    ``probabilities``
    stop            an id or several; a row ends at the first of them, which is not part of the result
    decoder_start   how targets of an encoder–decoder begin: an id, a list of ids, or one list for each row
    seed, generator of the draws; torch's own generator if neither is given

    The model is read in eval mode without gradients and left in the mode it had. Its cache grows by the new tokens
    alone; rows that have ended are dropped from it. Logits are processed in float32.
    Raises HeadwayError, before any work, for an empty prompt, ids that the model does not have, a prompt that with its
    new tokens goes beyond the model's table of positions, and options out of range.
    Cite: Fan et al. 2018 (top-k); Holtzman et al. 2020 (top-p).
    """
    run = _Run(model, prompt, **options)
    ids: list[list[int]] = [[] for _ in range(run.batch)]
    log_probs: list[list[float]] = [[] for _ in range(run.batch)]
    for step in run:
        for row, (one, log_prob) in enumerate(zip(*step, strict=True)):
            if one is not None and log_prob is not None:
                ids[row].append(one)
                log_probs[row].append(log_prob)
    return Generated(ids, log_probs, [len(row) < run.max_new_tokens for row in ids])


def stream(model: Decoder | EncoderDecoder, prompt: Rows, **options: Unpack[Options]) -> Iterator[Step]:
    """The same, one step at a time, until all rows have ended.

        for ids, log_probs in stream(decoder, [[1, 2, 3]], stop=0):
            print(ids[0])

    Takes the arguments of ``generate``; what is wrong with them is raised by the call, before the first step.
    """
    return iter(_Run(model, prompt, **options))


def probabilities(
    logits: Tensor, *, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
) -> Tensor:
    """What the next id is drawn with: [..., vocab_size] logits → the same in float32, each row with the sum 1.

        p = softmax(logits/temperature) over the ids that are left, in this order:
        top_k   those with the k largest logits, and those equal to the last of them
        top_p   the likeliest, as few as have together at least top_p of what top_k left

    temperature ≥ 0, where 0 leaves the likeliest id alone, the first of several; top_k ≥ 1; 0 < top_p ≤ 1.
    Raises HeadwayError for options out of range.
    """
    _check_sampling(temperature, top_k, top_p)
    logits = logits.float()
    if not temperature:
        return torch.zeros_like(logits).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
    # Less the largest first, so that a small temperature does not overflow.
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
    """One generation: checked when it is made, done while it is iterated over."""

    def __init__(
        self,
        model: Decoder | EncoderDecoder,
        prompt: Rows,
        *,
        max_new_tokens: int = 128,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        stop: int | Collection[int] | None = None,
        decoder_start: int | Sequence[int] | Rows | None = None,
        seed: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        if max_new_tokens < 1:
            raise HeadwayError(f"max_new_tokens is {max_new_tokens}: give at least 1")
        _check_sampling(temperature, top_k, top_p)
        if not temperature and (top_k, top_p) != (None, None):
            given = f"top_k is {top_k}" if top_p is None else f"top_p is {top_p}"
            raise HeadwayError(f"{given} but temperature is 0, which takes the likeliest id: give temperature=1.0")
        if not isinstance(model, (Decoder, EncoderDecoder)):
            raise HeadwayError(f"the model is a {type(model).__name__}: give a Decoder or an EncoderDecoder")
        if model.head is None:
            raise HeadwayError(f"the {type(model).__name__} has no head: give one whose calls give logits")
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
        reader = _Reader(self.model, self.source, self.prompt.at is not None)
        computed = list(range(self.batch))  # which row of the results each computed row is
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
        """The next id of each row of logits [rows, vocab_size], and its log-probability."""
        logits = logits.float()
        log_probs = logits.log_softmax(-1)
        if log_probs.isnan().any():
            raise HeadwayError("logits hold NaN or infinity: look at the model's parameters, or run it in float32")
        if self.temperature:
            p = probabilities(logits, temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)
            chosen = torch.multinomial(p, 1, generator=self.generator)
        else:
            chosen = logits.argmax(-1, keepdim=True)
        return chosen[:, 0], log_probs.gather(-1, chosen)[:, 0]


class _Padded(NamedTuple):
    """Rows of ids, or features, and where they are; None where no row is padded."""

    ids: Tensor
    at: Coordinates | None


class _Reader:
    """A model that reads tokens and tells the logits of the next, with a cache of what it has read."""

    def __init__(self, model: Decoder | EncoderDecoder, source: _Padded | None, padded: bool) -> None:
        self.model, self.cache = model, model.new_cache()
        self.mask = Padding() if padded else None
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
        """ids [rows, n] that come next → logits [rows, vocab_size] of the id after them."""
        model = self.model
        with _evaluating(model):
            if isinstance(model, Decoder):
                hidden = model.hidden(ids, positions=at, mask=self.mask, cache=self.cache)
                return model.logits(hidden[:, -1:])[:, 0]
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
        """Goes on with these rows alone."""
        self.cache.reorder(rows)
        self.context = None if self.context is None else self.context[rows]
        self.context_at = None if self.context_at is None else self.context_at.select(rows)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """The model in eval mode, and afterwards each part of it in the mode it had."""
    training = [module for module in model.modules() if module.training] if model.training else []
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


# ---------------------------------------------------------------- checks


def _check_sampling(temperature: float, top_k: int | None, top_p: float | None) -> None:
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
    """How many ids a model's embeddings have; None where they do not tell."""
    weight = getattr(embedding, "weight", None)
    return weight.shape[0] if isinstance(weight, Tensor) and weight.ndim == 2 else None


def _need_ids(name: str, ids: Iterable[int], vocab_size: int | None) -> None:
    for one in ids:
        if one < 0 or (vocab_size is not None and one >= vocab_size):
            has = "ids begin at 0" if vocab_size is None else f"the model has ids 0 to {vocab_size - 1}"
            raise HeadwayError(f"{name} holds the id {one} but {has}: take the tokenizer that belongs to the model")


def _stop_ids(stop: int | Collection[int] | None, vocab_size: int | None) -> frozenset[int]:
    try:
        ids = frozenset(map(index, () if stop is None else [stop] if isinstance(stop, int) else stop))
    except TypeError as error:
        raise HeadwayError(f"stop is {stop!r:.60}: give an id or several, such as 0 or [0, 2]") from error
    _need_ids("stop", ids, vocab_size)
    return ids


def _padded(name: str, given: Rows, vocab_size: int | None, device: torch.device) -> _Padded:
    """Rows as one tensor on the model's device, padded in front."""
    if isinstance(given, Tensor):
        if given.ndim != 2 or given.dtype not in (torch.int64, torch.int32):
            raise HeadwayError(f"{name} is {given.dtype} of shape {tuple(given.shape)}: give int64 [batch, n]")
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
            f"{name} is empty in row {lengths.index(0)}: give at least one id, such as that which begins a text"
        )
    ids = torch.tensor([[0] * (n - len(row)) + row for row in rows], device=device)
    return _Padded(ids, Coordinates.padded(lengths, n, device=device) if min(lengths) < n else None)


def _source(model: EncoderDecoder, source: Rows, device: torch.device) -> _Padded:
    """The source of an encoder–decoder: ids, or a tensor of features as it is."""
    embedding = model.embedding if model.source_embedding is None else model.source_embedding
    if isinstance(source, Tensor) and (source.ndim != 2 or source.is_floating_point()):
        if source.ndim < 2 or not source.numel():
            raise HeadwayError(f"the source has shape {tuple(source.shape)}: give a batch of ids or features")
        return _Padded(source.to(device), None)
    padded = _padded("source", source, _vocab_size(embedding), device)
    _check_table(model.encoder, "source", padded.ids.shape[1], 1)
    return padded


def _starts(given: int | Sequence[int] | Rows, batch: int) -> Rows:
    """How the targets of a batch begin: given once for all, or for each row."""
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
    return cast(Rows, given)


def _check_table(stack: nn.Module, name: str, n: int, new: int) -> None:
    """Raises where a table of positions ends before the tokens do; the last new one is never read."""
    parts = [part for part in stack.modules() if isinstance(part, PositionEncoding)]
    if any("locate" in part.acts for part in parts):
        return  # what the table is asked for is not where the tokens are
    ends = [part.held("max_length") for part in parts if part.ends and getattr(part, "extend", None) is None]
    end = min((end for end in ends if end is not None), default=None)
    if end is None or n + new - 1 <= end:
        return
    if n > end:
        raise HeadwayError(f"{name} has {n} ids but the model's table of positions ends at {end}: give at most {end}")
    raise HeadwayError(
        f"{name} of {n} ids and max_new_tokens {new} need {n + new - 1} positions but the model's table has {end}: "
        f"give max_new_tokens={end - n + 1}"
    )
