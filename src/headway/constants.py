"""What is the same in every call, made once: a short call would owe its time to making it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any, TypeVar

import torch

Made = TypeVar("Made")


def constant(make: Callable[..., Made], *arguments: Hashable, device: torch.device | str | None) -> Made:
    """make(*arguments, device), for tensors that depend on nothing else; nobody may write to one.

    They are kept on a processor that is named. Elsewhere they are made anew: another device has streams, and graphs
    that own what is made while they are captured; None is whatever device is the default then. So they are where a
    compiler, a mode or a transform looks on, which may take no tensor of somebody else's.
    """
    if torch.compiler.is_compiling() or not isinstance(device, torch.device) or device.type != "cpu":
        return make(*arguments, device)
    if torch._C._len_torch_dispatch_stack() > 0 or torch._C._are_functorch_transforms_active():
        return make(*arguments, device)
    made: Made = _made(make, *arguments, device)
    return made


@lru_cache(maxsize=64)
def _made(make: Callable[..., Any], *arguments: Hashable) -> Any:
    with torch.inference_mode(False):  # what is made in it could not be saved for a backward pass later
        return make(*arguments)
