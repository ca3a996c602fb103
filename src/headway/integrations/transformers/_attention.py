"""The attention function that transformers' attention interface calls."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ...attention import Arguments, attention, attention_weights
from ...errors import HeadwayError
from ...masks import Boolean, Causal, Mask
from ...sharing import sharing_of
from ...terms import DenseBias, DistanceBias, Rows, Term
from ._library import LIBRARY
from ._mask_tensor import LocatedMask, MaskTensor, span
from ._models import NUMBERS, masks_taken
from ._sharing import COORDINATES, arguments_of_shard

REFUSED = {
    "indices": "keys that are chosen one by one",
    "block_indices": "blocks of keys that are chosen one by one",
    "sinks": "a sink for each token",
}
"""Arguments of some models' attention that change the result and that headway does not support."""


@dataclass(frozen=True)
class BiasTable:
    """A bias by distance that a model passes on in place of n² numbers: rows, or None for no bias."""

    rows: Rows | None
    past: int | Tensor = 0
    """The number of tokens before the first query, used if no mask gives the coordinates."""


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *given: Any,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """The attention of one layer, as transformers' attention interface defines it.

    query is [batch, heads, n, head_dim], key and value are [batch, kv_heads, m, …]. Returns the output [batch, n,
    heads, v_dim], and the weights [batch, heads, n, m] if the caller asks for them, else None.
    """
    at = kwargs.pop(COORDINATES, None)
    query, arguments = arguments_of(module, query, key, attention_mask, *given, **kwargs)
    if (shared := sharing_of(module)) is not None:
        shared.refuse(module, output_attentions=_wants_weights(kwargs) or None)
        whole = arguments_of_shard(at, attention_mask, {**arguments}, query, key)
        out = shared.attention(module, query, key, value, cross=False, **whole)
        return out.transpose(1, 2).contiguous(), None
    out = attention(query, key, value, **arguments)
    weights = attention_weights(query, key, value, **arguments) if _wants_weights(kwargs) else None
    return out.transpose(1, 2).contiguous(), weights


def arguments_of(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | Tensor | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | BiasTable | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Arguments]:
    """What transformers passes to the attention of one layer as query and arguments of ``headway.attention``."""
    _refuse(kwargs)
    n, m, device = query.shape[2], key.shape[2], query.device
    terms: list[Term] = []
    if isinstance(attention_mask, MaskTensor):
        located = _fitted(attention_mask, query, m)
    else:
        past = position_bias.past if isinstance(position_bias, BiasTable) else max(m - n, 0)
        located = LocatedMask(None, span(n, past, device), span(m, 0, device))
        causal = _is_causal(module) if is_causal is None else is_causal
        if attention_mask is not None:
            mask, added = _from_tensor(attention_mask[..., :m])
            located = replace(located, mask=mask)
            terms += added
        elif causal and n > 1:  # as in transformers: a longer cache is still empty behind the queries
            located = LocatedMask(Causal(), span(n, 0, device), located.k)
    if isinstance(position_bias, BiasTable):
        terms += [] if position_bias.rows is None else [DistanceBias(position_bias.rows)]
    elif position_bias is not None and _may_be_nonzero(position_bias):
        terms.append(DenseBias(position_bias))
    if isinstance(scaling, Tensor):
        query, scaling = query * scaling, 1.0
    if query.shape[0] != key.shape[0]:  # learned queries, one set for the batch
        query = query.expand(key.shape[0], -1, -1, -1)
    return query, {
        "terms": terms,
        "mask": located.mask,
        "scale": scaling,
        "sink": s_aux,
        "soft_cap": softcap,
        "q_positions": located.q,
        "k_positions": located.k,
        "dropout": dropout if module.training else 0.0,
    }


def _is_causal(module: nn.Module) -> bool:
    """Whether a missing mask means a causal one, as with SDPA; eager attention masks nothing then."""
    config = getattr(module, "config", None)
    if config is not None and masks_taken(type(config)) == NUMBERS:
        return False
    return bool(getattr(module, "is_causal", True))


def _fitted(tensor: MaskTensor, query: Tensor, m: int) -> LocatedMask:
    """The mask for the queries and the m keys of the cache. The tensor may have more or fewer keys."""
    located, keys, n = tensor.located, tensor.shape[3], query.shape[2]
    if keys == m:
        return located
    if keys > m:
        return located.first_keys(m) or LocatedMask(Boolean(tensor.dense()[..., :m]), located.q, located.k.rows(0, m))
    if located.mask is not None:
        raise HeadwayError(
            f"the model makes a mask for {keys} keys, but its cache holds {m}: give use_cache=False, or no padding"
        )
    # no mask: the keys of the cache are attended to as well
    return LocatedMask(None, span(n, m - n, query.device), span(m, 0, query.device))


def _refuse(kwargs: dict[str, Any]) -> None:
    for name, what in REFUSED.items():
        if kwargs.get(name) is not None:
            raise HeadwayError(f"the model passes {name} to its attention, {what}: use attn_implementation='sdpa'")
    if type(kwargs.get("cache")).__name__ == "PagedAttentionCache":
        raise HeadwayError("headway has no paged cache for continuous batching: use attn_implementation='sdpa'")


def _from_tensor(mask: Tensor) -> tuple[Mask | None, list[Term]]:
    """A mask given as a tensor: booleans, or floats that are added to scores, where the lowest ones exclude a key."""
    mask = mask[(None,) * (4 - mask.ndim)]
    if mask.dtype == torch.bool:
        return Boolean(mask), []
    if not mask.is_floating_point():
        raise HeadwayError(
            f"attention_mask is {mask.dtype}: give booleans, True for keys to attend to, or floats to add"
        )
    forbidden = mask <= torch.finfo(mask.dtype).min / 2
    added = mask.masked_fill(forbidden, 0)
    terms: list[Term] = [DenseBias(added)] if _may_be_nonzero(added) else []
    return Boolean(~forbidden) if _may_be_nonzero(forbidden) else None, terms


def _may_be_nonzero(x: Tensor) -> bool:
    """Whether x may have an entry other than zero (T5 passes zeros to cross-attention); True while x is traced."""
    return x.requires_grad or LIBRARY["masking_utils"].is_tracing(x) or bool(x.any())


def _wants_weights(kwargs: dict[str, Any]) -> bool:
    """Whether the caller asks for weights: by an argument of this layer, or because the model records them."""
    recorded = LIBRARY["utils.output_capturing"]._active_collector.get()
    return bool(kwargs.get("output_attentions")) or any(name.endswith("attentions") for name in recorded or ())
