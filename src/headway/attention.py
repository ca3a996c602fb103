"""One attention for every encoding: check, prepare, choose a kernel, run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from operator import index
from typing import NamedTuple, TypedDict

import torch
from torch import Tensor
from typing_extensions import Unpack

from .constants import constant, writes
from .coordinates import Coordinates
from .errors import HeadwayError
from .kernels import KERNELS, Call, Kernel, Problem
from .kernels import reference as spec
from .kernels._problem import tensors_in
from .kernels.cpu import _tokens
from .masks import Boolean, Mask, looks_ahead
from .positions import PositionEncoding
from .positions._rotary import Rotary, turned
from .terms import Normalizer, RelativeKeys, RelativeQueries, Sink, Sizes, SoftCap, Term
from .terms import check as check_terms
from .tracing import refuse_tracers

# Encodings and kernels do not know of one another: here, where they meet, rotations get the one that a kernel has.
Rotary.turn = staticmethod(partial(_tokens.turn, otherwise=turned))  # type: ignore[method-assign]

DTYPES = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16})
WEIGHTS_LIMIT = 1 << 28
"""Scores that ``attention_weights`` and ``attention_steps`` agree to hold: 1 GiB in float32."""

LARGEST_SCALE = torch.finfo(torch.float32).max

KEPT = 1 << 13
"""Tokens of a stream whose coordinates are kept from call to call: 4 MiB at most for all."""


class Arguments(TypedDict, total=False):
    """What ``attention`` takes besides q, k, v and the kernel's name."""

    encoding: PositionEncoding | None
    terms: tuple[Term, ...] | list[Term] | None
    mask: Mask | Tensor | None
    scale: float | None
    dropout: float
    sink: Tensor | None
    soft_cap: float | None
    q_positions: Tensor | Coordinates | None
    k_positions: Tensor | Coordinates | None
    q_input: Tensor | None
    k_input: Tensor | None


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
    kernel: str = "auto",
) -> Tensor:
    """Scaled dot-product attention with any position encoding.

        out[h,i] = Σⱼ softmaxⱼ(score[h,i,j])·vⱼ, with score as in ``headway.terms``; without an encoding s·⟨qᵢ, kⱼ⟩

    Shapes: q [batch, heads, n, head_dim]; k [batch, kv_heads, m, head_dim] and v [batch, kv_heads, m, v_dim], where
    kv_heads divides heads; the result is [batch, heads, n, v_dim] in q's dtype (float64, 32, 16 or bfloat16).

    encoding      prepares q and k and adds its terms to the scores
    terms         further terms, for which q and k count as prepared already
    mask          a mask of ``headway.masks``, or a boolean tensor that is True where one may look
    scale         s; else the encoding's own, else head_dim^−½
    dropout       share of the weights that is dropped, 0 ≤ dropout < 1
    sink          a logit for each head, [heads], that takes part in the softmax and carries no value
    soft_cap      c > 0: score ← c·tanh(score/c)
    q_positions,  where the tokens are: a tensor [n], [batch, n] or [batch, n, axes], or ``Coordinates``. Without them
    k_positions   the queries stand at the end of the keys where n ≤ m
    q_input,      the layer's inputs, for encodings that read content
    k_input
    kernel        "auto", or the name of a kernel, which then never falls back

    Queries that may see nothing give zeros, with finite gradients. NaN in a key that no query of the call may see never
    reaches the output; NaN in a key that some query sees may reach any row. Raises HeadwayError for shapes that do not
    fit, an encoding that acts on embeddings alone, an unknown kernel, or a kernel that cannot run the call.
    """
    _check_kernel(kernel)
    call = _call(
        q, k, v, encoding, terms, mask, scale, dropout, sink, soft_cap, q_positions, k_positions, q_input, k_input
    )
    return _run(call, kernel)[0]


def attention_with_lse(
    q: Tensor, k: Tensor, v: Tensor, *, partial: bool = False, kernel: str = "auto", **arguments: Unpack[Arguments]
) -> tuple[Tensor, Tensor]:
    """Attention, and the logarithm of the sum that its softmax divides by.

        lse[h,i] = ln Σⱼ exp(score[h,i,j])   (and exp of the sink, unless ``partial``)

    lse is [batch, heads, n] float32 (float64 for float64 input), −∞ for queries that see nothing, and differentiable.
    ``partial`` leaves the sink out of both results, so that parts over several sets of keys can be merged.
    Takes the arguments of ``attention``. Raises HeadwayError where a term replaces the softmax.
    """
    _check_kernel(kernel)
    call = replace(_call(q, k, v, **arguments), wants_lse=True, partial=partial)
    if any(isinstance(term, Normalizer) for term in call.terms):
        raise HeadwayError("terms hold a Normalizer, which replaces the softmax: there is no log-sum-exp")
    out, lse = _run(call, kernel)
    assert lse is not None
    return out, lse


