"""The attention functions: each makes a ``Call`` of its arguments and has a kernel compute it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from torch import Tensor
from typing_extensions import Unpack

from .call import Arguments, make_call, seeded
from .coordinates import Coordinates
from .deprecated import deprecated
from .errors import HeadwayError
from .kernels import KERNELS, Call, Problem, choose, kernel_for
from .kernels import reference as spec
from .masks import Mask
from .positions import PositionEncoding
from .terms import Normalizer, Term

WEIGHTS_LIMIT = 1 << 28
"""Scores that ``attention_weights`` and ``attention_steps`` agree to hold: 1 GiB in float32."""

Function = TypeVar("Function", bound=Callable[..., object])


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    encoding: PositionEncoding | None = None,
    terms: tuple[Term, ...] | list[Term] | None = None,
    mask: Mask | Tensor | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    sink: Tensor | None = None,
    soft_cap: float | None = None,
    q_positions: Tensor | Coordinates | None = None,
    k_positions: Tensor | Coordinates | None = None,
    q_input: Tensor | None = None,
    k_input: Tensor | None = None,
    prepared_by: PositionEncoding | None = None,
    dropout_seed: int | Tensor | None = None,
    kernel: str = "auto",
) -> Tensor:
    """Scaled dot-product attention with any position encoding.

        out[h,i] = Σⱼ softmaxⱼ(score[h,i,j])·vⱼ, with score as in ``headway.terms``; without an encoding s·⟨qᵢ, kⱼ⟩

    Shapes: q [batch, heads, n, head_dim]; k [batch, kv_heads, m, head_dim] and v [batch, kv_heads, m, v_dim], where
    kv_heads divides heads; the result is [batch, heads, n, v_dim] in q's dtype (float64, 32, 16 or bfloat16).

    encoding      prepares q, k and v, adds its terms to the scores, and restores the output of prepared values
    terms         further terms, for which q and k count as prepared already
    mask          a mask of ``headway.masks``, or a boolean tensor that is True where one may look
    scale         s; else the encoding's own, else head_dim^−½
    dropout       share of the weights that is dropped, 0 ≤ dropout < 1
    sink          a logit for each head, [heads], or for each query, [batch, heads, n], that takes part in the softmax
                  and carries no value
    soft_cap      c > 0: score ← c·tanh(score/c)
    q_positions,  where the tokens are: a tensor [n], [batch, n] or [batch, n, axes], or ``Coordinates``. Without them
    k_positions   the queries stand at the end of the keys where n ≤ m
    q_input,      the layer's inputs, for encodings that read content
    k_input
    prepared_by   the encoding that has prepared k and v already, as those of a cache are: it has to be ``encoding``
    dropout_seed  a whole number or an int64 tensor [1] by which weights are dropped; drawn if None
    kernel        "auto", or the name of a kernel, which then never falls back

    Queries that may see nothing give zeros, with finite gradients. NaN in a key that no query of the call may see never
    reaches the output; NaN in a key that some query sees may reach any row. Raises HeadwayError for shapes that do not
    fit, an encoding that acts on embeddings alone, an unknown kernel, or a kernel that cannot run the call.
    """
    _check_kernel(kernel)
    call = make_call(
        q,
        k,
        v,
        encoding=encoding,
        terms=terms,
        mask=mask,
        scale=scale,
        dropout=dropout,
        sink=sink,
        soft_cap=soft_cap,
        q_positions=q_positions,
        k_positions=k_positions,
        q_input=q_input,
        k_input=k_input,
        prepared_by=prepared_by,
        dropout_seed=dropout_seed,
    )
    return _run(call, kernel)[0]


def _takes_the_arguments_of_attention(function: Function) -> Function:
    """Shows a function's ``**arguments`` in full: ``help``, ``inspect.signature`` and editors read it."""
    mine, whole = inspect.signature(function), inspect.signature(attention)
    own = [part for part in mine.parameters.values() if part.kind is not part.VAR_KEYWORD]
    last = next(i for i, part in enumerate(own) if part.name == "kernel")
    shared = [part for name, part in whole.parameters.items() if name not in mine.parameters]
    function.__signature__ = mine.replace(parameters=[*own[:last], *shared, *own[last:]])  # type: ignore[attr-defined]
    return function


@_takes_the_arguments_of_attention
def attention_with_lse(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    include_sink: bool = True,
    partial: bool | None = None,
    kernel: str = "auto",
    **arguments: Unpack[Arguments],
) -> tuple[Tensor, Tensor]:
    """Attention, and the logarithm of the sum that its softmax divides by.

        lse[h,i] = ln Σⱼ exp(score[h,i,j])   (and exp of the sink, with ``include_sink``)

    lse is [batch, heads, n] float32 (float64 for float64 input), −∞ for queries that see nothing, and differentiable.
    Without ``include_sink`` the sink is left out of both results, so that results over disjoint keys can be merged.
    Takes the arguments of ``attention``; ``partial``, deprecated, is the opposite of ``include_sink``. Raises
    HeadwayError where a term replaces the softmax.
    """
    if partial is not None:
        deprecated("attention_with_lse(partial=…)", f"include_sink={not partial}")
        include_sink = not partial
    _check_kernel(kernel)
    call = make_call(q, k, v, **arguments)._with(wants_lse=True, include_sink=include_sink)
    if any(isinstance(term, Normalizer) for term in call.terms):
        raise HeadwayError("terms hold a Normalizer, which replaces the softmax: there is no log-sum-exp")
    out, lse = _run(call, kernel)
    assert lse is not None
    return out, lse


