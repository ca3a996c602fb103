"""The CPU kernel: attention with every term in C++ of our own, forward and backward, never holding n×m numbers.

``_lower`` says by simpler terms what C++ is not told, ``_words`` writes a call as the row of numbers that csrc/call.h
reads, ``_library`` finds the compiled library and calls it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...masks import Causal
from ...tracing import watched
from .. import _ops
from .._autograd import Results, differentiable, eager_apply
from .._base import Kernel, without_autocast
from .._problem import Call, Problem, without_tables
from . import _library
from ._forms import reasons_against
from ._lower import Lowered, lower
from ._words import ABSENT, DTYPES, Words, real

ORDINARY = frozenset({Tensor, torch.nn.Parameter})
"""Classes of tensors that have memory behind them and leave operations alone."""


def _begin(call: Call, lowered: Lowered, backward: bool) -> Words:
    """The words up to and with q, k and v."""
    q, k, v = lowered.q, lowered.k, lowered.v
    drop_below, keep_scale, seed = 0, 1.0, 0
    if call.dropout and call.seed is not None:
        drop_below, keep_scale, seed = int(call.dropout * 2**32), 1 / (1 - call.dropout), int(call.seed)
    words = Words(call.q_coordinates, call.k_coordinates, backward)
    words.row += (_library.VERSION, int(backward), torch.get_num_threads(), DTYPES[q.dtype][0], *q.shape[:2])
    words.row += (v.shape[1], q.shape[2], v.shape[2], q.shape[3], v.shape[3])
    words.row += (real(call.scale), drop_below, real(keep_scale), seed, int(call.partial))
    words.tensor(q)
    words.tensor(k)
    words.tensor(v)
    return words


def _finish(words: Words, call: Call, lowered: Lowered) -> None:
    """Adds what follows the results."""
    batch, heads, n, _ = lowered.q.shape
    _, kv_heads, m, _ = lowered.v.shape
    words.coordinates(bool(lowered.terms) or lowered.rest is not None or call.dropout > 0)
    words.mask(lowered.intervals, lowered.rest)
    words.terms(lowered.terms, batch, heads, kv_heads, n, m)


def _new_out(q: Tensor, v: Tensor) -> Tensor:
    """Memory for out: tokens lie before heads, as torch's SDPA has it."""
    (batch, heads, n, _), width = q.shape, v.shape[3]
    return q.new_empty_strided((batch, heads, n, width), (n * heads * width, width, heads * width, 1))


def _new_results(q: Tensor, v: Tensor) -> Results:
    """Memory for out, the log-sum-exp, the largest score of each row and the sum of its weights."""
    return _new_out(q, v), *(q.new_empty(q.shape[:3], dtype=torch.float32) for _ in range(3))


def _attend(call: Call, wants_lse: bool) -> tuple[Tensor, Tensor | None] | None:
    """out and the log-sum-exp, with nothing for a backward pass; None where a tensor is not an ordinary one."""
    lowered = lower(call)
    q = lowered.q
    out = _new_out(q, lowered.v)
    lse = q.new_empty(q.shape[:3], dtype=torch.float32) if wants_lse else None
    words = _begin(call, lowered, False)
    words.fresh(out)
    if lse is None:
        words.row += ABSENT
    else:
        words.fresh(lse)
    words.row += ABSENT + ABSENT
    _finish(words, call, lowered)
    if not ORDINARY.issuperset(map(type, words.held)):
        return None
    _library.run(words.row)
    return out if q.dtype == call.q.dtype else out.to(call.q.dtype), lse


def forward(structure: Any, tensors: Sequence[Tensor]) -> Results:
    """out, log-sum-exp, and the two statistics of each row that the backward pass reads."""
    call = _ops.unpack(structure, tensors)
    lowered = lower(call)
    results = _new_results(lowered.q, lowered.v)
    words = _begin(call, lowered, False)
    for x in results:
        words.fresh(x)
    _finish(words, call, lowered)
    _library.run(words.row)
    return results[0].to(call.q.dtype), *results[1:]


def _shapes(call: Call) -> Results:
    return _new_results(call.q, call.v)