def attention_weights(
    q: Tensor, k: Tensor, v: Tensor, *, kernel: str = "auto", **arguments: Unpack[Arguments]
) -> Tensor:
    """The weights A[h,i,j] that attention gives to each key, dense: [batch, heads, n, m], before any dropout.

    Takes the arguments of ``attention``; ``kernel`` is checked and plays no other part.
    Raises HeadwayError above 2²⁸ weights.
    """
    call = _dense_call(q, k, v, kernel, arguments)
    return spec.weights(call).to(q.dtype)


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


def attention_steps(
    q: Tensor, k: Tensor, v: Tensor, *, kernel: str = "auto", **arguments: Unpack[Arguments]
) -> AttentionSteps:
    """The five steps of attention, dense, for learning and for debugging; takes the arguments of ``attention``.

    Raises HeadwayError above 2²⁸ weights.
    """
    call = _dense_call(q, k, v, kernel, arguments)
    return AttentionSteps(*(step.to(q.dtype) for step in spec.steps(call)))


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


def explain(q: Tensor, k: Tensor, v: Tensor, *, kernel: str = "auto", **arguments: Unpack[Arguments]) -> Explanation:
    """Which kernel ``attention`` would take for this call, and every reason against each of the others.

    Takes the arguments of ``attention`` and computes no scores.
    """
    _check_kernel(kernel)
    call = _call(q, k, v, **arguments)
    problem = Problem.of(call)
    reasons = {name: known.why_not(problem) for name, known in KERNELS.items()}
    able = [name for name, against in reasons.items() if not against and kernel in ("auto", name)]
    left = {name: why for name in able if kernel == "auto" and (why := KERNELS[name].leaves(problem)) is not None}
    first = next((name for name in able if name not in left), able[0] if able else None)
    notes = {name: note for name, against in reasons.items() if not against and (note := KERNELS[name].note())}
    return Explanation(first, reasons, tuple(type(term).__name__ for term in call.terms), left, notes)


# ---------------------------------------------------------------- from arguments to a call


