"""Gates along paths in the CPU kernel: summed over several tiles, also over tokens that the mask hides."""

import math

import pytest
import torch
from agreement import LENGTHS, Terms, agree, drawn, inputs_of, results, same_for_any_threads, upstream_of
from torch import Tensor

import headway as hw
from headway.coordinates import Coordinates
from headway.kernels.cpu import _library
from headway.masks import Boolean, Causal, KeepFirst, Mask, Padding, Window
from headway.terms import Clip, GatedPath, RelativeKeys, Rows, StickWeights, Term, TokenBias

pytestmark = pytest.mark.skipif(_library._load().c is None, reason="the library is not there")
SLOPE = torch.tensor([1.0, 0.25, 0.01, 0.5])
MASKS: dict[str, Mask | None] = {
    "all": None,
    "window": Window(30, 5),
    "first keys and a window": Causal() & (Window(20, 0) | KeepFirst(3)),
    "first keys alone": KeepFirst(3),
    "no near key": Causal() & KeepFirst(400),
    "padding": Causal() & Padding(torch.tensor([500, 700])),
    "holes": Boolean(torch.rand(2, 1, 260, 700, generator=torch.Generator().manual_seed(2)) < 0.1),
}


def path_of(n: int, m: int, width: int = 3) -> list[Tensor]:
    return [drawn(2, 4, tokens, width, seed=tokens) for tokens in (n, m)]


def beside(*terms: Term) -> Terms:
    return lambda z, w: [GatedPath(z, w, SLOPE), *terms]


@pytest.mark.parametrize(("n", "m"), LENGTHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_length_and_dtype(n: int, m: int, dtype: torch.dtype) -> None:
    inputs = [*(x.to(dtype) for x in inputs_of(n, m)), *path_of(n, m)]
    for mask, dropout in ((Causal(), 0.0), (None, 0.3)):
        agree(inputs, beside(), mask, dropout)


@pytest.mark.parametrize("name", _library.ISAS)
@pytest.mark.parametrize("n", [3, 100])
def test_every_instruction_set(n: int, name: str) -> None:
    if name not in _library.isas():
        pytest.skip(f"{name} is not on this machine")
    with _library.using(name):
        agree([*inputs_of(n, 400), *path_of(n, 400, 8)], beside(), Causal())


@pytest.mark.parametrize("mask", MASKS)
def test_hidden_tokens_are_on_the_path(mask: str) -> None:
    # without a sink, gradients of a row's scores sum to 0, and so do those of its nearest gates
    agree([*inputs_of(260, 700), *path_of(260, 700)], beside(), MASKS[mask], sink=torch.linspace(0, 3, 4))


def test_the_path_ends_at_the_index_of_the_query() -> None:
    """Indices need not rise with the slots, and those of queries need not be those of the last keys."""
    index = torch.randperm(700, generator=torch.Generator().manual_seed(3))[None]
    q_at, k_at = (Coordinates(x[..., None], x) for x in (index[:, :260] + 100, index))
    sides = {"q_positions": q_at, "k_positions": k_at}
    agree([*inputs_of(260, 700), *path_of(260, 700)], beside(), None, **sides)


@pytest.mark.parametrize("n", [3, 100])
def test_beside_other_terms(n: int) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = Rows(torch.randn(1, 41, 16, generator=generator), Clip(-20, 20))
    terms = beside(RelativeKeys(rows), TokenBias(keys=torch.randn(1, 4, 300, generator=generator)))
    more = {"soft_cap": 3.0, "sink": torch.randn(4, generator=generator), "scale": 0.7}
    agree([*inputs_of(n, 300), *path_of(n, 300, 17)], terms, Causal(), 0.2, **more)


def test_each_gradient_is_had_alone() -> None:
    inputs = [*inputs_of(70, 300), *path_of(70, 300)]
    whole = results("cpu", inputs, beside(), Causal())[1:]
    for number in range(5):
        leaves = [x.detach().requires_grad_(i == number) for i, x in enumerate(inputs)]
        out = hw.attention(*leaves[:3], terms=beside()(*leaves[3:]), mask=Causal(), kernel="cpu")
        (alone,) = torch.autograd.grad(out, leaves[number], upstream_of(out))
        torch.testing.assert_close(alone, whole[number], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("n", [3, 70])
def test_numbers_that_are_hidden_and_not_finite_reach_nothing(n: int) -> None:
    inputs = [*inputs_of(n, 300), *path_of(n, 300)]
    mask = Window(100, 0)
    allowed = torch.ones(2, 1, n, 300, dtype=torch.bool)
    allowed[:, :, 1] = False
    allowed[..., 299] = False
    for x in (inputs[1], inputs[2], inputs[4]):  # the last token, which only the last query could see
        x[:, :, 299] = 0
    found = results("cpu", inputs, beside(), mask & Boolean(allowed))
    for x, token in zip(inputs, (1, 299, 299, 1, 299), strict=True):
        x[:, :, token] = math.nan
    for x, same in zip(results("cpu", inputs, beside(), mask & Boolean(allowed)), found, strict=True):
        torch.testing.assert_close(x, same, rtol=0, atol=0)


@pytest.mark.parametrize("kernel", ["cpu", "reference"])
@pytest.mark.parametrize("n", [3, 70])
def test_a_token_that_is_not_a_number_reaches_the_queries_behind_it(n: int, kernel: str) -> None:
    q, k, v, z, w = [*inputs_of(n, 300), *path_of(n, 300)]
    w[:, :, 298] = math.nan
    out = hw.attention(q, k, v, terms=beside()(z, w), mask=Causal(), kernel=kernel)
    assert out[:, :, :-2].isfinite().all()
    assert out[:, :, -2:].isnan().all()


@pytest.mark.parametrize("kernel", ["cpu", "reference"])
@pytest.mark.parametrize("n", [3, 70])
def test_a_gate_that_is_shut_hides_the_keys_before_it(n: int, kernel: str) -> None:
    q, k, v, z, w = [*inputs_of(n, 300), *path_of(n, 300)]
    z, w[:, :, 290] = z.abs() + 1, -math.inf
    out = hw.attention(q, k, v, terms=beside()(z, w), mask=Causal(), kernel=kernel)
    near = hw.attention(q, k, v, terms=beside()(z, w.nan_to_num(neginf=0)), mask=Causal() & Window(9, 0), kernel=kernel)
    torch.testing.assert_close(out[:, :, -1], near[:, :, -1], rtol=1e-4, atol=1e-4)


def test_any_number_of_threads_gives_the_same_bits() -> None:
    same_for_any_threads([*inputs_of(260, 700), *path_of(260, 700)], beside(), Causal())


def test_what_is_refused() -> None:
    q, k, v = inputs_of(6, 6)
    z, w = path_of(6, 6)
    term = GatedPath(z, w, SLOPE)
    reasons = hw.explain(q, k, v, terms=[term, StickWeights()], mask=Causal()).reasons["cpu"]
    assert reasons == ["it does not combine GatedPath and StickWeights: each depends on the order of all keys"]
    reasons = hw.explain(q, k, v, terms=[GatedPath(z, w, SLOPE.clone().requires_grad_())]).reasons["cpu"]
    assert reasons == ["it computes no gradient of the slope of GatedPath"]
