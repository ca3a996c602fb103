"""Finds the device that a text names, and parameters that are on no device."""

from __future__ import annotations

import torch
from torch import nn

from ..errors import HeadwayError, unknown

__all__ = ["device_named", "need_numbers"]

INSTALL = "https://pytorch.org/get-started/locally"


def device_named(name: str) -> str:
    """Returns the name of a device that can be used; "auto" stands for CUDA if there is a GPU, else the CPU.

    Raises:
        HeadwayError: if this machine has no such device.
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


def need_numbers(module: nn.Module, device: torch.device, name: str) -> None:
    """Checks that a module whose parameters are read without calling it has numbers, as a computation needs them.

    Libraries that keep weights elsewhere leave parameters on meta and fetch them only for calls of their own module.
    Some of torch's products of a tensor on the CPU and one on meta return uninitialized memory.

    Args:
        module: the module that owns the parameters.
        device: the device of the computation.
        name: the name of the module in the message.

    Raises:
        HeadwayError: if a parameter or buffer is on meta and the device is another.
    """
    if device.type == "meta" or torch.compiler.is_compiling():
        return
    for key, held in (*module.named_parameters(), *module.named_buffers()):
        if held.device.type == "meta":
            raise HeadwayError(
                f"{key} of {name} is on meta, without numbers, and the input on {device}: move it there; if a library "
                "fetches weights for calls of their own module (accelerate's cpu_offload), let it offload what has no "
                "encodings, such as the blocks of a stack: for block in model.stack.blocks: cpu_offload(block)"
            )


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
