"""Kernels, which compute attention, in order of preference."""

from ._base import ComposedKernel, Kernel
from ._blocks import ScoreBlock, score_blocks
from ._choose import Choice, choose, kernel_for
from ._native import NativeKernel
from ._parts import attend_in_parts, cut, merged, why_not_in_parts
from ._problem import Call, Problem
from ._reduce import reduce, reduce_blocks
from .cpu import CpuKernel
from .flex import FlexKernel
from .reference import ReferenceKernel
from .sdpa import SdpaKernel
from .triton import TritonKernel

KERNELS: dict[str, Kernel] = {
    "cpu": CpuKernel(),
    "triton": TritonKernel(),
    "sdpa": SdpaKernel(),
    "flex": FlexKernel(),
    "reference": ReferenceKernel(),
}

__all__ = [
    "KERNELS",
    "Call",
    "Choice",
    "ComposedKernel",
    "CpuKernel",
    "FlexKernel",
    "Kernel",
    "NativeKernel",
    "Problem",
    "ReferenceKernel",
    "ScoreBlock",
    "SdpaKernel",
    "TritonKernel",
    "attend_in_parts",
    "choose",
    "cut",
    "kernel_for",
    "merged",
    "reduce",
    "reduce_blocks",
    "score_blocks",
    "why_not_in_parts",
]
