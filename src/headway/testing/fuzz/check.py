"""Computes a case: by its kernel, naively in the same dtype, and in float64, and compares the results."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...attention import attention, attention_with_lse
from ...call import make_call
from ...coordinates import Coordinates
from ...errors import HeadwayError
from ...kernels import KERNELS, Call, Problem, kernel_for
from ...kernels import reference as spec
from ...kernels._ops import flatten, unflatten
from ...masks import Causal
from ...positions import PositionEncoding
from ...positions._encodings.xpos import XPos, reach
from ...terms import NORMALIZERS, Term
from ..inputs import CheckSizes, on_axes, randomized, term_examples
from ..kernels import Draws, leaves_of, upstream_of
from ..tolerances import DRAWS, GRADIENT_FACTOR, OUTPUT_FACTOR, ROW_FACTOR, Comparison, assert_close
from . import masks
from .cases import Case, dtype_of, encodings
from .layouts import LAYOUTS

EXACT = 1e-11
"""The largest difference of two results in float64, as ``assert_close`` measures it."""
SUMMED = 8.0
"""``GRADIENT_FACTOR`` of sums over all pairs or queries, in parts: the parameters of terms, whose summands
are as large as distances and cancel, and of keys and values by torch's kernels, whose mean error with 8 dimensions was
3 times the naive one's for 508 queries and 6 times for 4,000, called directly. ``ROW_FACTOR`` grows with it."""
QKV = ("gradient of q", "gradient of k", "gradient of v")
FAR, FAR_ROTATED = 1_000_000, 4_000
"""Where the tokens of the places "far" begin: of terms, and of encodings, whose gradients grow with the position."""


@dataclass(frozen=True)
class Inputs:
    """The arguments of a call of ``attention``, and the tensors that require a gradient, by name."""

    arguments: dict[str, Any]
    leaves: dict[str, Tensor]

    def on(self, device: str) -> Inputs:
        """The same arguments, except for an encoding, on a device; gradients flow back to the original leaves."""
        if device == "cpu":
            return self
        tensors: list[Tensor] = []
        listed = {name: tuple(value) if isinstance(value, list) else value for name, value in self.arguments.items()}
        structure = flatten(tuple(listed.items()), tensors)
        moved = unflatten(structure, [x.to(device) for x in tensors])
        return replace(self, arguments=dict(moved))

    def poisoned(self) -> Inputs:
        """The same arguments, with NaN in keys and values that no query sees."""
        made = make_call(**self.arguments)
        batch, heads, n, _ = made.q.shape
        _, kv_heads, m, _ = made.k.shape
        if made.mask is None or not kv_heads:
            return self
        seen = made.mask.allowed(made.q_coordinates, made.k_coordinates).expand(batch, heads, n, m)
        unseen = ~seen.unflatten(1, (kv_heads, -1)).any(3).any(2)[..., None]
        hidden = {name: self.arguments[name].masked_fill(unseen, torch.nan) for name in ("k", "v")}
        return replace(self, arguments=self.arguments | hidden)

    def call(self, case: Case) -> Call:
        """The call that a kernel gets."""
        made = make_call(**self.arguments)
        return replace(made, wants_lse=case.lse != "no", include_sink=case.lse != "without the sink")


def check(case: Case) -> str:
    """Checks a case, and returns "taken", or why the call is refused.

    Raises AssertionError if a result is missing, differs in a second call, or exceeds the bounds of ``Comparison`` over
    16 draws.
    """
    try:
        reasons = _refusal(case)
    except HeadwayError as error:
        return str(error)
    if reasons:
        return reasons
    try:
        ours = results(case)
    except HeadwayError as error:
        raise AssertionError(f"refused, though no reason was given before: {error}") from error
    for _ in range(2):  # the first call may make a plan, by which the others run
        for name, value in results(case).items():
            assert _same(value, ours[name]), f"{name} is not the same again"
    exact = results(case, torch.float64, "reference")
    _agrees_with_torch(case, exact["output"])
    if case.dtype == "float64":
        for name, value in ours.items():
            assert_close(name, value, exact[name], EXACT)
    elif _compare([case], ours, exact):  # one draw may exceed a bound by chance
        wrong = _compare([replace(case, seed=case.seed + draw) for draw in range(DRAWS)])
        assert not wrong, wrong
    return "taken"


def _same(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)


def _refusal(case: Case) -> str:
    """The reasons of the case's kernel, or "" if it takes the call."""
    if case.encoding != "none" and case.term != "none":
        return "an encoding and terms"
    inputs = build(case, dtype_of(case))
    if _beyond_xpos(inputs, dtype_of(case)):
        return "xPos holds up to a distance from its centre, by dtype"
    call = inputs.on(case.device).call(case)
    if case.lse != "no" and any(isinstance(term, NORMALIZERS) for term in call.terms):
        return "a Normalizer has no log-sum-exp"
    return "" if case.kernel == "auto" else "; ".join(KERNELS[case.kernel].why_not(Problem.of(call)))


