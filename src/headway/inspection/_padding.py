"""Which tokens of a call are padding, and where the others stand: by its mask, and by what its modules were given."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..coordinates import Coordinates
from ..kernels import Call
from ._tokens import real_queries
from ._watch import Frame

CACHES = ("past_key_values", "past_key_value", "layer_past", "cache")


def padding_of(stack: Sequence[Frame], call: Call) -> Tensor | None:
    """The queries that are not padding, [batch, n] bool; None if that is not known."""
    batch, n, m = call.q.shape[0], call.q.shape[2], call.k.shape[2]
    real = real_queries(call)
    if real is None:
        tokens = _tokens(stack, n, m)
        real = None if tokens is None else tokens[:, tokens.shape[1] - n :]
    if real is None or real.shape[0] not in (1, batch):
        return None
    return real.to(call.q.device).expand(batch, n)


def located(call: Call, stack: Sequence[Frame]) -> Call:
    """A call of self-attention with an index of 0 for the first token of each row that is no padding, and with packed
    documents, as far as the modules were given a mask of tokens or positions.

    It is for calls whose masks and terms read no coordinates.
    """
    batch, n, m = call.q.shape[0], call.q.shape[2], call.k.shape[2]
    tokens = _tokens(stack, n, m)
    if tokens is not None and tokens.shape == (batch, m) and n <= m:
        first = tokens.int().argmax(1, keepdim=True)
        index = torch.arange(m, device=tokens.device) - first
        at = Coordinates(index.clamp(min=0)[..., None], index, length=tokens.sum(1, keepdim=True), ordered=True)
        return call._with(q_coordinates=at if n == m else at.rows(m - n, m), k_coordinates=at)
    position = next((x for frame in reversed(stack) if (x := frame.argument("position_ids")) is not None), None)
    if n != m or not isinstance(position, Tensor) or position.ndim != 2 or position.shape[1] != n:
        return call
    if position.shape[0] not in (1, batch) or position.is_floating_point():
        return call
    document = torch.zeros_like(position)
    document[:, 1:] = (position.diff(dim=1) != 1).cumsum(1)
    if not bool(document.any()):
        return call
    index = torch.arange(n, device=position.device)[None].expand(position.shape[0], n)
    at = Coordinates(position[..., None], index, document, ordered=True, start=0, rising=document)
    return call._with(q_coordinates=at, k_coordinates=at)


def _tokens(stack: Sequence[Frame], n: int, m: int) -> Tensor | None:
    """The tokens that are not padding, [batch, n or more], of which the queries are the last; None if not known.

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


def _real(padding: Tensor) -> Tensor:
    """The tokens that torch's mask of padding leaves: where it is not True, or not −∞."""
    return ~padding if padding.dtype == torch.bool else padding > torch.finfo(padding.dtype).min / 2