def _call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
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
) -> Call:
    prepared = isinstance(k_positions, Coordinates) and k_positions.prepared
    _check(q, k, v, encoding, scale, dropout, sink, prepared)
    mask = _mask(mask, q, k)
    if terms is not None and not isinstance(terms, (tuple, list)):
        raise HeadwayError(f"terms is a {type(terms).__name__}: give a tuple of headway.terms, such as (Sink(logits),)")
    added: tuple[Term, ...] = tuple(terms or ())
    if soft_cap is not None:
        added = (*added, SoftCap(soft_cap))
    if sink is not None:
        added = (*added, Sink(sink))
    if added:
        check_terms(added, _sizes(q, k, v))
    if encoding is None and not terms and (isinstance(q_positions, Tensor) or isinstance(k_positions, Tensor)):
        raise HeadwayError("positions are given but neither an encoding nor terms read them: give encoding=…")
    q, k, v = _autocast(q, k, v)
    q_coordinates, k_coordinates = _coordinates(q, k, encoding, q_positions, k_positions)
    aligned = _aligned(q_coordinates, k_coordinates)
    if scale is None:
        head_dim = index(q.shape[3])  # a plain number, where the compiler takes every size for a symbol
        scale = float(head_dim) ** -0.5 if encoding is None else encoding.default_scale(head_dim)
    _check_scale(scale)
    if encoding is not None:
        same = q_coordinates is k_coordinates
        drawn = encoding.training and "locate" in encoding.acts
        if drawn and not same and aligned and q_positions is None and k_positions is None:
            k_coordinates = encoding.place(k_coordinates)  # first: what is drawn for a token is drawn once
            q_coordinates = k_coordinates.rows(k.shape[2] - q.shape[2], k.shape[2])
        q_coordinates = encoding.place(q_coordinates)
        if not k_coordinates.prepared:
            k_coordinates = q_coordinates if same else encoding.place(k_coordinates)
        elif k_coordinates.placed and not k_coordinates.belongs_to(encoding):
            k_coordinates.as_given()  # raises: these keys are another encoding's
        if encoding.causal_only and looks_ahead(mask) and not (aligned and q.shape[2] == 1):
            raise HeadwayError(
                f"{type(encoding).__name__} is defined for queries that see no later keys, and the mask lets them: "
                "give mask=headway.masks.Causal(), alone or joined with others by &"
            )
        if encoding.reads_input:
            _check_inputs(encoding, q, k, q_input, k_input)
        given = _given(q, k, q_input, k_input, q_coordinates, k_coordinates) if encoding.watched else ()
        before = writes(given) if given else 0
        q_coordinates, k_coordinates = encoding.relocate(q_coordinates, k_coordinates, q_input, k_input)
        same = q_coordinates is k_coordinates
        q_coordinates = encoding.for_one_forward(q_coordinates)
        if not k_coordinates.prepared:
            k_coordinates = q_coordinates if same else encoding.for_one_forward(k_coordinates)
        own = encoding.terms(q_coordinates, k_coordinates, q_input, k_input)
        prepared_q = encoding.prepare_query(q, q_coordinates)
        prepared_k = k if k_coordinates.prepared else encoding.prepare_key(k, k_coordinates)
        if given and writes(given) != before:
            raise HeadwayError(
                f"{encoding.known_as} writes in relocate, terms or prepare into what it is given (q, k, the layer's "
                "input, coordinates, tables), which now holds other numbers: write into a clone there"
            )
        cached = k_coordinates.prepared and "prepare" in encoding.acts
        own = tuple(_unprepared(term, q, k, prepared_q, prepared_k, cached) for term in own)
        q, k = prepared_q, prepared_k
        if q.shape[3] != k.shape[3]:
            raise HeadwayError(
                f"the prepared q is {q.shape[3]} wide and k {k.shape[3]}: prepare cached keys with the same encoding"
            )
        check_terms(own, _sizes(q, k, v))
        added = own + added
    if len(added) > 1 and all(any(isinstance(term, kind) for term in added) for kind in (Normalizer, Sink)):
        raise HeadwayError("terms hold a Normalizer, which replaces the softmax that a sink takes part in: drop one")
    return Call(
        q,
        k,
        v,
        q_coordinates,
        k_coordinates,
        added,
        mask,
        scale,
        dropout,
        aligned=aligned,
    )


def _given(
    q: Tensor, k: Tensor, q_input: Tensor | None, k_input: Tensor | None, q_at: Coordinates, k_at: Coordinates
) -> list[Tensor]:
    """What the hooks of an encoding are given, and may not write into."""
    found = [q, k, q_at.position, q_at.index]
    if k_at is not q_at:
        found += (k_at.position, k_at.index)
        found += tensors_in(k_at.tables)
    if q_input is not None:
        found.append(q_input)
    if k_input is not None and k_input is not q_input:
        found.append(k_input)
    found += tensors_in(q_at.tables)
    return found


def _sizes(q: Tensor, k: Tensor, v: Tensor) -> Sizes:
    batch, heads, n, head_dim = q.shape
    return Sizes(batch, heads, n, k.shape[2], head_dim, v.shape[3])