@_takes_the_arguments_of_attention
def attention_weights(
    q: Tensor, k: Tensor, v: Tensor, *, kernel: str = "auto", **arguments: Unpack[Arguments]
) -> Tensor:
    """The weights A[h,i,j] that attention gives to each key, dense: [batch, heads, n, m], before any dropout.

    Takes the arguments of ``attention``; ``kernel`` is checked and plays no other part.
    Raises HeadwayError above 2²⁸ weights.
    """
    call = _dense_call(q, k, v, kernel, arguments)
    return spec.weights(spec.computed(call)).to(q.dtype)


class AttentionSteps(NamedTuple):
    """The five steps of scaled dot-product attention, each with its tensor."""

    products: Tensor
    """1. MatMul: QKᵀ and the relative products, [batch, heads, n, m]"""
    scaled: Tensor
    """2. Scale: times s (1/√d_k) and the temperature, then with biases and the cap: the scores"""
    masked: Tensor
    """3. Mask: −∞ where one may not look"""
    weights: Tensor
    """4. Softmax: each row sums to 1, or to 0 where nothing is in sight"""
    output: Tensor
    """5. MatMul: the weighted sum of the values, [batch, heads, n, v_dim]"""


@_takes_the_arguments_of_attention
def attention_steps(
    q: Tensor, k: Tensor, v: Tensor, *, kernel: str = "auto", **arguments: Unpack[Arguments]
) -> AttentionSteps:
    """The five steps of attention, dense, for learning and for debugging; takes the arguments of ``attention``.

    Raises HeadwayError above 2²⁸ weights.
    """
    call = _dense_call(q, k, v, kernel, arguments)
    *steps, out = spec.steps(spec.computed(call))
    return AttentionSteps(*(step.to(q.dtype) for step in (*steps, KERNELS["reference"].restored(call, out))))


@dataclass(frozen=True)
class Explanation:
    """Which kernel a call takes, and what speaks against each of the others."""

    kernel: str | None
    reasons: dict[str, list[str]]
    terms: tuple[str, ...]
    left: dict[str, str] = field(default_factory=dict)
    """Kernels that could run the call and leave it to another, and why."""
    notes: dict[str, str] = field(default_factory=dict)
    """What is less than it could be, of the kernels that could run the call."""

    def __str__(self) -> str:
        spoken = ", ".join(self.terms) if self.terms else "none"
        able = [name for name, reasons in self.reasons.items() if not reasons]
        none = "not the one asked for" if able else "none can run this call"
        lines = [f"kernel: {self.kernel or none}   (terms: {spoken})"]
        for name, reasons in self.reasons.items():
            otherwise = "chosen" if name == self.kernel else self.left.get(name, "could run it too")
            said = "; ".join(reasons) if reasons else otherwise
            note = f" ({self.notes[name]})" if name in self.notes else ""
            lines.append(f"  {name}: {said}{note}")
        return "\n".join(lines)


@_takes_the_arguments_of_attention
def explain(q: Tensor, k: Tensor, v: Tensor, *, kernel: str = "auto", **arguments: Unpack[Arguments]) -> Explanation:
    """Which kernel ``attention`` would take for this call, and every reason against each of the others.

    Takes the arguments of ``attention`` and computes no scores.
    """
    _check_kernel(kernel)
    call = make_call(q, k, v, **arguments)
    chosen, reasons, deferred = choose(KERNELS, Problem.of(call), kernel, ask_all=True)
    notes = {name: note for name, against in reasons.items() if not against and (note := KERNELS[name].note())}
    return Explanation(chosen, reasons, tuple(type(term).__name__ for term in call.terms), deferred, notes)


def _dense_call(q: Tensor, k: Tensor, v: Tensor, kernel: str, arguments: Arguments) -> Call:
    _check_kernel(kernel)
    call = make_call(q, k, v, **arguments)
    count = call.q.shape[0] * call.q.shape[1] * call.q.shape[2] * call.k.shape[2]
    if count > WEIGHTS_LIMIT:
        raise HeadwayError(
            f"the weights of q {tuple(q.shape)} and k {tuple(k.shape)} are {count:,} numbers, above the limit of "
            f"{WEIGHTS_LIMIT:,}: take fewer queries at a time, or fewer heads"
        )
    return call


def _check_kernel(name: str) -> None:
    if name != "auto" and name not in KERNELS:
        raise HeadwayError(f"kernel is {name!r}: give 'auto' or one of {', '.join(map(repr, KERNELS))}")


def _run(call: Call, name: str) -> tuple[Tensor, Tensor | None]:
    return kernel_for(KERNELS, call, name).run(seeded(call))
