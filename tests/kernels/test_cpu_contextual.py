"""Contextual positions in the CPU kernel: gates counted over several tiles, from the last key to the first."""

import math

import pytest
import torch
from agreement import LENGTHS, Terms, agree, drawn, inputs_of, results, same_for_any_threads, upstream_of
from torch import Tensor

import headway as hw
from headway.kernels.cpu import _library
from headway.masks import Boolean, Causal, Window
from headway.terms import (
    Clip,
    ContextualPositions,
    DistanceBias,
    LimitedRotation,
    QueryScale,
    RelativeKeys,
    RelativeValues,
    Rows,
    StickWeights,
    Term,
)

pytestmark = pytest.mark.skipif(_library._load().c is None, reason="the library is not there")
OPENNESS = {"mostly shut": -4.0, "half open": 0.0, "open": 4.0}
"""What is added to every score: the last position is reached beyond the last tile, within a few tiles, or at once."""


def vectors(positions: int, heads: int = 1, width: int = 16) -> Tensor:
    return drawn(heads, positions, width, seed=positions)


def beside(*terms: Term) -> Terms:
    return lambda e: [ContextualPositions(e), *terms]


def with_gates(openness: str) -> Terms:
    return beside(DistanceBias(Rows(torch.full((1, 1), OPENNESS[openness]), Clip(0, 0))))


