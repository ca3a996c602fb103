"""The mask function that transformers' mask interface calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from operator import and_, or_
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import HeadwayError
from ...masks import Boolean, Causal, Chunked, Documents, Mask, Padding, Window, sliding_window
from ._library import ITS_OWN, LIBRARY, NAME, TABLE
from ._mask_tensor import LocatedMask, MaskTensor, leaves, span
from ._models import BOOLEANS, NOTHING, NUMBERS, masks_taken


def make_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: Tensor | None = None,
    device: torch.device | str = "cpu",
    **kwargs: Any,
) -> Tensor | None:
    """The mask of one forward pass, as transformers' mask interface defines it; attention_mask: [batch, tokens].

    It is None, as for eager and SDPA, if nothing is masked in either direction: some models resize their states between
    layers, but not a mask.
    """
    masking = LIBRARY["masking_utils"]
    function = masking.causal_mask_function if mask_function is None else mask_function

    def as_theirs(make: Callable[..., Tensor | None], **skips: bool) -> Tensor | None:
        skips = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False, **skips}
        sizes = (batch_size, q_length, kv_length, q_offset, kv_offset, function, attention_mask)
        return make(*sizes, device=device, **{**kwargs, **skips})

    config = kwargs.get("config")
    taken = BOOLEANS if getattr(config, "_attn_implementation", NAME) == TABLE else masks_taken(type(config))
    if taken == NOTHING:
        raise HeadwayError(ITS_OWN)
    if taken == NUMBERS:
        return as_theirs(
            masking.eager_mask, allow_is_bidirectional_skip=kwargs.get("allow_is_bidirectional_skip", False)
        )
    decoding = q_length == 1 and isinstance(q_offset, Tensor)  # one token, static cache: such a call is compiled next
    if decoding or masking.is_tracing(attention_mask):
        return as_theirs(masking.sdpa_mask)
    shifts: list[Tensor] = []
    try:
        mask = _as_mask(function, shifts, kv_offset + kv_length)
    except _UnknownError:
        return as_theirs(masking.sdpa_mask)
    q, k = span(q_length, q_offset, device), span(kv_length, kv_offset, device)
    first, length = shifts[0][:, None] if shifts else None, None
    if attention_mask is not None:
        stop = kv_offset + kv_length
        real = nn.functional.pad(attention_mask.bool(), (0, max(0, stop - attention_mask.shape[1])))
        kept = real[:, kv_offset:stop]
        if kept.all():
            pass
        elif (run := _contiguous(real)) is None:
            mask = _join(and_, (mask, Boolean(kept[:, None, None, :])))
        else:
            first, length = run
            mask = _join(and_, (mask, Padding()))
    if mask is None and kwargs.get("allow_is_bidirectional_skip"):
        return None
    if first is not None:
        q, k = (replace(x, index=x.index - first, length=length, start=None) for x in (q, k))
    if q_length == kv_length and isinstance(q_offset, int) and q_offset == kv_offset:
        k = q
    return MaskTensor(LocatedMask(mask, q, k), batch_size)


def _contiguous(real: Tensor) -> tuple[Tensor, Tensor] | None:
    """The first token that is not padding and their number, both [batch, 1]; None if a row has padding between them."""
    count = real.sum(1, keepdim=True)
    first = real.int().argmax(1, keepdim=True)
    slot = torch.arange(real.shape[1], device=real.device)
    together = (slot >= first) & (slot < first + count)
    return (first, count) if torch.equal(together, real) else None


class _UnknownError(Exception):
    """Raised for a mask function that is not one of transformers' own."""


def _as_mask(function: Callable[..., Any], shifts: list[Tensor], tokens: int) -> Mask | None:
    """A mask function of transformers as a mask of headway, or None if every query attends to every key.

    For chunks, the offset to subtract from the index of each row's tokens is appended to ``shifts``. A
    window at least as wide as the stream of ``tokens`` is dropped. A function of an unknown name raises _UnknownError.
    """
    name = getattr(function, "__qualname__", "") if function.__module__ == "transformers.masking_utils" else ""
    name = name.removesuffix(".<locals>.inner_mask")
    closure = getattr(function, "__closure__", None) or ()
    held = (
        dict(zip(function.__code__.co_freevars, (cell.cell_contents for cell in closure), strict=True)) if name else {}
    )
    if name == "causal_mask_function":
        return Causal()
    if name == "bidirectional_mask_function":
        return None
    if name == "and_masks.<locals>.and_mask":
        return _join(and_, [_as_mask(part, shifts, tokens) for part in held["mask_functions"]])
    if name == "or_masks.<locals>.or_mask":
        parts = [_as_mask(part, shifts, tokens) for part in held["mask_functions"]]
        return None if None in parts else _join(or_, parts)
    if name == "sliding_window_overlay":
        window = sliding_window(held["sliding_window"])
        return window if held["sliding_window"] < tokens else None
    if name == "sliding_window_bidirectional_overlay":
        return Window(held["sliding_window"], held["sliding_window"])
    if name == "chunked_overlay":
        shifts.append(held["left_padding"])
        return Chunked(held["chunk_size"])
    if name == "packed_sequence_mask_function":
        return Documents(held["packed_sequence_mask"])
    if name == "remap_positions_for_packed_sequence":
        mask = _as_mask(held["mask_function"], shifts, tokens)
        # inside a document, position and index both rise by one, so a mask by differences is unchanged
        if all(isinstance(part, (Causal, Window)) for part in leaves(mask)):
            return mask
    raise _UnknownError


def _join(join: Callable[[Mask, Mask], Mask], parts: Any) -> Mask | None:
    masks = [part for part in parts if part is not None]
    return reduce(join, masks) if masks else None
