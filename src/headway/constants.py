"""A cache of constant tensors, since creating them takes most of the time of a short call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from ._torch import writes_of
from .tracing import watched

Made = TypeVar("Made")

MOST = 64
"""The number of results cached for each thread; the oldest is removed first."""


class _Kept(threading.local):
    """The cache of a thread, so that no thread reads what another one writes into."""

    def __init__(self) -> None:
        self.made: dict[Any, tuple[Any, tuple[Tensor, ...], int]] = {}


_kept = _Kept()


def constant(make: Callable[..., Made], *arguments: Hashable, device: torch.device | str | None) -> Made:
    """Returns ``make(*arguments, device)``, cached; the result must depend on nothing else and must not be written to.

    A result that was written to in place anyway is made again; writes through ``.data`` and numpy are not noticed.

    Results are cached only for an explicit CPU device. Other devices have streams, and graphs that own the memory that
    they capture; None means the current default device. Under a compiler, a tracer, a mode or a transform, which must
    not take tensors from outside, results are made again too.

    Args:
        make: a function that returns a tensor, a tuple of tensors, or ``Coordinates``.
        *arguments: its arguments, before the device.
        device: its last argument.
    """
    if watched() or not isinstance(device, torch.device) or device.type != "cpu":
        return make(*arguments, device)
    key = (make, arguments, device)
    kept = _kept.made.get(key)
    if kept is not None:
        made_before, guards, version = kept
        if (writes_of(guards[0]) if len(guards) == 1 else writes(guards)) == version:
            return cast(Made, made_before)
    with torch.inference_mode(False):  # an inference tensor could not be saved for a backward pass later
        made = make(*arguments, device)
    if isinstance(made, Tensor):
        guards = (made,)
    else:
        guards = made if isinstance(made, tuple) else (made.index,)  # type: ignore[attr-defined]
    if len(_kept.made) >= MOST:
        del _kept.made[next(iter(_kept.made))]
    _kept.made[key] = made, guards, writes(guards)
    return made


def writes(tensors: Sequence[Tensor]) -> int:
    """Returns how often the tensors have been written into in place, in total, directly or through views.

    Tensors made in inference mode and writes through ``.data`` and numpy do not count; under a compiler it is 0.
    """
    if torch.compiler.is_compiling():
        return 0
    try:
        return sum(map(writes_of, tensors))
    except RuntimeError:
        return sum(writes_of(x) for x in tensors if not x.is_inference())
