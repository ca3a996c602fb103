"""The learned biases of T5's family and MPNet as a table by distance."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import HeadwayError
from ...terms import Clip, Rows
from ._attention import BiasTable, attend
from ._library import NAME, TABLE, import_transformers

T5_LIKE = ("t5", "mt5", "umt5", "switch_transformers")
MPNET_FAR = 128
"""The distance from which MPNet has a single bucket, a literal in its code."""


def use_bias_table(model: nn.Module) -> nn.Module:
    """Makes a model of T5's family, or MPNet, read its learned bias from a table by distance instead of n² numbers.

        bias[h,i,j] = table_h[clamp(j − i, −d, d)],  d the distance from which all share a bucket

    Each forward pass computes the table from the model's own weights, in memory that grows only with d, and gradients
    reach these weights. The attention of the model is set to "headway" ("headway_table" for MPNet), in place; call
    ``register`` first. If another implementation is set later, the model computes its bias as before. A second call has
    no effect.

    Args:
        model: a T5, mT5, UMT5, Switch Transformers or MPNet of transformers.

    Returns:
        The same model.

    Raises:
        HeadwayError: if the model is another one, or ``register`` has not been called.
    """
    if NAME not in import_transformers().AttentionInterface():
        raise HeadwayError("'headway' is not registered: call headway.integrations.transformers.register() first")
    kind = getattr(getattr(model, "config", None), "model_type", type(model).__name__)
    modules: list[Any] = list(model.modules())
    if kind == "mpnet":
        modules[0].config._attn_implementation = TABLE
        for module in modules:
            if hasattr(module, "compute_position_bias"):
                _replace(module, "compute_position_bias", _mpnet_bias)
            elif type(module).__name__ == "MPNetSelfAttention":
                _replace(module, "forward", _mpnet_attention)
        return model
    if kind not in T5_LIKE:
        raise HeadwayError(
            f"{kind!r} is not a model with a bias by distance: give one of {', '.join(T5_LIKE)} or mpnet"
        )
    modules[0].set_attn_implementation(NAME)
    for module in modules:
        if not hasattr(module, "has_relative_attention_bias"):
            continue
        if module.has_relative_attention_bias:
            _replace(module, "compute_bias", _t5_bias)
        elif "position_bias" in inspect.signature(module.forward).parameters:
            module.register_forward_pre_hook(_without_bias, with_kwargs=True)
    return model


def _replace(module: Any, name: str, by: Callable[..., Any]) -> None:
    """Replaces a method by ``by``, which is given the module and the method; a second call has no effect."""
    method = getattr(module, name)
    if not isinstance(method, partial):
        setattr(module, name, partial(by, module, method))


def _t5_bias(
    module: Any,
    dense: Callable[..., Tensor],
    query_length: int,
    key_length: int,
    device: torch.device | None = None,
    past_seen_tokens: int | Tensor = 0,
) -> Tensor | BiasTable:
    """Replaces T5Attention.compute_bias: calls ``dense`` for one query at every distance that has its own bias."""
    if module.config._attn_implementation != NAME:
        return dense(query_length, key_length, device=device, past_seen_tokens=past_seen_tokens)
    far = module.relative_attention_max_distance
    table = dense(1, 2 * far + 1, device=device, past_seen_tokens=far)[0, :, 0]
    return BiasTable(Rows(table, Clip(-far, far)), past_seen_tokens)


def _without_bias(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A hook before T5Attention.forward of a layer without a bias, which would otherwise make n² zeros."""
    if module.config._attn_implementation == NAME and kwargs.get("position_bias") is None:
        kwargs = {**kwargs, "position_bias": BiasTable(None)}
    return args, kwargs


def _mpnet_bias(encoder: Any, dense: Callable[..., Tensor], x: Tensor, **kwargs: Any) -> Tensor | BiasTable:
    """Replaces MPNetEncoder.compute_position_bias."""
    if encoder.config._attn_implementation != TABLE:
        return dense(x, **kwargs)
    table = dense(x.new_empty(1, 2 * MPNET_FAR + 1), **kwargs)[0, :, MPNET_FAR]
    return BiasTable(Rows(table, Clip(-MPNET_FAR, MPNET_FAR)))


def _mpnet_attention(
    module: Any,
    eager: Callable[..., tuple[Tensor, ...]],
    hidden_states: Tensor,
    attention_mask: Tensor | None = None,
    position_bias: Tensor | BiasTable | None = None,
    output_attentions: bool = False,
    **kwargs: Any,
) -> tuple[Tensor, ...]:
    """Replaces MPNetSelfAttention.forward, which does not call the attention interface."""
    if not isinstance(position_bias, BiasTable):
        return eager(hidden_states, attention_mask, position_bias, output_attentions=output_attentions, **kwargs)
    shape = (*hidden_states.shape[:-1], module.num_attention_heads, module.attention_head_size)
    q, k, v = (project(hidden_states).view(shape).transpose(1, 2) for project in (module.q, module.k, module.v))
    out, weights = attend(
        module,
        q,
        k,
        v,
        attention_mask,
        dropout=module.dropout.p,
        is_causal=False,
        position_bias=position_bias,
        output_attentions=output_attentions,
    )
    out = module.o(out.flatten(2))
    return (out,) if weights is None else (out, weights)
