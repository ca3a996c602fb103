"""The kernel that calls torch's scaled dot-product attention, where that does not hold all n×m scores."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from ..biases import distance_bias
from ..errors import HeadwayError
from ..masks import Causal
from ..records import Divisible
from ..terms import DenseBias, DistanceBias, QueryScale, Rotation, Term, TokenBias
from ..tracing import PLAIN_ALONE, forward_mode, holds
from . import _tuned
from ._base import ComposedKernel, Deferral
from ._problem import Call, Problem, wants_gradient
from ._sdpa_backends import HALVES, MATH, Facts, Settings, fused, said, settings
from .cpu._tokens import rotate
from .reference import dense_bias_of

DENSE_LIMIT = 1 << 24
"""The most bytes of a dense mask or bias that this kernel takes. Above it, the kernel ``reference``, which needs no
dense mask, is faster (BENCHMARKS.md)."""

MEMORY_SHARE = 64
"""On CUDA, a dense mask or bias with its gradient may take this share of the GPU's memory, or DENSE_LIMIT if that is
more. Training keeps one for each layer, so 32 layers take half of the memory. Neither this share nor the time against
the kernel ``reference`` was measured on a GPU."""

LEARNED = 6
"""A bias that requires a gradient counts this many times: computing it keeps up to 4.25 times its size (Kerple)."""

ALIGNED = 16
"""On CUDA the fused back ends load this many bytes at once, so rows of q, k and v must begin at multiples of it."""

VECTOR = 16
"""With fewer keys, torch's fused attention on a CPU returns zeros, not NaN, for a query whose scores are all NaN."""

ADDED = (DistanceBias, TokenBias, DenseBias)
SPOKEN = (*ADDED, QueryScale)


class SdpaKernel(ComposedKernel):
    """Calls torch's fused SDPA, with dense biases and with dense masks unless they are causal."""

    name = "sdpa"

    def why_not(self, problem: Problem) -> list[str]:
        reasons = []
        on_cuda = _on_cuda(problem)
        for term in problem.terms:
            if type(term) not in SPOKEN:
                reasons.append(f"torch's SDPA has no {type(term).__name__}")
            elif isinstance(term, ADDED) and not on_cuda and _wants_gradient(term, problem):
                reasons.append(f"a gradient of {type(term).__name__} would make torch hold all n×m scores")
            elif isinstance(term, DenseBias) and callable(term.values):
                reasons.append("the function of a DenseBias would have to be made dense")
        if problem.dropout:
            holds = "" if on_cuda else "holds all n×m scores on a CPU, and "
            reasons.append(f"with dropout torch's SDPA {holds}drops other weights than headway's kernels")
        if forward_mode():
            reasons.append(PLAIN_ALONE)
        if problem.wants_lse:
            reasons.append("torch's SDPA does not return the log-sum-exp")
        if problem.m == 0:
            reasons.append("there are no keys")
        limit = _dense_limit(problem.memory) if on_cuda else DENSE_LIMIT
        if _dense(problem) and _dense_bytes(problem) > limit:
            reasons.append(f"its mask or bias would be dense and larger than {limit >> 20} MiB")
        return reasons + _unfused(problem) if on_cuda else reasons

    def defers(self, problem: Problem) -> Deferral | None:
        left = _tuned.left_by("sdpa", problem) if _on_cuda(problem) else None
        return left if left is not None and left.to == "flex" else None

    def rotate(self, x: Tensor, rotation: Rotation) -> Tensor:
        return rotate(x, rotation)

    def compute(self, call: Call) -> Tensor:
        q, k, v = call.q, call.k, call.v
        for term in call.terms:
            if isinstance(term, QueryScale):
                q = (q * term.factor[..., None]).to(q.dtype)
        problem = Problem.of(call)
        seeing = bias = None
        if _dense(problem):
            q, k, v, bias, seeing = dense(call, q, k, v)
        facts = _facts(problem) if _on_cuda(problem) and q.dtype != torch.float64 else None
        width = max(q.shape[-1], v.shape[-1]) if facts is None else facts.head_dim
        if q.shape[-1] != width or v.shape[-1] != width:
            # torch's fused kernels need equal widths, and on CUDA multiples of 8; columns of zeros change nothing
            q, k, v = (pad(x, (0, width - x.shape[-1])) for x in (q, k, v))
        # with other strides torch computes all n×m scores at once
        q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
        if facts is not None:
            q, k, v, bias = _for_cuda(facts, q, k, v, bias)
        out = scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=bias,
            is_causal=_plain_bool(_plain_causal(problem)),
            scale=call.scale,
            enable_gqa=_plain_bool(k.shape[1] != q.shape[1]),
        )
        if not torch.compiler.is_compiling() and out.grad_fn is not None and out.grad_fn.name() in FUSED:
            out.grad_fn.register_hook(_once)
        if not torch.compiler.is_compiling() and problem.m < VECTOR and problem.device == "cpu":
            out = out.masked_fill(_all_nan(q, k, _plain_causal(problem)), torch.nan)
        if facts is not None:
            out = out.to(call.q.dtype)
        if width != call.v.shape[-1]:
            out = out[..., : call.v.shape[-1]]
        return out if seeing is None else out.masked_fill(~seeing, 0)