@pytest.mark.parametrize("openness", OPENNESS)
@pytest.mark.parametrize(("n", "m"), LENGTHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_length_and_dtype(openness: str, n: int, m: int, dtype: torch.dtype) -> None:
    inputs = [*(x.to(dtype) for x in inputs_of(n, m)), vectors(20)]
    for mask, dropout in ((Causal(), 0.0), (None, 0.3)):
        agree(inputs, with_gates(openness), mask, dropout)


@pytest.mark.parametrize("name", _library.ISAS)
@pytest.mark.parametrize("n", [3, 100])
def test_every_instruction_set(n: int, name: str) -> None:
    if name not in _library.isas():
        pytest.skip(f"{name} is not on this machine")
    with _library.using(name):
        agree([*inputs_of(n, 400), vectors(30)], with_gates("half open"), Causal())


@pytest.mark.parametrize("positions", [1, 2, 15, 16, 17, 33, 900])
def test_any_number_of_positions(positions: int) -> None:
    agree([*inputs_of(70, 300), vectors(positions)], with_gates("mostly shut"), Causal())


@pytest.mark.parametrize("width", [5, 16, 40])
def test_vectors_of_each_head(width: int) -> None:
    agree([*inputs_of(100, 300, width), vectors(20, 4, width)], beside(), Causal())


@pytest.mark.parametrize("n", [3, 100])
def test_beside_other_terms(n: int) -> None:
    """The gates read the scores with all other terms and a cap; products with positions have no scale."""
    generator = torch.Generator().manual_seed(0)
    table, factor = torch.randn(1, 41, 16, generator=generator), torch.rand(1, 4, n, generator=generator) + 0.5
    rows = Rows(table, Clip(-20, 20))
    terms = beside(QueryScale(factor), RelativeKeys(rows), RelativeValues(rows))
    more = {"soft_cap": 3.0, "sink": torch.randn(4, generator=generator), "scale": 0.7}
    agree([*inputs_of(n, 300), vectors(20)], terms, Causal(), 0.2, **more)


def test_each_gradient_is_had_alone() -> None:
    inputs = [*inputs_of(70, 300), vectors(20)]
    whole = results("cpu", inputs, beside(), Causal())[1:]
    for number in range(4):
        leaves = [x.detach().requires_grad_(i == number) for i, x in enumerate(inputs)]
        out = hw.attention(*leaves[:3], terms=[ContextualPositions(leaves[3])], mask=Causal(), kernel="cpu")
        (alone,) = torch.autograd.grad(out, leaves[number], upstream_of(out))
        torch.testing.assert_close(alone, whole[number], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("n", [3, 70])
def test_the_log_sum_exp_and_its_gradient(n: int) -> None:
    found = {}
    for dtype, kernel in ((torch.float32, "cpu"), (torch.float64, "reference")):
        leaves = [x.to(dtype).requires_grad_() for x in (*inputs_of(n, 300), vectors(20))]
        terms = [ContextualPositions(leaves[3])]
        out, lse = hw.attention_with_lse(*leaves[:3], terms=terms, mask=Causal(), kernel=kernel)
        found[kernel] = [lse, *torch.autograd.grad(out.sum() + lse.sin().sum(), leaves)]
    for x, right in zip(found["cpu"], found["reference"], strict=True):
        torch.testing.assert_close(x.double(), right.double(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("n", [3, 70])
def test_hidden_keys_have_no_gate(n: int) -> None:
    """Queries that see no key give zeros, and what is hidden reaches neither the output nor a gradient."""
    (q, k, v), e = inputs_of(n, 300), vectors(20)
    allowed = torch.rand(2, 1, n, 300, generator=torch.Generator().manual_seed(1)) < 0.1
    allowed[:, :, 2] = allowed[..., 7] = False
    found = agree([q, k, v, e], beside(), Boolean(allowed))
    assert not found[0][:, :, 2].any()
    k[:, :, 7], v[:, :, 7], q[:, :, 2] = math.nan, math.inf, math.nan
    for x, same in zip(results("cpu", [q, k, v, e], beside(), Boolean(allowed)), found, strict=True):
        torch.testing.assert_close(x, same, rtol=0, atol=0)


def test_rows_that_see_few_keys() -> None:
    """Such a row never reaches the last position, though the other rows of its block do."""
    for mask in (Causal() & Window(5, 0), Window(250, 30), Window(230, 400) & Window(None, 100)):
        agree([*inputs_of(260, 700), vectors(20)], with_gates("half open"), mask)


def test_any_number_of_threads_gives_the_same_bits() -> None:
    same_for_any_threads([*inputs_of(260, 700), vectors(20)], beside(), Causal())


@pytest.mark.parametrize("n", [2, 100])
def test_both_passes_compute_the_same_weights(n: int) -> None:
    """With scores of ±2,500, weights of a row sum to 1 in the backward pass if they do so in the forward pass."""
    q, k, v = inputs_of(n, 500)
    v = torch.zeros_like(v).requires_grad_()
    out = hw.attention(40 * q, 40 * k, v, terms=[ContextualPositions(40 * vectors(20))], mask=Causal(), kernel="cpu")
    (gradient,) = torch.autograd.grad(out, v, torch.ones_like(out))
    torch.testing.assert_close(gradient.sum(2), torch.full((2, 2, 16), 2.0 * n), rtol=1e-5, atol=1e-4)


def test_an_infinite_product_leaves_hidden_keys_hidden() -> None:
    (q, k, v), e = inputs_of(70, 70), vectors(20)
    e[:, 3] = math.inf
    allowed = torch.ones(70, 70, dtype=torch.bool)
    allowed[5] = False
    assert not hw.attention(q, k, v, terms=[ContextualPositions(e)], mask=Boolean(allowed), kernel="cpu")[:, :, 5].any()


@pytest.mark.parametrize("n", [3, 100])
def test_whole_counts_have_no_slope(n: int) -> None:
    """With scores of 0, every second key has a whole count, beside which no vector has a gradient."""
    q, k, v = inputs_of(n, 300)
    agree([q, 0 * k, v, vectors(200)], beside(), Causal())


@pytest.mark.parametrize("kernel", ["cpu", "reference"])
def test_a_key_that_is_not_a_number_reaches_the_queries_that_see_it(kernel: str) -> None:
    q, k, v = inputs_of(6, 6)
    k[:, :, 2] = math.nan
    out = hw.attention(q, k, v, terms=[ContextualPositions(vectors(3))], mask=Causal(), kernel=kernel)
    assert out[:, :, :2].isfinite().all()
    assert out[:, :, 2:].isnan().all()


def test_positions_reach_stick_breaking_in_either_order() -> None:
    q, k, v = (x.double() for x in inputs_of(6, 6))
    terms = [StickWeights(), ContextualPositions(vectors(3).double())]
    out, other = (hw.attention(q, k, v, terms=order, mask=Causal()) for order in (terms, terms[::-1]))
    torch.testing.assert_close(out, other, rtol=0, atol=0)
    assert out.abs().max() <= v.abs().max()


def test_what_is_refused() -> None:
    q, k, v = inputs_of(6, 6)
    with pytest.raises(hw.HeadwayError, match="has no vectors"):
        ContextualPositions(vectors(1)[:, :0])
    waves = [torch.ones(kinds, 1, 1, 6, 8, dtype=torch.float64) for kinds in (3, 3, 2, 2)]
    for other, reason in (
        (StickWeights(), "it does not combine ContextualPositions and StickWeights: each"),
        (ContextualPositions(vectors(3)), "it does not combine ContextualPositions and ContextualPositions: each"),
        (LimitedRotation(2, *waves), "it does not combine LimitedRotation with ContextualPositions: both depend"),
    ):
        terms = [ContextualPositions(vectors(3)), other]
        reasons = hw.explain(q, k, v, terms=terms, mask=Causal()).reasons["cpu"]
        assert any(one.startswith(reason) for one in reasons), reasons
