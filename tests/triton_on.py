"""Runs the Triton kernel on a GPU in tests whose tensors are on a CPU: calls are moved there, and results back.

``pytest --triton-on cuda`` chooses these tests. Gradients go through the moves, so that what holds every kernel holds
this one on a GPU too. With TRITON_INTERPRET=1 the device may be "cpu".
"""

from __future__ import annotations

from torch import Tensor

from headway.kernels import KERNELS, Call, _ops
from headway.kernels._native import NativeKernel
from headway.kernels._problem import without_tables
from headway.kernels.triton import _installed


def moved(call: Call, device: str) -> Call:
    """Returns the call with all tensors on a device."""
    tensors: list[Tensor] = []
    structure = _ops.flatten(without_tables(call), tensors)
    found = _ops.unflatten(structure, [x.to(device) for x in tensors])
    assert isinstance(found, Call)
    return found


def install(device: str) -> None:
    """From now on the Triton kernel takes calls on a CPU, and runs them on a device."""
    kernel = KERNELS["triton"]
    assert isinstance(kernel, NativeKernel)
    runs, refuses = kernel._run, _installed.reason_against

    def run(call: Call) -> tuple[Tensor, Tensor | None]:
        home = call.q.device
        out, lse = runs(moved(kernel.rotated(call), device))
        return out.to(home), None if lse is None else lse.to(home)

    kernel._run = run  # type: ignore[method-assign]
    _installed.reason_against = lambda found: refuses(device if found == "cpu" else found)
