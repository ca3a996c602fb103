"""Stick-breaking weights in the CPU kernel: over several tiles, from the last key to the first."""

import math

import pytest
import torch
from agreement import LENGTHS
from torch import Tensor

import headway as hw
from headway.kernels.cpu import _library
from headway.masks import Boolean, Causal, Mask
from headway.terms import Clip, DenseBias, RelativeValues, Rows, StickWeights, Term

pytestmark = pytest.mark.skipif(_library._load().c is None, reason="the library is not there")
VARIANTS = [StickWeights(current, remainder) for current in (False, True) for remainder in (False, True)]


def results(kernel: str, inputs: list[Tensor], terms: list[Term], mask: Mask | None, dropout: float) -> list[Tensor]:
    """The output and the gradients of q, k and v, for the same dropped weights."""
    torch.manual_seed(5)
    q, k, v = (x.detach().requires_grad_() for x in inputs)
    out = hw.attention(q, k, v, terms=terms, mask=mask, dropout=dropout, kernel=kernel)
    upstream = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).reshape(out.shape).sin()
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), upstream.to(out.dtype))]


def drawn(n: int, m: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(n + m)
    return [torch.randn(2, heads, tokens, 16, generator=generator) for heads, tokens in ((4, n), (2, m), (2, m))]


def agree(found: list[Tensor], inputs: list[Tensor], *arguments: object) -> None:
    """Checks results against the reference kernel in float64, beside the error of the same kernel in their dtype."""
    exact = results("reference", [x.double() for x in inputs], *arguments)  # type: ignore[arg-type]
    naive = results("reference", inputs, *arguments)  # type: ignore[arg-type]
    for x, same, right in zip(found, naive, exact, strict=True):
        ulp = torch.finfo(x.dtype).eps * right.abs().max()
        error, allowed = ((y.double() - right).abs().amax(-1).mean() for y in (x, same))
        assert error <= 2 * allowed + 4 * ulp


@pytest.mark.parametrize("term", VARIANTS, ids=str)
@pytest.mark.parametrize(("n", "m"), LENGTHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_length_and_dtype(term: StickWeights, n: int, m: int, dtype: torch.dtype) -> None:
    inputs = [x.to(dtype) for x in drawn(n, m)]
    for mask, dropout in ((Causal(), 0.0), (None, 0.3)):
        agree(results("cpu", inputs, [term], mask, dropout), inputs, [term], mask, dropout)


@pytest.mark.parametrize("term", VARIANTS, ids=str)
def test_rows_that_are_not_used_up(term: StickWeights) -> None:
    """Low scores leave something of every row, so that all tiles have weights, and the remainder counts."""
    q, k, v = drawn(260, 700)
    q, k = q * 0.1 + 1, k * 0.1 - 1.5
    table = torch.randn(1, 41, 16, generator=torch.Generator().manual_seed(0))
    terms: list[Term] = [term, RelativeValues(Rows(table, Clip(-20, 20)))]
    out = results("cpu", [q, k, v], terms, Causal(), 0.1)
    agree(out, [q, k, v], terms, Causal(), 0.1)


@pytest.mark.parametrize("term", VARIANTS, ids=str)
def test_gradients_where_each_key_takes_almost_everything(term: StickWeights) -> None:
    """Scores of 12 leave 6e-6 of a row, and gradients are as small: differences of numbers near 1 would lose them."""
    inputs = [x * 0.1 + shift for x, shift in zip(drawn(5, 2), (1.75, 1.75, 0), strict=True)]
    agree(results("cpu", inputs, [term], None, 0.0), inputs, [term], None, 0.0)


@pytest.mark.parametrize("term", VARIANTS, ids=str)
def test_a_bias_of_minus_infinity_takes_no_share_but_gets_the_remainder(term: StickWeights) -> None:
    inputs = drawn(70, 70)
    bias = torch.zeros(70, 70)
    bias[7, 7] = bias[9, 3] = bias[20] = -math.inf
    allowed = torch.ones(2, 1, 70, 70, dtype=torch.bool)
    allowed[:, :, 30, 30] = False
    for mask in (Causal(), Causal() & Boolean(allowed)):
        found, right = (
            results(kernel, inputs, [term, DenseBias(bias)], mask, 0.0)[0] for kernel in ("cpu", "reference")
        )
        torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-6)


def test_hidden_keys_take_nothing() -> None:
    """Queries that see no key give zeros, and what is hidden reaches neither the output nor a gradient."""
    q, k, v = drawn(70, 300)
    allowed = torch.rand(2, 1, 70, 300, generator=torch.Generator().manual_seed(1)) < 0.1
    allowed[:, :, 5] = allowed[..., 7] = False
    found = results("cpu", [q, k, v], [StickWeights()], Boolean(allowed), 0.0)
    agree(found, [q, k, v], [StickWeights()], Boolean(allowed), 0.0)
    assert not found[0][:, :, 5].any()
    k[:, :, 7], v[:, :, 7] = math.nan, math.inf
    for x, same in zip(results("cpu", [q, k, v], [StickWeights()], Boolean(allowed), 0.0), found, strict=True):
        torch.testing.assert_close(x, same, rtol=0, atol=0)


def test_any_number_of_threads_gives_the_same_bits() -> None:
    inputs, before = drawn(260, 700), torch.get_num_threads()
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(results("cpu", inputs, [VARIANTS[1]], Causal(), 0.0))
    torch.set_num_threads(before)
    assert all(torch.equal(x, y) for other in found[1:] for x, y in zip(found[0], other, strict=True))


def test_what_is_refused() -> None:
    q, k, v = drawn(5, 5)
    with pytest.raises(hw.HeadwayError, match="StickWeights and StickWeights, each of which replaces the softmax"):
        hw.attention(q, k, v, terms=VARIANTS[:2])
    with pytest.raises(hw.HeadwayError, match="StickWeights, which replaces the softmax that a sink takes part in"):
        hw.attention(q, k, v, terms=VARIANTS[:1], sink=torch.zeros(4))
    with pytest.raises(hw.HeadwayError, match="StickWeights, which replaces the softmax: there is no log-sum-exp"):
        hw.attention_with_lse(q, k, v, terms=VARIANTS[:1])