def _beyond_xpos(inputs: Inputs, dtype: torch.dtype) -> bool:
    """Whether a token lies where the factor of xPos is constant, as its docstring says."""
    encoding = inputs.arguments.get("encoding")
    if not isinstance(encoding, XPos):
        return False
    given = (inputs.arguments["q_positions"], inputs.arguments["k_positions"])
    return any(bool((encoding.tables(at)[2].abs() > reach(dtype)).any()) for at in given if at is not None)


# ---------------------------------------------------------------- the inputs


def build(case: Case, dtype: torch.dtype, *, exact: bool = False) -> Inputs:
    """Builds the arguments of a call, with the same numbers in every dtype of q, k, v and the encoding's parameters.

    The tensors of terms are in float32, as in a model under autocast; with ``exact``, they have the dtype of q.
    """
    encoding = None if case.encoding == "none" else copy.deepcopy(encodings()[case.encoding])
    sizes = None if encoding is None else CheckSizes.of(encoding)
    heads = case.kv_heads * case.group if sizes is None else sizes.heads
    kv_heads = heads // case.group if heads % case.group == 0 else heads
    head_dim = case.head_dim if sizes is None else sizes.head_dim
    limit = None if sizes is None else sizes.max_length
    n, m = (case.n, case.m) if limit is None else (min(case.n, limit), min(case.m, limit))
    random = torch.Generator().manual_seed(case.seed)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    # with fewer digits than the dtype's, products would be exact in the naive computation and not in a kernel that
    # scales queries first
    grid = dtype_of(case)
    draw, draw_term = Draws(case.seed, dtype, grid), Draws(case.seed + 1000, dtype if exact else wide, grid)

    lay: Callable[[Tensor], Tensor] = LAYOUTS[case.layout]
    shapes = {"q": (case.batch, heads, n, head_dim), "k": (case.batch, kv_heads, m, head_dim)}
    shapes["v"] = (case.batch, kv_heads, m, case.v_dim if encoding is None else head_dim)
    leaves = {name: draw(*shape) for name, shape in shapes.items()}
    wanted = {"all": "q k v rest", "q": "q", "k and v": "k v", "rest": "rest"}.get(case.gradients, "").split()
    for name, leaf in leaves.items():
        leaf.requires_grad_(name in wanted)
    given: dict[str, Any] = {name: lay(leaf) for name, leaf in leaves.items()}
    given["q"] = given["q"] * case.spread if case.spread != 1 else given["q"]

    q_at, k_at = _coordinates(case, n, m, limit, random, 2 if encoding is None else encoding.axes)
    rest: dict[str, Tensor] = {}
    if case.term != "none":
        terms: list[Term] = []
        for name in case.term.split(" + "):  # each is drawn separately, so a name may occur twice
            examples = term_examples(
                draw_term,
                batch=case.batch,
                heads=heads,
                kv_heads=case.kv_heads,
                n=n,
                m=m,
                head_dim=head_dim,
                v_dim=case.v_dim,
            )
            terms += examples[name]
        given["terms"] = terms
        used = [leaf for term in terms for leaf in leaves_of(term, draw_term.leaves)]
        rest |= {f"tensor {number} of {case.term}": leaf for number, leaf in enumerate(used)}
    mask = masks.build(case.mask, masks.Draw(random, case.batch, heads, n, m))
    if encoding is not None:
        encoding = randomized(encoding, random, torch.float64)
        with torch.no_grad():
            for parameter in encoding.parameters():
                parameter.copy_(parameter.to(grid))
        given["encoding"] = encoding = encoding.to(dtype).eval()
        rest |= _parameters(encoding)
        if encoding.causal_only:
            mask = Causal() if mask is None else Causal() & mask
        if encoding.reads_input:
            assert sizes is not None
            k_input = rest["k_input"] = draw(case.batch, m, sizes.embed_dim)
            q_input = k_input[:, m - n :] if n <= m else draw(case.batch, n, sizes.embed_dim)
            given |= {"q_input": q_input, "k_input": k_input}
    if case.sink != "none":
        shape = (heads,) if case.sink == "heads" else (case.batch, heads, n)
        given["sink"] = rest["sink"] = draw_term(*shape)
    for leaf in rest.values():
        leaf.requires_grad_("rest" in wanted)
    if case.dropout:
        given |= {"dropout": case.dropout, "dropout_seed": case.seed}
    given |= {"mask": mask, "q_positions": q_at, "k_positions": k_at}
    given |= {"scale": case.scale, "soft_cap": case.soft_cap}
    return Inputs(given, {name: leaf for name, leaf in (leaves | rest).items() if leaf.requires_grad})


