"""The CPU kernel beyond the conformance grid: drawn calls against float64, the promise, edges of every kind."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cpu_calls import (
    FAR,
    LAYOUTS,
    MASKS,
    OF_ALL_KEYS,
    POSITIONS,
    SHARING,
    TERMS,
    UPSTREAMS,
    WAVES,
    Case,
    Made,
    errors,
    heads_shared_out,
)  # fmt: skip
from torch import Tensor

import headway as hw
from headway import masks as M
from headway import terms as T
from headway.coordinates import Coordinates
from headway.kernels import KERNELS
from headway.kernels.cpu import _library
from headway.testing.tolerances import DRAWS, GRADIENT_FACTOR, OUTPUT_FACTOR, Comparison

pytestmark = pytest.mark.skipif(_library._load().c is None, reason="the library is not there")

PARTS, EACH = 8, {torch.float32: 40, torch.bfloat16: 20, torch.float16: 8}
DTYPES = list(EACH)
READ_FIRST = range(60_000, 60_600, 151)
MOST = 1 << 16
"""Scores of a drawn call."""


def drawn(dtype: torch.dtype, part: int) -> list[Case]:
    first = 10_000 * DTYPES.index(dtype) + EACH[dtype] * part
    return [Case.drawn(seed, MOST) for seed in range(first, first + EACH[dtype])]


def fails(cases: list[Case], dtype: torch.dtype) -> str:
    """What is wrong with which case, line by line."""
    return "\n".join(f"{case}: {wrong}" for case in cases if (wrong := errors(case, dtype)))


# Drawn calls ---------------------------------------------------------------------------------------------------------


@pytest.mark.one_in(5)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_drawn_calls_equal_the_reference(dtype: torch.dtype, part: int) -> None:
    with heads_shared_out() if part % 2 else nullcontext():
        assert not fails(drawn(dtype, part), dtype)


@pytest.mark.one_in(7)  # each term, each dtype and each kind of draw
@pytest.mark.parametrize("first", READ_FIRST)
@pytest.mark.parametrize("name", OF_ALL_KEYS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_drawn_calls_with_a_term_that_reads_all_keys(dtype: torch.dtype, name: str, first: int) -> None:
    beside = random.Random(first).sample(TERMS, 2)
    cases = [
        Case.drawn(seed, MOST, terms=(name, *beside[: seed % 3])) for seed in range(first, first + EACH[dtype] // 2)
    ]
    with heads_shared_out() if first % 2 else nullcontext():
        assert not fails(cases, dtype)


def test_the_draws_leave_nothing_out() -> None:
    cases = [case for dtype in DTYPES for part in range(PARTS) for case in drawn(dtype, part)]
    assert {case.positions for case in cases} == set(POSITIONS)
    assert {case.mask for case in cases} == set(MASKS)
    assert {name for case in cases for name in case.terms} == set(TERMS)
    assert {layout for case in cases for layout in case.layouts} == set(LAYOUTS)
    assert {case.upstream for case in cases} == set(UPSTREAMS)
    for name in ("sink", "lse", "include_sink", "dropout", "cap"):
        assert {bool(getattr(case, name)) for case in cases} == {True, False}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", _library.ISAS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_instruction_set(dtype: torch.dtype, name: str) -> None:
    if name not in _library.isas():
        pytest.skip(f"{name} is not on this machine")
    with _library.using(name):
        assert not fails([Case.drawn(seed, 1 << 14) for seed in range(50_000, 50_020)], dtype)


SINGLY = {"batch": 2, "heads": 4, "kv_heads": 2, "n": 97, "m": 241, "head_dim": 40, "v_dim": 24, "wanted": 1.0}
"""A call in which blocks of queries and keys are cut, with few scores for all that."""
PLAIN = {"sink": False, "cap": None, "lse": False, "include_sink": True, "dropout": 0.0, "upstream": "dense"}


@pytest.mark.parametrize("positions", POSITIONS)
def test_every_term_at_every_kind_of_position(positions: str) -> None:
    names = [name for name in TERMS if name not in WAVES or positions not in FAR]
    groups = [tuple(names[number::7]) for number in range(7)]
    given = {**SINGLY, **PLAIN, "positions": positions, "mask": "causal", "batch": 1, "heads": 2, "n": 97, "m": 145}
    assert not fails([Case.drawn(number, terms=terms, **given) for number, terms in enumerate(groups)], torch.float32)


@pytest.mark.parametrize("mask", MASKS)
def test_every_mask(mask: str) -> None:
    given = {**SINGLY, **PLAIN, "mask": mask, "positions": "plain", "terms": ("clip", "keys with u")}
    cases = [
        Case.drawn(0, **given),
        Case.drawn(1, **{**given, "sink": True, "lse": True, "n": 3}),
        Case.drawn(2, **{**given, "dropout": 0.4, "positions": "padded in front", "n": 241}),
    ]
    assert not fails(cases, torch.float32)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("wanted", ["k", "q", "v", "table", "up of nothing"])
def test_a_gradient_is_had_alone(wanted: str) -> None:
    """What wants no gradient has no memory for one, and nothing is written there."""
    for name in TERMS:
        case = Case.drawn(7, 1 << 14, **{**SINGLY, **PLAIN, "terms": (name,), "mask": "causal", "positions": "plain"})
        made, exact = (
            case.make(dtype, wants=lambda leaf: leaf == wanted or (wanted == "table" and leaf.startswith("0 ")))
            for dtype in (torch.float32, torch.float64)
        )
        found, expected = made.results("cpu"), exact.results("reference")
        assert found.keys() == expected.keys()
        for what, value in found.items():
            torch.testing.assert_close(value.double(), expected[what], rtol=1e-4, atol=2e-4, msg=f"{what} with {name}")


# The promise ---------------------------------------------------------------------------------------------------------

BASE = {
    **PLAIN, "batch": 1, "heads": 2, "kv_heads": 1, "n": 63, "m": 111, "head_dim": 40, "v_dim": 24, "wanted": 1.0,
    "positions": "plain", "mask": "none", "terms": (), "layouts": ("contiguous",) * 3,
}  # fmt: skip
PROMISED: dict[str, dict[str, Any]] = {
    "nothing": {},
    "one and one": {"n": 1, "m": 1, "terms": ("steps",)},
    "one key": {"m": 1, "terms": ("clip", "tokens")},
    "one query": {"n": 1, "terms": ("steps", "keys with u")},
    "causal, T5": {"n": 193, "m": 193, "mask": "causal", "terms": ("steps",)},
    "longer than a block of keys": {"n": 49, "m": 513, "terms": ("clip",)},
    "a gradient of one number": {"terms": ("steps", "logarithm"), "upstream": "expanded"},
    "window, sink, log-sum-exp": {"mask": "window", "sink": True, "lse": True, "terms": ("linear",)},
    "cap": {"cap": 2.0, "terms": ("piecewise", "power")},
    "cosines": {"n": 193, "m": 193, "mask": "causal", "terms": ("cosines",)},
    "stretched": {"n": 97, "m": 193, "terms": ("stretched",)},
    "relative keys, queries, values": {"terms": ("keys", "queries", "values")},
    "width of one": {"head_dim": 1, "v_dim": 1, "terms": ("temperature",)},
    "odd widths": {"head_dim": 129, "v_dim": 33, "terms": ("keys, own query", "queries, own key")},
    "two axes": {"positions": "two axes", "terms": ("grid", "keys by grid")},
    "packed documents": {"positions": "packed", "mask": "causal documents", "terms": ("clip", "sinusoids")},
    "scores of 2500": {"scale": 128.0, "terms": ("clip",), "mask": "causal"},
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", PROMISED)
def test_the_promise_is_kept(name: str, dtype: torch.dtype) -> None:
    given = {**BASE, **PROMISED[name]}
    scale = given.pop("scale", None)
    comparisons: dict[str, Comparison] = {}

    def results(case: Case, dtype: torch.dtype, term_dtype: torch.dtype, kernel: str | None) -> dict[str, Tensor]:
        made = case.make(dtype, term_dtype)
        if scale is not None:
            made.call = replace(made.call, scale=scale)
        return made.results(kernel)

    for draw in range(DRAWS):
        case = Case.drawn(draw, 1 << 20, **given)
        # what naive computes has no log-sum-exp, so that its gradients are compared without it
        naive = results(replace(case, lse=False), dtype, dtype, None)
        found = results(replace(case, lse=False), dtype, torch.float32, "cpu")
        exact = results(replace(case, lse=False), torch.float64, torch.float64, "reference")
        if case.lse:
            assert not errors(case, dtype)
        for what, value in found.items():
            factor = OUTPUT_FACTOR if what == "out" else GRADIENT_FACTOR
            comparison = comparisons.setdefault(what, Comparison(f"{what} of {name} in {dtype}", factor))
            comparison.add(value, naive[what].to(value.dtype), exact[what])
    for comparison in comparisons.values():
        comparison.check()


def on_this_machine(name: str) -> Any:
    """Computes with the instruction set of this name, or skips the test."""
    if name not in _library.isas():
        pytest.skip(f"{name} is not on this machine")
    return _library.using(name)


@pytest.mark.parametrize("name", _library.ISAS)
@pytest.mark.parametrize("n", [1, 2, 4])
def test_one_key_hands_the_gradient_on_as_it_is(n: int, name: str) -> None:
    """However large its score: the backward pass computes the same as the forward pass has summed."""
    g = torch.Generator().manual_seed(n)
    for width in (1, 16, 40):
        q, k, v, up = (torch.randn(2, 3, tokens, width, generator=g) for tokens in (n, 1, 1, n))
        leaves = [x.requires_grad_() for x in (1000 * q, k, v)]
        with on_this_machine(name):
            out = hw.attention(*leaves, kernel="cpu")
            d_q, d_k, d_v = torch.autograd.grad(out, leaves, up)
        assert torch.equal(out, v.expand_as(out))
        torch.testing.assert_close(d_v, up.sum(2, keepdim=True), rtol=0 if n == 1 else 1e-6, atol=0 if n == 1 else 1e-6)
        assert not d_q.any()
        assert not d_k.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("n", [1, 2, 4, 5])
@pytest.mark.parametrize("name", _library.ISAS)
def test_weights_of_large_scores_sum_to_one_in_both_passes(name: str, n: int, dtype: torch.dtype) -> None:
    """The gradient of v is Aᵀ·dO: under a dO of ones it sums to the number of queries."""
    for terms, m in (((), 6), (("clip", "keys with u", "tokens"), 200), ((), 400)):
        given = {**BASE, "n": n, "m": m, "terms": terms, "mask": "causal", "lse": True}
        made = Case.drawn(n, **given).make(dtype, torch.float32, lambda leaf: leaf == "v")
        with on_this_machine(name):
            out, _ = KERNELS["cpu"].run(replace(made.call, scale=200.0))
            (found,) = torch.autograd.grad(out, made.leaves["v"], torch.ones_like(out))
        total = torch.full((given["v_dim"],), 2.0 * n)
        torch.testing.assert_close(
            found.float().sum((0, 1, 2)), total, rtol=4e-6 if dtype == torch.float32 else 2e-2, atol=0
        )


@pytest.mark.parametrize("name", _library.ISAS)
def test_a_weight_below_the_smallest_normal_number_is_nothing(name: str) -> None:
    q, k = torch.ones(1, 1, 60, 1), torch.tensor([0.0, -80.0, -87.5, -95.0]).view(1, 1, 4, 1)
    v = torch.diag(torch.full((4,), 1e30)).view(1, 1, 4, 4)
    with on_this_machine(name):
        for n in (1, 60):
            out = hw.attention(q[:, :, :n], k, v, scale=1.0, kernel="cpu")
            assert (out[..., 2:] == 0).all()
            torch.testing.assert_close(
                out[..., 1], torch.full_like(out[..., 1], 1e30 * math.exp(-80)), rtol=1e-5, atol=0
            )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scale", [0.3, -0.3, 0.125, -0.125, 0.0, 1e-44, 1e-60, 40.0])
def test_any_scale(scale: float, dtype: torch.dtype) -> None:
    """Scales are multiplied into queries, into scores, or into what the softmax reads."""
    g = torch.Generator().manual_seed(3)
    for n in (3, 60):
        q, k, v = (torch.randn(1, 2, tokens, 40, generator=g).to(dtype) for tokens in (n, 250, 250))
        wide = (x.double() for x in (q, k, v))
        found = hw.attention_with_lse(q, k, v, scale=scale, mask=M.Causal(), kernel="cpu")
        exact = hw.attention_with_lse(*wide, scale=scale, mask=M.Causal(), kernel="reference")
        for name, x, y in zip(("out", "lse"), found, exact, strict=True):
            close = 1e-5 if dtype == torch.float32 or name == "lse" else 2e-2
            torch.testing.assert_close(x.double(), y, rtol=close, atol=close * max(1, scale), msg=name)


def shared(name: str, p: Tensor) -> T.Term:
    """A term whose parameter p [2, 5] is one for all rows of the batch."""
    knots = torch.tensor([-9.0, -2.0, 0.0, 3.0, 12.0])
    biases: dict[str, Callable[[], T.Bias]] = {
        "table": lambda: T.Rows(p, T.Clip(-2, 2)),
        "steps": lambda: T.Rows(p, T.Bucketize(torch.tensor([-3.5, -1.0, 1.0, 2.0]))),
        "linear": lambda: T.Linear(p[:, 0], p[:, 1]),
        "logarithm": lambda: T.Log(p[:, 0], p[:, 1].exp()),
        "power": lambda: T.Power(p[:, 0], p[:, 1].sigmoid()),
        "cosines": lambda: T.Cosines(p, torch.tensor([1.0, 0.3, 0.05, 0.01, 3.0])),
        "piecewise": lambda: T.Piecewise(knots, p),
        "stretched": lambda: T.Stretched(knots[3:], p[:, :3], p[:, 1:4], p[:1, 4].exp(), p[:1, :1].expand(1, 16)),
    }
    if name in biases:
        return T.DistanceBias(biases[name]())
    wide = p.repeat(1, 4)[:, :16]
    return {
        "dense": lambda: T.DenseBias(wide[None, :, :, None] + wide[None, :, None, :]),
        "dense for all": lambda: T.DenseBias(wide[:1, None] * wide[1:, :, None]),
        "dense by column": lambda: T.DenseBias(wide[:1, None, :]),
        "dense by row": lambda: T.DenseBias(torch.stack([wide, -wide], -1)[None].repeat(1, 1, 1, 8)),
        "keys": lambda: T.TokenBias(keys=wide[None]),
        "sink": lambda: T.Sink(p[:, 0]),
        "sink by query": lambda: T.Sink(wide[None]),
        "temperature": lambda: T.QueryScale(p[None, :, :1]),
        "u": lambda: T.RelativeKeys(T.Rows(torch.eye(5, 16)[None], T.Clip(-2, 2)), query_bias=wide),
    }[name]()  # type: ignore[no-any-return]


SHARED = (
    "table", "steps", "linear", "logarithm", "power", "cosines", "piecewise", "stretched", "dense", "dense for all",
    "dense by column", "dense by row", "keys", "sink", "sink by query", "temperature", "u",
)  # fmt: skip


@pytest.mark.parametrize("at", ["whole", "floats"])
@pytest.mark.parametrize("name", SHARED)
def test_what_cancels_in_a_shared_gradient_leaves_the_rest(name: str, at: str) -> None:
    """Two rows of the batch have large gradients, each the other's negative: the row between them is what is left."""
    g = torch.Generator().manual_seed(5)
    q, k, v, large, small = (torch.randn(1, 2, 16, 16, generator=g) for _ in range(5))
    large *= 2.0**30
    parameter = torch.randn(2, 5, generator=g).requires_grad_()
    positions = torch.arange(16) if at == "whole" else torch.arange(16) * 1.25

    def gradient(up: Tensor, kernel: str, dtype: torch.dtype) -> Tensor:
        p = parameter.to(dtype)
        inputs = [x.to(dtype).expand(up.shape[0], -1, -1, -1) for x in (q, k, v)]
        out = hw.attention(
            *inputs, terms=(shared(name, p),), q_positions=positions, k_positions=positions, kernel=kernel
        )
        return torch.autograd.grad(out, parameter, up.to(dtype))[0]

    expected = gradient(small, "reference", torch.float64)
    assert expected.abs().max() > 1e-3
    found = gradient(torch.cat([large, small, -large]), "cpu", torch.float32)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("n", [111, 400])
