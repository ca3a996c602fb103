"""The device that a text names."""

from __future__ import annotations

import torch

from .errors import HeadwayError, unknown

__all__ = ["device_named"]

INSTALL = "https://pytorch.org/get-started/locally"


def device_named(name: str) -> str:
    """Returns the name of a device that can be used.

    Args:
        name: a torch device such as "cpu" or "cuda:1", or "auto" for CUDA if there is a GPU, else the CPU.

    Raises:
        HeadwayError: if there is no such device here.
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, number = name.partition(":")
    if kind == "cuda":
        _need_cuda(name, number)
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        if kind in ("cpu", "cuda", "mps", "xpu"):
            raise HeadwayError(f"device is {name!r}, which cannot be used here: give cpu, or auto") from None
        if kind == "gpu":
            raise HeadwayError(f"there is no device {name!r}: torch calls a GPU cuda, or mps on a Mac") from None
        raise unknown("device", name, ("auto", "cpu", "cuda", "mps")) from None
    return str(device)


def _need_cuda(name: str, number: str) -> None:
    if torch.version.cuda is None and torch.version.hip is None:
        raise HeadwayError(
            f"device is {name!r}, and this torch ({torch.__version__}) has no CUDA: give cpu, or install a torch with "
            f"CUDA, see {INSTALL}"
        )
    there = torch.cuda.device_count()
    if not torch.cuda.is_available():
        raise HeadwayError(f"device is {name!r}, and torch finds no GPU: give cpu, or see what nvidia-smi prints")
    if number.isdecimal() and int(number) >= there:
        raise HeadwayError(f"device is {name!r}, and there are {there} GPUs: give cuda:0 to cuda:{there - 1}")
