"""The base classes of kernels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from ..coordinates import Coordinates
from ..reductions import Reduction
from ..terms import Rotation, Term
from ..tracing import without_autocast
from ._problem import Call, Problem
from ._results import ForwardResults, Gradients


class Deferral(NamedTuple):
    """Why "auto" leaves a call to another kernel that can run it.

    Attributes:
        to: the name of the other kernel, which is later in the table.
        why: the reason, for ``explain``.
    """

    to: str
    why: str


class Prepared(Protocol):
    """A call that was prepared once and can be repeated for other q, k and v of the same shapes and strides."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, terms: tuple[Term, ...] = ()) -> Tensor | None:
        """Returns the output, with ``terms`` in place of the first call's; None if the preparation does not fit."""


class PreparedStep(Protocol):
    """A decoding step that was prepared once and can be repeated for any number of keys."""

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, terms: tuple[Term, ...], sides: tuple[Coordinates, Coordinates] | None
    ) -> Tensor | None:
        """Returns the output, with ``terms`` in place of the first step's; None if the preparation does not fit.

        ``sides`` are the coordinates of queries and keys; without them, keys stand at 0, 1, 2 …
        """

    def of_storage(self, k: Tensor, v: Tensor) -> StoredStep | None:
        """Returns the step for keys and values that fill the front of a storage; None if the kernel cannot read it.

        The caller keeps the storage alive.
        """


class StoredStep(Protocol):
    """A decoding step whose keys and values fill the front of a storage."""

    def __call__(self, q: Tensor, m: int, terms: tuple[Term, ...]) -> Tensor | None:
        """Returns the output for the last of m keys, which stand at 0, 1, 2 …; None as ``PreparedStep`` does."""


class RotationByRows(Protocol):
    """A rotation of a block of tokens; each call uses some of its rows."""

    def __call__(self, x: Tensor, row: int, out: Tensor | None = None) -> Tensor | None:
        """Returns x [batch, heads, n, head_dim] rotated by the n rows from ``row`` on; None if it cannot do so.

        The result is written into ``out`` if that is given.
        """


class Kernel(ABC):
    """The base class of kernels, which know terms, masks and rotations, but no encoding."""

    name: ClassVar[str]
    step_queries: ClassVar[int] = 0
    """The kernel prepares decoding steps of at most this many queries."""

    @abstractmethod
    def why_not(self, problem: Problem) -> list[str]:
        """Returns every reason why this kernel cannot run a call; none if it can.

        Args:
            problem: the facts of the call. Values of tensors are not read.
        """

    def defers(self, problem: Problem) -> Deferral | None:
        """Returns the kernel to which "auto" should leave a call that this one can run, and why; None if there is none.

        Args:
            problem: the facts of the call.
        """
        return None

    def note(self, problem: Problem) -> str:
        """Returns a note for ``explain`` on a kernel that can run a call; empty if there is none.

        The note states a limitation of this installation, such as a missing library, or what was verified on the
        device of the call.

        Args:
            problem: the facts of the call.
        """
        return ""

    @staticmethod
    def environment(q: Tensor, k: Tensor, v: Tensor) -> Hashable:
        """Returns the facts outside the call that a prepared call depends on, such as the number of threads.

        Args:
            q: queries, an ordinary tensor.
            k: keys, likewise.
            v: values, likewise.

        Returns:
            The facts; None if calls with these tensors cannot be prepared, for example because of their device.
        """
        return None

    def prepare(self, call: Call, terms_vary: bool) -> Prepared | str:
        """Prepares later calls like ``call``, which autograd may record; if the kernel does not, returns the reason.

        Args:
            call: the first of these calls. The numbers of q, k and v are aligned to their size.
            terms_vary: whether later calls have other terms, of the same kinds.
        """
        return f"{self.name} does not prepare calls"

    def prepare_step(self, call: Call, terms_vary: bool) -> PreparedStep | str:
        """Prepares decoding steps like ``call``, with any number of keys; if the kernel does not, returns the reason.

        Args:
            call: the first step, whose q and k have been rotated. Its queries are the last of its keys, and both have a
                ``Coordinates.step_key``.
            terms_vary: whether later steps have other terms, of the same kinds.
        """
        return f"{self.name} does not prepare decoding steps"

    def rotate(self, x: Tensor, rotation: Rotation) -> Tensor:
        """Applies ``rotation`` to ``x`` (q, k, v or the output), if the kernel does not rotate while it loads."""
        return rotation._of(x)

    def rotation_by_rows(self, rotation: Rotation) -> RotationByRows | None:
        """Returns a function that rotates tensors by consecutive rows of a rotation; None if the kernel has none.

        Args:
            rotation: the rotation of all rows, on a CPU.
        """
        return None

    def rotated(self, call: Call) -> Call:
        """Returns the ``call`` with its rotations of q, k and v applied."""
        return call.rotated(self.rotate)

    def restored(self, call: Call, out: Tensor) -> Tensor:
        """Rotates and restores the output of attention as the call says.

        Args:
            call: the call.
            out: the weighted sums of the prepared values, [batch, heads, n, v's head_dim].
        """
        if call.out_rotation is not None:
            out = self.rotate(out, call.out_rotation)
        return out if call.restore is None else call.restore(out)

    def why_not_reduce(self, problem: Problem, reductions: Sequence[Reduction]) -> list[str]:
        """Returns every reason why this kernel, which can run a call, cannot compute reductions of its weights.

        Args:
            problem: the facts of the call.
            reductions: the reductions.
        """
        return [f"{self.name} computes attention only, not reductions of its weights"]

    def reduce(self, call: Call, reductions: Sequence[Reduction], counted: Tensor | None = None) -> list[Any]:
        """Computes reductions of the weights of a call for which ``why_not_reduce`` returns no reason.

        Args:
            call: the call. Its values and its dropout have no effect.
            reductions: the reductions.
            counted: the queries that count for reductions over queries, [batch or 1, n] bool. Default: all.

        Returns:
            The value of each reduction, in order.
        """
        raise NotImplementedError

    def reduces_as_it_runs(self, call: Call) -> bool:
        """Whether ``run_and_reduce`` takes a ``call`` that the kernel can ``run`` and ``reduce``."""
        return False

    def run_and_reduce(
        self, call: Call, reductions: Sequence[Reduction], counted: Tensor | None = None
    ) -> tuple[Tensor, list[Any]]:
        """Computes attention, bit for bit as ``run``, and reductions of its weights in the same pass.

        Args:
            call: the call.
            reductions: the reductions.
            counted: as for ``reduce``.

        Returns:
            The output, [batch, heads, n, v's head_dim] in q's dtype, and the value of each reduction.
        """
        raise NotImplementedError

    @abstractmethod
    def run(self, call: Call) -> tuple[Tensor, Tensor | None]:
        """Computes attention.

        Args:
            call: a call for which ``why_not`` returns no reason.

        Returns:
            The output, ``restored``, [batch, heads, n, v's head_dim] in q's dtype, and the log-sum-exp,
            [batch, heads, n], if the call wants it.
        """


