"""Attention inside Hugging Face transformers, whatever implementation a model's config names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ...call import make_call
from ...coordinates import Coordinates
from ...errors import HeadwayError
from ...integrations.transformers._attention import arguments_of
from ...integrations.transformers._library import NAME, TABLE, import_transformers
from ...kernels import Call
from ...masks import And, Boolean, Causal, Mask, Window
from .._padding import CACHES, located, padding_of
from .._watch import Change, Finder, Found, Frame, Site, frame_of, unwatched
from ._base import Observers, mentions

CONTEXT = ("key_value_states", "encoder_hidden_states", "context")
"""The names of the states that transformers' layers of cross-attention attend to."""


class Transformers:
    """Calls through ``AttentionInterface``: eager, sdpa, flex_attention, flash_attention and registered functions.

    ``Headway`` finds the calls that headway computes.
    """

    name = "transformers"

    def __init__(self) -> None:
        self._observers = Observers()

    def is_layer(self, module: nn.Module) -> bool:
        return mentions(type(module), "get_interface")

    def _may_call(self, module: nn.Module) -> bool:
        """Whether a module, or a function that it calls, may go through the interface."""
        return type(module).__module__.partition(".")[0].startswith("transformers") or self.is_layer(module)

    @contextmanager
    def found_by(self, finder: Finder) -> Iterator[None]:
        if not any(map(self._may_call, finder.name_of)):
            yield
            return
        interface = import_transformers().AttentionInterface
        with self._observers.joined_by(finder, interface, "get_interface", self._observing):
            yield

    def _observing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the ``get_interface`` that is in place during a capture."""

        def get_interface(interface: Any, implementation: str, default: Any) -> Any:
            function = original(interface, implementation, default)
            finders = [] if implementation in (NAME, TABLE) else self._observers.awake()
            for finder in reversed(finders):
                function = partial(_observe, finder, implementation, function)
            return function

        return get_interface


def _observe(
    finder: Finder,
    implementation: str,
    function: Callable[..., tuple[Tensor, Any]],
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any = None,
    *given: Any,
    **kwargs: Any,
) -> tuple[Tensor, Any]:
    """Computes the attention of a layer, as the model does."""
    if not finder.awake():
        return function(module, query, key, value, attention_mask, *given, **kwargs)

    def run(change: Change | None) -> tuple[Tensor, Any]:
        with unwatched():
            out, weights = function(module, query, key, value, attention_mask, *given, **kwargs)
        return (out if change is None else change(out.transpose(1, 2)).transpose(1, 2).contiguous()), weights

    def site() -> Site:
        frame = frame_of(finder.stack, module)
        made = _call(frame, implementation, query, key, value, attention_mask, given, kwargs)
        cross = is_cross(frame, made.q.shape[2], made.k.shape[2])
        padding = padding_of(finder.stack, made)
        if not cross:
            made = located(made, finder.stack)
        return Site(
            Transformers.name,
            "cross" if cross else "self",
            made,
            rows=lambda result, rows: result[0][:, rows].transpose(1, 2),
            padding=padding,
            dropout=kwargs.get("dropout", given[0] if given else 0.0),
        )

    computed: tuple[Tensor, Any] = finder.found(Found(module, run, site))
    return computed


def _call(
    frame: Frame,
    implementation: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Any,
    given: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Call:
    """The call as headway computes it, before dropout."""
    module = frame.module
    m = key.shape[2]
    if type(kwargs.get("cache")).__name__ == "PagedAttentionCache":
        raise HeadwayError("its cache is paged, for continuous batching: take model.generate")
    if implementation == "eager":
        kwargs = {**kwargs, "is_causal": False}  # eager reads only its mask
    elif "flash" in implementation or (isinstance(mask, Tensor) and mask.ndim == 2):
        mask, kwargs = _flash_mask(module, query, m, mask, kwargs)
    elif not isinstance(mask, Tensor) and mask is not None:
        mask = _block_mask(mask, query, m)
    query, arguments = arguments_of(module, query, key, mask, *given, **kwargs)
    arguments["dropout"] = 0.0
    return make_call(query, key, value, **arguments)


def _block_mask(mask: Any, query: Tensor, m: int) -> Tensor:
    """The boolean mask of a BlockMask of FlexAttention."""
    batch, heads = mask.shape[:2]
    device = query.device
    axes = [torch.arange(size, device=device) for size in (batch, heads, query.shape[2], m)]
    allowed: Tensor = mask.mask_mod(*(x.view([-1 if i == j else 1 for j in range(4)]) for i, x in enumerate(axes)))
    return allowed.expand(batch, heads, query.shape[2], m)


def _flash_mask(
    module: nn.Module, query: Tensor, m: int, mask: Tensor | None, kwargs: dict[str, Any]
) -> tuple[Tensor | None, dict[str, Any]]:
    """The boolean mask of FlashAttention's arguments: padding of the keys, causality, and a window."""
    if kwargs.get("cu_seq_lens_q") is not None:
        raise HeadwayError("documents are packed by cu_seq_lens: load the model with attn_implementation='sdpa'")
    n, device = query.shape[2], query.device
    causal, window = kwargs.get("is_causal"), kwargs.get("sliding_window")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    parts: list[Mask] = [Causal()] if causal and n > 1 else []
    if window is not None:
        parts.append(Window(left=window - 1, right=0 if causal else window - 1))
    if mask is not None:
        parts.append(Boolean(mask[:, None, None, :m].bool()))
    if not parts:
        return None, {**kwargs, "is_causal": False}
    q_at, k_at = Coordinates.span(n, start=m - n, device=device), Coordinates.span(m, device=device)
    return And(tuple(parts)).allowed(q_at, k_at), kwargs


def is_cross(frame: Frame, n: int, m: int) -> bool:
    """Whether a layer attends to another sequence."""
    if any(frame.argument(name) is not None for name in CONTEXT):
        return True
    cached = frame.argument(*CACHES) is not None
    return n != m and not cached and not getattr(frame.module, "is_causal", False)
