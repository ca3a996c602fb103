"""Attention that headway computes: ``nn.MultiHeadAttention``, swapped layers of torch, headway inside transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from torch import nn

from ...attention import Computed, observers
from ...kernels import Call
from ...nn import MultiHeadAttention
from .._padding import padding_of
from .._watch import Change, Frame, Site, Watch, unwatched
from .transformers import is_cross


class Headway:
    """Calls of ``headway.attention``, each as it is computed: with what an encoding has drawn, and with its dropout."""

    name = "headway"

    def is_layer(self, module: nn.Module) -> bool:
        return isinstance(module, MultiHeadAttention)

    @contextmanager
    def watched_by(self, watch: Watch) -> Iterator[None]:
        observer = partial(_observe, watch)
        observers.append(observer)
        try:
            yield
        finally:
            observers.remove(observer)


def _observe(watch: Watch, call: Call, compute: Callable[[], Computed]) -> Computed:
    if not watch.awake():
        return compute()

    def run(change: Change | None) -> Computed:
        with unwatched():
            out, lse = compute()
        return (out if change is None else change(out)), lse

    frame = watch.stack[-1]
    found: Computed = watch.found(
        lambda: Site(
            frame.module,
            Headway.name,
            _kind(frame, call),
            call,
            run,
            exact=True,
            padding=padding_of(watch.stack, call),
            replaces_output=_replaces_output(frame, call),
        )
    )
    return found


def _replaces_output(frame: Frame, call: Call) -> bool:
    """Whether a swapped layer of torch multiplies weights that it has dropped itself."""
    wanted = isinstance(frame.module, nn.MultiheadAttention) and frame.kwargs.get("need_weights", True)
    return bool(wanted and call.dropout)


def _kind(frame: Frame, call: Call) -> str:
    if isinstance(frame.module, (MultiHeadAttention, nn.MultiheadAttention)):
        query, key = frame.argument("query"), frame.argument("key")
        return "self" if key is None or key is query else "cross"
    return "cross" if is_cross(frame, call.q.shape[2], call.k.shape[2]) else "self"