L = TypeVar("L")


class Native(Kernel, Generic[L]):
    """The computations of a native kernel, as autograd and operators call them; ``NativeKernel`` runs them."""

    differentiable: ClassVar[bool] = False
    """Whether ``forward`` consists of torch's operations, so that its gradients can be differentiated."""
    forward_op: Any
    """The operator headway::<name>_forward."""
    backward_op: Any
    """The operator headway::<name>_backward."""

    @abstractmethod
    def forward(self, call: L, keep: bool) -> ForwardResults:
        """Computes the results of a lowered call.

        Args:
            call: the call.
            keep: whether the statistics of each row are wanted.

        Raises:
            NotOrdinaryError: by an opaque kernel, if a tensor has no memory.
        """

    @abstractmethod
    def backward(
        self, call: L, results: ForwardResults, d_out: Tensor, d_lse: Tensor | None, partial_keys: bool = False
    ) -> Gradients:
        """Computes the gradients of the tensors of a lowered call that require one.

            d_score = P·(dP − δ),   P = exp(score − row_max)/row_sum,   δ = Σ d_out·out − d_lse

        Autograd is enabled, so gradients of tensors derived from the call's tensors may be returned as well.

        Args:
            call: the call.
            results: what ``forward`` computed.
            d_out: the gradient of the output.
            d_lse: the gradient of the log-sum-exp, or None.
            partial_keys: whether this call has only a part of the keys that results, d_out and d_lse are of. δ must
                then be computed from them, not from this call's own products.
        """

    def lower(self, call: Call) -> L:
        """Expresses the ``call`` in the simpler terms that ``forward`` takes, by operations that autograd records."""
        return call  # type: ignore[return-value]

    def result_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """Returns the dtype of the output for a q of ``dtype``."""
        return dtype

    @abstractmethod
    def as_operator(self, tensors: Sequence[Tensor]) -> bool:
        """Returns whether to call the operator: for a compiler, a mode, or a tensor subclass among ``tensors``."""


class ComposedKernel(Kernel):
    """The base class of kernels that consist of torch's operations, which autograd and compilers trace.

    Such a kernel computes no statistics, and its ``why_not`` must refuse calls that want the log-sum-exp.
    """

    @abstractmethod
    def compute(self, call: Call) -> Tensor:
        """Computes the weighted sums of the values, [batch, heads, n, v's head_dim], outside of autocast.

        Args:
            call: a call whose rotations of q, k and v have been applied.
        """

    def run(self, call: Call) -> tuple[Tensor, Tensor | None]:
        with without_autocast(call.q):
            out = self.compute(self.rotated(call))
        return self.restored(call, out), None
