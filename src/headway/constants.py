"""What is the same in every call, made once: a short call would owe its time to making it."""

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
"""Things kept for each thread; what was made first goes first."""


class _Kept(threading.local):
    """For each thread its own: what one thread writes into, no other reads."""

    def __init__(self) -> None:
        self.made: dict[Any, tuple[Any, tuple[Tensor, ...], int]] = {}


_kept = _Kept()


def constant(make: Callable[..., Made], *arguments: Hashable, device: torch.device | str | None) -> Made:
    """make(*arguments, device), for tensors that depend on nothing else; nobody may write to one.

    What somebody has written to all the same is made anew. Writes through ``.data`` and numpy are not seen.

    They are kept on a processor that is named. Elsewhere they are made anew: another device has streams, and graphs
    that own what is made while they are captured; None is whatever device is the default then. So they are where a
    compiler, a tracer, a mode or a transform looks on, which may take no tensor of somebody else's.
    """
    if watched() or not isinstance(device, torch.device) or device.type != "cpu":
        return make(*arguments, device)
    key = (make, arguments, device)
    kept = _kept.made.get(key)
    if kept is not None:
        made_before, guards, version = kept
        if (writes_of(guards[0]) if len(guards) == 1 else writes(guards)) == version:
            return cast(Made, made_before)
    with torch.inference_mode(False):  # what is made in it could not be saved for a backward pass later
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
    """How often all the tensors together have been written into in place, through themselves or views of them.

    Tensors made in inference mode do not count, nor do writes through ``.data`` and numpy, nor any while a compiler
    looks on.
    """
    if torch.compiler.is_compiling():
        return 0
    try:
        return sum(map(writes_of, tensors))
    except RuntimeError:
        return sum(writes_of(x) for x in tensors if not x.is_inference())
