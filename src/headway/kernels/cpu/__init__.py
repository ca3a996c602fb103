"""The CPU kernel: attention in C++, forward and backward, in O(n) memory, for all terms except Python functions.

``_supports`` decides which calls it takes, and ``_defers`` which of them it leaves to torch's SDPA. ``_describe``
writes a lowered call as the int64 words that csrc/call.h reads. ``_prepared`` and ``_step`` keep the words for later
calls. ``_library`` finds the compiled library and calls it. csrc/README.md explains the C++.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...reductions import Reduction, TopKeys
from ...terms import PRODUCTS, HeadNetwork, Rotation, Sink, StickWeights
from ...tracing import watched, without_autocast
from .. import _tuned
from .._autograd import ORDINARY
from .._base import Deferral
from .._masks import evaluated, without_unseen
from .._native import NativeKernel, NotOrdinaryError, recorded
from .._parts import merged, sink_gradients, sinks_of
from .._pieces import IN_PIECES, is_in_pieces, pieces_of
from .._problem import Call, Problem, of_weights, without_tables
from .._results import ForwardResults, Gradients, new_out, new_results
from ..lowering import LoweredCall, lower
from . import _library
from ._defers import DECODE_QUERIES, deferral
from ._describe import begin, describe_backward, describe_forward, finish
from ._prepared import PreparedCall
from ._reductions import REDUCTIONS, calls_for
from ._step import PreparedStep
from ._supports import reasons_against
from ._tokens import RotationByRows, rotate

MANY = (1 << 31) - 1
IN_PIECES_ALONE = "the call is computed in pieces, whose results are merged"


class Pieces(NamedTuple):
    """A call that is computed in pieces.

    Attributes:
        calls: yields the lowered pieces, without sinks. Each is made on demand, so that the one before can be freed.
        sinks: the sinks of the call.
    """

    calls: Iterator[LoweredCall]
    sinks: list[Sink]


class CpuKernel(NativeKernel[LoweredCall | Pieces]):
    """Attention in C++ on a CPU with all gradients, in O(n) memory, for all terms except Python functions."""

    name = "cpu"
    step_queries = DECODE_QUERIES

    @staticmethod
    def environment(q: Tensor, k: Tensor, v: Tensor) -> Hashable:
        if not (q.is_cpu and k.is_cpu and v.is_cpu):
            return None
        return _library.environment(), _tuned.generation

    def why_not(self, problem: Problem) -> list[str]:
        return reasons_against(problem)

    def defers(self, problem: Problem) -> Deferral | None:
        return deferral(problem)

    def note(self, problem: Problem) -> str:
        return "; ".join(filter(None, (_library.note(), _tuned.note("cpu", problem))))

    def rotate(self, x: Tensor, rotation: Rotation) -> Tensor:
        return rotate(x, rotation)

    def rotation_by_rows(self, rotation: Rotation) -> RotationByRows | None:
        return RotationByRows.of(rotation)

    def lower(self, call: Call) -> LoweredCall | Pieces:
        if torch.is_grad_enabled() and any(isinstance(term, PRODUCTS) for term in call.terms):
            call = without_unseen(call)
        if not is_in_pieces(call.terms):
            return lower(call)
        return Pieces(map(lower, pieces_of(call)), sinks_of(call) if call.include_sink else [])

    def prepare(self, call: Call, terms_vary: bool) -> PreparedCall | str:
        if is_in_pieces(call.terms):
            return IN_PIECES_ALONE
        return PreparedCall.of(call, terms_vary)

    def prepare_step(self, call: Call, terms_vary: bool) -> PreparedStep | str:
        if is_in_pieces(call.terms):
            return IN_PIECES_ALONE
        return PreparedStep.of(call, terms_vary)

    def forward(self, call: LoweredCall | Pieces, keep: bool) -> ForwardResults:
        if isinstance(call, Pieces):
            return merged([self.forward(piece, True) for piece in call.calls], call.sinks)
        results = (
            new_results(call.q, call.v, call.q.dtype) if keep else ForwardResults(new_out(call.q, call.v, call.q.dtype))
        )
        descriptor = describe_forward(call, results)
        if not ORDINARY.issuperset(map(type, descriptor.keep_alive)):
            raise NotOrdinaryError
        _library.run(descriptor.words)
        return results

    def why_not_reduce(self, problem: Problem, reductions: Sequence[Reduction]) -> list[str]:
        if watched() or torch.compiler.is_compiling():
            return ["it computes reductions only where no compiler or mode observes the call"]
        for term in problem.terms:
            if isinstance(term, (StickWeights, HeadNetwork, *IN_PIECES)):
                return [f"it has no reductions of {type(term).__name__}"]
        kinds = dict.fromkeys(type(one) for one in reductions)
        if problem.m >= MANY and TopKeys in kinds:
            return [f"it finds the largest weights among at most {MANY - 1:,} keys"]
        return [f"it has no reduction {kind.__name__}" for kind in kinds if kind not in REDUCTIONS]

    def reduce(self, call: Call, reductions: Sequence[Reduction], counted: Tensor | None = None) -> list[Any]:
        return self._reduce(of_weights(call), reductions, counted)[1]

    def reduces_as_it_runs(self, call: Call) -> bool:
        # decoding of a few queries sums in another order; reductions are of weights before dropout
        return call.q.shape[2] > DECODE_QUERIES and not call.dropout and not recorded(call)

    def run_and_reduce(
        self, call: Call, reductions: Sequence[Reduction], counted: Tensor | None = None
    ) -> tuple[Tensor, list[Any]]:
        out, values = self._reduce(call, reductions, counted)
        out = self.restored(call, out)
        return out if out.dtype == call.q.dtype else out.to(call.q.dtype), values

    def _reduce(self, call: Call, reductions: Sequence[Reduction], counted: Tensor | None) -> tuple[Tensor, list[Any]]:
        """Returns the output before it is restored, and the reductions."""
        with without_autocast(call.q):
            lowered = lower(without_tables(self.rotated(evaluated(call))))
            calls, numbers = calls_for(reductions, lowered, counted)
            for words in calls:
                descriptor = begin(lowered, False)
                words.results = new_results(lowered.q, lowered.v, lowered.q.dtype)
                for x in words.results:
                    descriptor.fresh(x)
                finish(descriptor, lowered, words.add_to)
                _library.run(descriptor.words)
        values = [iter(words.values()) for words in calls]
        return calls[0].results.out, [next(values[number]) for number in numbers]

    def backward(
        self,
        call: LoweredCall | Pieces,
        results: ForwardResults,
        d_out: Tensor,
        d_lse: Tensor | None,
        partial_keys: bool = False,
    ) -> Gradients:
        if isinstance(call, Pieces):
            gradients = sink_gradients(call.sinks, results, d_out, d_lse)
            for piece in call.calls:
                gradients += self.backward(piece, results, d_out, d_lse, partial_keys=True)
            return gradients
        descriptor = describe_backward(call, results, d_out, d_lse, partial_keys)
        _library.run(descriptor.words)
        return descriptor.gradients
