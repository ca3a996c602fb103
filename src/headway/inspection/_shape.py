"""The heads of an attention module before it runs, by the names that libraries give to their sizes."""

from __future__ import annotations

from torch import nn

from ..errors import HeadwayError

HEADS = ("num_heads", "num_attention_heads", "n_heads", "nhead", "n_head")
KV_HEADS = ("num_kv_heads", "num_key_value_heads")
HEAD_DIM = ("head_dim", "attention_head_size", "key_value_proj_dim", "d_kv")
WIDTH = ("embed_dim", "hidden_size", "d_model", "n_embd")


def heads_of(module: nn.Module) -> int | None:
    """The number of query heads; None if the module does not say it."""
    return _said(module, HEADS)


def shape_of(module: nn.Module, name: str) -> tuple[int, int, int]:
    """The query heads, the key heads and head_dim of a module of this name.

    Raises HeadwayError if the module does not say them.
    """
    heads, width, head_dim = heads_of(module), _said(module, WIDTH), _said(module, HEAD_DIM)
    if heads is None or (width is None and head_dim is None):
        raise HeadwayError(f"{name!r} does not say its heads: read size after a short call")
    return heads, _said(module, KV_HEADS) or heads, (width or 0) // heads if head_dim is None else head_dim


def _said(module: nn.Module, names: tuple[str, ...]) -> int | None:
    found = [getattr(place, name, None) for place in (module, getattr(module, "config", None)) for name in names]
    return next((x for x in found if isinstance(x, int) and not isinstance(x, bool)), None)
