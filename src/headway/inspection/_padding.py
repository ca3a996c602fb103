"""Which tokens of a call are padding, and the positions of the others: from its mask and its modules' arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..coordinates import Coordinates
from ..kernels import Call
from ._tokens import real_queries
from ._watch import Frame

CACHES = ("past_key_values", "past_key_value", "layer_past", "cache")


def padding_of(stack: Sequence[Frame], call: Call, slots: Sequence[tuple[int, int]] = ()) -> Tensor | None:
    """The queries that are not padding, [batch, n] bool; None if that is not known. ``real_queries`` has ``slots``."""
    batch, n, m = call.q.shape[0], call.q.shape[2], call.k.shape[2]
    real = real_queries(call, slots)
    if real is None and (tokens := _tokens(stack, n, m)) is not None:
        stop = _total(stack, n) or tokens.shape[1]  # a mask may cover a whole cache that is not full
        real = tokens[:, min(stop, tokens.shape[1]) - n :][:, :n]
    if real is None or real.shape[0] not in (1, batch):
        return None
    return real.to(call.q.device).expand(batch, n)


def located(call: Call, stack: Sequence[Frame]) -> Call:
    """A call of self-attention of transformers with an index of 0 for the first token of each row that is not padding,
    and with packed documents, as far as its modules were given a mask of tokens, positions or a cache.

    It is for calls whose masks and terms read no coordinates, or only differences of indices.
    """
    padded = after_padding(call, stack)
    if padded is not None:
        return padded
    batch, n, m = call.q.shape[0], call.q.shape[2], call.k.shape[2]
    total = _total(stack, n)
    position = next((x for frame in reversed(stack) if (x := frame.argument("position_ids")) is not None), None)
    if not isinstance(position, Tensor) or position.is_floating_point() or position.shape not in ((1, n), (batch, n)):
        position = None
    if total is not None and n:
        first = torch.zeros(1, 1, dtype=torch.int64, device=call.q.device)
        return _after(call, first if position is None else _first_of(position, total), total)
    if position is None or n != m or not bool((position.diff(dim=1) != 1).any()):
        return call
    document = torch.zeros_like(position)
    document[:, 1:] = (position.diff(dim=1) != 1).cumsum(1)
    index = torch.arange(n, device=position.device)[None].expand(position.shape[0], n)
    at = Coordinates(position[..., None], index, document, ordered=True, start=0, rising=document)
    return call._with(q_coordinates=at, k_coordinates=at)


def after_padding(call: Call, stack: Sequence[Frame]) -> Call | None:
    """A call of self-attention with an index of 0 for the first token of each row that is not padding, by the mask of
    tokens that the modules were given; None without one.
    """
    n, m = call.q.shape[2], call.k.shape[2]
    tokens, cached = _tokens(stack, n, m), _total(stack, n)
    total = m if cached is None else cached
    if tokens is None or tokens.shape[0] != call.q.shape[0] or n > total:
        return None
    if tokens.shape[1] != total and (cached is None or tokens.shape[1] < total):
        return None
    tokens = tokens[:, :total]
    return _after(call, tokens.int().argmax(1, keepdim=True), total, tokens.sum(1, keepdim=True))


def _after(call: Call, first: Tensor, total: int, length: Tensor | None = None) -> Call:
    """The call with an index of 0 for the token ``first`` of each row of ``total`` tokens, [b, 1].

    The queries are the last of the tokens. So are the keys, unless there are more of them: then they are all tokens,
    and places of a cache that are still empty.
    """

    def span(start: int, count: int) -> Coordinates:
        index = torch.arange(start, start + count, device=first.device) - first
        of_row = total - first if length is None else length
        return Coordinates(index.clamp(min=0)[..., None], index, length=of_row, ordered=True)

    n, m = call.q.shape[2], call.k.shape[2]
    before = max(total - m, 0)
    return call._with(
        q_coordinates=span(total - n, n), k_coordinates=span(before, m), aligned=call.aligned and before + m == total
    )


def _first_of(position: Tensor, total: int) -> Tensor:
    """The token at which the positions of the last n of ``total`` tokens begin, behind padding of equal positions,
    [b, 1]; 0 where they say something else.
    """
    slots = torch.arange(total - position.shape[1], total, device=position.device)
    first = (total - 1 - position[:, -1:]).clamp(min=0).long()
    as_padded = torch.where(slots < first, position[:, :1], slots - first)
    return first * (position == as_padded).all(1, keepdim=True)


def _tokens(stack: Sequence[Frame], n: int, m: int) -> Tensor | None:
    """The tokens that are not padding, [batch, n or more], ending with the queries; None if not known.

    The nearest module that was given a mask of tokens knows it. transformers has 1 for a token, torch True for padding.
    """
    cached = any(frame.argument(*CACHES) is not None for frame in stack)
    in_decoder = False
    for frame in reversed(stack):
        if frame.declares("key_padding_mask") and frame.argument("query") is frame.argument("key"):
            mask = frame.argument("key_padding_mask")
            if isinstance(mask, Tensor):
                return _real(mask if mask.ndim == 2 else mask[None])
        of_torch = next((x for x in ("tgt_key_padding_mask", "src_key_padding_mask") if frame.declares(x)), None)
        if of_torch is not None:
            mask = frame.argument(of_torch)
            return _real(mask) if isinstance(mask, Tensor) and mask.ndim == 2 and mask.shape[1] == n else None
        whose = "attention_mask"
        if frame.declares("decoder_attention_mask"):
            whose = "decoder_attention_mask" if in_decoder else "attention_mask"
        mask = frame.argument(whose)
        if isinstance(mask, Tensor) and mask.ndim == 2 and type(mask) is Tensor:
            fits = mask.shape[1] == n or (mask.shape[1] > n and (cached or mask.shape[1] == m))
            return mask != 0 if fits else None
        if whose == "decoder_attention_mask":
            return None
        in_decoder = in_decoder or "decoder" in frame.name.rpartition(".")[2]
    return None


def _total(stack: Sequence[Frame], n: int) -> int | None:
    """The tokens of a stream whose keys a cache of transformers holds or has held, the n queries included.

    None if it is not known.
    """
    cache: Any = next((x for frame in reversed(stack) if (x := frame.argument(*CACHES)) is not None), None)
    number = next((x for frame in reversed(stack) if (x := getattr(frame.module, "layer_idx", None)) is not None), None)
    of_transformers = any(kind.__module__ == "transformers.cache_utils" for kind in type(cache).__mro__)
    if not of_transformers or not isinstance(number, int):
        return None
    total = int(cache.get_seq_length(number))
    return total if total >= n else None


def _real(padding: Tensor) -> Tensor:
    """The tokens that torch's mask of padding leaves: where it is not True, or not −∞."""
    return ~padding if padding.dtype == torch.bool else padding > torch.finfo(padding.dtype).min / 2