def test_gradients_of_a_row_sum_to_nothing_as_naive_ones_do(n: int) -> None:
    """A bias for all, whose true gradient is 0, and slopes: no units of the largest gradient are granted here."""
    errors: dict[str, list[list[float]]] = {"one for all": [[], []], "slopes": [[], []]}
    for draw in range(DRAWS if n > 200 else 4 * DRAWS):
        g = torch.Generator().manual_seed(draw)
        q, k, v, up = (torch.randn(1, heads, n, 16, generator=g) for heads in (4, 1, 1, 4))
        slope = torch.rand(4, generator=g) / 10
        found = []
        for kernel, dtype in (("cpu", torch.float32), ("reference", torch.float32), ("reference", torch.float64)):
            leaves = [torch.zeros(1, 1, 1, 1, dtype=dtype).requires_grad_(), slope.to(dtype).requires_grad_()]
            terms = (T.DenseBias(leaves[0]), T.DistanceBias(T.Linear(leaves[1], leaves[1])))
            out = hw.attention(*(x.to(dtype) for x in (q, k, v)), terms=terms, kernel=kernel)
            found.append(torch.autograd.grad(out, leaves, up.to(dtype)))
        for what, ours, naive, exact in zip(errors, *found, strict=True):
            for side, value in zip(errors[what], (ours, naive), strict=True):
                side += (value.double() - exact).abs().flatten().tolist()
    for what, (ours_, naive_) in errors.items():
        ratio = sum(ours_) / sum(naive_)
        assert ratio < (1.25 if n < 192 else 2), f"{what}: {ratio:.2f} times naive's"


