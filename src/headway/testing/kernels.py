"""The checks that every kernel passes: each term, with sinks, soft caps and log-sum-exp, and each mask."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from ..call import make_call
from ..coordinates import Coordinates
from ..kernels import KERNELS, Call, NativeKernel, Problem
from ..kernels import reference as spec
from ..masks import And, Boolean, Causal, Chunked, Dilated, KeepFirst, Mask, Or, Padding, Prefix, Window
from ..terms import NORMALIZERS, Sink, Term
from .inputs import term_examples
from .tolerances import DRAWS, GRADIENT_FACTOR, OUTPUT_FACTOR, Comparison, assert_close

CROSSINGS = ("alone", "sink", "cap", "log-sum-exp", "sink and log-sum-exp")
"""The combinations in which each term is checked."""
POSITIONS = ("with gaps", "rising by one")
"""The positions of the tokens: with gaps on the second of two axes, or known to rise by one on both."""
SHAPES = {"batch": 2, "heads": 4, "kv_heads": 2, "n": 7, "m": 11, "head_dim": 8, "v_dim": 6}


def mask_examples(batch: int, n: int, m: int) -> dict[str, Mask | None]:
    """Returns masks of every kind, among them some that leave rows and columns empty."""
    holes = torch.rand(batch, 1, n, m, generator=torch.Generator().manual_seed(3)) < 0.6
    holes[:, :, n // 2] = False
    holes[..., m // 3] = False
    return {
        "none": None,
        "causal": Causal(),
        "window": Window(4, 2),
        "causal window that keeps the first": Causal() & (Window(2) | KeepFirst(2)),
        "chunked": Chunked(4),
        "blockwise causal": Causal() & Chunked(2, previous=1),
        "chunks and holes": Chunked(3, previous=2) & Boolean(holes),
        "prefix": Causal() | Prefix(torch.tensor([2, 5])),
        "padding behind": Padding(torch.tensor([m, m - 4])),
        "padding in front": And((Causal(), Padding(torch.tensor([m - 6, m]), "left"))),
        "dilated": Causal() & Dilated(3),
        "holes": Boolean(holes),
        "nothing": Boolean(torch.zeros(n, m, dtype=torch.bool)),
        "many parts": Or((Causal() & Window(1), KeepFirst(1), Boolean(holes))),
    }


class Draws:
    """Draws random leaf tensors of a dtype, and keeps them in ``leaves``.

    The numbers come from ``grid``, so that all dtypes that can represent them get the same numbers.
    """

    def __init__(self, seed: int, dtype: torch.dtype, grid: torch.dtype = torch.bfloat16) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.dtype, self.grid = dtype, grid
        self.leaves: list[Tensor] = []

    def __call__(self, *shape: int) -> Tensor:
        values = torch.randn(shape, generator=self.generator, dtype=torch.float64).to(self.grid)
        leaf = values.to(self.dtype).requires_grad_()
        self.leaves.append(leaf)
        return leaf


def build(
    name: str,
    crossing: str,
    mask: str,
    seed: int,
    dtype: torch.dtype,
    term_dtype: torch.dtype,
    positions: str = "with gaps",
) -> tuple[Call, list[Tensor]]:
    """Builds a call with one term, and returns it with its leaves: q, k, v, the term's leaves, and the sink."""
    draw, draw_term = Draws(seed, dtype), Draws(seed + 1000, term_dtype)
    batch, heads, n, m = (SHAPES[size] for size in ("batch", "heads", "n", "m"))
    q = draw(batch, heads, n, SHAPES["head_dim"])
    k = draw(batch, heads // 2, m, SHAPES["head_dim"])
    v = draw(batch, heads // 2, m, SHAPES["v_dim"])
    terms: list[Term] = [] if name == "none" else term_examples(draw_term, **SHAPES)[name]
    used = [tensor for term in terms for tensor in leaves_of(term, draw_term.leaves)]
    q_positions, k_positions = _positions(positions, n, m)
    call = make_call(
        q,
        k,
        v,
        terms=terms,
        mask=mask_examples(batch, n, m)[mask],
        sink=draw_term(heads) if "sink" in crossing else None,
        soft_cap=3.0 if "cap" in crossing else None,
        q_positions=q_positions,
        k_positions=k_positions,
    )
    if "sink" in crossing:
        used.append(draw_term.leaves[-1])
    return replace(call, wants_lse="log-sum-exp" in crossing), [q, k, v, *used]


def _positions(kind: str, n: int, m: int) -> tuple[Coordinates, Coordinates]:
    """The coordinates of n queries, which are the last of m keys."""
    if kind == "rising by one":
        return Coordinates.span(n, start=m - n, length=m, axes=2), Coordinates.span(m, axes=2)
    keys = Coordinates.of(torch.stack([torch.arange(m), torch.arange(m) // 3], dim=-1)[None], m)
    return keys.rows(m - n, m), keys


def leaves_of(term: Term, leaves: list[Tensor]) -> list[Tensor]:
    """The drawn leaves from which the tensors of a term are computed."""
    from ..kernels._problem import tensors_in

    used: list[Tensor] = []
    for tensor in tensors_in(term):
        if any(leaf is tensor for leaf in leaves):
            reached = [tensor]
        elif tensor.requires_grad:
            grads = torch.autograd.grad(tensor.sum(), leaves, retain_graph=True, allow_unused=True)
            reached = [leaf for leaf, grad in zip(leaves, grads, strict=True) if grad is not None]
        else:
            continue
        used += [leaf for leaf in reached if all(leaf is not other for other in used)]
    return used


def _results(call: Call, leaves: list[Tensor], kernel: str | None) -> list[Tensor]:
    """Output, log-sum-exp if wanted, and the gradient of each leaf; by the naive computation if ``kernel`` is None."""
    if kernel is None:
        steps = spec.steps(call)
        out, lse = steps[4].to(call.q.dtype), _naive_lse(call, steps[2]) if call.wants_lse else None
    else:
        out, lse = KERNELS[kernel].run(call)
    results = [out]
    loss = (out * upstream_of(out)).sum()
    if lse is not None:
        seen = torch.isfinite(lse)
        lse = torch.where(seen, lse, torch.zeros_like(lse))
        results.append(lse)
        loss = loss + (lse * upstream_of(lse)).sum()
    return results + list(torch.autograd.grad(loss, leaves, allow_unused=True))


def _naive_lse(call: Call, score: Tensor) -> Tensor:
    for term in call.terms:
        if isinstance(term, Sink):
            column = term.by_query[..., None].expand(*score.shape[:3], 1).to(score.dtype)
            score = torch.cat([score, column], dim=-1)
    return score.logsumexp(-1)


def upstream_of(out: Tensor) -> Tensor:
    return torch.linspace(-1, 1, out.numel(), dtype=torch.float64).reshape(out.shape).to(out.dtype)


def keeps_the_promise(kernel: str, term: str, crossing: str, mask: str = "window", positions: str = "with gaps") -> str:
    """Checks output, log-sum-exp and every gradient of a kernel against the naive computation and float64.

    Every leaf must have a gradient that is not zero, unless the mask hides everything. The term is one of
    ``term_names()`` and the mask one of ``mask_names()``, with one of ``CROSSINGS`` and one of ``POSITIONS``. Returns
    "taken", or the reasons why the kernel does not take the call.
    """
    comparisons: dict[str, Comparison] = {}
    if replaces_softmax(term) and crossing not in ("alone", "cap"):
        return "a term replaces the softmax"
    for dtype in (torch.float32, torch.bfloat16):
        for draw in range(DRAWS):
            call, leaves = build(term, crossing, mask, draw, dtype, torch.float32, positions)
            reasons = KERNELS[kernel].why_not(Problem.of(call))
            if reasons:
                return "; ".join(reasons)
            results = _results(call, leaves, kernel)
            naive = _expected(term, crossing, mask, dtype, positions)[draw]
            exact = _expected(term, crossing, mask, torch.float64, positions)[draw]
            outputs = len(results) - len(leaves)
            for number, (a, b, c) in enumerate(zip(results, naive, exact, strict=True)):
                what = ("output", "log-sum-exp")[number] if number < outputs else f"gradient {number - outputs}"
                assert a is not None, f"{what} of {term} ({crossing}) on {kernel} is missing"
                assert mask == "nothing" or c.abs().max() > 0, (
                    f"{what} of {term} ({crossing}) is zero, so that nothing is tested"
                )
                factor = OUTPUT_FACTOR if number < outputs else GRADIENT_FACTOR
                comparison = comparisons.setdefault(
                    f"{what} {dtype}",
                    Comparison(f"{what} of {term} ({crossing}, {mask}, {positions}) on {kernel} in {dtype}", factor),
                )
                comparison.add(a, b.to(a.dtype), c)
    for comparison in comparisons.values():
        comparison.check()
    return "taken"


@lru_cache(maxsize=3)  # the three dtypes of one call
def _expected(term: str, crossing: str, mask: str, dtype: torch.dtype, positions: str) -> list[list[Tensor]]:
    """The results to compare with, for each draw: of the reference kernel in float64, else of the naive computation."""
    kernel = "reference" if dtype == torch.float64 else None
    results = []
    for draw in range(DRAWS):
        call, leaves = build(term, crossing, mask, draw, dtype, dtype, positions)
        results.append([part.detach() for part in _results(call, leaves, kernel)])
    return results


def widest(kernel: str) -> torch.dtype:
    """Returns the widest dtype that a kernel takes."""
    call, _ = build("none", "alone", "none", 0, torch.float64, torch.float64)
    return torch.float32 if KERNELS[kernel].why_not(Problem.of(call)) else torch.float64


def obeys_the_mask(kernel: str, mask: str) -> str:
    """Checks that masked keys have no effect, even if they are NaN, and that a query without keys gives zeros.

    Returns "taken", or the reasons why the kernel does not take the call.
    """
    dtype = widest(kernel)
    call, leaves = build("none", "alone", mask, 0, dtype, dtype)
    reasons = KERNELS[kernel].why_not(Problem.of(call))
    if reasons:
        return "; ".join(reasons)
    allowed = torch.ones(1, 1, SHAPES["n"], SHAPES["m"], dtype=torch.bool)
    if call.mask is not None:
        allowed = call.mask.allowed(call.q_coordinates, call.k_coordinates)
    allowed = allowed.expand(SHAPES["batch"], SHAPES["heads"], SHAPES["n"], SHAPES["m"])
    expected = _results(call, leaves, None)
    poisoned = [leaf.detach().clone() for leaf in leaves]
    unseen = ~allowed.unflatten(1, (SHAPES["heads"] // 2, 2)).any(2).any(2)
    poisoned[0][~allowed.any(-1)] = torch.nan
    poisoned[1][unseen], poisoned[2][unseen] = torch.nan, torch.nan
    poisoned = [leaf.requires_grad_() for leaf in poisoned]
    q, k, v = poisoned
    results = _results(replace(call, q=q, k=k, v=v), poisoned, kernel)
    for what, a, b in zip(
        ("output", "gradient of q", "gradient of k", "gradient of v"), results, expected, strict=True
    ):
        assert_close(f"{what} with {mask} on {kernel}", a, b, 1e-12 if dtype == torch.float64 else 1e-5)
    blind = results[0][~allowed.any(-1)]
    assert not blind.numel() or blind.abs().max() == 0, f"a query without keys does not give zeros on {kernel}"
    return "taken"


def gives_a_single_key_no_gradient(kernel: str, term: str) -> str:
    """Checks that queries that see only one key have a gradient of 0, since their weight is 1 whatever the score.

    The gradient is a difference of equal sums. Native kernels must compute both sums in the same way, so that it is
    exactly 0; for other kernels it is 0 up to rounding. Returns "taken", or the reasons why the kernel does not take
    the call.
    """
    if term == "sink by query" or replaces_softmax(term):
        return "the weight of a single key is not 1"
    for dtype in (torch.float32, torch.bfloat16):
        call, leaves = build(term, "alone", "none", 0, dtype, torch.float32)
        call = replace(call, mask=Window(0, 0))
        reasons = KERNELS[kernel].why_not(Problem.of(call))
        if reasons:
            return "; ".join(reasons)
        gradient = _results(call, leaves, kernel)[1]
        allowed = 0.0 if isinstance(KERNELS[kernel], NativeKernel) else 16 * torch.finfo(torch.float32).eps
        worst = gradient.abs().max().item()
        assert worst <= allowed, (
            f"queries that see one key, with {term} on {kernel} in {dtype}, have a gradient of {worst:.1e} instead of 0"
        )
    return "taken"


def check_kernel(kernel: str) -> dict[str, str]:
    """Runs every check on a kernel: each term in each combination, and each mask.

    Args:
        kernel: the name of the kernel in ``headway.kernels.KERNELS``.

    Returns:
        For each combination "taken", or the reasons why the kernel does not take it.

    Raises:
        AssertionError: if a result of a combination that the kernel takes is wrong.
    """
    outcomes = {}
    for term in term_names():
        for crossing in CROSSINGS:
            outcomes[f"{term}, {crossing}"] = keeps_the_promise(kernel, term, crossing)
        outcomes[f"{term}, a single key"] = gives_a_single_key_no_gradient(kernel, term)
    for mask in mask_names():
        outcomes[f"mask: {mask}"] = obeys_the_mask(kernel, mask)
        outcomes[f"none, alone, {mask}"] = keeps_the_promise(kernel, "none", "alone", mask)
    return outcomes


def replaces_softmax(name: str) -> bool:
    """Returns whether a term of ``term_names()`` replaces the softmax, and so allows no log-sum-exp and no sink."""
    terms = [] if name == "none" else term_examples(Draws(0, torch.float32), **SHAPES)[name]
    return any(isinstance(term, NORMALIZERS) for term in terms)


def term_names() -> list[str]:
    """Returns the names of all examples of terms, and "none"."""
    return ["none", *term_examples(Draws(0, torch.float32), **SHAPES)]


def mask_names() -> list[str]:
    """Returns the names of all examples of masks."""
    return list(mask_examples(SHAPES["batch"], SHAPES["n"], SHAPES["m"]))


KERNEL_CHECKS: dict[str, Callable[..., str]] = {
    "keeps_the_promise": keeps_the_promise,
    "obeys_the_mask": obeys_the_mask,
    "gives_a_single_key_no_gradient": gives_a_single_key_no_gradient,
}
"""The checks of a kernel by name."""
