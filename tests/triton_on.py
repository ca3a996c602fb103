"""Runs the Triton kernel on a GPU in tests whose tensors are on a CPU: calls are moved there, and results back.

``pytest --triton-on cuda`` chooses these tests. Gradients go through the moves, so that what holds every kernel holds
this one on a GPU too. With TRITON_INTERPRET=1 the device may be "cpu".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map_only

from headway.kernels import KERNELS, Call, _ops
from headway.kernels._problem import without_tables
from headway.kernels._results import ForwardResults
from headway.kernels.triton import TritonKernel, _installed
from headway.reductions import Reduction
from headway.terms import Rotation


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
    assert isinstance(kernel, TritonKernel)
    runs, reduces, rotates, refuses = kernel._run, kernel._reduce, kernel.rotate, _installed.reason_against

    def run(call: Call) -> tuple[Tensor, Tensor | None]:
        home = call.q.device
        if home.type == device:
            return runs(call)
        out, lse = runs(moved(kernel.rotated(call), device))
        return out.to(home), None if lse is None else lse.to(home)

    def reduce(call: Call, reductions: Sequence[Reduction], counted: Tensor | None) -> tuple[ForwardResults, list[Any]]:
        there = [
            replace(one, **{name: x.to(device) for name, x in vars(one).items() if isinstance(x, Tensor)})
            for one in reductions
        ]
        counted = None if counted is None else counted.to(device)
        results, values = reduces(moved(kernel.rotated(call), device), there, counted)
        home = call.q.device
        return ForwardResults(*(x.to(home) for x in results)), tree_map_only(Tensor, lambda x: x.to(home), values)

    def rotate(x: Tensor, rotation: Rotation) -> Tensor:
        there = rotation._with(cos=rotation.cos.to(device), sin=rotation.sin.to(device))
        return rotates(x.to(device), there).to(x.device)

    kernel.rotate = rotate  # type: ignore[method-assign]
    kernel._run = run  # type: ignore[method-assign]
    kernel._reduce = reduce  # type: ignore[method-assign]
    _installed.reason_against = lambda found: refuses(device if found == "cpu" else found)
