"""What a kernel is: reasons against a call, and running it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar

import torch
from torch import Tensor

from .._torch import any_autocast
from ..terms import Rotation
from ._problem import Call, Problem


class Kernel(ABC):
    """One way of computing attention. Kernels know terms and masks; none knows an encoding."""

    name: ClassVar[str]

    @abstractmethod
    def why_not(self, problem: Problem) -> list[str]:
        """Every reason why this kernel cannot run the call; empty where it can. Reads metadata only."""

    def defers(self, problem: Problem) -> str | None:
        """Why ``auto`` leaves a call that this kernel could run to a later one; None where it does not."""
        return None

    def note(self) -> str:
        """What is less here than it could be, for ``explain``; empty where nothing is."""
        return ""

    def rotate(self, x: Tensor, rotation: Rotation) -> Tensor:
        """q, k, v or the output turned, where the kernel does not do it on load."""
        return rotation.of(x)

    def rotated(self, call: Call) -> Call:
        """The call with q, k and v turned."""
        return call.rotated(self.rotate)

    def restored(self, call: Call, out: Tensor) -> Tensor:
        """The output of attention from the weighted sums of the values, in their dtype: turned, and the rest."""
        if call.out_rotation is not None:
            out = self.rotate(out, call.out_rotation)
        return out if call.restore is None else call.restore(out)

    @abstractmethod
    def run(self, call: Call) -> tuple[Tensor, Tensor | None]:
        """The output of attention, and the log-sum-exp [batch, heads, n] if it was wanted.

        The output is [batch, heads, n, v's head_dim] in q's dtype, ``restored``.
        """


class ComposedKernel(Kernel):
    """A kernel made of torch's own operations: autograd, compilers and transforms see through it.

    It gives no statistics, so that ``why_not`` refuses calls that want the log-sum-exp.
    """

    @abstractmethod
    def compute(self, call: Call) -> Tensor:
        """out of a call whose rotations are done, outside of autocast."""

    def run(self, call: Call) -> tuple[Tensor, Tensor | None]:
        with without_autocast(call.q):
            out = self.compute(self.rotated(call))
        return self.restored(call, out), None


def without_autocast(x: Tensor) -> AbstractContextManager[object]:
    """Inside, dtypes are what the kernel makes them: q, k and v have been cast already, and terms stay as they are."""
    return torch.autocast(x.device.type, enabled=False) if autocasts(x) else nullcontext()


def autocasts(x: Tensor) -> bool:
    """Whether autocast is at work on the device of x."""
    if not any_autocast():
        return False
    device = x.device.type
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