def _all_nan(q: Tensor, k: Tensor, causal: bool) -> Tensor:
    """Returns which queries have only NaN products, [batch, heads, n, 1]: the query or all its keys hold NaN."""
    keys = k.isnan().any(-1)
    keys = keys.logical_not().int().cumsum(-1) == 0 if causal else keys.all(-1, keepdim=True)
    keys = keys if k.shape[1] == q.shape[1] else keys.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    return q.isnan().any(-1, keepdim=True) | keys[..., None]


FUSED = frozenset(
    f"ScaledDotProduct{kind}Backward0"
    for kind in ("FlashAttention", "FlashAttentionForCpu", "EfficientAttention", "CudnnAttention")
)
"""Autograd nodes of torch that cannot be differentiated twice."""


class Once(torch.autograd.Function):
    """The identity on gradients. Differentiating it raises HeadwayError."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*gradients: Tensor) -> tuple[Tensor, ...]:
        return tuple([gradient.clone() for gradient in gradients])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        raise HeadwayError(
            "kernel 'sdpa' supports first derivatives only: to differentiate a gradient choose kernel='reference'"
        )


def _once(gradients: tuple[Tensor | None, ...], upstream: tuple[Tensor, ...]) -> tuple[Tensor | None, ...] | None:
    """A hook on the node of torch's fused attention: differentiating its gradients then raises HeadwayError."""
    if not torch.is_grad_enabled():
        return None
    wanted = iter(Once.apply(*[g for g in gradients if g is not None]))
    return tuple([g if g is None else next(wanted) for g in gradients])


def _plain_bool(fact: bool) -> bool:
    """Returns a plain bool, even if a compiler represents a comparison of sizes by a symbol."""
    return True if fact else False  # noqa: SIM210


def _plain_causal(problem: Problem) -> bool:
    return type(problem.mask) is Causal and problem.aligned and holds(problem.n == problem.m) and not _biased(problem)


def _sees_all(problem: Problem) -> bool:
    one_query_at_the_end = type(problem.mask) is Causal and problem.aligned and problem.n == 1
    return problem.mask is None or one_query_at_the_end


def _biased(problem: Problem) -> bool:
    return any(isinstance(term, ADDED) for term in problem.terms)


def _wants_gradient(term: Term, problem: Problem) -> bool:
    """Returns whether the dense form of a bias would require a gradient, through its parameters or positions."""
    return wants_gradient(term) or (isinstance(term, DistanceBias) and problem.positions_want_gradient)


def _dense(problem: Problem) -> bool:
    """Returns whether the call needs a dense mask or bias."""
    return _biased(problem) or not (_sees_all(problem) or _plain_causal(problem))


def _dense_bytes(problem: Problem) -> int:
    """Returns the bytes of the dense mask or bias, which has a copy for each head and row of the batch that differs."""
    parts: list[Divisible] = [term for term in problem.terms if isinstance(term, ADDED)]
    parts += [] if problem.mask is None else [problem.mask]
    rows = max(problem.coordinate_rows, *(part.extent("batch") for part in parts))
    heads = problem.heads if _biased(problem) else max(part.extent("heads") for part in parts)
    each = problem.n * problem.m * _bytes_of_a_score(problem)
    if _on_cuda(problem) and _bias_gradient(problem):  # torch makes a gradient for each head and row of the batch
        return (LEARNED * rows * heads + problem.batch * problem.heads) * each
    return rows * heads * each


def _bytes_of_a_score(problem: Problem) -> int:
    return 8 if problem.dtype == torch.float64 else 4


