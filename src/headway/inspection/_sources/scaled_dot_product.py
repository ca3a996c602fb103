"""Attention of any module that calls ``torch.nn.functional.scaled_dot_product_attention``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch.nn.functional as F
from torch import Tensor, nn

from ...call import Arguments, make_call
from ...coordinates import Coordinates
from ...errors import HeadwayError
from ...kernels import Call
from ...masks import And, Boolean, Causal, conjuncts
from .._masks import read_mask
from .._padding import after_padding, padding_of
from .._watch import Change, Finder, Found, Frame, Mode, Site
from ._base import mentions
from .transformers import is_cross


class ScaledDotProduct:
    """Calls of ``scaled_dot_product_attention`` in Python, under whatever name a module has imported it."""

    name = "scaled_dot_product_attention"

    def is_layer(self, module: nn.Module) -> bool:
        return mentions(type(module), self.name) and not isinstance(module, nn.MultiheadAttention)

    @contextmanager
    def found_by(self, finder: Finder) -> Iterator[None]:
        with Mode(finder, F.scaled_dot_product_attention, _found):
            yield


def _found(
    stack: Sequence[Frame],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Found:
    def run(change: Change | None) -> Tensor:
        out = F.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
        return out if change is None else change(_four(out)).reshape(out.shape)

    def site() -> Site:
        call = _call(query, key, value, attn_mask, is_causal, scale)
        n, m = call.q.shape[2], call.k.shape[2]
        kind, padding = _kind(stack[-1], n, m), padding_of(stack, call)
        if padding is not None and kind == "self" and _is_something_else(call, padding):
            padding = None
        elif kind == "self" and (n == m or not is_causal):
            call = after_padding(call, stack) or call
        return Site(
            ScaledDotProduct.name,
            kind,
            call,
            rows=lambda result, rows: _four(result)[:, :, rows],
            padding=padding,
            dropout=dropout_p,
        )

    return Found(stack[-1].module, run, site)


def _is_something_else(call: Call, real: Tensor) -> bool:
    """Whether a mask that was read as one of tokens, True in ``real`` [batch, n], means something else.

    A user's module may take masks that are True for padding, or that are added to scores. Then the other tokens attend
    to the supposed padding. It may also take masks [n, n] of queries and keys. Then, in a batch of n rows, attention
    hides the same keys in every row.
    """
    masks = [mask for mask in conjuncts(call.mask) if isinstance(mask, Boolean)]
    if not masks or call.q.shape[2] != call.k.shape[2] or bool(real.all()):
        return False
    allowed = masks[0].allowed(call.q_coordinates, call.k_coordinates)
    if real.shape[0] == real.shape[1] > 1 == allowed.shape[0] and bool((real != real[:1]).any()):
        return True

    def mixed(tokens: Tensor) -> bool:
        """Whether some of these tokens attend to other tokens."""
        by_query = tokens[:, None, :, None] if allowed.shape[2] > 1 else tokens.any(1)[:, None, None, None]
        seen = (allowed & by_query).any(2)
        return bool((seen & ~tokens[:, None]).any())

    return mixed(real) and not mixed(~real)


def _four(x: Tensor) -> Tensor:
    """[batch, heads, tokens, width]: leading dimensions become the batch; missing ones have size 1."""
    if x.ndim == 3:
        return x[:, None]
    return x[None, None] if x.ndim == 2 else x.flatten(0, -4)


def _call(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool, scale: float | None) -> Call:
    """The call as headway computes it, before dropout."""
    if query.is_nested:
        raise HeadwayError("query is a nested tensor: give padded tensors")
    lead = [max(sizes) for sizes in zip(*(x.shape[:-3] for x in (query, key, value)), strict=True)]
    if query.ndim > 4 and mask is not None:
        mask = mask.expand(*lead, *mask.shape[-3:]) if mask.ndim > 3 else mask
    q, k, v = (_four(x.expand(*lead, *x.shape[-3:]) if x.ndim > 3 else x) for x in (query, key, value))
    n, m = q.shape[2], k.shape[2]
    arguments: Arguments = {"scale": scale}
    if mask is not None:
        by_head = mask[:, None] if mask.ndim == 3 and query.ndim == 3 else mask
        by_head = by_head.flatten(0, -4) if by_head.ndim > 4 else by_head[(None,) * (4 - by_head.ndim)]
        hidden, added = read_mask(by_head)
        arguments["mask"], arguments["terms"] = hidden, () if added is None else (added,)
    if is_causal:  # torch counts queries and keys from 0
        arguments["q_positions"] = Coordinates.span(n, device=q.device)
        arguments["k_positions"] = Coordinates.span(m, device=q.device)
        own = arguments.get("mask")
        arguments["mask"] = Causal() if own is None else And((Causal(), own))  # type: ignore[arg-type]
    return make_call(q, k, v, **arguments)


def _kind(frame: Frame, n: int, m: int) -> str:
    """Self- or cross-attention, by whether the module was given one sequence or two."""
    given = [x for x in (*frame.args, *frame.kwargs.values()) if isinstance(x, Tensor) and x.is_floating_point()]
    sequences = {id(x) for x in given if x.ndim == 3 and x.shape[1] in (n, m)}
    if len(sequences) == 1:
        return "self"
    if len(sequences) > 1 and n != m:
        return "cross"
    return "cross" if is_cross(frame, n, m) else "self"
