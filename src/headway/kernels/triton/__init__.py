"""The Triton kernel: attention on an NVIDIA GPU, forward and backward, with biases and their gradients, in O(n) memory.

``_supports`` decides which calls it takes, and ``_installed`` whether triton is here. ``_lowered`` and ``_tables``
express a call in what the programs take: one number for each query, key, distance or pair. ``_launch`` gathers the
arguments of the programs, which are in ``_programs``, and ``_start`` starts them; these three are imported when the
first call runs, since they import triton.

Gradients are the same bits in every run: no program writes what another one writes, and nothing is added atomically.
With TRITON_INTERPRET=1 in the environment the kernel takes tensors on a CPU, for tests.
"""

from __future__ import annotations

from torch import Tensor

from .._autograd import ORDINARY
from .._base import Deferral
from .._native import NativeKernel, NotOrdinaryError
from .._problem import Call, Problem
from .._results import Gradients, Results
from . import _installed
from ._lowered import TritonCall, lower_for_programs
from ._supports import reasons_against


class TritonKernel(NativeKernel[TritonCall]):
    """Attention on an NVIDIA GPU in Triton, for biases, query scales, sinks and soft caps."""

    name = "triton"

    def why_not(self, problem: Problem) -> list[str]:
        return reasons_against(problem)

    def defers(self, problem: Problem) -> Deferral:
        return Deferral("reference", "it has not been run on a GPU yet: choose it by kernel='triton'")

    def note(self) -> str:
        return _installed.missing() or ""

    def lower(self, call: Call) -> TritonCall:
        return lower_for_programs(call)

    def forward(self, call: TritonCall, keep: bool) -> Results:
        from ._launch import Launch

        if not ORDINARY.issuperset(map(type, (call.q, call.k, call.v, *call.scores.tensors))):
            raise NotOrdinaryError
        return Launch(call).forward()

    def backward(
        self, call: TritonCall, results: Results, d_out: Tensor, d_lse: Tensor | None, partial_keys: bool = False
    ) -> Gradients:
        from ._launch import Launch

        return Launch(call).backward(results, d_out, d_lse, partial_keys)
