"""A network across heads in the CPU kernel: all heads of a block of queries at once, and tiles that overlap."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from agreement import LENGTHS, agree, drawn, inputs_of, results, same_for_any_threads, upstream_of
from torch import Tensor

import headway as hw
from headway import kernels
from headway.call import make_call
from headway.kernels.cpu import _library
from headway.masks import Boolean, Causal, KeepFirst, Mask, Padding, Window
from headway.terms import (
    Clip,
    ContextualPositions,
    DenseBias,
    DistanceBias,
    HeadNetwork,
    Linear,
    QueryScale,
    RelativeKeys,
    RelativeValues,
    Rows,
    StickWeights,
    Term,
    TokenBias,
)

pytestmark = pytest.mark.skipif(_library._load().c is None, reason="the library is not there")
WIDTHS = [1, 3, 25]
"""Keys that a convolution reads: one, as tiles need no halo; the authors' three; as many as the kernel takes."""
OF_MANY_TILES = [1, 3, pytest.param(25, marks=pytest.mark.slow)]
"""The same for tests of many tiles, in which 25 keys take seconds."""
APART = torch.rand(2, 4, 260, 700, generator=torch.Generator().manual_seed(3)) < 0.4
APART[:, 0, :, :300], APART[:, 0, :, 300:] = False, True
"""In its tiles, the first head sees nothing or everything, the others some keys."""
MASKS: dict[str, Mask | None] = {
    "all": None,
    "causal": Causal(),
    "window": Window(150, 5),
    "window of a tile and a bit": Causal() & Window(200, 0),
    "first keys and a window": Causal() & (Window(20, 0) | KeepFirst(3)),
    "padding": Causal() & Padding(torch.tensor([500, 700])),
    "another mask of the first head": Boolean(APART),
    "holes of each head": Boolean(torch.rand(2, 4, 260, 700, generator=torch.Generator().manual_seed(2)) < 0.4),
}


def network_of(width: int, hidden: int = 5, heads: int = 4) -> list[Tensor]:
    """Draws weights of a network, with which scores stay of order one, and the parameters of two biases."""
    into, out = drawn(hidden, 2 * heads, width), drawn(heads, hidden, width, seed=1)
    table, slopes = drawn(heads, 41, seed=4), drawn(heads, seed=5).abs() / 64
    return [into * (2 * heads * width) ** -0.5, out * (hidden * width) ** -0.5, table, slopes]


def added_of(into: Tensor, out: Tensor) -> list[Tensor]:
    """Draws what each hidden unit and each head adds, whose gradients are sums over all pairs that all but cancel."""
    return [drawn(into.shape[0], seed=2), drawn(out.shape[0], seed=3)]


def beside(*terms: Term) -> Callable[..., list[Term]]:
    def all_terms(into: Tensor, out: Tensor, table: Tensor, past: Tensor, *added: Tensor) -> list[Term]:
        biases = DistanceBias(Rows(table, Clip(-20, 20))), DistanceBias(Linear(past, 2 * past))
        of_hidden, of_heads = added or added_of(into, out)
        return [HeadNetwork(biases, into, of_hidden.to(into), out, of_heads.to(into)), *terms]

    return all_terms


SINK: dict[str, Any] = {"sink": torch.linspace(-1, 1, 4)}
"""Without one, the gradient of what is added to all scores of a head is 0."""


