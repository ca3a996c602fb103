"""What is the same in every call, made once: a short call would owe its time to making it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any, TypeVar

import torch

Made = TypeVar("Made")


def constant(make: Callable[..., Made], *arguments: Hashable) -> Made:
    """make(*arguments), for tensors that depend on nothing else; nobody may write to one.

    Where a compiler, a mode or a transform looks on, they are made anew: what it sees is no tensor for anybody else.
    """
    looked_on = torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0
    if looked_on or torch._C._are_functorch_transforms_active():
        return make(*arguments)
    made: Made = _made(make, *arguments)
    return made


@lru_cache(maxsize=64)
def _made(make: Callable[..., Any], *arguments: Hashable) -> Any:
    with torch.inference_mode(False):  # what is made in it could not be saved for a backward pass later
        return make(*arguments)
