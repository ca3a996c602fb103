"""The attention functions. Each makes a ``Call`` from its arguments and passes it to a kernel."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import NamedTuple, TypeVar, cast

from torch import Tensor
from typing_extensions import Never, Unpack

from . import jagged, plans
from ._common import notebook
from ._torch import never_compiled, without_data
from .call import Arguments, encoding_for, make_call, seeded
from .coordinates import KEPT, Coordinates
from .errors import HeadwayError, refuse, refuses_others
from .heads import HeadShard
from .kernels import KERNELS, Call, Kernel, Problem, choose, kernel_for
from .kernels import reference as spec
from .kernels._masks import cost_of_mask
from .kernels._ops import flatten, unflatten
from .masks import AnyMask, as_mask
from .positions import PositionEncoding
from .terms import NORMALIZERS, Term
from .tracing import watched

WEIGHTS_LIMIT = 1 << 28
"""The most weights that ``attention_weights`` and ``attention_steps`` compute: 1 GiB in float32."""

Function = TypeVar("Function", bound=Callable[..., object])

Computed = tuple[Tensor, Tensor | None]
"""The output of a call and its log-sum-exp, if that is wanted."""

Observer = Callable[[Call, Callable[[], Computed]], Computed]
"""A function that receives a call of attention and the function that computes it, which it must call."""

_observers: list[tuple[Callable[[], bool], Observer]] = []
"""Observers, each after a function that tells whether this thread is its own. The last one is the innermost."""


@contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """A context manager in which an observer receives every attention call of this thread.

    Args:
        observer: the observer. ``headway.inspection`` has its own.
    """
    thread = threading.get_ident()
    # compiled code that runs in the block breaks its graph here
    one = (never_compiled(lambda: threading.get_ident() == thread), observer)
    _observers.append(one)
    try:
        yield
    finally:
        _observers.remove(one)


def observers() -> list[Observer]:
    """Returns the observers of this thread, the outermost first; other threads compute as without them."""
    return [observer for is_here, observer in _observers if is_here()]


@refuses_others
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    encoding: PositionEncoding | str | None = None,
    terms: tuple[Term, ...] | list[Term] | None = None,
    mask: AnyMask = None,
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
    head_shard: HeadShard | None = None,
    kernel: str = "auto",
    **others: Never,
) -> Tensor:
    """Computes scaled dot-product attention with any position encoding.

        out[h,i] = Σⱼ softmaxⱼ(score[h,i,j])·vⱼ, with score as in headway.terms; without an encoding s·⟨qᵢ, kⱼ⟩

    A query whose mask hides all keys gives zeros, with finite gradients. NaN in a key that no query of the call may
    attend to never reaches the output; NaN in a key that some query attends to may reach any row.

    Args:
        q: queries, [batch, heads, n, head_dim] in float64, float32, float16 or bfloat16. A jagged tensor
            (``torch.nested``, with n jagged) is a batch of sequences of different lengths without padding. k and v are
            jagged then, and so are positions and inputs. The mask applies to each sequence, and must not hold a tensor.
            The output is jagged with q's offsets.
        k: keys, [batch, kv_heads, m, head_dim], where kv_heads divides heads.
        v: values, [batch, kv_heads, m, v_dim].
        encoding: prepares q, k and v, adds its terms to the scores, and restores the output of prepared values. The
            name of an encoding without parameters, such as "rope", stands for it, in evaluation mode.
        terms: further terms of the scores. They read q and k unrotated, as given here.
        mask: a mask of ``headway.masks``, a boolean tensor that is True where a query may attend to a key, a name such
            as "causal", or a function (b, h, q_idx, kv_idx) or BlockMask of FlexAttention.
        scale: the factor s of the scores. Default: the encoding's own, else head_dim^−½.
        dropout: the share of the weights that is dropped, 0 ≤ dropout < 1.
        sink: a logit for each head, [heads], or for each query, [batch, heads, n], that takes part in the softmax and
            has no value.
        soft_cap: c > 0, which replaces each score by c·tanh(score/c).
        q_positions: positions of the queries: a tensor [n], [batch, n] or [batch, n, axes], or ``Coordinates``.
            Default: the last query stands at the last key, the one before it at the key before, and so on. For n > m
            the first queries stand before all keys; with an encoding, n > m needs positions.
        k_positions: positions of the keys, likewise. Default: 0 … m − 1.
        q_input: the layer's input for the queries, [batch, n, embed_dim], for encodings that read it.
        k_input: the layer's input for the keys, [batch, m, embed_dim].
        prepared_by: the encoding that has already prepared k and v, if they come from a cache. It must be ``encoding``.
        dropout_seed: a whole number, or an int64 tensor [1], that decides which weights are dropped. Default: drawn
            from torch's generator.
        head_shard: which heads q, k and v have, if each of several processes computes some of them. Give the encoding,
            ``terms``, the mask and the sink for all heads. Default: q has all heads.
        kernel: "auto", or the name of a kernel of ``headway.kernels.KERNELS``. A named kernel never falls back to
            another.

    Returns:
        The output, [batch, heads, n, v_dim] in q's dtype.

    Raises:
        HeadwayError: if shapes, dtypes or devices do not fit, if the encoding acts only on embeddings, or if the kernel
            is unknown or cannot run the call.

    References:
        Vaswani et al. 2017, section 3.2.
    """
    if others:
        refuse("attention", attention, others)
    if isinstance(encoding, str) and not jagged.is_nested(q, k, v):  # the row of jagged tensors looks it up
        encoding = encoding_for(encoding, q, head_shard)
    if isinstance(mask, str):
        mask = as_mask(mask)
    request = key = out = None
    plain = terms is None and sink is None and soft_cap is None and type(dropout) in (float, int) and not dropout
    if plain and dropout_seed is None and head_shard is None and not observers() and not isinstance(encoding, str):
        request = plans.Request(q, k, v, encoding, mask, scale, q_positions, k_positions, prepared_by, kernel)
        key = plans.key_of(request)
        plan = None if key is None else plans.find(encoding, key)
        out = None if plan is None else plan(request)
        if out is not None:
            return out
    _check_kernel(kernel)
    arguments: Arguments = {
        "encoding": encoding, "terms": terms, "mask": mask, "scale": scale, "dropout": dropout, "sink": sink,
        "soft_cap": soft_cap, "q_positions": q_positions, "k_positions": k_positions, "q_input": q_input,
        "k_input": k_input, "prepared_by": prepared_by, "dropout_seed": dropout_seed, "head_shard": head_shard,
    }  # fmt: skip
    if jagged.is_nested(q, k, v):
        row = jagged.row(q, k, v, arguments)
        return row.jagged(_of_row(row, kernel))
    call = make_call(q, k, v, **arguments)
    if request is not None and key is not None:  # the first call with this key, or its plan no longer holds
        plan = plans.make(key, request, call)
        out = None if plan is None else plan(request, call.terms)
    return _run(call, kernel)[0] if out is None else out


def _of_row(row: jagged.Row, kernel: str) -> Tensor:
    """Returns the output of a row of sequences, by a plan if the call is one of several with the same offsets."""
    if row.repeated:
        return attention(row.q, row.k, row.v, kernel=kernel, **row.arguments)
    return _run(make_call(row.q, row.k, row.v, **row.arguments), kernel)[0]


def _takes_the_arguments_of_attention(function: Function) -> Function:
    """Shows the arguments of ``attention`` in place of ``**arguments``, for ``help`` and editors."""
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
    kernel: str = "auto",
    **arguments: Unpack[Arguments],
) -> tuple[Tensor, Tensor]:
    """Computes attention and the log-sum-exp of its scores.

        lse[h,i] = ln( Σⱼ exp(score[h,i,j]) + exp(sink) )

    Args:
        q: queries, as for ``attention``; both results are jagged if it is.
        k: keys.
        v: values.
        include_sink: whether the sink takes part in the output and in lse. Without it, results over disjoint sets of
            keys can be merged.
        kernel: "auto", or the name of a kernel.
        **arguments: the other arguments of ``attention``.

    Returns:
        The output, [batch, heads, n, v_dim] in q's dtype, and lse, [batch, heads, n] in float32 (float64 for float64),
        which is −∞ for a query that attends to nothing. Both are differentiable.

    Raises:
        HeadwayError: as ``attention`` does, and if a term replaces the softmax.
    """
    _check_kernel(kernel)
    row = jagged.row(q, k, v, arguments) if jagged.is_nested(q, k, v) else None
    call = make_call(q, k, v, **arguments) if row is None else make_call(row.q, row.k, row.v, **row.arguments)
    for term in call.terms:
        if isinstance(term, NORMALIZERS):
            name = type(term).__name__
            raise HeadwayError(f"terms hold a {name}, which replaces the softmax: there is no log-sum-exp")
    out, lse = _run(call._with(wants_lse=True, include_sink=include_sink), kernel)
    assert lse is not None
    return (out, lse) if row is None else (row.jagged(out), row.jagged(lse))


@_takes_the_arguments_of_attention
def varlen_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor | None = None,
    *,
    kernel: str = "auto",
    **arguments: Unpack[Arguments],
) -> Tensor:
    """Computes attention of sequences of different lengths that follow one another, without padding.

    Each sequence attends only to itself. q, k, v and the cumulative lengths are those of ``flash_attn_varlen_func``;
    the largest lengths are not needed. As there, if the lengths of q and k differ, the last query of a sequence stands
    at its last key: ``mask=Causal()`` is aligned to the bottom right. A query without keys gives zeros.

        out = varlen_attention(q, k, v, torch.tensor([0, 5, 15]), mask=masks.Causal())    # of 5 and 10 tokens

    Args:
        q: the queries of all sequences, [tokens, heads, head_dim].
        k: their keys, [tokens of k, kv_heads, head_dim], where kv_heads divides heads.
        v: their values, [tokens of k, kv_heads, v_dim].
        cu_seqlens_q: where each sequence of q begins, and where the last one ends: integers [batch + 1], such as
            [0, 5, 15].
        cu_seqlens_k: likewise of k and v. Default: those of q.
        kernel: "auto", or the name of a kernel.
        **arguments: the other arguments of ``attention``. Positions are [tokens] or [tokens, axes] and start at 0 in
            each sequence by default; inputs are [tokens, embed_dim]. The mask applies to each sequence, and must not
            hold a tensor.

    Returns:
        The output, [tokens, heads, v_dim] in q's dtype.

    Raises:
        HeadwayError: as ``attention`` does, and for cumulative lengths that do not fit the tokens. Those on a GPU are
            not read.

    References:
        Dao 2023 (FlashAttention-2).
    """
    _check_kernel(kernel)
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor) or x.ndim != 3 or x.is_nested:
            shape = f"of shape {tuple(x.shape)}" if isinstance(x, Tensor) and not x.is_nested else type(x).__name__
            raise HeadwayError(f"{name} is a tensor {shape}: give [tokens, heads, head_dim], without a batch")
    q_offsets = jagged.cumulative("cu_seqlens_q", cu_seqlens_q, q)
    k_offsets = q_offsets if cu_seqlens_k is None else jagged.cumulative("cu_seqlens_k", cu_seqlens_k, k)
    given = arguments.copy()
    for name in ("q_input", "k_input"):
        if isinstance(read := given.get(name), Tensor):
            given[name] = read[None]  # type: ignore[literal-required]
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    row = jagged.Row.of(q, k, v, q_offsets, k_offsets, given)
    return _of_row(row, kernel)[0].transpose(0, 1)


@_takes_the_arguments_of_attention
def attention_weights(
    q: Tensor, k: Tensor, v: Tensor, *, kernel: str = "auto", **arguments: Unpack[Arguments]
) -> Tensor:
    """Computes the attention weights A[h,i,j] as one tensor.

    Args:
        q: queries, as for ``attention``.
        k: keys.
        v: values; only their shape is read.
        kernel: must be "auto" or the name of a kernel, and has no effect.
        **arguments: the other arguments of ``attention``.

    Returns:
        The weights before dropout, [batch, heads, n, m] in q's dtype.

    Raises:
        HeadwayError: as ``attention`` does, and for more than 2²⁸ weights.
    """
    call = _dense_call(q, k, v, kernel, arguments)
    return spec.weights(spec.computed(call)).to(q.dtype)


class AttentionSteps(NamedTuple):
    """The intermediate results of scaled dot-product attention, in order.

    Attributes:
        products: 1. MatMul: QKᵀ and the relative products, [batch, heads, n, m].
        scaled: 2. Scale: times s (1/√d_k) and the query scale, then with biases and the cap: the scores.
        masked: 3. Mask: −∞ for keys that a query may not attend to.
        weights: 4. Softmax: each row sums to 1, or to 0 for a query that attends to nothing.
        output: 5. MatMul: the weighted sum of the values, [batch, heads, n, v_dim].
    """

    products: Tensor
    scaled: Tensor
    masked: Tensor
    weights: Tensor
    output: Tensor


@_takes_the_arguments_of_attention
def attention_steps(
    q: Tensor, k: Tensor, v: Tensor, *, kernel: str = "auto", **arguments: Unpack[Arguments]
) -> AttentionSteps:
    """Computes attention step by step, for learning and debugging.

    Args:
        q: queries, as for ``attention``.
        k: keys.
        v: values.
        kernel: must be "auto" or the name of a kernel, and has no effect.
        **arguments: the other arguments of ``attention``.

    Returns:
        The five steps, each as one tensor in q's dtype.

    Raises:
        HeadwayError: as ``attention`` does, and for more than 2²⁸ weights.
    """
    call = _dense_call(q, k, v, kernel, arguments)
    *steps, out = spec.steps(spec.computed(call))
    out = KERNELS["reference"].restored(call, out)
    if observers():
        out, _ = _observed(call, partial(_with_nothing, out))
    return AttentionSteps(*(step.to(q.dtype) for step in (*steps, out)))


@dataclass(frozen=True)
class Explanation:
    """The kernel that a call takes, and the reasons against each of the others.

    Attributes:
        kernel: the kernel's name; None if no kernel can run the call.
        reasons: why each kernel cannot run the call; empty for those that can.
        terms: the names of the call's terms.
        left: kernels that can run the call but leave it to another one, with the reason.
        notes: limitations of kernels that can run the call, such as a missing library.
        asked: the kernel that was asked for, or "auto".
        mask: what a mask that is a Python function costs; empty if there is none, or it has intervals.
    """

    kernel: str | None
    reasons: dict[str, list[str]]
    terms: tuple[str, ...]
    left: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    asked: str = "auto"
    mask: str = ""

    def __str__(self) -> str:
        of_mask = [f"mask: {self.mask}"] if self.mask else []
        return "\n".join([self._heading(), *(f"  {name}: {said}" for name, said in self._of_each()), *of_mask])

    def _repr_html_(self) -> str:
        names = list(self.reasons)
        chosen = names.index(self.kernel) if self.kernel in names else None
        of_mask = [("mask", self.mask)] if self.mask else []
        return notebook.heading(self._heading()) + notebook.table([*self._of_each(), *of_mask], bold=chosen)

    def _heading(self) -> str:
        spoken = ", ".join(self.terms) if self.terms else "none"
        able = [name for name, reasons in self.reasons.items() if not reasons]
        none = f"none, since {self.asked} cannot run this call" if able else "none can run this call"
        return f"kernel: {self.kernel or none}   (terms: {spoken})"

    def _of_each(self) -> list[tuple[str, str]]:
        """What there is to say of each kernel."""
        found = []
        chosen = "chosen" if self.asked == "auto" else "asked for"
        could = "could run it too" if self.kernel else "could run it"
        for name, reasons in self.reasons.items():
            otherwise = chosen if name == self.kernel else self.left.get(name, could)
            said = "; ".join(reasons) if reasons else otherwise
            note = f" ({self.notes[name]})" if name in self.notes else ""
            found.append((name, said + note))
        return found


@_takes_the_arguments_of_attention
def explain(q: Tensor, k: Tensor, v: Tensor, *, kernel: str = "auto", **arguments: Unpack[Arguments]) -> Explanation:
    """Explains which kernel ``attention`` would choose for a call and why it would not choose another.

    No scores are computed.

    Args:
        q: queries, as for ``attention``.
        k: keys.
        v: values.
        kernel: "auto", or the name of a kernel.
        **arguments: the other arguments of ``attention``.

    Returns:
        The explanation, which prints as a table.

    Raises:
        HeadwayError: if the arguments do not fit one another.
    """
    _check_kernel(kernel)
    if jagged.is_nested(q, k, v):
        q, k, v, arguments = jagged.row(q, k, v, arguments)[:4]
    call = _call_to_explain(q, k, v, arguments)
    problem = Problem.of(call)
    chosen, reasons, deferred = choose(KERNELS, problem, kernel, ask_all=True)
    notes = {name: note for name, against in reasons.items() if not against and (note := KERNELS[name].note(problem))}
    terms, of_mask = tuple(type(term).__name__ for term in call.terms), cost_of_mask(problem, chosen)
    return Explanation(chosen, reasons, terms, deferred, notes, kernel, of_mask)


def _call_to_explain(q: Tensor, k: Tensor, v: Tensor, arguments: Arguments) -> Call:
    """The call; if it is long, without data, since positions and tables would take memory that nothing reads."""
    sides = [x for x in (q, k, v) if isinstance(x, Tensor) and x.ndim == 4]
    if len(sides) == 3 and max(x.shape[2] for x in sides) > KEPT and not watched():
        with suppress(NotImplementedError), without_data() as dataless:  # what an encoding of a user's may read
            return make_call(*map(dataless, sides), **_without_data(arguments, dataless))
    return make_call(q, k, v, **arguments)


def _without_data(arguments: Arguments, dataless: Callable[[Tensor], Tensor]) -> Arguments:
    tensors: list[Tensor] = []
    listed = {name: tuple(value) if isinstance(value, list) else value for name, value in arguments.items()}
    structures = {name: flatten(value, tensors) for name, value in listed.items()}
    empty = list(map(dataless, tensors))
    return cast(Arguments, {name: unflatten(structure, empty) for name, structure in structures.items()})


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
        names = ("auto", *KERNELS)
        raise HeadwayError(f"there is no kernel {name!r}: give one of {', '.join(names)}")


def _run(call: Call, name: str) -> Computed:
    if observers():
        return _observed(call, Computation(call, name))
    return kernel_for(KERNELS, call, name).run(seeded(call))


class Computation:
    """Computes an observed call by a kernel, which an observer may ask for more than the output.

    Args:
        call: the call.
        name: "auto", or the name of the kernel.
        slots: the ranges (start, stop) of the keys that are the queries' tokens, if these are known and not the last.
        total: sums a tensor over the processes that have the other queries of a sequence; None if there are none.
    """

    def __init__(
        self,
        call: Call,
        name: str,
        slots: Sequence[tuple[int, int]] = (),
        total: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.call, self.name, self.slots, self.total = call, name, slots, total

    @cached_property
    def kernel(self) -> Kernel:
        """The kernel that the call takes."""
        return kernel_for(KERNELS, self.call, self.name)

    def __call__(self) -> Computed:
        return self.kernel.run(seeded(self.call))


def _with_nothing(out: Tensor) -> Computed:
    return out, None


class Observation:
    """What an outer observer computes: a call as an inner one observes it.

    Args:
        observer: the inner observer.
        call: the call.
        compute: the function that this observer replaces.
    """

    def __init__(
        self, observer: Callable[[Call, Callable[[], Computed]], Computed], call: Call, compute: Callable[[], Computed]
    ) -> None:
        self.observer, self.call, self.compute = observer, call, compute
        self.slots: Sequence[tuple[int, int]] = getattr(compute, "slots", ())
        self.total: Callable[[Tensor], Tensor] | None = getattr(compute, "total", None)

    def __call__(self) -> Computed:
        return self.observer(self.call, self.compute)


def _observed(call: Call, compute: Callable[[], Computed]) -> Computed:
    for observer in reversed(observers()):
        compute = Observation(observer, call, compute)
    return compute()