def _dense_limit(memory: int | None) -> int:
    """Returns the largest allowed size in bytes of a dense mask or bias on a GPU."""
    return DENSE_LIMIT if memory is None else max(DENSE_LIMIT, memory // MEMORY_SHARE)


# ---------------------------------------------------------------- CUDA


def _on_cuda(problem: Problem) -> bool:
    return problem.device == "cuda" and torch.version.hip is None


def _bias_gradient(problem: Problem) -> bool:
    return any(isinstance(term, ADDED) and _wants_gradient(term, problem) for term in problem.terms)


def _facts(problem: Problem) -> Facts:
    """Returns the facts of what ``compute`` passes to torch on CUDA.

    Widths are padded to multiples of 8. With a bias, all tensors are float32: torch wants the bias in the dtype of q,
    and half precision would round it. Keys and values of grouped heads are repeated if a fused back end takes the call
    only then.
    """
    biased, width = _biased(problem), max(problem.head_dim, problem.v_head_dim)
    if problem.dtype != torch.float64:
        width = (width + 7) // 8 * 8
    facts = Facts(
        dtype=torch.float32 if biased and problem.dtype in HALVES else problem.dtype,
        capability=problem.capability,
        batch=problem.batch,
        heads=problem.heads,
        kv_heads=problem.kv_heads,
        n=problem.n,
        m=problem.m,
        head_dim=width,
        v_head_dim=width,
        causal=_plain_causal(problem),
        dense=_dense(problem),
        gradient=bool(problem.wanted),
        dense_gradient=_bias_gradient(problem),
        unit_strides=True,
        settings=Settings(*settings()),
    )
    if fused(facts) is None and fused(repeated := facts._replace(kv_heads=facts.heads)) is not None:
        return repeated
    return facts


def _unfused(problem: Problem) -> list[str]:
    """Returns why a call cannot run on CUDA: no fused back end takes it, so it would hold all scores or fail."""
    facts = _facts(problem)
    if fused(facts) is not None:
        return []
    if MATH not in facts.settings.order:
        return [f"no back end of torch's SDPA that is switched on takes it ({said(facts)})"]
    if _score_bytes(problem) <= DENSE_LIMIT:
        return []
    return [
        f"torch's math path would hold all n×m scores, more than {DENSE_LIMIT >> 20} MiB; no fused back end takes the "
        f"call ({said(facts)})"
    ]


def _score_bytes(problem: Problem) -> int:
    return problem.batch * problem.heads * problem.n * problem.m * _bytes_of_a_score(problem)


def _for_cuda(
    facts: Facts, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Returns the arguments in the form for torch's fused back ends that ``facts`` describes."""
    q, k, v = (_aligned(x.to(facts.dtype)) for x in (q, k, v))
    if k.shape[1] != facts.kv_heads:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    return q, k, v, bias if bias is None or bias.stride(-1) == 1 else bias.contiguous()


def _aligned(x: Tensor) -> Tensor:
    step = ALIGNED // x.element_size()
    offset = 0 if torch.compiler.is_compiling() else x.storage_offset()  # a compiler does not know the offset
    fits = offset % step == 0 and all(stride % step == 0 for stride in x.stride()[:-1])
    return x if fits else x.clone(memory_format=torch.contiguous_format)


# ---------------------------------------------------------------- dense masks and biases


def dense(call: Call, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """Returns q, k and v with zeros in hidden tokens, the dense mask or bias, and which queries see any key."""
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    bias = None
    for term in call.terms:
        added = []
        if isinstance(term, DistanceBias):
            added = [distance_bias(term.values, call.q_coordinates, call.k_coordinates, dtype)]
        elif isinstance(term, TokenBias):
            added = [part for part in (_column(term.queries), _row(term.keys)) if part is not None]
        elif isinstance(term, DenseBias):
            added = [dense_bias_of(term, torch.arange(q.shape[2], device=q.device))]
        for part in added:
            part = part.to(dtype)
            bias = part if bias is None else bias + part
    if _sees_all(Problem.of(call)):
        assert bias is not None
        return q, k, v, _full(bias, call), None
    assert call.mask is not None
    allowed = call.mask.allowed(call.q_coordinates, call.k_coordinates)
    seeing = allowed.any(-1, keepdim=True)
    seen = allowed.any(-2)
    if seen.shape[1] > 1 and call.k.shape[1] != call.q.shape[1]:
        seen = seen.unflatten(1, (call.k.shape[1], -1)).any(2)
    q = q.masked_fill(~seeing, 0)
    k, v = (x.masked_fill(~seen[..., None], 0) for x in (k, v))
    # a row without keys would be NaN: let it see all keys here, and zero its output later
    open_rows = allowed | ~seeing
    whole = open_rows if bias is None else bias.masked_fill(~open_rows, -torch.inf)
    return q, k, v, _full(whole, call), seeing


def _full(bias: Tensor, call: Call) -> Tensor:
    n, m = call.q.shape[2], call.k.shape[2]
    return bias.expand(*bias.shape[:-2], n, m)


def _column(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias[..., :, None]


def _row(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias[..., None, :]