def _parameters(encoding: PositionEncoding) -> dict[str, Tensor]:
    return {f"its {name}": parameter for name, parameter in encoding.named_parameters()}


def _coordinates(
    case: Case, n: int, m: int, limit: int | None, random: torch.Generator, axes: int | None
) -> tuple[Coordinates | None, Coordinates | None]:
    plain = case.term == case.encoding == "none"
    if plain and case.places == "stream" and n <= m:
        return None, None
    top = min(limit or 2 * max(n, m, 1), 2 * max(n, m, 1))
    if case.places == "gaps":
        keys = Coordinates.of(torch.randperm(max(top, m), generator=random)[:m], m, length=max(top, m))
    elif case.places == "packed":
        parts = torch.randint(0, m + 1, (2,), generator=random).sort()[0].tolist()
        keys = Coordinates.packed([parts[0], parts[1] - parts[0], m - parts[1]])
    else:
        far = FAR if case.encoding == "none" else FAR_ROTATED
        keys = Coordinates.span(m, start=far if case.places == "far" and limit is None else 0)
    if n > m or case.places == "cross":
        drawn = torch.randint(0, max(top, 1), (n,), generator=random)
        return on_axes(Coordinates.of(drawn, n, length=top), axes), on_axes(keys, axes)
    keys = on_axes(keys, axes)
    return keys.rows(m - n, m), keys


# ---------------------------------------------------------------- the results


def results(case: Case, dtype: torch.dtype | None = None, kernel: str | None = "") -> dict[str, Tensor]:
    """Returns output, log-sum-exp and gradients by name, by another kernel if given; None: by naive computation."""
    own = dtype_of(case) if dtype is None else dtype
    inputs = build(case, own, exact=kernel is None or own == torch.float64)
    if kernel == "":
        inputs = inputs.poisoned() if case.poisoned else inputs
        inputs = inputs.on(case.device)
    if kernel is None:
        out, lse = _naive(case, inputs)
    elif case.lse == "no":
        out, lse = attention(**inputs.arguments, kernel=kernel or case.kernel), None
    else:
        include = case.lse == "with the sink"
        out, lse = attention_with_lse(**inputs.arguments, include_sink=include, kernel=kernel or case.kernel)
    out = out.cpu()
    lse = None if lse is None else lse.cpu()
    values = {"output": out.detach()}
    loss = (out * _upstream(case, out)).sum() if case.upstream == "contiguous" else out.sum()
    if lse is not None:
        seen = torch.isfinite(lse)
        lse = torch.where(seen, lse, torch.zeros_like(lse))
        values["log-sum-exp"] = lse.detach()
        loss = loss + (lse * _upstream(case, lse)).sum()
    wanted = list(inputs.leaves.values())
    reached = bool(wanted) and loss.requires_grad
    grads = torch.autograd.grad(loss, wanted, allow_unused=True) if reached else [None] * len(wanted)
    for (name, leaf), grad in zip(inputs.leaves.items(), grads, strict=True):
        values[f"gradient of {name}"] = torch.zeros_like(leaf) if grad is None else grad
    return values


def _upstream(case: Case, out: Tensor) -> Tensor:
    return upstream_of(out) if out.numel() else torch.zeros_like(out)


def _naive(case: Case, inputs: Inputs) -> tuple[Tensor, Tensor | None]:
    """Computes the whole call at once in its dtype, and an encoding's part in float64, rounded once."""
    given = dict(inputs.arguments)
    q: Tensor = given["q"]
    reference = KERNELS["reference"]
    if "encoding" in given:
        leaves = {name: given[name] for name in ("q", "k", "v", "q_input", "k_input") if name in given}
        given |= {name: leaf.double() for name, leaf in leaves.items()}
        given["encoding"] = copy.deepcopy(given["encoding"]).double()
        wide = _parameters(given["encoding"])
        inputs.leaves.update({name: leaf for name, leaf in wide.items() if name in inputs.leaves})
    call = replace(
        make_call(**given), wants_lse=case.lse != "no", include_sink=case.lse != "without the sink", aligned=False
    )
    call = reference.rotated(call)
    narrow = {name: getattr(call, name).to(q.dtype) for name in ("q", "k", "v")}
    rounded = replace(call, **narrow, terms=spec.cast(spec.with_functions(call), q.dtype))
    out, row_max, row_sum = spec.run_block(spec.QueryBlock(rounded, 0, rounded.q.shape[2]))
    lse = torch.where(row_sum > 0, row_max + row_sum.log(), row_max) if case.lse != "no" else None
    return reference.restored(call, out.to(call.q.dtype)).to(q.dtype), lse


# ---------------------------------------------------------------- compared