@pytest.mark.parametrize("width", OF_MANY_TILES)
@pytest.mark.parametrize(("n", "m"), LENGTHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_length_and_dtype(n: int, m: int, width: int, dtype: torch.dtype) -> None:
    inputs = [*(x.to(dtype) for x in inputs_of(n, m)), *network_of(width)]
    for mask, dropout in ((Causal(), 0.0), (None, 0.3)):
        agree(inputs, beside(), mask, dropout, **SINK)


@pytest.mark.parametrize("name", _library.ISAS)
@pytest.mark.parametrize("width", WIDTHS)
def test_every_instruction_set(width: int, name: str) -> None:
    if name not in _library.isas():
        pytest.skip(f"{name} is not on this machine")
    with _library.using(name):
        agree([*inputs_of(100, 380), *network_of(width)], beside(), Causal(), **SINK)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("width", OF_MANY_TILES)
def test_what_a_head_does_not_see_reads_as_zero(width: int, mask: str) -> None:
    agree([*inputs_of(260, 700), *network_of(width)], beside(), MASKS[mask], **SINK)


@pytest.mark.parametrize("n", [3, 70])
@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (3, 1), (6, 2), (9, 9), (20, 4)])
@pytest.mark.parametrize("hidden", [1, 4, 33])
def test_any_number_of_heads_and_hidden_units(hidden: int, heads: int, kv_heads: int, n: int) -> None:
    q, k, v = drawn(2, heads, n, 8), drawn(2, kv_heads, 250, 8, seed=1), drawn(2, kv_heads, 250, 8, seed=2)
    agree([q, k, v, *network_of(3, hidden, heads)], beside(), Causal(), sink=torch.linspace(-1, 1, heads))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("n", [3, 100])
def test_beside_other_terms(n: int, width: int) -> None:
    """The network reads the scores with all other terms and a cap."""
    generator = torch.Generator().manual_seed(0)
    table, factor = torch.randn(1, 41, 16, generator=generator), torch.rand(1, 4, n, generator=generator) + 0.5
    rows = Rows(table, Clip(-20, 20))
    terms = beside(
        QueryScale(factor),
        RelativeKeys(rows),
        RelativeValues(rows),
        TokenBias(keys=torch.randn(1, 4, 300, generator=generator)),
        DistanceBias(Rows(torch.randn(4, 9, generator=generator), Clip(-4, 4))),
    )
    agree([*inputs_of(n, 300), *network_of(width)], terms, Causal(), 0.2, soft_cap=3.0, scale=0.7, **SINK)


@pytest.mark.parametrize("shape", [(1, 1, 100, 300), (2, 1, 100, 300), (1, 4, 1, 300)])
def test_a_dense_bias_that_heads_or_rows_share(shape: tuple[int, ...]) -> None:
    def terms(*tensors: Tensor) -> list[Term]:
        *network, dense = tensors
        return [*beside()(*network), DenseBias(dense)]

    agree([*inputs_of(100, 300), *network_of(3), drawn(*shape)], terms, Causal(), **SINK)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", OF_MANY_TILES)
@pytest.mark.parametrize(("n", "m"), [(70, 70), (260, 700)])
def test_gradients_of_what_is_added(n: int, m: int, width: int, dtype: torch.dtype) -> None:
    weights = network_of(width)
    q, k, v = (x.to(dtype) for x in inputs_of(n, m))
    inputs = [q, k, v, *weights, *added_of(*weights[:2])]
    found = results("cpu", inputs, beside(), Causal(), **SINK)[-2:]
    exact = results("reference", [x.double() for x in inputs], beside(), Causal(), **SINK)[-2:]
    tolerance = 1e-4 if dtype == torch.float32 else 0.1
    for x, right in zip(found, exact, strict=True):
        torch.testing.assert_close(x.double(), right, rtol=tolerance, atol=tolerance)
        assert right.abs().max() > 3 * tolerance


def test_gradients_of_other_terms() -> None:
    """A bias by distance is not left to the softmax, and heads sum the gradients of their tables apart."""

    def terms(*tensors: Tensor) -> list[Term]:
        *network, keys, table = tensors
        clip = Clip(-350, 350)  # more columns than a window of products has
        return [*beside()(*network), RelativeKeys(Rows(keys, clip)), DistanceBias(Rows(table, clip))]

    agree([*inputs_of(260, 700), *network_of(3), drawn(4, 701, 16) / 4, drawn(4, 701, seed=9)], terms, Causal(), **SINK)


@pytest.mark.parametrize("width", [1, 3])
def test_each_gradient_is_had_alone(width: int) -> None:
    weights = network_of(width)
    inputs = [*inputs_of(70, 300), *weights, *added_of(*weights[:2])]
    whole = results("cpu", inputs, beside(), Causal(), **SINK)[1:]
    for number in range(len(inputs)):
        leaves = [x.detach().requires_grad_(i == number) for i, x in enumerate(inputs)]
        out = hw.attention(*leaves[:3], terms=beside()(*leaves[3:]), mask=Causal(), kernel="cpu", **SINK)
        (alone,) = torch.autograd.grad(out, leaves[number], upstream_of(out))
        torch.testing.assert_close(alone, whole[number], rtol=1e-5, atol=1e-5)
        assert alone.abs().max() > 0.01


