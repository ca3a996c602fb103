"""The kernel flex: its functions of a pair, its lists of blocks, and what it refuses.

torch compiles FlexAttention for a GPU, and for a CPU without gradients. Without a GPU the functions are tested by its
uncompiled computation, which reads no lists, and a few calls are compiled for the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import flex_attention

import headway as hw
from headway import masks as M
from headway import terms as T
from headway.call import make_call
from headway.coordinates import Coordinates
from headway.kernels import KERNELS, Call, FlexKernel, Problem, choose, flex, reference
from headway.kernels.lowering import simplified
from headway.testing import kernels as checks
from headway.testing.tolerances import GRADIENT_FACTOR, OUTPUT_FACTOR, Comparison
from triton_on import moved

pytestmark = pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning",
    "ignore:flex_attention called without torch.compile:UserWarning",
)

DRAWS = 6  # uncompiled it is slow


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The kernel takes tensors on a CPU, also for gradients, and computes all scores."""
    monkeypatch.setattr(FlexKernel, "devices", frozenset({"cpu"}))
    monkeypatch.setattr(flex, "_compiled", flex._function)
    monkeypatch.setattr(flex_attention, "_validate_device", lambda *_: None)  # which refuses gradients on a CPU
    monkeypatch.setattr(checks, "DRAWS", DRAWS)
    checks._expected.cache_clear()
    torch._dynamo.reset()
    yield
    checks._expected.cache_clear()


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The kernel takes tensors on a CPU, only forward. For sizes that vary, torch 2.13 compiles wrong C++."""
    monkeypatch.setattr(FlexKernel, "devices", frozenset({"cpu"}))
    torch._dynamo.reset()
    function = torch.compile(flex._function(), fullgraph=True, dynamic=False)
    monkeypatch.setattr(flex, "_compiled", lambda: function)
    yield
    torch._dynamo.reset()


# ---------------------------------------------------------------- against the naive computation and float64

WITH_GAPS = {
    *("none", "temperature", "token bias", "dense bias", "sink by query"),
    *(f"distance bias, {kind}" for kind in ("clipped rows", "steps", "two tables", "linear")),
}
TAKEN = WITH_GAPS | {f"distance bias, {kind}" for kind in ("logarithm", "power", "piecewise", "cosines")}
"""Terms that are taken, without a gradient to biases: at any positions, and where they rise by one."""


EVERYTHING = "sink, cap and log-sum-exp"
CROSSED = [(term, "alone", "with gaps") for term in checks.term_names()]
CROSSED += [
    (term, "cap" if checks.replaces_softmax(term) else EVERYTHING, "rising by one") for term in checks.term_names()
]


@pytest.mark.one_in(37)
@pytest.mark.parametrize(("term", "crossing", "positions"), CROSSED)
def test_outputs_keep_the_promise(uncompiled: None, term: str, crossing: str, positions: str) -> None:
    taken = TAKEN if positions == "rising by one" else WITH_GAPS
    for dtype in (torch.float32, torch.bfloat16):
        comparisons: dict[str, Comparison] = {}
        for draw in range(DRAWS):
            arguments = (term, crossing, "window", draw)
            with torch.no_grad():
                call, _ = checks.build(*arguments, dtype, torch.float32, positions)
                reasons = KERNELS["flex"].why_not(Problem.of(call))
                assert bool(reasons) == (term not in taken), f"{term}: {reasons}"
                if reasons:
                    return
                exact, _ = checks.build(*arguments, torch.float64, torch.float64, positions)
                alike, _ = checks.build(*arguments, dtype, dtype, positions)
                steps = reference.steps(alike)
                naive = steps[4], checks._naive_lse(alike, steps[2])
                for what, found, other, right in zip(
                    ("output", "log-sum-exp"), _both("flex", call), naive, _both("reference", exact), strict=True
                ):
                    comparison = comparisons.setdefault(
                        what, Comparison(f"{what} of {term}, {crossing}, in {dtype}", OUTPUT_FACTOR)
                    )
                    comparison.add(found, other.to(found.dtype), right)
        for comparison in comparisons.values():
            comparison.check()


def _both(kernel: str, call: Call) -> tuple[Tensor, Tensor]:
    out, lse = KERNELS[kernel].run(replace(call, wants_lse=True))
    assert lse is not None
    return out, torch.where(lse.isfinite(), lse, 0)


WITH_GRADIENTS = [("none", crossing) for crossing in checks.CROSSINGS]
WITH_GRADIENTS += [(term, EVERYTHING) for term in ("none", "temperature", "sink by query")]


@pytest.mark.one_in(15)
@pytest.mark.parametrize(("term", "crossing"), WITH_GRADIENTS)
def test_gradients_keep_the_promise(uncompiled: None, term: str, crossing: str) -> None:
    assert checks.keeps_the_promise("flex", term, crossing) == "taken"


@pytest.mark.one_in(14)
@pytest.mark.parametrize("mask", checks.mask_names())
def test_masks(uncompiled: None, mask: str) -> None:
    assert checks.obeys_the_mask("flex", mask) == "taken"


# ---------------------------------------------------------------- lists of blocks

N, SIZE = 300, 470


def long_masks() -> dict[str, M.Mask]:
    g = torch.Generator().manual_seed(0)
    sparse = torch.rand(2, 4, -(-N // 64), -(-SIZE // 64), generator=g) < 0.3
    sparse = sparse.repeat_interleave(64, 2)[:, :, :N].repeat_interleave(64, 3)[..., :SIZE]
    documents = torch.arange(SIZE) // 150
    mixed = torch.randint(0, 3, (2, SIZE), generator=g)
    return {
        "causal": M.Causal(),
        "window": M.Causal() & M.Window(40),
        "window and first": M.Causal() & (M.Window(40) | M.KeepFirst(3)),
        "chunks": M.Chunked(100),
        "prefix": M.Causal() | M.Prefix(torch.tensor([20, 400])),
        "padding": M.Causal() & M.Padding(torch.tensor([SIZE, 200])),
        "left padding": M.Causal() & M.Padding(torch.tensor([SIZE, 130]), "left"),
        "documents": M.Documents(documents),
        "causal documents": M.Causal() & M.Documents(documents),
        "mixed documents": M.Causal() & M.Documents(mixed),
        "documents of others": M.Causal() & M.Documents(mixed, torch.randint(1, 5, (2, N), generator=g)),
        "wide window": M.Window(160, 150),
        "falling documents": M.Documents(3 - documents),
        "documents in a window": M.Window(60, 30) & M.Documents(mixed),
        "sparse": M.Boolean(sparse),
        "one for all": M.Boolean(sparse[0, 0]),
        "sparse documents": M.Boolean(sparse[:, :1]) & M.Documents(mixed),
        "dilated": M.Causal() & M.Dilated(3),
        "nothing": M.Boolean(torch.zeros(N, SIZE, dtype=torch.bool)),
        "everything": M.Boolean(torch.ones(N, SIZE, dtype=torch.bool)),
    }


BY_BOUNDS = {"left padding", "mixed documents", "documents of others", "documents in a window", "sparse documents"}
"""Masks that list a few blocks in which nothing is visible, since blocks are judged by their bounds."""


def lowered(mask: M.Mask, n: int = N, m: int = SIZE) -> Any:
    g = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, heads, size, 16, generator=g) for heads, size in ((4, n), (2, m), (2, m)))
    return simplified(make_call(q, k, v, mask=mask))


def allowed_of(mask: M.Mask, call: Call) -> Tensor:
    return mask.allowed(call.q_coordinates, call.k_coordinates).expand(2, 4, N, SIZE)


@pytest.mark.parametrize("name", long_masks())
def test_lists_have_every_visible_pair(name: str) -> None:
    mask = long_masks()[name]
    call = lowered(mask)
    sight, allowed = flex.Sight.of(call), allowed_of(mask, call)
    lists = flex._block_mask(sight, N, SIZE)
    partial = _dense(lists.kv_num_blocks, lists.kv_indices)
    whole = _dense(lists.full_kv_num_blocks, lists.full_kv_indices)
    assert not (partial & whole).any()
    padded = torch.nn.functional.pad(allowed, (0, -SIZE % flex.BLOCK, 0, -N % flex.BLOCK))
    blocks = padded.unflatten(3, (-1, flex.BLOCK)).unflatten(2, (-1, flex.BLOCK)).transpose(3, 4).flatten(4)
    assert not (blocks.any(-1) & ~(partial | whole)).any(), "a visible pair is in no block"
    assert not (whole & ~blocks.all(-1)).any(), "a pair of a block that is visible whole is hidden"
    shape = (2, 4, *partial.shape[2:])
    if name not in BY_BOUNDS:
        assert torch.equal((partial | whole).expand(shape), blocks.any(-1)), "a block without a visible pair is listed"
        inner = blocks.all(-1)
        assert torch.equal(whole.expand(shape), inner), "a block that is visible whole is computed with the mask"


def _dense(count: Tensor, indices: Tensor) -> Tensor:
    listed = torch.arange(indices.shape[-1]) < count[..., None]
    return torch.zeros_like(listed).scatter_(-1, indices.long(), listed)


@pytest.mark.parametrize("name", long_masks())
def test_pairs_and_tokens_in_sight(name: str) -> None:
    mask = long_masks()[name]
    call = lowered(mask)
    sight, allowed = flex.Sight.of(call), allowed_of(mask, call)
    b, h, i, j = torch.meshgrid(*map(torch.arange, allowed.shape), indexing="ij")
    assert torch.equal(flex._visible(sight)(b, h, i, j).expand_as(allowed), allowed)
    seeing, seen = flex._tokens_in_sight(call, sight)
    assert torch.equal(seeing.expand(2, 4, N), allowed.any(-1))
    by_any_head = allowed.any(-2).unflatten(1, (2, 2)).any(2)
    assert torch.equal(seen.expand(2, 2, SIZE), by_any_head)


# ---------------------------------------------------------------- compiled


HOLES = torch.rand(200, 200, generator=torch.Generator().manual_seed(3)) < 0.5
SLOPES = torch.tensor([0.5, 0.2, 0.1, 0.05])
DRAWN = torch.randn(4, N, SIZE, generator=torch.Generator().manual_seed(2))
COMPILED: dict[str, tuple[int, M.Mask, tuple[T.Term, ...]]] = {
    "causal, a table": (N, M.Causal(), (T.DistanceBias(T.Rows(DRAWN[:, 0, :41], T.Clip(-30, 10))),)),
    "documents, a slope": (
        *(N, M.Causal() & M.Documents(torch.arange(SIZE) // 150)),
        (T.DistanceBias(T.Linear(SLOPES, SLOPES)),),
    ),
    "sparse, biases": (
        *(N, long_masks()["sparse"]),
        (T.TokenBias(None, DRAWN[:, 0][None]), T.DenseBias(DRAWN), T.SoftCap(3.0)),
    ),
    "packed, two slopes and a table": (
        *(SIZE, M.Documents()),
        (T.DistanceBias(T.Linear(SLOPES, 2 * SLOPES)), T.DistanceBias(T.Rows(DRAWN[:, 0, :9], T.Clip(-6, 2)))),
    ),
    "one query, a window": (1, M.Causal() & M.Window(200), ()),
}


def long_call(name: str, dtype: torch.dtype) -> tuple[Call, list[Tensor]]:
    """One of the calls, and its q, k and v, the same numbers in each dtype."""
    n, mask, terms = COMPILED[name]
    g = torch.Generator().manual_seed(0)
    shapes = ((2, 4, n, 16), (2, 2, SIZE, 16), (2, 2, SIZE, 24))
    leaves = [torch.randn(shape, generator=g).bfloat16().to(dtype).requires_grad_() for shape in shapes]
    q_at, k_at = Coordinates.span(n, start=SIZE - n, length=SIZE), Coordinates.span(SIZE)
    if name.startswith("packed"):
        q_at = k_at = Coordinates.packed([150, 200, SIZE - 350])
    return make_call(*leaves, mask=mask, terms=terms, q_positions=q_at, k_positions=k_at), leaves


@pytest.mark.parametrize("name", COMPILED)
def test_long_calls(uncompiled: None, name: str) -> None:
    results = []
    for kernel, dtype in (("flex", torch.float32), ("reference", torch.float64)):
        call, leaves = long_call(name, dtype)
        results.append(_results(KERNELS[kernel].run(call)[0], leaves))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPILED)
def test_compiled_for_a_cpu(compiled: None, name: str) -> None:
    call, _ = long_call(name, torch.float32)
    with torch.no_grad():
        assert not KERNELS["flex"].why_not(Problem.of(call))
        found, expected = (KERNELS[kernel].run(call)[0] for kernel in ("flex", "reference"))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", COMPILED)
def test_on_a_gpu(name: str, dtype: torch.dtype) -> None:
    """Output and gradients, against the naive computation and float64; the same bits twice."""
    runs = []
    for kernel, precision in (("flex", dtype), ("flex", dtype), ("reference", torch.float64)):
        call, leaves = long_call(name, precision)
        there = moved(call, "cuda")
        assert not KERNELS[kernel].why_not(Problem.of(there))
        runs.append(_results(KERNELS[kernel].run(there)[0].cpu(), leaves))
    call, leaves = long_call(name, dtype)
    naive = _results(reference.steps(call)[4].to(dtype), leaves)
    for number, (found, again, exact, other) in enumerate(zip(*runs, naive, strict=True)):
        assert torch.equal(found, again)
        factor = GRADIENT_FACTOR if number else OUTPUT_FACTOR
        comparison = Comparison(f"result {number} of {name} in {dtype}", factor)
        comparison.add(found, other, exact)
        comparison.check()


def _results(out: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    return [out, *torch.autograd.grad((out * checks.upstream_of(out)).sum(), leaves)]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("mask", [M.Causal() & (M.Window(30) | M.KeepFirst(2)), None, M.Causal(), M.Boolean(HOLES)])
def test_within_a_compiled_function(uncompiled: None, mask: M.Mask | None) -> None:
    """The compiler traces lists and functions too, and FlexAttention is compiled with what is around it."""
    inputs = [torch.randn(1, 2, 200, 16, requires_grad=True) for _ in range(3)]
    places = {name: Coordinates.span(200) for name in ("q_positions", "k_positions")}

    def run(q: Tensor, k: Tensor, v: Tensor, kernel: str) -> Tensor:
        terms = (T.DistanceBias(T.Linear(SLOPES[:2], SLOPES[:2])),)
        return hw.attention(q, k, v, mask=mask, terms=terms, kernel=kernel, **places)

    compiled = torch.compile(run, fullgraph=True, backend="eager")
    found, expected = (_results(of(*inputs, kernel), inputs) for of, kernel in ((compiled, "flex"), (run, "reference")))
    for result, other in zip(found, expected, strict=True):
        torch.testing.assert_close(result, other, rtol=1e-4, atol=1e-5)


def test_few_queries_of_many_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of fewer than 128 queries torch makes one block with the heads that share keys, which must not exceed 128."""
    given = []

    def noted(q: Tensor, k: Tensor, v: Tensor, **arguments: Any) -> tuple[Tensor, SimpleNamespace]:
        given.append((arguments["kernel_options"] or {}).get("FORCE_USE_FLEX_ATTENTION", False))
        return torch.zeros_like(q), SimpleNamespace(lse=None)

    monkeypatch.setattr(flex, "_compiled", lambda: noted)
    monkeypatch.setattr(FlexKernel, "devices", frozenset({"cpu"}))
    for heads, n in ((2, 64), (2, 65), (1, 128), (4, 33)):
        q, k, v = (torch.zeros(1, count, tokens, 16) for count, tokens in ((2 * heads, n), (2, 200), (2, 200)))
        KERNELS["flex"].run(make_call(q, k, v, mask=M.Window(9, 9)))
    assert given == [False, True, False, True]


