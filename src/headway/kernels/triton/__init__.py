"""The Triton kernel: attention on an NVIDIA GPU, forward and backward, with biases and their gradients, in O(n) memory.

``_supports`` decides which calls it takes, and ``_installed`` whether triton is available. ``_lowered``, ``_tables``
and ``_relative`` lower a call to the inputs of the programs: numbers for each query, key, distance or pair, and
relative vectors. Rotations are applied before (``_rotations``). ``_launch`` gathers the arguments of the programs
(``programs``); ``_forward``, ``_reductions`` and ``_backward`` choose the programs, and ``_start`` starts them. These
files import triton, so the first call imports them.

Gradients are the same bits in every run: programs never write to the same place, and nothing is added atomically. With
TRITON_INTERPRET=1 in the environment the kernel takes tensors on a CPU, for tests.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..._torch import stream_of
from ...reductions import Reduction
from ...terms import Rotation
from ...tracing import without_autocast
from .. import _tuned
from .._autograd import ORDINARY
from .._base import Deferral
from .._masks import evaluated
from .._native import NativeKernel, NotOrdinaryError, recorded
from .._problem import Call, Problem, of_weights, without_tables
from .._results import ForwardResults, Gradients
from . import _installed
from ._choices import MAX_SPLIT_ROWS
from ._lowered import TritonCall, lower_for_programs
from ._rotations import rotate
from ._supports import reasons_against, reasons_against_reductions

if TYPE_CHECKING:
    from ._prepared import PreparedCall


class TritonKernel(NativeKernel[TritonCall]):
    """Attention on an NVIDIA GPU in Triton, forward and backward."""

    name = "triton"

    def why_not(self, problem: Problem) -> list[str]:
        return reasons_against(problem)

    def defers(self, problem: Problem) -> Deferral | None:
        return _tuned.deferral_if_verified("triton", problem)

    def note(self, problem: Problem) -> str:
        return _installed.missing() or (_tuned.note("triton", problem) if problem.device == "cuda" else "")

    def rotate(self, x: Tensor, rotation: Rotation) -> Tensor:
        return rotate(x, rotation)

    def lower(self, call: Call) -> TritonCall:
        return lower_for_programs(call)

    @staticmethod
    def environment(q: Tensor, k: Tensor, v: Tensor) -> Hashable:
        if not (q.is_cuda or q.is_cpu) or not q.device == k.device == v.device:
            return None
        stream = stream_of(q.get_device()) if q.is_cuda else -1
        if stream is None:  # a graph is being captured, and prepared tensors may be gone when it runs
            return None
        aligned = q.data_ptr() % 16 == 0, k.data_ptr() % 16 == 0, v.data_ptr() % 16 == 0
        return q.device, stream, aligned, _tuned.generation

    def prepare(self, call: Call, terms_vary: bool) -> PreparedCall | str:
        from ._prepared import PreparedCall

        return PreparedCall.of(call, terms_vary)

    def forward(self, call: TritonCall, keep: bool) -> ForwardResults:
        from ._forward import Forward

        if not ORDINARY.issuperset(map(type, (call.q, call.k, call.v, *call.scores.tensors))):
            raise NotOrdinaryError
        return Forward(call).run()

    def backward(
        self, call: TritonCall, results: ForwardResults, d_out: Tensor, d_lse: Tensor | None, partial_keys: bool = False
    ) -> Gradients:
        from ._backward import Backward

        return Backward(call, results, d_out, d_lse, partial_keys).run()

    def why_not_reduce(self, problem: Problem, reductions: Sequence[Reduction]) -> list[str]:
        return reasons_against_reductions(problem, reductions)

    def reduce(self, call: Call, reductions: Sequence[Reduction], counted: Tensor | None = None) -> list[Any]:
        return self._reduce(of_weights(call), reductions, counted)[1]

    def reduces_as_it_runs(self, call: Call) -> bool:
        # a few queries split their keys, which sums in another order
        return call.q.shape[1] * call.q.shape[2] > MAX_SPLIT_ROWS * call.k.shape[1] and not recorded(call)

    def run_and_reduce(
        self, call: Call, reductions: Sequence[Reduction], counted: Tensor | None = None
    ) -> tuple[Tensor, list[Any]]:
        results, values = self._reduce(call, reductions, counted)
        out = self.restored(call, results.out)
        return out if out.dtype == call.q.dtype else out.to(call.q.dtype), values

    def _reduce(
        self, call: Call, reductions: Sequence[Reduction], counted: Tensor | None
    ) -> tuple[ForwardResults, list[Any]]:
        from ._reductions import reduce_by_programs

        with without_autocast(call.q):
            return reduce_by_programs(self.lower(without_tables(self.rotated(evaluated(call)))), reductions, counted)