def backward(
    structure: Any, tensors: list[Tensor], wanted: list[int], grad_out: Tensor | None, grad_lse: Tensor | None
) -> list[Tensor]:
    """The gradients of the wanted tensors; lowering is done again under autograd, which takes them through it."""
    *tensors, out, row_max, row_sum = tensors
    with torch.enable_grad(), without_autocast(out):
        leaves = [x.detach() if x.requires_grad else x for x in tensors]
        for i in wanted:
            leaves[i] = leaves[i].detach().requires_grad_()
        call = _ops.unpack(structure, leaves)
        lowered = lower(call)
        if grad_out is None:
            grad_out = out.new_zeros(()).expand(out.shape)
        grad_out = grad_out.to(lowered.q.dtype)
        words = _begin(call, lowered, True)
        for x in (out.to(lowered.q.dtype), None, row_max, row_sum, grad_out, grad_lse):
            words.tensor(x)
        for x in (lowered.q, lowered.k, lowered.v):
            words.gradient(x)
        _finish(words, call, lowered)
        _library.run(words.row)
        return _through_lowering(words, [leaves[i] for i in wanted])


def _through_lowering(words: Words, leaves: list[Tensor]) -> list[Tensor]:
    """The gradients of the leaves from those of what the words point to."""
    sums: dict[int, Tensor] = {}
    lowered, upstream = [], []
    for x, gradient in words.found:
        if gradient.shape != x.shape:
            gradient = gradient.double().sum_to_size(x.shape)  # its parts may cancel
        if gradient.dtype != x.dtype:
            gradient = gradient.to(x.dtype)
        if x.is_leaf:
            sums[id(x)] = sums[id(x)] + gradient if id(x) in sums else gradient
        else:
            lowered.append(x)
            upstream.append(gradient)
    if lowered:
        found = torch.autograd.grad(lowered, leaves, upstream, allow_unused=True)
        for leaf, gradient in zip(leaves, found, strict=True):
            if gradient is not None:
                sums[id(leaf)] = sums[id(leaf)] + gradient if id(leaf) in sums else gradient
    return [sums[id(leaf)] if id(leaf) in sums else torch.zeros_like(leaf) for leaf in leaves]


def as_operator(tensors: Sequence[Tensor]) -> bool:
    """Whether somebody is to see one operator here: an onlooker, or a tensor with a class of its own."""
    return watched() or not all(type(x) in ORDINARY for x in tensors)


Attention = differentiable(
    "cpu",
    forward,
    backward,
    _shapes,
    results=4,
    keeps=(0, 2, 3),
    materialize=False,
    as_operator=as_operator,
)
apply_eagerly = eager_apply(Attention)


def recorded(call: Call) -> bool:
    """Whether autograd takes part."""
    if torch.is_grad_enabled() and _requires_grad((call.q, call.k, call.v, call.terms)):
        return True
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


def _requires_grad(part: Any) -> bool:
    if isinstance(part, Tensor):
        return part.requires_grad
    if not isinstance(part, tuple):
        part = [getattr(part, field) for field in _ops.FIELDS.get(type(part), ())]
    for item in part:  # noqa: SIM110 (a loop is several times faster than any(…))
        if type(item) not in _ops.LEAVES and _requires_grad(item):
            return True
    return False


FEW, SMALL = 4, 1 << 20
"""Plain float32 attention of more than FEW queries is left to SDPA below SMALL multiplications in a product."""


def _has_amx() -> bool:
    return torch.cpu._is_amx_tile_supported()


_has_amx.__dict__["_dynamo_marked_constant"] = True  # a compiler takes the answer


class CpuKernel(Kernel):
    """Our own C++ on the processor: every term that is no Python function, with every gradient, in O(n) memory."""

    name = "cpu"

    def why_not(self, problem: Problem) -> list[str]:
        return reasons_against(problem)

    def defers(self, problem: Problem) -> str | None:
        p = problem
        if p.terms or p.dropout or p.wants_lse or not p.m:
            return None
        if p.mask is not None and not (type(p.mask) is Causal and p.aligned and p.n == p.m):
            return None
        if p.dtype == torch.bfloat16 and _has_amx():
            return "left to torch's SDPA, which uses this processor's AMX: not measured against it yet"
        if p.dtype != torch.float32 or torch.compiler.is_compiling():  # which would have to tell lengths apart
            return None
        small = p.n > FEW and p.batch * p.heads * p.n * p.m * p.head_dim < SMALL
        return "left to torch's SDPA, which takes less to start" if small else None

    def note(self) -> str:
        return _library.note()

    def run(self, call: Call) -> tuple[Tensor, Tensor | None]:
        opaque = as_operator((call.q, call.k, call.v))
        gradients = recorded(call)
        if not opaque and not gradients:
            found = _attend(call, call.wants_lse)
            if found is not None:
                return found
        tensors: list[Tensor] = []
        structure = _ops.pack(without_tables(call), tensors)
        if not gradients:
            out, lse, *_ = torch.ops.headway.cpu_forward(tensors, _ops.write(structure))
        else:
            apply = Attention.apply if opaque else apply_eagerly
            out, lse, *_ = apply(structure, *tensors)
        return out, lse if call.wants_lse else None