def _check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    encoding: PositionEncoding | None,
    scale: float | None,
    dropout: float,
    sink: Tensor | None,
    prepared: bool,
) -> None:
    refuse_tracers(q)
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor):
            raise HeadwayError(f"{name} is a {type(x).__name__}: give a tensor [batch, heads, tokens, head_dim]")
        if x.ndim != 4:
            raise HeadwayError(
                f"{name} has shape {tuple(x.shape)}: give four dimensions [batch, heads, tokens, head_dim]"
            )
        if x.dtype not in DTYPES:
            raise HeadwayError(f"{name} is {x.dtype}: give float64, float32, float16 or bfloat16")
    batch, heads, _, head_dim = q.shape
    k_batch, kv_heads, m, k_dim = k.shape
    v_batch, v_heads, v_tokens, _ = v.shape
    if batch != k_batch:
        raise HeadwayError(f"k has shape {tuple(k.shape)} but q has a batch of {batch}: give k the batch of q")
    if k_batch != v_batch or kv_heads != v_heads or m != v_tokens:
        raise HeadwayError(
            f"v has shape {tuple(v.shape)} but k {tuple(k.shape)}: give v the batch, heads and tokens of k"
        )
    if head_dim != k_dim and not prepared:
        raise HeadwayError(f"k has shape {tuple(k.shape)} but q a head_dim of {head_dim}: give k the head_dim of q")
    if kv_heads == 0 or heads % kv_heads:
        raise HeadwayError(f"q has {heads} heads and k has {kv_heads}: the heads of k and v must divide those of q")
    if not (q.device == k.device == v.device):
        raise HeadwayError(f"q is on {q.device}, k on {k.device} and v on {v.device}: move them to one device")
    mixed = not (q.dtype == k.dtype == v.dtype)
    if mixed and (torch.float64 in (q.dtype, k.dtype, v.dtype) or not _autocasts(q)):
        raise HeadwayError(f"q is {q.dtype}, k {k.dtype} and v {v.dtype}: cast them to one dtype")
    if head_dim == 0:
        raise HeadwayError(f"q has shape {tuple(q.shape)}, so a head_dim of 0: give at least 1")
    if isinstance(scale, Tensor):
        raise HeadwayError("scale is a tensor: give a number; a factor that is learned is terms.Temperature")
    if not isinstance(dropout, (int, float)) or not 0 <= dropout < 1:
        raise HeadwayError(f"dropout is {dropout!r}: give a share of at least 0 and below 1")
    if sink is not None and not isinstance(sink, Tensor):
        raise HeadwayError(f"sink is a {type(sink).__name__}: give a tensor [{q.shape[1]}], one logit for each head")
    if sink is not None and tuple(sink.shape) != (q.shape[1],):
        raise HeadwayError(f"sink has shape {tuple(sink.shape)} but q has {q.shape[1]} heads: give [{q.shape[1]}]")
    if encoding is None:
        return
    if not isinstance(encoding, PositionEncoding):
        raise HeadwayError(
            f"encoding is {encoding!r}: give an object, such as headway.encoding('rope', head_dim={q.shape[3]})"
        )
    acts = encoding.acts
    if "embed" in acts and not acts & {"prepare", "terms"}:
        name = type(encoding).__name__
        raise HeadwayError(
            f"{name} acts on embeddings and does nothing in attention: call {name}.embed(x) once at the model's input "
            "and leave encoding out here"
        )
    if acts == {"locate"}:
        name = type(encoding).__name__
        raise HeadwayError(
            f"{name} changes where tokens are and nothing here reads it: compose it with an encoding that does, such "
            f"as headway.positions.Compose({name}(…), RoPE({q.shape[3]}))"
        )


def _check_scale(scale: float) -> None:
    try:
        representable = abs(scale) <= LARGEST_SCALE
    except TypeError:
        representable = False
    if not representable:
        raise HeadwayError(f"scale is {scale!r}: give a finite number that float32 can hold, or None for head_dim^−½")


def _check_inputs(
    encoding: PositionEncoding, q: Tensor, k: Tensor, q_input: Tensor | None, k_input: Tensor | None
) -> None:
    """The layer's inputs are there, one for each query and key."""
    for name, x, side in (("q_input", q_input, q), ("k_input", k_input, k)):
        if x is None:
            raise HeadwayError(
                f"{name} is None but {type(encoding).__name__} reads the layer's input: give {name} "
                f"[{side.shape[0]}, {side.shape[2]}, embed_dim]"
            )
        if x.ndim != 3 or x.shape[0] != side.shape[0] or x.shape[1] != side.shape[2]:
            raise HeadwayError(
                f"{name} has shape {tuple(x.shape)}: give [{side.shape[0]}, {side.shape[2]}, embed_dim], the input of "
                "each token"
            )


