"""Whether triton is installed, and whether it can run on the device of a call."""

from __future__ import annotations

import os
from functools import cache
from importlib import metadata

import torch

from ..._torch import constant_in_graphs
from .._problem import is_older

OLDEST, OLDEST_GPU = (3, 6), (8, 0)
NAMES = ("triton", "pytorch-triton")
"""The names of its packages: of releases, and of the version that nightly builds of torch install."""


@constant_in_graphs
def interprets() -> bool:
    """Whether triton was told to interpret programs, which then take tensors on a CPU."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "y", "yes")


@constant_in_graphs  # computed once, in the first call
def missing() -> str | None:
    """Returns why triton cannot be used; None if it can. Does not import it."""
    return _missing()


@cache
def _missing() -> str | None:
    for name in NAMES:
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        numbers = tuple([int(part) for part in version.split("+")[0].split(".")[:2]])
        if numbers < OLDEST:
            return f"{name} {version} is too old: install {OLDEST[0]}.{OLDEST[1]} or later"
        return None
    return "triton is not installed: it comes with torch for CUDA"


def reason_against(device: str) -> str | None:
    """Returns why triton's programs cannot run on a type of device; None if they can."""
    if device == "cpu" and interprets():
        return missing()
    if device != "cuda":
        return f"it runs on an NVIDIA GPU, and q is on {device}"
    if torch.version.hip is not None:
        return "it has not been tried on AMD's GPUs"
    return missing()


def too_old(capability: tuple[int, int] | None) -> str | None:
    """Returns why triton's programs cannot run at a compute capability; None if they can, or without a GPU."""
    if capability is None or not is_older(capability, OLDEST_GPU):
        return None
    return f"the GPU has compute capability {capability[0]}.{capability[1]}: it needs 8.0 (Ampere) or later"