# Forms, pair by pair -------------------------------------------------------------------------------------------------


def biases(values: T.Bias, q_positions: Tensor, k_positions: Tensor, **leaves: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The bias of each query with one key [heads, n], as the log-sum-exp; gradients of their weighted sum."""
    n, heads = len(q_positions), 2
    q, k = torch.zeros(1, heads, n, 4), torch.zeros(1, heads, 1, 4)
    _, lse = hw.attention_with_lse(
        q, k, k, terms=(T.DistanceBias(values),), q_positions=q_positions, k_positions=k_positions, kernel="cpu"
    )
    upstream = torch.linspace(-1, 1, n).expand(lse.shape)
    return lse[0], list(torch.autograd.grad(lse, list(leaves.values()), upstream)) if leaves else []


FAR_PLACES = {
    "in a row": (torch.arange(16384) - 100, torch.tensor([7])),
    "wide gaps": (torch.arange(300) * 997, torch.tensor([40_000])),
    "floats": (torch.linspace(-100, 16000, 300), torch.tensor([7.3])),
    "doubles": (torch.linspace(-100, 16000, 300, dtype=torch.float64), torch.tensor([7.3], dtype=torch.float64)),
}


@pytest.mark.parametrize("places", FAR_PLACES)
@pytest.mark.parametrize("heads", [1, 2])
def test_cosines_are_exact_far_away(heads: int, places: str) -> None:
    """64 waves over 16,384 distances, each as far as float32 holds it."""
    at, key = FAR_PLACES[places]
    n = len(at)
    weight = torch.randn(heads, 64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    frequencies = 10000.0 ** (-torch.arange(64, dtype=torch.float64) / 64)
    found, (gradient,) = biases(T.Cosines(weight, frequencies), at, key, weight=weight)
    waves = ((key.double() - at.double())[:, None] * frequencies).cos()
    expected = (weight.detach().double() @ waves.mT).expand(2, n)
    torch.testing.assert_close(found.detach().double(), expected, rtol=1e-6, atol=2e-6)
    upstream = torch.linspace(-1, 1, n).double().expand(2, n) @ waves
    expected = upstream if heads == 2 else upstream.sum(0, keepdim=True)
    torch.testing.assert_close(gradient.double(), expected, rtol=1e-5, atol=1e-3)


def test_forms_of_nothing() -> None:
    """Without waves there is no bias; one piece has no edges."""
    at, key = torch.arange(100), torch.tensor([50])
    found, _ = biases(T.Cosines(torch.zeros(1, 0), torch.zeros(0)), at, key)
    torch.testing.assert_close(found, torch.zeros(2, 100))
    rows = torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [4.0]])
    found, _ = biases(T.Stretched(torch.zeros(0), *rows, torch.ones(1), torch.full((1, 100), 0.5)), at, key)
    expected = rows[0] + rows[1] * 0.5 * (at - 50).abs().log1p()
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", _library.ISAS)
@pytest.mark.parametrize("stretch", [0.31, -0.31, 0.0, math.nan])
def test_pieces_are_found_along_the_keys(stretch: float, name: str) -> None:
    """Every edge on both sides of a query, several in one vector of keys: each pair is in its own piece."""
    if name not in _library.isas():
        pytest.skip(f"{name} is not on this machine")
    m = 400
    edges = torch.cat([torch.linspace(-1.2, 1.2, 25), torch.tensor([0.3, 0.3, 50.0])]).sort().values
    pieces = len(edges) + 1
    leaves = [torch.zeros(2, pieces), torch.zeros(2, pieces), torch.tensor([0.7]), torch.full((1, 3), stretch)]
    for leaf in leaves:
        leaf.requires_grad_()
    with torch.no_grad():
        leaves[0].copy_(torch.arange(2 * pieces).view(2, pieces) / 8)  # steps, so that a wrong piece is seen
    at = Coordinates.of(torch.arange(m), m)
    q, k, v = torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, m, 4), torch.randn(1, 2, m, 4)
    results = []
    for kernel in ("cpu", "reference"):
        with _library.using(name):
            out = hw.attention(
                q,
                k,
                v,
                terms=(T.DistanceBias(T.Stretched(edges, *leaves)),),
                q_positions=torch.tensor([0, 203, 399]),
                k_positions=at,
                kernel=kernel,
            )
            results.append([out, *torch.autograd.grad(out[..., 0].sum(), leaves)])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("wanted", ["intercept", "slope", "rate", "stretch"])
def test_a_gradient_of_pieces_is_had_alone(wanted: str, whole: bool) -> None:
    at = torch.arange(150) if whole else torch.linspace(0, 150, 150)
    edges = torch.tensor([0.2, 0.9])
    results = []
    for kernel, dtype in (("cpu", torch.float32), ("reference", torch.float64)):
        g = torch.Generator().manual_seed(3)
        q, k, v = (torch.randn(1, 2, 150, 8, generator=g).to(dtype) for _ in range(3))
        shapes = {"intercept": (2, 3), "slope": (2, 3), "rate": (1,), "stretch": (1, 150)}
        leaves = {name: torch.rand(shape, generator=g).to(dtype) for name, shape in shapes.items()}
        leaves[wanted].requires_grad_()
        term = T.DistanceBias(T.Stretched(edges, **leaves))
        out = hw.attention(q, k, v, terms=(term,), q_positions=at, k_positions=at, kernel=kernel)
        results.append(torch.autograd.grad(out.square().sum(), leaves[wanted])[0])
    torch.testing.assert_close(results[0].double(), results[1], rtol=1e-3, atol=1e-5)
    assert results[1].abs().min() > 1e-4 or wanted != "rate"


# Sizes ---------------------------------------------------------------------------------------------------------------


def every_term(cast: Callable[[Tensor], Tensor], b: int, h: int, kv: int, n: int, m: int, d: int, dv: int) -> list[Any]:
    """Terms of every kind, some for all heads and some for each."""
    g = torch.Generator().manual_seed(5)

    def leaf(*shape: int) -> Tensor:
        return cast(torch.randn(shape, generator=g))

    by = T.Clip(-4, 4)
    return [
        T.DistanceBias(T.Rows(leaf(1, 9), by)),
        T.DistanceBias(T.Rows(leaf(h, 9), by)),
        T.DistanceBias(T.Linear(leaf(h), leaf(1))),
        T.DistanceBias(T.Cosines(leaf(1, 3), torch.tensor([1.0, 0.3, 0.05]))),
        T.DistanceBias(
            T.Stretched(torch.tensor([0.4]), leaf(1, 1).expand(h, 2), leaf(h, 2), leaf(1).exp(), leaf(1, n))
        ),
        T.RelativeKeys(T.Rows(leaf(h, 9, d), by), leaf(h, d)),
        T.RelativeKeys(T.Rows(leaf(h, 9, 5), by), leaf(1, 5), leaf(b, h, n, 5)),
        T.RelativeQueries(T.Rows(leaf(1, 9, d), by)),
        T.RelativeQueries(T.Rows(leaf(1, 9, 6), by), leaf(b, kv, m, 6)),
        T.RelativeValues(T.Rows(leaf(h, 9, dv), by)),
        T.DenseBias(leaf(1, 1, n, m)),
        T.TokenBias(leaf(1, h, n), leaf(b, 1, m)),
        T.QueryScale(leaf(1, h, 1)),
        T.Sink(leaf(h)),
        T.Sink(leaf(b, h, n)),
    ]


@pytest.mark.parametrize(
    "sizes",
    [
        (0, 2, 2, 5, 7, 8, 6), (2, 0, 1, 5, 7, 8, 6), (0, 0, 2, 5, 7, 8, 6), (2, 2, 1, 0, 7, 8, 6),
        (2, 2, 1, 5, 0, 8, 6), (2, 2, 2, 0, 0, 8, 6), (2, 2, 1, 5, 7, 8, 0), (2, 2, 1, 3, 7, 8, 0),
        (2, 2, 1, 3, 0, 8, 6), (1, 1, 1, 1, 1, 1, 1),
    ],
)  # fmt: skip
@pytest.mark.parametrize("spoken", [False, True], ids=["plain", "every term"])
def test_sizes_of_nothing(sizes: tuple[int, ...], spoken: bool) -> None:
    b, h, kv, n, m, d, dv = sizes
    results = []
    for kernel, dtype in (("cpu", torch.float32), ("reference", torch.float64)):
        g = torch.Generator().manual_seed(1)
        q, k, v = (torch.randn(b, *shape, generator=g).to(dtype) for shape in ((h, n, d), (kv, m, d), (kv, m, dv)))
        leaves = [q, k, v]

        def cast(x: Tensor, dtype: torch.dtype = dtype, leaves: list[Tensor] = leaves) -> Tensor:
            leaves.append(x.to(dtype))
            return leaves[-1].requires_grad_()

        terms = every_term(cast, b, h, kv, n, m, d, dv) if spoken else None
        at = Coordinates.of(torch.arange(max(n, m)), max(n, m))
        sides = {"q_positions": at.rows(len_of(at) - n, len_of(at)), "k_positions": at.rows(len_of(at) - m, len_of(at))}
        for x in leaves:
            x.requires_grad_()
        out, lse = hw.attention_with_lse(q, k, v, terms=terms, mask=M.Causal(), kernel=kernel, **sides)
        seen = torch.where(torch.isfinite(lse), lse, torch.zeros_like(lse))
        grads = torch.autograd.grad(out.sum() + seen.sum(), leaves, allow_unused=True)
        results.append(
            [out, lse, *(torch.zeros_like(x) if g is None else g for x, g in zip(leaves, grads, strict=True))]
        )
    for found, expected in zip(*results, strict=True):
        assert found.shape == expected.shape
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


def len_of(at: Coordinates) -> int:
    return at.index.shape[1]


def test_offsets_beyond_2_to_the_31(tmp_path: Path) -> None:
    """Rows of tokens and of the batch that lie further apart than 32 bits count."""
    path = tmp_path / "far"
    step, count = (1 << 31) + 24, 8
    with open(path, "wb") as file:
        file.truncate(2 * (3 * step + 4096))  # its pages are made where they are written
    far = torch.from_file(str(path), shared=True, size=3 * step + 4096, dtype=torch.bfloat16)
    for n, m, strides in ((2, 3, (8, 8, step, 1)), (6, 6, (step, 8, 16, 1)), (6, 6, (step, 48, 8, 1))):
        shapes = (2, 1, n, count), (2, 1, m, count), (2, 1, m, count)
        own = (4, 8, step, 1) if strides[2] == step else strides
        q, k, v = (far[1024 * i :].as_strided(shape, own) for i, shape in enumerate(shapes))
        near = [torch.randn(shape).bfloat16() for shape in shapes]
        if own[0] == 4:  # two rows of the batch share memory: the second follows the first
            near = [torch.stack([x[0], torch.cat([x[0, ..., 4:], x[1, ..., 4:]], -1)]) for x in near]
        for x, value in zip((q, k, v), near, strict=True):
            x.copy_(value)
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        near = [x.contiguous().requires_grad_() for x in near]
        found = hw.attention(*leaves, kernel="cpu")
        expected = hw.attention(*near, kernel="cpu")
        assert torch.equal(found, expected)
        for a, b in zip(
            *(torch.autograd.grad(o.sum(), x) for o, x in ((found, leaves), (expected, near))), strict=True
        ):
            assert torch.equal(a, b)


# Numbers that are none, and large ones -------------------------------------------------------------------------------


def poison(made: Made, value: float) -> bool:
    """Sets what is unseen, and who sees nothing, to a value; whether there is any such."""
    call = made.call
    if call.mask is None:
        return False
    b, h, n, _ = call.q.shape
    kv, m = call.k.shape[1:3]
    allowed = call.mask.allowed(call.q_coordinates, call.k_coordinates).expand(b, h, n, m)
    unseen, blind = ~allowed.unflatten(1, (kv, h // kv)).any(2).any(2), ~allowed.any(-1)
    for name, x in made.leaves.items():
        where = None
        if name in ("k", "v") or name.endswith("own key key"):
            where = unseen[..., None]
        elif name == "q" or name.endswith("own query query"):
            where = blind[..., None]
        elif name.endswith("stretched stretch"):
            where = blind.all(1)
            if x.shape[0] == 1:
                where = where.all(0, keepdim=True)
        elif name.endswith(("tokens keys", "tokens queries")):
            where = ~allowed.any(2) if name.endswith("keys") else blind
            for dim in (0, 1):
                if x.shape[dim] == 1:
                    where = where.all(dim, keepdim=True)
        if where is not None:
            x.detach().masked_fill_(where, value)
    return bool(unseen.any() or blind.any())


@pytest.mark.parametrize("sharing", SHARING)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("hidden", [100, 101])
def test_one_odd_number_where_nobody_looks_changes_nothing(hidden: int, dtype: torch.dtype, sharing: Any) -> None:
    n = 200  # whole panels of keys, which bfloat16 takes as they lie in memory, two rows to a word
    draw = torch.Generator().manual_seed(5)
    q, k, v = (torch.randn(1, 2, n, 32, generator=draw).to(dtype) for _ in range(3))
    seen = torch.arange(n) != hidden
    found = []
    for value in (0.0, math.nan):
        changed = [x.clone() for x in (k, v)]
        for x in changed:
            x[:, 1, hidden, 17] = value
        leaves = [x.requires_grad_() for x in (q.clone(), *changed)]
        with sharing():
            out = hw.attention(*leaves, mask=M.Boolean(seen.expand(n, n)), kernel="cpu")
            found.append([out, *torch.autograd.grad(out, leaves, torch.ones_like(out))])
    for clean, poisoned in zip(*found, strict=True):
        assert torch.equal(clean, poisoned)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("sharing", SHARING)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_nobody_sees_never_leaks(value: float, dtype: torch.dtype, sharing: Any) -> None:
    """Keys that no query may see, queries that may see nothing: whatever stands there, nothing changes by a bit."""
    dense = ("contiguous", "sliced", "gaps within rows")
    tried = 0
    for seed in range(70):
        case = Case.drawn(seed, 1 << 14, layouts=dense)
        clean, dirty = case.make(dtype, torch.float32), case.make(dtype, torch.float32)
        if not poison(dirty, value):
            continue
        tried += 1
        expected = clean.results("cpu")
        with sharing():
            results = dirty.results("cpu")
        for name, found in results.items():
            assert torch.equal(found.nan_to_num(7.0), expected[name].nan_to_num(7.0)), f"{name} of {case}"
    assert tried > 20


@pytest.mark.parametrize("form", ["cosines", "stretched", "logarithm"])
def test_a_place_that_is_no_number_stays_with_its_token(form: str) -> None:
    """Tokens that nobody sees and that see nothing."""
    allowed = torch.ones(1, 1, 70, 70, dtype=torch.bool)
    allowed[..., (5, 60)] = False
    allowed[:, :, (5, 60)] = False
    results = []
    for place in (1.5, math.nan):
        g = torch.Generator().manual_seed(3)
        at = torch.rand(70, generator=g).cumsum(0)
        at[5] = at[60] = place
        leaves = [torch.rand(shape, generator=g).requires_grad_() for shape in (*((1, 2, 70, 8),) * 3, (2, 5), (2, 5))]
        *qkv, one, two = leaves
        values: dict[str, T.Bias] = {
            "cosines": T.Cosines(one * two, torch.linspace(0.1, 1, 5)),
            "stretched": T.Stretched(
                torch.linspace(0.5, 2, 4), one, two, one[0, :1], one[:1, :1] + at.new_zeros(1, 70)
            ),
            "logarithm": T.Log(one[:, 0], two[:, 0]),
        }
        out = hw.attention(
            *qkv,
            terms=(T.DistanceBias(values[form]),),
            mask=M.Boolean(allowed),
            q_positions=at,
            k_positions=at,
            kernel="cpu",
        )
        results.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("n", [3, 60], ids=["few queries", "many queries"])
@pytest.mark.parametrize("case", ["bias", "bias under a cap", "table", "table of nothing", "unseen rows", "sink"])
def test_infinite_biases_are_taken_as_naive_takes_them(case: str, n: int) -> None:
    m, inf, nan = 70, math.inf, math.nan
    g = torch.Generator().manual_seed(2)
    bias, table = torch.randn(1, 2, n, m, generator=g), torch.randn(2, 9, generator=g)
    bias[:, :, 1], bias[:, 0, 2, 5], bias[:, 1, 0, ::2] = -inf, inf, -inf
    if case in ("table", "unseen rows"):
        table[:, 5:] = -inf if case == "table" else nan
    elif case == "table of nothing":
        table[:] = -inf
    results = []
    at = Coordinates.of(torch.arange(m), m)
    for kernel, dtype in (("cpu", torch.float32), ("reference", torch.float64)):
        g.manual_seed(3)
        leaves = [torch.randn(2, 2, rows, 8, generator=g).to(dtype).requires_grad_() for rows in (n, m, m)]
        own = (
            {"bias": bias, "sink": torch.tensor([-inf, inf])}.get(case.split(" ")[0], table).to(dtype).requires_grad_()
        )
        terms: list[T.Term] = []
        if case.startswith("bias"):
            terms = [T.DenseBias(own)]
        elif case != "sink":
            terms = [T.DistanceBias(T.Rows(own, T.Clip(-4, 4)))]
        out, lse = hw.attention_with_lse(
            *leaves,
            terms=terms,
            mask=M.Causal() if case == "unseen rows" else None,
            soft_cap=5.0 if "cap" in case else None,
            sink=own if case == "sink" else None,
            q_positions=at.rows(m - n, m),
            k_positions=at,
            kernel=kernel,
        )
        finite = torch.isfinite(out).all(-1, keepdim=True)
        grads: tuple[Tensor, ...] = ()
        if finite.all():
            grads = torch.autograd.grad(out.sum(-1).square().sum(), [*leaves, own])
        results.append([out, lse, *grads])
    assert len(results[0]) == len(results[1])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("name", _library.ISAS)
def test_a_soft_cap_has_a_gradient_far_beyond_it(name: str) -> None:
    """Where scores are eight times the cap its slope is 4e-7, and 1 − tanh² has no correct digit of it in float32."""
    scores = torch.tensor([8.0, -6.0, 4.0, 0.3]).repeat(10)
    found = []
    with on_this_machine(name):
        for kernel, dtype in (("cpu", torch.float32), ("reference", torch.float64)):
            k = scores.to(dtype).view(1, 1, 40, 1).requires_grad_()
            q, v = torch.ones(1, 1, 9, 1, dtype=dtype), torch.arange(40, dtype=dtype).view(1, 1, 40, 1)
            out = hw.attention(q, k, v, scale=1.0, soft_cap=1.0, kernel=kernel)
            found.append(torch.autograd.grad(out.sum(), k)[0].double())
    torch.testing.assert_close(*found, rtol=1e-4, atol=0)


@pytest.mark.parametrize("n", [3, 60], ids=["few queries", "many queries"])
def test_a_sink_by_query_is_its_own_rows(n: int) -> None:
    """What is infinite, or no number, for one query of one head is nothing to the others, whose bits stay."""
    m, g = 70, torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(2, heads, tokens, 8, generator=g) for heads, tokens in ((4, n), (2, m), (2, m)))
    clean = torch.randn(2, 4, n, generator=g)
    seen = torch.ones(n, m, dtype=torch.bool)
    seen[1] = False
    odd = clean.clone()
    odd[0, 1, 0], odd[1, 2, 2], odd[1, 0, 0], odd[0, :, 1] = -math.inf, math.inf, math.nan, -math.inf
    found, others = (hw.attention_with_lse(q, k, v, sink=x, mask=seen, kernel="cpu") for x in (odd, clean))
    same = odd == clean
    for a, b in zip(found, others, strict=True):
        assert torch.equal(a[same], b[same])
    exact = hw.attention_with_lse(
        *(x.double() for x in (q, k, v)), sink=odd.double(), mask=seen, kernel="reference"
    )  # fmt: skip
    for a, b in zip(found, exact, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-5, equal_nan=True)
    # gradients where the sinks are −∞, and rows see nothing but those
    odd = torch.where(torch.isfinite(odd) | (odd == -math.inf), odd, clean)
    results = []
    for kernel, dtype in (("cpu", torch.float32), ("reference", torch.float64)):
        leaves = [x.to(dtype, copy=True).requires_grad_() for x in (q, k, v, odd)]
        out, lse = hw.attention_with_lse(*leaves[:3], sink=leaves[3], mask=seen, kernel=kernel)
        loss = out.square().sum() + torch.where(torch.isfinite(lse), lse, 0).square().sum()
        results.append(torch.autograd.grad(loss, leaves))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kernel", ["cpu", "reference"])
@pytest.mark.parametrize("shape", [(4,), (2, 4, 60)])
def test_a_sink_that_takes_no_part_has_a_gradient_of_zero(shape: tuple[int, ...], kernel: str) -> None:
    q, k, v = (torch.randn(2, heads, 60, 8) for heads in (4, 2, 2))
    sink = torch.randn(shape, requires_grad=True)
    found = hw.attention_with_lse(q.requires_grad_(), k, v, sink=sink, include_sink=False, kernel=kernel)
    torch.testing.assert_close(found, hw.attention_with_lse(q, k, v, kernel=kernel))
    (gradient,) = torch.autograd.grad(found[0].sum() + found[1].sum(), sink)
    assert gradient.shape == shape
    assert not gradient.any()


def test_waves_too_large_stay_with_their_pairs() -> None:
    """At even distances the sum overflows, and a mask hides those."""
    weight, frequencies = torch.full((2, 2), 3e38), torch.tensor([0.0, math.pi], dtype=torch.float64)
    q, k, v = (torch.randn(1, 2, 60, 8) for _ in range(3))
    odd = (torch.arange(60)[:, None] + torch.arange(60)) % 2 == 1
    out = hw.attention(q, k, v, terms=(T.DistanceBias(T.Cosines(weight, frequencies)),), mask=odd, kernel="cpu")
    assert torch.isfinite(out).all()


@pytest.mark.parametrize("n", [2, 50])
def test_rows_of_infinite_or_equal_scores(n: int) -> None:
    q, k, v = torch.randn(1, 2, n, 8), torch.randn(1, 2, 90, 8), torch.randn(1, 2, 90, 8)
    q[0, 0, 1], k[0, 1, 7] = math.inf, math.inf
    expected = (q @ k.mT / math.sqrt(8)).softmax(-1) @ v
    assert torch.equal(torch.isnan(hw.attention(q, k, v, kernel="cpu")), torch.isnan(expected))
    out, lse = hw.attention_with_lse(q * 0, k.nan_to_num(posinf=1.0), v, kernel="cpu", scale=1.0)
    whole = torch.isfinite(q).all(-1)
    torch.testing.assert_close(out[whole], v.mean(-2, keepdim=True).expand_as(out)[whole])
    torch.testing.assert_close(lse[whole], torch.full_like(lse[whole], math.log(90)))


# Several of one kind; halves -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(2,), (2, 2, 9), (1, 1, 9), (2, 1, 1)])
def test_several_sinks_temperatures_and_caps(shape: tuple[int, ...]) -> None:
    results = []
    for kernel, dtype in (("cpu", torch.float32), ("reference", torch.float64)):
        g = torch.Generator().manual_seed(3)
        leaves = [torch.randn(2, 2, rows, 8, generator=g).to(dtype).requires_grad_() for rows in (9, 60, 60)]
        leaves += [torch.randn(size, generator=g).to(dtype).requires_grad_() for size in ((2,), shape)]
        leaves += [torch.rand(size, generator=g).to(dtype).requires_grad_() for size in ((1, 2, 1), (2, 1, 9))]
        q, k, v, sink, other, factor, second = leaves
        terms = (T.Sink(other), T.QueryScale(factor), T.SoftCap(4.0), T.QueryScale(second))
        out, lse = hw.attention_with_lse(q, k, v, terms=terms, sink=sink, soft_cap=2.0, kernel=kernel)
        results.append([out, lse, *torch.autograd.grad(out.square().sum() + lse.sum(), leaves)])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", _library.ISAS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_every_half_is_read_and_written_as_torch_does(dtype: torch.dtype, name: str) -> None:
    """With one key, its value is the output: all 65,536 numbers of 16 bits, and floats that must be rounded."""
    if name not in _library.isas():
        pytest.skip(f"{name} is not on this machine")
    every = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(dtype)
    with _library.using(name):
        one = torch.zeros(1, 1, 1, 1, dtype=dtype)
        out = hw.attention(one.expand(1, 1, 5, 1), one, every.view(1, 1, 1, -1), kernel="cpu")
        # the processor's products of bfloat16 take what is smaller than any normal number for 0
        flushes = dtype == torch.bfloat16 and name in ("avx512bf16", "neonbf16")
        read = every.masked_fill(every.abs() < torch.finfo(dtype).tiny, 0) if flushes else every
        for row in out[0, 0]:
            assert torch.equal(torch.isnan(row), torch.isnan(every))
            assert torch.equal(row.nan_to_num(5.0), read.nan_to_num(5.0))
        # halves and a little more than halves between neighbours, and all sizes from the smallest to beyond the largest
        finite = every[torch.isfinite(every)].float().sort().values
        between = (finite[1:].double() + finite[:-1].double()) / 2
        values = torch.cat([between, between * (1 + 1e-6), between * (1 - 1e-6), finite.double() * 1.003])
        values = values.clamp(-3e38, 3e38).float()
        values = torch.nn.functional.pad(values, (0, -len(values) % 1000)).view(-1, 1000)
        table = T.RelativeValues(T.Rows(values[None], T.Clip(0, len(values) - 1)))
        at = Coordinates.of(-torch.arange(len(values)), len(values))
        to = Coordinates.of(torch.zeros(1, dtype=torch.long), 1)
        q, k, v = (torch.zeros(1, 1, rows, width, dtype=dtype) for rows, width in ((len(values), 1), (1, 1), (1, 1000)))
        out = hw.attention(q, k, v, terms=(table,), q_positions=at, k_positions=to, kernel="cpu")
        assert torch.equal(out[0, 0], values.to(dtype))


# Memory --------------------------------------------------------------------------------------------------------------


def script(code: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


GROWTH = """
import torch, headway as hw
from headway import terms as T

torch.set_num_threads(1)

def peak():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])