def test_never_quietly_uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch would give up compiling, it raises, and does not compute all scores."""
    compiles = torch.compile
    monkeypatch.setattr(FlexKernel, "devices", frozenset({"cpu"}))
    monkeypatch.setattr(torch, "compile", lambda *a, **named: compiles(*a, **named, backend="eager"))
    monkeypatch.setattr(flex, "MOST_PROGRAMS", 1)
    flex._compiled.cache_clear()
    torch._dynamo.reset()
    q = torch.randn(1, 2, 9, 16)
    with torch.no_grad():
        hw.attention(q, q, q, kernel="flex")
        with pytest.raises(Exception, match="fullgraph=True"):
            hw.attention(q, q, q, soft_cap=2.0, kernel="flex")
    flex._compiled.cache_clear()
    torch._dynamo.reset()


# ---------------------------------------------------------------- what it refuses


def _learned() -> Tensor:
    return torch.zeros(2, 3, requires_grad=True)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "dropout": ({"dropout": 0.1}, "FlexAttention has no dropout"),
    "float64": ({"dtype": torch.float64}, "it computes in float32, and float64 would be rounded"),
    "no keys": ({"m": 0}, "there are no queries or no keys"),
    "a learned table": (
        {"terms": (T.DistanceBias(T.Rows(_learned(), T.Clip(-1, 1))),)},
        "FlexAttention sums the gradient of DistanceBias in a different order in each run",
    ),
    "relative keys": (
        {"terms": (T.RelativeKeys(T.Rows(torch.zeros(2, 3, 16), T.Clip(-1, 1))),)},
        "FlexAttention has no RelativeKeys",
    ),
    "a function": (
        {"terms": (T.DenseBias(lambda rows: torch.zeros(1, 1, len(rows), 9)),)},
        "the function of a DenseBias takes rows, not single pairs",
    ),
    "two caps": ({"terms": (T.SoftCap(1.0), T.SoftCap(2.0))}, "it supports at most one SoftCap"),
    "gaps": (
        {
            "terms": (T.DistanceBias(T.Log(torch.ones(2), torch.ones(2))),),
            "places": {name: Coordinates.of(torch.arange(9) * 2, 9) for name in ("q_positions", "k_positions")},
        },
        "a bias of Log needs positions that are known to rise by one",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(FlexKernel, "devices", frozenset({"cpu"}))
    arguments, reason = REFUSED[name]
    given = dict(arguments)
    dtype, m = given.pop("dtype", torch.float32), given.pop("m", 9)
    places = given.pop("places", {"q_positions": Coordinates.span(9, start=m - 9, length=m)})
    places.setdefault("k_positions", Coordinates.span(m))
    q, k, v = torch.randn(1, 2, 9, 16, dtype=dtype), *torch.randn(2, 1, 2, m, 16, dtype=dtype)
    found = hw.explain(q, k, v, kernel="flex", **given, **places)
    assert found.reasons["flex"] == [reason]
    with pytest.raises(hw.HeadwayError, match="kernel 'flex' cannot run"):
        hw.attention(q, k, v, kernel="flex", **given, **places)


def test_a_mask_that_would_be_large() -> None:
    q = torch.empty(1, 1, 1, 16).expand(1, 1, 9000, 16)
    call = make_call(q, q, q, mask=M.Causal() & M.Dilated(3))
    assert list(flex._against(Problem.of(call))) == [
        "its mask is not an interval, and would be dense and larger than 64 MiB"
    ]


def test_a_cpu_has_no_gradients() -> None:
    q = torch.randn(1, 2, 9, 16)
    assert hw.explain(q, q, q).reasons["flex"] == ["it runs on a GPU, and q is on cpu"]


def test_auto_leaves_it_until_it_has_been_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FlexKernel, "devices", frozenset({"cpu"}))
    q = torch.randn(1, 2, 9, 16)
    found = hw.explain(q, q, q, dropout=0.0, soft_cap=3.0)
    only = {name: KERNELS[name] for name in ("flex", "reference")}
    call = make_call(q, q, q, soft_cap=3.0)
    assert found.reasons["flex"] == []
    choice = choose(only, Problem.of(call))
    assert choice.kernel == "reference"
    assert "run `headway tune`" in choice.deferred["flex"]
