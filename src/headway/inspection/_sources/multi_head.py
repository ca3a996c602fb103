"""Attention of ``torch.nn.MultiheadAttention``, found at ``F.multi_head_attention_forward``."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...call import make_call
from ...coordinates import Coordinates
from ...errors import HeadwayError
from ...kernels import Call
from ...masks import And, Boolean, Causal, Mask
from ...terms import Sink, Term, TokenBias
from .._masks import read_mask
from .._padding import after_padding, padding_of
from .._watch import Change, Finder, Found, Frame, Mode, Site

SIGNATURE = inspect.signature(F.multi_head_attention_forward)


class MultiHead:
    """Calls of ``multi_head_attention_forward``.

    torch skips its fast paths for inference, because a mode of torch functions is active.
    """

    name = "multi_head_attention_forward"

    def is_layer(self, module: nn.Module) -> bool:
        return isinstance(module, nn.MultiheadAttention)

    @contextmanager
    def found_by(self, finder: Finder) -> Iterator[None]:
        with Mode(finder, F.multi_head_attention_forward, _found):
            yield


def _found(stack: Sequence[Frame], *args: Any, **kwargs: Any) -> Found:
    bound = SIGNATURE.bind(*args, **kwargs)
    bound.apply_defaults()
    given = bound.arguments
    heads, batched, frame = given["num_heads"], given["query"].dim() == 3, stack[-1]

    def run(change: Change | None) -> tuple[Tensor, Tensor | None]:
        if change is None:
            computed: tuple[Tensor, Tensor | None] = F.multi_head_attention_forward(**given)
            return computed
        # with the identity as output projection, which is exact, the output is that of the heads
        width = given["embed_dim_to_check"]
        weight, bias = given["out_proj_weight"], given["out_proj_bias"]
        alone = torch.eye(width, dtype=weight.dtype, device=weight.device)
        out, weights = F.multi_head_attention_forward(**{**given, "out_proj_weight": alone, "out_proj_bias": None})
        changed = change(_by_head(out, heads)).transpose(1, 2).flatten(2)
        return F.linear(changed.transpose(0, 1) if batched else changed[0], weight, bias), weights

    def projected(out: Tensor) -> Tensor:
        weight = given["out_proj_weight"]
        return F.linear(out.transpose(1, 2).flatten(2).to(weight.dtype), weight, given["out_proj_bias"])

    def rows(result: tuple[Tensor, Any], wanted: list[int]) -> Tensor:
        out = result[0] if batched else result[0][:, None]
        return out[wanted].transpose(0, 1)

    note = "torch's fast path yields" if _has_fast_path(frame.module) else ""

    def site() -> Site:
        query, key = frame.argument("query"), frame.argument("key")
        if query is None or key is None:
            query, key = given["query"], given["key"]
        kind = "self" if query is key else "cross"
        call = _call(given)
        padding = padding_of(stack, call)
        if kind == "self":
            call = after_padding(call, stack) or call
        return Site(
            MultiHead.name,
            kind,
            call,
            rows,
            projected,
            padding=padding,
            dropout=given["dropout_p"] if given["training"] else 0.0,
            note=note,
            output_weight=given["out_proj_weight"],
        )

    return Found(frame.module, run, site)


def _has_fast_path(module: nn.Module) -> bool:
    """Whether torch may take a path for inference that calls no attention function and rounds otherwise."""
    if not isinstance(module, nn.MultiheadAttention) or module.training or torch.is_autocast_enabled():
        return False
    learns = torch.is_grad_enabled() and any(part.requires_grad for part in module.parameters())
    fits = module.batch_first and module.num_heads % 2 == 0 and module.in_proj_weight is not None
    return fits and not learns and torch.backends.mha.get_fastpath_enabled()


def _by_head(out: Tensor, heads: int) -> Tensor:
    """[tokens, batch, heads·head_dim] or [tokens, heads·head_dim] → [batch, heads, tokens, head_dim]"""
    out = out if out.dim() == 3 else out[:, None]
    return out.unflatten(-1, (heads, -1)).permute(1, 2, 0, 3)


def _call(given: dict[str, Any]) -> Call:
    """The call as headway computes it, before dropout."""
    if given["static_k"] is not None or given["static_v"] is not None:
        raise HeadwayError("static_k or static_v is given: give keys and values as key and value")
    heads = given["num_heads"]
    q, k, v = (_by_head(x, heads) for x in _projected(given))
    batch, extra = q.shape[0], given["bias_k"] is not None
    if extra:
        k, v = (
            torch.cat([x, given[name].to(x.dtype).view(1, heads, 1, -1).expand(batch, -1, -1, -1)], dim=2)
            for x, name in ((k, "bias_k"), (v, "bias_v"))
        )
    masks: list[Mask] = []
    terms: list[Term] = []
    mask, padding = given["attn_mask"], given["key_padding_mask"]
    trusted = given["is_causal"] and padding is None and not given["need_weights"]
    if trusted:
        masks.append(Causal())
    elif mask is not None:
        by_head = mask[None, None] if mask.dim() == 2 else mask.unflatten(0, (-1, heads))
        _add(by_head, extra, masks, terms)
    if padding is not None:
        by_head = (padding if padding.dim() == 2 else padding[None])[:, None, None]
        _add(by_head, extra, masks, terms)
    if given["add_zero_attn"] and not trusted:  # a key of zeros has score 0 and value 0, which is a sink
        terms.append(Sink(q.new_zeros(heads)))
    return make_call(
        q,
        k,
        v,
        mask=And(tuple(masks)) if len(masks) > 1 else masks[0] if masks else None,
        terms=tuple(terms),
        q_positions=Coordinates.span(q.shape[2], device=q.device),
        k_positions=Coordinates.span(k.shape[2], device=q.device),
    )


def _add(mask: Tensor, extra: bool, masks: list[Mask], terms: list[Term]) -> None:
    """Reads one of torch's masks, [batch or 1, heads or 1, n or 1, m]: True and −∞ exclude a key."""
    mask = F.pad(mask, (0, 1)) if extra else mask
    if mask.dtype == torch.bool:
        masks.append(Boolean(~mask))
        return
    hidden, added = read_mask(mask)
    masks += [] if hidden is None else [hidden]
    if added is not None and isinstance(added.values, Tensor):
        by_key = mask.shape[1:3] == (1, 1)  # one number for each key
        terms.append(TokenBias(keys=added.values[:, :, 0]) if by_key else added)


def _projected(given: dict[str, Any]) -> list[Tensor]:
    """The projected queries, keys and values, in the layout of the arguments."""
    bias = given["in_proj_bias"]
    if given["use_separate_proj_weight"]:
        weights = [given[f"{letter}_proj_weight"] for letter in "qkv"]
    else:
        weights = given["in_proj_weight"].chunk(3)
    biases = [None] * 3 if bias is None else bias.chunk(3)
    return [F.linear(given[x], w, b) for x, w, b in zip(("query", "key", "value"), weights, biases, strict=True)]