@pytest.mark.parametrize("n", [3, 70])
def test_the_log_sum_exp_and_its_gradient(n: int) -> None:
    found = {}
    for dtype, kernel in ((torch.float32, "cpu"), (torch.float64, "reference")):
        leaves = [x.to(dtype).requires_grad_() for x in (*inputs_of(n, 300), *network_of(3))]
        out, lse = hw.attention_with_lse(*leaves[:3], terms=beside()(*leaves[3:]), mask=Causal(), kernel=kernel)
        found[kernel] = [lse, *torch.autograd.grad(out.sum() + lse.sin().sum(), leaves)]
    for x, right in zip(found["cpu"], found["reference"], strict=True):
        torch.testing.assert_close(x.double(), right.double(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("n", [3, 70])
def test_what_is_hidden_reaches_nothing(n: int, width: int) -> None:
    """Queries that see no key give zeros, and numbers that are not finite stay where they are."""
    q, k, v = inputs_of(n, 300)
    allowed = torch.rand(2, 1, n, 300, generator=torch.Generator().manual_seed(1)) < 0.3
    allowed[:, :, 2] = allowed[..., 7] = False
    inputs = [q, k, v, *network_of(width)]
    found = results("cpu", inputs, beside(), Boolean(allowed))
    exact = results("reference", [x.double() for x in inputs], beside(), Boolean(allowed))
    for x, right in zip(found, exact, strict=True):
        torch.testing.assert_close(x.double(), right, rtol=0, atol=1e-5 * right.abs().max().item())
    assert not found[0][:, :, 2].any()
    k[:, :, 7], v[:, :, 7], q[:, :, 2] = math.nan, math.inf, math.nan
    for x, same in zip(results("cpu", inputs, beside(), Boolean(allowed)), found, strict=True):
        torch.testing.assert_close(x, same, rtol=0, atol=0)


@pytest.mark.parametrize("kernel", ["cpu", "reference"])
@pytest.mark.parametrize("width", [1, 3])
def test_a_score_of_minus_infinity_hides_as_a_mask_does(width: int, kernel: str) -> None:
    allowed = torch.rand(2, 4, 70, 300, generator=torch.Generator().manual_seed(1)) < 0.5
    hides = torch.zeros(allowed.shape).masked_fill(~allowed, -math.inf)
    inputs = [*inputs_of(70, 300), *network_of(width)]
    masked = results(kernel, inputs, beside(), Boolean(allowed), **SINK)
    biased = results(kernel, inputs, beside(DenseBias(hides)), None, **SINK)
    for x, y in zip(masked, biased, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("kernel", ["cpu", "reference"])
def test_a_key_that_is_not_a_number_reaches_the_queries_that_see_it(kernel: str) -> None:
    q, k, v = inputs_of(6, 6)
    k[:, 1, 2] = math.nan  # of two of four heads, which the network joins
    out = hw.attention(q, k, v, terms=beside()(*network_of(3)), mask=Causal(), kernel=kernel)
    assert out[:, :, :2].isfinite().all()
    assert out[:, :, 2:].isnan().all()


@pytest.mark.parametrize("kernel", ["cpu", "reference"])
def test_a_key_that_is_not_a_number_does_not_reach_the_heads_that_do_not_see_it(kernel: str) -> None:
    q, k, v = inputs_of(6, 6)
    k[:, 1, 2] = math.nan
    allowed = torch.ones(1, 4, 6, 6, dtype=torch.bool)
    allowed[:, :2, :, 2] = False
    out = hw.attention(q, k, v, terms=beside()(*network_of(1)), mask=Boolean(allowed), kernel=kernel)
    assert out[:, :2].isfinite().all()
    assert out[:, 2:].isnan().all()


@pytest.mark.parametrize("n", [2, 260])
@pytest.mark.parametrize("width", [1, 3])
def test_any_number_of_threads_gives_the_same_bits(width: int, n: int) -> None:
    same_for_any_threads([*inputs_of(n, 700), *network_of(width)], beside(), Causal())


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("width", WIDTHS)
def test_few_queries_whose_keys_are_split(width: int, mask: str) -> None:
    """Splits have 384 keys, and a wide network reads keys of two of them."""
    chosen = MASKS[mask]
    if isinstance(chosen, Boolean):
        chosen = Boolean(chosen.values[:, :, -3:])
    found, right = [
        hw.attention(*inputs[:3], terms=beside()(*inputs[3:]), mask=chosen, kernel=kernel, **SINK)
        for kernel, inputs in zip(("cpu", "reference"), of_both_dtypes(3, width), strict=True)
    ]
    torch.testing.assert_close(found.double(), right, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("name", _library.ISAS)
def test_splits_with_every_instruction_set(name: str) -> None:
    """How many keys a tile has between its halos depends on the length of a vector."""
    if name not in _library.isas():
        pytest.skip(f"{name} is not on this machine")
    inputs, exact = of_both_dtypes(2, 3)
    with _library.using(name):
        found = hw.attention(*inputs[:3], terms=beside()(*inputs[3:]), mask=Causal(), kernel="cpu", **SINK)
    right = hw.attention(*exact[:3], terms=beside()(*exact[3:]), mask=Causal(), kernel="reference", **SINK)
    torch.testing.assert_close(found.double(), right, rtol=1e-5, atol=2e-6)


def of_both_dtypes(n: int, width: int) -> tuple[list[Tensor], list[Tensor]]:
    inputs = [*inputs_of(n, 700), *network_of(width)]
    return inputs, [x.double() for x in inputs]


@pytest.mark.parametrize("n", [2, 100])
def test_both_passes_compute_the_same_weights(n: int) -> None:
    """With scores of ±2,500, weights of a row sum to 1 in the backward pass if they do so in the forward pass."""
    q, k, v = inputs_of(n, 500)
    k = k[:, :, ::2].repeat_interleave(2, dim=2)  # rows with all their weight on one key would not show it
    v = torch.zeros_like(v).requires_grad_()
    out = hw.attention(40 * q, 40 * k, v, terms=beside()(*network_of(3)), mask=Causal(), kernel="cpu")
    (gradient,) = torch.autograd.grad(out, v, torch.ones_like(out))
    torch.testing.assert_close(gradient.sum(2), torch.full((2, 2, 16), 2.0 * n), rtol=1e-5, atol=1e-4)


def test_without_queries_or_keys() -> None:
    for n, m in ((0, 5), (5, 0), (0, 0)):
        inputs = [*inputs_of(n, m), *network_of(3)]
        for x, y in zip(
            results("cpu", inputs, beside(), None), results("reference", inputs, beside(), None), strict=True
        ):
            assert torch.equal(x, y)


def test_what_is_refused() -> None:
    q, k, v = inputs_of(6, 6)
    network = beside()(*network_of(3))[0]
    positions = ContextualPositions(drawn(1, 3, 16))
    for terms, reason in (
        (
            [network, StickWeights()],
            "it does not combine StickWeights and HeadNetwork: HeadNetwork reads the scores of all heads",
        ),
        (
            [positions, network],
            "it does not combine ContextualPositions and HeadNetwork: HeadNetwork reads the scores of all heads",
        ),
        (
            [network, network],
            "it does not combine HeadNetwork and HeadNetwork: HeadNetwork reads the scores of all heads",
        ),
        (beside()(*network_of(27)), "HeadNetwork reads more than 25 keys"),
        (beside()(*network_of(1, hidden=4097)), "HeadNetwork has more than 4,096 hidden units"),
    ):
        assert hw.explain(q, k, v, terms=terms, mask=Causal()).reasons["cpu"] == [reason]
    problem = kernels.Problem.of(make_call(q, k, v, terms=[network]))
    assert kernels.KERNELS["cpu"].why_not_reduce(problem, []) == ["it has no reductions of HeadNetwork"]