def _autocasts(x: Tensor) -> bool:
    device = x.device.type
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def _autocast(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    if not _autocasts(q) or q.dtype == torch.float64:
        return q, k, v
    dtype = torch.get_autocast_dtype(q.device.type)
    return q.to(dtype), k.to(dtype), v.to(dtype)


def _coordinates(
    q: Tensor,
    k: Tensor,
    encoding: PositionEncoding | None,
    q_positions: Tensor | Coordinates | None,
    k_positions: Tensor | Coordinates | None,
) -> tuple[Coordinates, Coordinates]:
    """Where queries and keys are; without positions the queries stand at the end of the keys where n ≤ m."""
    n, m = q.shape[2], k.shape[2]
    start = m - n if n <= m else 0
    if encoding is not None and encoding.acts:
        if q_positions is None and k_positions is None and n > m:
            raise HeadwayError(
                f"there are {n} queries and {m} keys, so where the queries stand is not known: give q_positions and "
                "k_positions"
            )
        if (q_positions is None) != (k_positions is None) and n != m:
            given, missing = ("k_positions", "q_positions") if q_positions is None else ("q_positions", "k_positions")
            raise HeadwayError(f"{given} are given but {missing} are not, and n = {n} differs from m = {m}: give both")
    if n == m and (q_positions is None or k_positions is None or q_positions is k_positions):
        name = "k_positions" if q_positions is None and k_positions is not None else "q_positions"
        both = _side(k_positions if q_positions is None else q_positions, n, 0, n, name, q)
        return both, both
    total = max(n, m)
    return _side(q_positions, n, start, total, "q_positions", q), _side(k_positions, m, 0, total, "k_positions", q)


def _side(
    positions: Tensor | Coordinates | None, count: int, start: int, total: int, name: str, q: Tensor
) -> Coordinates:
    """The coordinates of queries or keys, which fit q's batch and device."""
    if positions is None:
        if torch.compiler.is_compiling() or total > KEPT:  # in this order: a compiler carries lengths as symbols
            return _span(count, start, total, q.device)
        return constant(_span, count, start, total, device=q.device)
    side = Coordinates.of(positions, count, name=name, start=start)
    rows = side.position.shape[0]
    if rows not in (1, q.shape[0]):
        raise HeadwayError(
            f"{name} are for a batch of {rows} but q has a batch of {q.shape[0]}: give 1 or {q.shape[0]}"
        )
    if side.position.device != q.device:
        raise HeadwayError(f"{name} are on {side.position.device} but q is on {q.device}: move them there")
    return side


def _span(count: int, start: int, total: int, device: torch.device) -> Coordinates:
    return Coordinates.span(count, start=start, length=total, device=device)


def _aligned(q: Coordinates, k: Coordinates) -> bool:
    """Whether the queries are known to be the last of the keys, in the order of the slots."""
    if not (q.ordered and k.ordered):
        return False
    if q is k:
        return True
    if q.start is None or k.start is None:
        return False
    n, m = q.index.shape[1], k.index.shape[1]
    # an if, because the compiler would carry the comparison of symbolic sizes as a symbol
    return True if n <= m and q.start - k.start == m - n else False  # noqa: SIM210


def _unprepared(term: Term, q: Tensor, k: Tensor, prepared_q: Tensor, prepared_k: Tensor, cached: bool) -> Term:
    """Relative terms speak of q and k before ``prepare``."""
    if isinstance(term, RelativeKeys) and term.query is None and prepared_q is not q:
        return replace(term, query=q)
    if isinstance(term, RelativeQueries) and term.key is None:
        if cached:
            raise HeadwayError(
                "the encoding reads keys as they were before prepare, which a cache of prepared keys does not hold: "
                "set cache_prepared = False on it"
            )
        return term if prepared_k is k else replace(term, key=k)
    return term


def _mask(mask: Mask | Tensor | None, q: Tensor, k: Tensor) -> Mask | None:
    if mask is None:
        return None
    if isinstance(mask, Tensor):
        mask = Boolean(mask)
    if not isinstance(mask, Mask):
        raise HeadwayError(f"mask is a {type(mask).__name__}: give one of headway.masks or a boolean tensor")
    mask.check(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    return mask


def _dense_call(q: Tensor, k: Tensor, v: Tensor, kernel: str, arguments: Arguments) -> Call:
    _check_kernel(kernel)
    call = spec.computed(_call(q, k, v, **arguments))
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
    chosen = _choose(call, name)
    if call.dropout:
        call = replace(call, seed=torch.randint(0, 1 << 62, (1,), device=call.q.device))
    return chosen.run(call)


def _choose(call: Call, name: str) -> Kernel:
    """The kernel asked for, or the first that has no reason against the call and does not leave it to a later one."""
    problem = Problem.of(call)
    left = None
    for known, kernel in KERNELS.items():
        if name in ("auto", known):
            reasons = kernel.why_not(problem)
            if not reasons and (name == known or kernel.leaves(problem) is None):
                return kernel
            if name == known:
                raise HeadwayError(
                    f"kernel {name!r} cannot run q {tuple(call.q.shape)}, k {tuple(call.k.shape)} in {call.q.dtype}: "
                    f"{'; '.join(reasons)}: leave kernel='auto'"
                )
            left = left or (None if reasons else kernel)
    if left is None:
        raise HeadwayError("no kernel can run this call; headway.explain(…) gives each one's reasons")
    return left
