"""Attention computed by headway: ``nn.MultiHeadAttention``, swapped layers of torch, headway inside transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn

from ...attention import Computation, Computed, observing
from ...kernels import Call, Problem
from ...nn import LatentAttention, MultiHeadAttention
from ...reductions import Reduction
from .._padding import padding_of
from .._watch import Change, Finder, Found, Frame, Site, unwatched
from .transformers import is_cross


class Headway:
    """Calls of ``headway.attention`` as they are computed, with an encoding's random numbers and with dropout."""

    name = "headway"

    def is_layer(self, module: nn.Module) -> bool:
        return isinstance(module, (MultiHeadAttention, LatentAttention))

    @contextmanager
    def found_by(self, finder: Finder) -> Iterator[None]:
        with observing(partial(_observe, finder)):
            yield


def _observe(finder: Finder, call: Call, compute: Callable[[], Computed]) -> Computed:
    if not finder.awake():
        return compute()

    def run(change: Change | None) -> Computed:
        with unwatched():
            out, lse = compute()
        return (out if change is None else change(out)), lse

    frame = finder.stack[-1]

    def site() -> Site:
        return Site(
            Headway.name,
            _kind(frame, call),
            call,
            exact=True,
            padding=padding_of(finder.stack, call, getattr(compute, "slots", ())),
            total=getattr(compute, "total", None),
            replaces_output=_replaces_output(frame, call),
            run_and_reduce=partial(_run_and_reduce, compute),
        )

    computed: Computed = finder.found(Found(frame.module, run, site))
    return computed


def _run_and_reduce(
    compute: Callable[[], Computed], reductions: Sequence[Reduction], counted: Tensor | None
) -> tuple[Computed, list[Any]] | None:
    """The output and the reductions in one pass of the kernel; None if the kernel cannot compute both."""
    if not isinstance(compute, Computation):
        return None
    call, kernel = compute.call, compute.kernel
    with unwatched():
        if call.wants_lse or not kernel.reduces_as_it_runs(call):
            return None
        if kernel.why_not_reduce(Problem.of(call), reductions):
            return None
        out, values = kernel.run_and_reduce(call, reductions, counted)
    return (out, None), values


def _replaces_output(frame: Frame, call: Call) -> bool:
    """Whether a swapped layer of torch itself drops weights before it multiplies them."""
    wanted = isinstance(frame.module, nn.MultiheadAttention) and frame.kwargs.get("need_weights", True)
    return bool(wanted and call.dropout)


def _kind(frame: Frame, call: Call) -> str:
    if isinstance(frame.module, (MultiHeadAttention, LatentAttention, nn.MultiheadAttention)):
        query, key = frame.argument("query"), frame.argument("key")
        return "self" if key is None or key is query else "cross"
    return "cross" if is_cross(frame, call.q.shape[2], call.k.shape[2]) else "self"