def _compare(cases: list[Case], ours: dict[str, Tensor] | None = None, exact: dict[str, Tensor] | None = None) -> str:
    """Returns the first bound that the results of some draws exceed, or ""."""
    comparisons: dict[str, Comparison] = {}
    try:
        for case in cases:
            mine = results(case) if ours is None else ours
            right = results(case, torch.float64, "reference") if exact is None else exact
            naive = results(case, kernel=None)
            assert mine.keys() == right.keys() == naive.keys(), f"{sorted(right.keys() ^ mine.keys())} are missing"
            for name, value in mine.items():
                if not torch.isfinite(naive[name].to(value.dtype)).all():  # beyond float16: nothing is promised
                    continue
                if name not in comparisons:
                    factor = _factor(case, name)
                    rows = ROW_FACTOR * max(1.0, factor / GRADIENT_FACTOR)
                    comparisons[name] = Comparison(f"{name} in {case.dtype}", factor, rows)
                comparison = comparisons[name]
                comparison.add(value, naive[name].to(value.dtype), right[name])
                comparison.epsilon = torch.finfo(dtype_of(case)).eps  # q's epsilon even if a term's tensors are wider
        cancelling = [_cancelling(case) for case in cases]
        for name, comparison in comparisons.items():
            least = 1.0 if name == "log-sum-exp" else 0.0  # users of it need exp(log-sum-exp)
            comparison.largest = max(comparison.largest, least, *(sizes.get(name, 0.0) for sizes in cancelling))
            comparison.check()
    except AssertionError as error:
        return str(error)
    return ""


def _factor(case: Case, name: str) -> float:
    """The bound of a result's mean error, as a multiple of the naive computation's."""
    if name in ("output", "log-sum-exp"):
        return OUTPUT_FACTOR
    if name not in QKV:
        return SUMMED
    if name != "gradient of q":
        call = build(case, dtype_of(case)).on(case.device).call(case)
        if kernel_for(KERNELS, call, case.kernel).name == "sdpa":
            return SUMMED
    return GRADIENT_FACTOR


def _cancelling(case: Case) -> dict[str, float]:
    """Returns by name how large the two sums are whose difference is a gradient, in float64.

    A gradient is Σᵢⱼ Pᵢⱼ·(dPᵢⱼ − δᵢ)·∂sᵢⱼ, and δᵢ is rounded. The rounding adds Σᵢ εᵢ·δᵢ·Σⱼ Pᵢⱼ·∂sᵢⱼ, with ε of random
    sign, even if the gradient itself is small. With signs in place of ε, this sum is the gradient of Σᵢ
    ±δᵢ·log-sum-expᵢ.
    """
    inputs = build(case, torch.float64, exact=True)
    call = inputs.call(case)
    wanted = list(inputs.leaves.values())
    if not wanted or any(isinstance(term, NORMALIZERS) for term in call.terms):
        return {}
    out, lse = attention_with_lse(**inputs.arguments, kernel="reference")
    upstream = _upstream(case, out) if case.upstream == "contiguous" else torch.ones_like(out)
    delta = (out.detach() * upstream).sum(-1)
    signs = torch.randint(0, 2, delta.shape, generator=torch.Generator().manual_seed(case.seed)) * 2 - 1
    loss = torch.where(torch.isfinite(lse), lse, torch.zeros_like(lse)).mul(delta * signs).sum()
    grads = torch.autograd.grad(loss, wanted, allow_unused=True) if loss.requires_grad else [None] * len(wanted)
    return {
        f"gradient of {name}": grad.abs().amax().item()
        for name, grad in zip(inputs.leaves, grads, strict=True)
        if grad is not None and grad.numel()
    }


def _agrees_with_torch(case: Case, exact: Tensor) -> None:
    """Compares the output in float64 with torch's own attention, if that has all features of the case."""
    if case != replace(case, term="none", encoding="none", sink="none", soft_cap=None, dropout=0.0):
        return
    call = build(case, torch.float64, exact=True).call(case)
    q, k, v = (x.detach() for x in (call.q, call.k, call.v))
    if not exact.numel() or not k.numel() or not v.numel():
        assert not exact.any(), "the output of no keys is not zero"
        return
    allowed = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
    if call.mask is not None:
        allowed = call.mask.allowed(call.q_coordinates, call.k_coordinates)
    allowed = allowed.expand(*q.shape[:3], k.shape[2])
    theirs = F.scaled_dot_product_attention(q, k, v, allowed, scale=call.scale, enable_gqa=True)
    theirs = theirs.masked_fill(~allowed.any(-1, keepdim=True), 0)
    difference = (theirs - exact).abs().max().item()
    assert difference < 1e-11, f"the reference kernel in float64 differs from torch by {difference:.1e}"