def train(n):
    q, k, v = (torch.randn(1, 1, n, 16, requires_grad=True) for _ in range(3))
    steps = torch.arange(-24.0, 8).square().sort().values
    bias = T.DistanceBias(T.Rows(torch.randn(1, 33, requires_grad=True), T.Bucketize(steps)))
    hw.attention(q, k, v, terms=(bias,), kernel="cpu").sum().backward()

train(64)
for n in (1024, 2048, 4096, 8192):
    train(n)
    print(n, peak())
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_grows_with_n_alone() -> None:
    """The largest memory of a process that trains a learned bias, in KiB: n² scores would be 256 MiB at the end."""
    peaks = {int(n): int(size) for n, size in (line.split() for line in script(GROWTH).splitlines())}
    assert peaks[8192] - peaks[1024] < 48 << 10, peaks
    assert peaks[8192] - peaks[4096] < 3 * (peaks[4096] - peaks[2048]) + (4 << 10), peaks


SHORT = """
import resource, torch, headway as hw

torch.set_num_threads(1)
q, k, v = (torch.randn(1, 1, n, 64, requires_grad=True) for n in (512, 60_000, 60_000))
out = hw.attention(q, k, v, kernel="cpu")
size = int(open("/proc/self/statm").read().split()[0]) * 4096
hard = resource.getrlimit(resource.RLIMIT_AS)[1]
resource.setrlimit(resource.RLIMIT_AS, (size + (80 << 20), hard))
try:
    out.sum().backward()
except MemoryError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
q.grad = k.grad = v.grad = None
hw.attention(q, k, v, kernel="cpu").sum().backward()
print(bool(k.grad.isfinite().all()))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.skipif("asan" in str(_library.load().why_not or _library.load().c._name), reason="needs all addresses")
def test_memory_that_is_not_there_is_an_error() -> None:
    assert (
        script(SHORT) == "the cpu kernel could not get its working memory: use fewer threads or a smaller batch\nTrue\n"
    )
