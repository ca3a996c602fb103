"""``attention`` and its sisters against the naive computation, and every bad input by its message."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import headway as hw
from headway import Coordinates
from headway import masks as M
from headway import terms as T
from headway.call import Arguments, make_call
from headway.kernels import KERNELS
from headway.positions import ALiBi, Compose, RoPE
from headway.positions._contract import CHECKED
from headway.testing.kernels import widest
from headway.testing.tolerances import DRAWS, GRADIENT_FACTOR, OUTPUT_FACTOR, Comparison

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def naive(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, causal: bool = False) -> Tensor:
    """softmax(s·QKᵀ)·V in the dtype it is given, every step rounded."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        n, m = scores.shape[-2:]
        scores = scores.masked_fill(torch.ones(n, m, dtype=torch.bool).triu(m - n + 1), -math.inf)
    return scores.softmax(-1) @ v


def drawn(
    n: int, m: int, *, kv_heads: int = 4, v_dim: int = 8, dtype: torch.dtype = torch.float64, seed: int = 0
) -> list[Tensor]:
    """Numbers that every dtype holds exactly, as leaves."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(2, 4, n, 8), (2, kv_heads, m, 8), (2, kv_heads, m, v_dim)]
    values = [torch.randn(shape, generator=generator).to(torch.bfloat16) for shape in shapes]
    return [x.to(dtype).requires_grad_() for x in values]


def results(function: Callable[..., Tensor], inputs: list[Tensor], **arguments: Any) -> list[Tensor]:
    """Output and gradients, the output weighted with numbers that every dtype holds."""
    out = function(*inputs, **arguments)
    upstream = torch.linspace(-1, 1, out.numel()).to(torch.bfloat16).view_as(out)
    return [out, *torch.autograd.grad(out, inputs, upstream.to(out.dtype))]


# ---------------------------------------------------------------- right

SHAPES = {
    "self": {"n": 9, "m": 9},
    "self, causal": {"n": 9, "m": 9, "causal": True},
    "fewer queries than keys": {"n": 4, "m": 11, "causal": True},
    "more queries than keys": {"n": 11, "m": 4},
    "two key heads": {"n": 9, "m": 9, "kv_heads": 2},
    "one key head": {"n": 9, "m": 9, "kv_heads": 1, "causal": True},
    "narrow values": {"n": 5, "m": 7, "v_dim": 3, "kv_heads": 2},
    "wide values": {"n": 5, "m": 7, "v_dim": 13, "causal": True},
    "one of each": {"n": 1, "m": 1},
    "one query": {"n": 1, "m": 17, "causal": True},
}


@pytest.mark.parametrize(
    ("dtype", "kernel"),
    [(dtype, kernel) for kernel in KERNELS for dtype in DTYPES if dtype.itemsize <= widest(kernel).itemsize],
    ids=str,
)
@pytest.mark.parametrize("shape", SHAPES)
def test_is_as_right_as_promised(shape: str, dtype: torch.dtype, kernel: str) -> None:
    """Errors against float64, pooled over draws: output ≤ 1.5×, gradients ≤ 2× those of the naive computation."""
    sizes = dict(SHAPES[shape])
    causal = bool(sizes.pop("causal", False))
    names = ("output", "gradient of q", "gradient of k", "gradient of v")
    pools = [Comparison(f"{name}, {shape}", GRADIENT_FACTOR if name != "output" else OUTPUT_FACTOR) for name in names]
    for seed in range(1 if dtype == torch.float64 else DRAWS):
        inputs = drawn(**sizes, dtype=dtype, seed=seed)
        exact = results(naive, drawn(**sizes, seed=seed), causal=causal)
        found = results(hw.attention, inputs, mask=M.Causal() if causal else None, kernel=kernel)
        if dtype == torch.float64:
            for a, b in zip(found, exact, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)
            continue
        rounded = results(naive, inputs, causal=causal)
        terms = max(x.abs().max().item() for x in exact)  # with one key, gradients of q and k are dP − δ = 0
        for pool, *three in zip(pools, found, rounded, exact, strict=True):
            pool.add(*three, terms=terms)
    for pool in pools:
        pool.check()


@pytest.mark.parametrize("kernel", KERNELS)
def test_scale(kernel: str) -> None:
    inputs = drawn(5, 5, dtype=widest(kernel))
    for scale in (0.0, 1.0, -0.3, 2):
        torch.testing.assert_close(hw.attention(*inputs, scale=scale, kernel=kernel), naive(*inputs, scale=scale))


LAYOUTS: dict[str, Callable[[int, int, int], Tensor]] = {
    "tokens before heads": lambda h, n, d: torch.randn(2, n, h, d).transpose(1, 2),
    "sliced tokens": lambda h, n, d: torch.randn(2, h, 2 * n + 3, d)[:, :, 3::2],
    "sliced widths": lambda h, n, d: torch.randn(2, h, n, 3 * d)[..., ::3],
    "transposed widths": lambda h, n, d: torch.randn(2, h, d, n).transpose(2, 3),
    "one head for all": lambda h, n, d: torch.randn(2, 1, n, d).expand(2, h, n, d),
    "one token for all": lambda h, n, d: torch.randn(2, h, 1, d).expand(2, h, n, d),
    "one number for all": lambda h, n, d: torch.randn(1).expand(2, h, n, d),
    "an offset": lambda h, n, d: torch.randn(3, h + 1, n + 2, d + 1)[1:, 1:, 2:, 1:],
}


def _in(dtype: torch.dtype, x: Tensor) -> Tensor:
    """The same layout in another dtype: a view of the whole of its memory."""
    memory = x.as_strided((x.untyped_storage().nbytes() // 4,), (1,), 0).to(dtype)
    return memory.as_strided(x.shape, x.stride(), x.storage_offset())


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_strides(layout: str, causal: bool, kernel: str) -> None:
    make = LAYOUTS[layout]
    inputs = [_in(widest(kernel), make(*sizes)) for sizes in ((4, 6, 8), (2, 6, 8), (2, 6, 5))]
    mask = M.Causal() if causal else None
    assert any(not x.is_contiguous() for x in inputs)
    found = results(hw.attention, [x.requires_grad_() for x in inputs], mask=mask, kernel=kernel)
    expected = results(naive, [x.detach().contiguous().requires_grad_() for x in inputs], causal=causal)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("upstream", ["sum", "mean", "of one row", "transposed"])
def test_any_strides_of_the_output_gradient(upstream: str, kernel: str) -> None:
    """``.sum().backward()`` hands down a gradient of stride 0."""
    reduce: Callable[[Tensor], Tensor] = {
        "sum": lambda x: x.sum(),
        "mean": lambda x: x.mean(),
        "of one row": lambda x: x[:, :, 2].sum(),
        "transposed": lambda x: (x.transpose(1, 2).flatten(2) @ torch.linspace(-1, 1, 32).to(x)).sum(),
    }[upstream]
    inputs = drawn(5, 5, dtype=widest(kernel))
    grads = [
        torch.autograd.grad(reduce(f(*inputs)), inputs) for f in (lambda *x: hw.attention(*x, kernel=kernel), naive)
    ]
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2)])
def test_gradients_of_some_inputs_alone(wanted: tuple[int, ...], kernel: str) -> None:
    values = [x.detach() for x in drawn(5, 7, dtype=widest(kernel))]
    for number in wanted:
        values[number].requires_grad_()
    inputs = [values[number] for number in wanted]
    expected = torch.autograd.grad(naive(*values).square().sum(), inputs)
    for a, b in zip(
        torch.autograd.grad(hw.attention(*values, kernel=kernel).square().sum(), inputs), expected, strict=True
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("kernel", KERNELS)
def test_one_tensor_as_query_key_and_value(kernel: str) -> None:
    (x, *_) = drawn(5, 5)
    found, expected = (torch.autograd.grad(f(x, x, x).square().sum(), x) for f in (hw.attention, naive))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("batch", "n", "m"), [(2, 0, 3), (2, 3, 0), (2, 0, 0), (0, 3, 3)])
def test_nothing_to_do(batch: int, n: int, m: int, kernel: str) -> None:
    """No queries, no keys or no batch: results of the right shape, zeros without keys, gradients of zeros."""
    q, k, v = (torch.randn(batch, 2, t, d).requires_grad_() for t, d in ((n, 4), (m, 4), (m, 3)))
    if kernel == "sdpa" and m == 0:
        with pytest.raises(hw.HeadwayError, match="there are no keys"):
            hw.attention(q, k, v, kernel=kernel)
        return
    for mask in (None, M.Causal(), M.Causal() & M.Padding([m] * batch)):
        out = hw.attention(q, k, v, mask=mask, kernel=kernel)
        assert out.shape == (batch, 2, n, 3)
        if m == 0:
            assert not out.any()
        for x, gradient in zip((q, k, v), torch.autograd.grad(out.sum(), (q, k, v)), strict=True):
            assert gradient.shape == x.shape
            assert not gradient.any()


@pytest.mark.parametrize("kernel", KERNELS)
def test_sizes_that_need_not_be_alike(kernel: str) -> None:
    """Any width, any number of heads, none a power of two."""
    for heads, kv_heads, width, v_dim, n, m in ((3, 1, 1, 1, 2, 5), (6, 3, 7, 5, 17, 31), (5, 5, 33, 2, 3, 3)):
        q, k, v = (
            torch.randn(1, h, t, d, dtype=widest(kernel))
            for h, t, d in ((heads, n, width), (kv_heads, m, width), (kv_heads, m, v_dim))
        )
        torch.testing.assert_close(hw.attention(q, k, v, kernel=kernel), naive(q, k, v))


# ---------------------------------------------------------------- positions


class Distance(hw.positions.PositionEncoding):
    """Adds −|δ|; small enough to be written down here."""

    def terms(self, *_: object) -> tuple[T.Term, ...]:
        return (T.DistanceBias(T.Linear(torch.ones(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64))),)


def distances(q_positions: Tensor, k_positions: Tensor) -> Tensor:
    return -(k_positions[..., None, :] - q_positions[..., :, None]).abs().double()


@pytest.mark.parametrize("kernel", KERNELS)
def test_queries_stand_at_the_end_of_the_keys(kernel: str) -> None:
    q, k, v = drawn(3, 7, dtype=widest(kernel))
    scores = (q @ k.mT) * 8**-0.5 + distances(torch.arange(4, 7), torch.arange(7))
    expected = scores.softmax(-1).to(v) @ v
    torch.testing.assert_close(hw.attention(q, k, v, encoding=Distance(), kernel=kernel), expected)
    full = drawn(7, 7, dtype=widest(kernel))[0]
    last = hw.attention(full, k, v, encoding=Distance(), mask=M.Causal(), kernel=kernel)
    torch.testing.assert_close(
        hw.attention(full[:, :, 4:], k, v, encoding=Distance(), mask=M.Causal(), kernel=kernel), last[:, :, 4:]
    )


@pytest.mark.parametrize("kernel", KERNELS)
def test_positions_are_what_they_are_given_as(kernel: str) -> None:
    q, k, v = drawn(3, 4, dtype=widest(kernel))
    for q_positions, k_positions in (
        (torch.tensor([5, 0, 2]), torch.tensor([1, 1, 9, 3])),
        (torch.tensor([[5, 0, 2], [1, 2, 3]]), torch.tensor([1, 1, 9, 3])),
        (torch.rand(2, 3, dtype=torch.float64), torch.rand(2, 4, dtype=torch.float64)),
        (torch.tensor([5, 0, 2]).to(torch.uint8), torch.tensor([1, 1, 9, 3]).to(torch.uint8)),
    ):
        bias = distances(q_positions.double(), k_positions.double())
        bias = bias if bias.ndim == 2 else bias[:, None]
        expected = ((q @ k.mT) * 8**-0.5 + bias).softmax(-1).to(v) @ v
        found = hw.attention(
            q, k, v, encoding=Distance(), q_positions=q_positions, k_positions=k_positions, kernel=kernel
        )
        torch.testing.assert_close(found, expected)
    x = drawn(4, 4, dtype=widest(kernel))[0]
    given = torch.tensor([4, 1, 0, 2])
    for side in ("q_positions", "k_positions"):  # one side given, and as many queries as keys: both
        found = hw.attention(x, k, v, encoding=Distance(), kernel=kernel, **{side: given})
        expected = ((x @ k.mT) * 8**-0.5 + distances(given, given)).softmax(-1).to(v) @ v
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_causal_mask_reads_the_index_and_not_the_positions(kernel: str) -> None:
    x = drawn(4, 4, dtype=widest(kernel))[0]
    found = hw.attention(
        x, x, x, encoding=Distance(), q_positions=torch.tensor([3, 1, 0, 2]), mask=M.Causal(), kernel=kernel
    )
    torch.testing.assert_close(found[:, :, 0], x[:, :, 0])


# ---------------------------------------------------------------- log-sum-exp


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_log_sum_exp(dtype: torch.dtype) -> None:
    q, k, v = drawn(5, 7, kv_heads=2, dtype=dtype)
    out, lse = hw.attention_with_lse(q, k, v)
    assert out.dtype == dtype
    assert lse.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    scores = q.double() @ k.double().repeat_interleave(2, 1).mT * 8**-0.5
    within = 1e-5 if dtype == torch.bfloat16 else 1e-6  # weights in bfloat16 are not told apart more finely
    torch.testing.assert_close(lse.double(), scores.logsumexp(-1), rtol=within, atol=within)
    expected = hw.attention(q, k, v, kernel="reference")
    torch.testing.assert_close(out, expected, atol=1e-2 if dtype.itemsize == 2 else 1e-6, rtol=1e-2)


def test_log_sum_exp_of_nothing_and_of_a_sink() -> None:
    q, k, v = drawn(3, 3)
    blind = torch.tensor([[True, False, True], [False, False, False], [True, True, True]])
    sink = torch.tensor([0.0, 1.0, -2.0, 30.0], dtype=torch.float64)
    scores = (q @ k.mT * 8**-0.5).masked_fill(~blind, -math.inf)
    column = sink.view(1, 4, 1, 1).expand(2, 4, 3, 1)
    out, lse = hw.attention_with_lse(q, k, v, mask=blind)
    torch.testing.assert_close(lse, scores.logsumexp(-1))
    assert (lse[:, :, 1] == -math.inf).all()
    out, lse = hw.attention_with_lse(q, k, v, mask=blind, sink=sink)
    torch.testing.assert_close(lse, torch.cat([scores, column], -1).logsumexp(-1))
    torch.testing.assert_close(lse[:, :, 1], sink.expand(2, 4))
    torch.testing.assert_close(out, torch.cat([scores, column], -1).softmax(-1)[..., :3] @ v)


def test_gradient_through_the_log_sum_exp() -> None:
    inputs = drawn(5, 7)
    sink = torch.randn(4, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(2, 4, 5, dtype=torch.float64)
    _, lse = hw.attention_with_lse(*inputs, sink=sink, mask=M.Causal())
    scores = (inputs[0] @ inputs[1].mT * 8**-0.5).masked_fill(torch.ones(5, 7, dtype=torch.bool).triu(3), -math.inf)
    expected = torch.cat([scores, sink.view(1, 4, 1, 1).expand(2, 4, 5, 1)], -1).logsumexp(-1)
    wanted = [*inputs[:2], sink]
    for a, b in zip(*(torch.autograd.grad(x, wanted, upstream) for x in (lse, expected)), strict=True):
        assert a.abs().max() > 0
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("shape", [(4,), (2, 4, 5)])
def test_parts_over_halves_of_the_keys_are_merged(shape: tuple[int, ...]) -> None:
    """out = Σ exp(lseₚ − lse)·outₚ, with the sink once at the end, gradients and all."""
    q, k, v = drawn(5, 8)
    sink = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    allowed = torch.rand(5, 8) < 0.5
    allowed[1], allowed[2, :4], allowed[3, 4:] = False, False, False
    whole, whole_lse = hw.attention_with_lse(q, k, v, mask=allowed, sink=sink)
    outs, sums = zip(
        *(
            hw.attention_with_lse(q, k[:, :, part], v[:, :, part], mask=allowed[:, part], sink=sink, include_sink=False)
            for part in (slice(0, 4), slice(4, 8))
        ),
        strict=True,
    )
    assert (sums[0][:, :, 1] == -math.inf).all()  # no sink in it
    lse = torch.logaddexp(torch.logaddexp(*(x.masked_fill(x == -math.inf, -1e30) for x in sums)), T.Sink(sink).by_query)
    merged = sum(torch.exp(part - lse)[..., None] * out for part, out in zip(sums, outs, strict=True))
    torch.testing.assert_close(merged, whole)
    torch.testing.assert_close(lse, whole_lse)
    found, expected = (torch.autograd.grad(x.square().sum(), (q, k, v, sink)) for x in (merged, whole))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


# ---------------------------------------------------------------- weights and steps

LOOKED_AT: dict[str, dict[str, Any]] = {
    "plain": {},
    "mask": {"mask": M.Causal() & M.Padding([7, 3])},
    "sink and cap": {"sink": torch.linspace(-1, 1, 4), "soft_cap": 1.5},
    "encoding": {"encoding": Distance(), "mask": M.Window(2)},
    "terms": {"terms": (T.RelativeValues(T.Rows(torch.randn(1, 3, 5), T.Clip(-1, 1))),)},
}


@pytest.mark.parametrize("name", LOOKED_AT)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_weights_and_steps(name: str, dtype: torch.dtype) -> None:
    arguments = LOOKED_AT[name]
    q, k, v = drawn(5, 7, kv_heads=2, v_dim=5, dtype=dtype)
    steps = hw.attention_steps(q, k, v, **arguments)
    weights = hw.attention_weights(q, k, v, **arguments)
    assert weights.shape == (2, 4, 5, 7)
    assert weights.dtype == steps.output.dtype == dtype
    assert torch.equal(steps.weights, weights)
    torch.testing.assert_close(steps.output, hw.attention(q, k, v, **arguments, kernel="reference"))
    allowed = (
        arguments["mask"].allowed(hw.Coordinates.span(5, start=2), hw.Coordinates.span(7))
        if "mask" in arguments
        else None
    )
    if dtype == torch.float64:
        totals = weights.sum(-1)
        empty = torch.zeros_like(totals, dtype=torch.bool) if allowed is None else ~allowed.any(-1).expand_as(totals)
        if "sink" in arguments:
            assert (totals < 1).all()
        else:
            torch.testing.assert_close(totals, (~empty).double())
        if not arguments:
            torch.testing.assert_close(steps.products, q @ k.repeat_interleave(2, 1).mT)
            torch.testing.assert_close(steps.scaled, steps.products * 8**-0.5)
            torch.testing.assert_close(steps.output, steps.weights @ v.repeat_interleave(2, 1))
        assert (weights >= 0).all()
    if allowed is not None:
        hidden = ~allowed.expand_as(weights)
        assert (steps.masked[hidden] == -math.inf).all()
        assert torch.equal(steps.masked[~hidden], steps.scaled[~hidden])
        assert not weights[hidden].any()


def test_weights_are_differentiable_and_never_dropped() -> None:
    q, k, v = drawn(5, 7)
    weights = hw.attention_weights(q, k, v, dropout=0.5)
    expected = (q @ k.mT * 8**-0.5).softmax(-1)
    torch.testing.assert_close(weights, expected)
    for a, b in zip(*(torch.autograd.grad(x.square().sum(), (q, k)) for x in (weights, expected)), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("function", [hw.attention_weights, hw.attention_steps])
def test_weights_above_a_size_are_refused(function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["headway.attention"]  # the function of that name hides it
    monkeypatch.setattr(module, "WEIGHTS_LIMIT", 2 * 4 * 5 * 7)
    function(*drawn(5, 7))
    monkeypatch.setattr(module, "WEIGHTS_LIMIT", 2 * 4 * 5 * 7 - 1)
    with pytest.raises(hw.HeadwayError, match=r"are 280 numbers, above the limit of 279: take fewer queries at a time"):
        function(*drawn(5, 7))


# ---------------------------------------------------------------- what is shown, and the seed of dropout

OWN = ("include_sink", "partial")
"""Arguments that a function has beside those of attention."""


@pytest.mark.parametrize("function", [hw.attention_with_lse, hw.attention_weights, hw.attention_steps, hw.explain])
def test_every_function_shows_the_arguments_of_attention(function: Callable[..., Any]) -> None:
    """Names, order, defaults and annotations, but for what a function has of its own."""
    shared = dict(inspect.signature(hw.attention).parameters)
    shown = {name: part for name, part in inspect.signature(function).parameters.items() if name not in OWN}
    assert list(shown.items()) == list(shared.items())
    assert shared.keys() - {"q", "k", "v", "kernel"} == Arguments.__annotations__.keys()
    assert shared.keys() - {"kernel"} == inspect.signature(make_call).parameters.keys()


@pytest.mark.parametrize("kernel", ["cpu", "reference"])
def test_a_dropout_seed_drops_the_same_weights(kernel: str) -> None:
    q, k, v = (x.detach() for x in drawn(5, 7, dtype=torch.float32))
    state = torch.get_rng_state()
    first, again, other = (hw.attention(q, k, v, dropout=0.5, dropout_seed=s, kernel=kernel) for s in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    as_tensor = hw.attention(q, k, v, dropout=0.5, dropout_seed=torch.tensor([3]), kernel=kernel)
    assert torch.equal(first, as_tensor)
    assert torch.equal(hw.attention(q, k, v, dropout_seed=3), hw.attention(q, k, v))


@pytest.mark.parametrize("seed", [-1, 1 << 62, 0.5, True, torch.tensor(3), torch.tensor([3.0])])
def test_a_dropout_seed_that_is_none_is_refused(seed: Any) -> None:
    with pytest.raises(hw.HeadwayError, match=r"dropout_seed is .*: give a whole number from 0"):
        hw.attention(*drawn(5, 7), dropout=0.5, dropout_seed=seed)


# ---------------------------------------------------------------- which kernel


def test_explain_says_what_runs_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel that explain names is the one that runs, and each that could not run says why."""
    ran: list[str] = []
    for name, kernel in KERNELS.items():
        real = type(kernel).run
        monkeypatch.setattr(
            type(kernel), "run", lambda self, call, real=real, name=name: (ran.append(name), real(self, call))[1]
        )
    learned = T.DistanceBias(T.Linear(torch.ones(4, requires_grad=True), torch.ones(4)))
    calls: list[dict[str, Any]] = [
        {},
        {"mask": M.Window(2)},
        {"dropout": 0.1},
        {"soft_cap": 2.0},
        {"terms": (learned,)},
    ]
    calls += [{**call, "kernel": "reference"} for call in calls]
    for call in calls:
        found = hw.explain(*drawn(5, 7), **call)
        assert set(found.reasons) == set(KERNELS)
        assert ran == []
        hw.attention(*drawn(5, 7), **call)
        assert ran.pop() == found.kernel
        assert not found.reasons[found.kernel]
        for name, reasons in found.reasons.items():
            if reasons:
                with pytest.raises(hw.HeadwayError) as raised:
                    hw.attention(*drawn(5, 7), **{**call, "kernel": name})
                assert all(reason in str(raised.value) for reason in reasons)
                assert f"kernel {name!r} cannot run" in str(raised.value)
                assert "leave kernel='auto'" in str(raised.value)
        assert not ran


def test_explain_as_text() -> None:
    q, k, v = drawn(5, 5)
    against = "; ".join(hw.explain(q, k, v).reasons["cpu"])
    assert "it computes in float32, and float64 would be rounded" in against
    assert str(hw.explain(q, k, v)).splitlines() == [
        "kernel: sdpa   (terms: none)",
        f"  cpu: {against}",
        "  triton: it runs on an NVIDIA GPU, and q is on cpu",
        "  sdpa: chosen",
        "  flex: it runs on a GPU, and q is on cpu",
        "  reference: could run it too",
    ]
    said = str(hw.explain(q, k, v, soft_cap=2.0, sink=torch.zeros(4)))
    assert said.startswith("kernel: reference   (terms: SoftCap, Sink)\n  cpu: ")
    assert "\n  sdpa: torch's SDPA has no SoftCap; " in said
    assert said.endswith("reference: chosen")
    assert str(hw.explain(q, k, v, soft_cap=2.0, kernel="sdpa")).startswith(
        "kernel: none, since sdpa cannot run this call"
    )


# ---------------------------------------------------------------- bad input


class Silent(hw.positions.PositionEncoding):
    """Acts only on embeddings."""

    def embed(self, x: Tensor, coordinates: Any = None) -> Tensor:
        return x + 1


class Untouched(hw.positions.PositionEncoding):
    """Fails the test where bad input is found only after the work began."""

    def prepare(self, x: Tensor, coordinates: hw.Coordinates) -> Tensor:
        raise AssertionError("prepared before the input was checked")

    def terms(self, *_: object) -> tuple[T.Term, ...]:
        raise AssertionError("terms were asked for before the input was checked")


def r(*shape: int, **options: Any) -> Tensor:
    return torch.randn(shape, **options)


Q, K, V = r(2, 4, 5, 8), r(2, 2, 7, 8), r(2, 2, 7, 3)
BAD: dict[str, tuple[tuple[Any, Any, Any], dict[str, Any], str]] = {
    "no tensor": (([1.0], K, V), {}, r"q is a list: give a tensor \[batch, heads, tokens, head_dim\]"),
    "three dimensions": ((Q, K[0], V), {}, r"k has shape \(2, 7, 8\): give four dimensions"),
    "integers": ((Q, K, V.long()), {}, r"v is torch\.int64: give float64, float32, float16 or bfloat16"),
    "eight bits": ((Q.to(torch.float8_e5m2), K, V), {}, r"q is torch\.float8_e5m2: give float64"),
    "batch": ((Q[:1], K, V), {}, r"k has shape \(2, 2, 7, 8\) but q has a batch of 1: give k the batch of q"),
    "widths": ((Q[..., :6], K, V), {}, r"k has shape \(2, 2, 7, 8\) but q a head_dim of 6: give k the head_dim of q"),
    "tokens": ((Q, K, V[:, :, :6]), {}, r"v has shape \(2, 2, 6, 3\) but k \(2, 2, 7, 8\): give v the batch, heads"),
    "key heads": ((Q, K, V[:, :1]), {}, r"v has shape \(2, 1, 7, 3\) but k \(2, 2, 7, 8\): give v"),
    "heads": ((r(2, 3, 5, 8), K, V), {}, r"q has 3 heads and k has 2: the heads of k and v must divide those of q"),
    "no key heads": ((Q, K[:, :0], V[:, :0]), {}, r"q has 4 heads and k has 0"),
    "no width": ((Q[..., :0], K[..., :0], V), {}, r"q has shape \(2, 4, 5, 0\), so a head_dim of 0"),
    "dtypes": ((Q, K.half(), V), {}, r"q is torch\.float32, k torch\.float16 and v torch\.float32: cast them to one"),
    "devices": ((Q, K.to("meta"), V), {}, r"q is on cpu, k on meta and v on cpu: move them to one device"),
    "dropout above": ((Q, K, V), {"dropout": 1.0}, r"dropout is 1\.0: give a share of at least 0 and below 1"),
    "dropout below": ((Q, K, V), {"dropout": -0.1}, r"dropout is -0\.1"),
    "dropout, a word": ((Q, K, V), {"dropout": "0.1"}, r"dropout is '0\.1'"),
    "scale": ((Q, K, V), {"scale": torch.ones(1)}, r"scale is a tensor: give a number.*terms\.QueryScale"),
    "scale of NaN": ((Q, K, V), {"scale": math.nan}, r"scale is nan: give a finite number that float32 can hold"),
    "infinite scale": ((Q, K, V), {"scale": -math.inf}, r"scale is -inf: give a finite number"),
    "scale beyond float32": ((Q, K, V), {"scale": 1e39}, r"scale is 1e\+39: give a finite number that float32"),
    "scale, a word": ((Q, K, V), {"scale": "1"}, r"scale is '1': give a finite number"),
    "sink": ((Q, K, V), {"sink": r(2)}, r"sink has shape \(2,\) but q has 4 heads: give \[4\]"),
    "sink by query": (
        (Q, K, V),
        {"sink": r(2, 4, 7)},
        r"sink has shape \(2, 4, 7\) but q has 4 heads: give \[4\], or \[2, 4, 5\], one logit for each query",
    ),
    "sink, a number": ((Q, K, V), {"sink": 0.0}, r"sink is a float: give a tensor \[4\]"),
    "cap": ((Q, K, V), {"soft_cap": -2.0}, r"soft_cap is -2\.0: give a number above 0, or None"),
    "cap of zero": ((Q, K, V), {"soft_cap": 0.0}, r"soft_cap is 0\.0: give a number above 0"),
    "cap, a word": ((Q, K, V), {"soft_cap": "2"}, r"soft_cap is '2': give a number above 0"),
    "kernel": (
        (Q, K, V),
        {"kernel": "flash"},
        r"there is no kernel 'flash': give one of auto, cpu, triton, sdpa, flex, reference",
    ),
    "terms": ((Q, K, V), {"terms": T.Sink(r(4))}, r"terms is a Sink: give a tuple of headway\.terms"),
    "no terms": ((Q, K, V), {"terms": (1,)}, r"terms hold a int: give objects of headway\.terms"),
    "a term's shape": ((Q, K, V), {"terms": [T.Sink(r(3))]}, r"Sink has logits of shape \(3,\): give \[4\]"),
    "mask of numbers": ((Q, K, V), {"mask": r(5, 7)}, r"mask is a tensor of torch\.float32: a mask is boolean"),
    "mask's shape": ((Q, K, V), {"mask": r(7, 5) > 0}, r"mask has shape \(7, 5\): it must broadcast to \(2, 4, 5, 7\)"),
    "mask's dimensions": ((Q, K, V), {"mask": r(2, 5, 7) > 0}, r"mask has shape \(2, 5, 7\): give \[n, m\] or four"),
    "no mask": (
        (Q, K, V),
        {"mask": 7},
        r"mask is 7: give one of headway\.masks",
    ),
}
POSITIONS: dict[str, tuple[tuple[Any, Any, Any], dict[str, Any], str]] = {
    "more queries than keys": (
        (Q, K[:, :, :3], V[:, :, :3]),
        {},
        r"5 queries and 3 keys.*give q_positions and k_positions",
    ),
    "one side": (
        (Q, K, V),
        {"q_positions": torch.arange(5)},
        r"q_positions are given but k_positions are not, and n = 5",
    ),
    "other side": ((Q, K, V), {"k_positions": torch.arange(7)}, r"k_positions are given but q_positions are not"),
    "too few": (
        (Q, K, V),
        {"q_positions": torch.arange(4), "k_positions": torch.arange(7)},
        r"q_positions have shape \(4,\) but there are 5 tokens: give one for each token",
    ),
    "batch": (
        (Q, K, V),
        {"q_positions": torch.zeros(3, 5), "k_positions": torch.arange(7)},
        r"q_positions are for a batch of 3 but q has a batch of 2: give 1 or 2",
    ),
    "kind": (
        (Q, K, V),
        {"q_positions": torch.zeros(5) > 0, "k_positions": torch.arange(7)},
        r"q_positions are torch\.bool: give integers or floats",
    ),
    "list": ((Q, K, V), {"q_positions": [0], "k_positions": [1]}, r"q_positions is a list: give a tensor \[n\]"),
    "device": (
        (Q, K, V),
        {"q_positions": torch.arange(5, device="meta"), "k_positions": torch.arange(7)},
        r"q_positions are on meta but q is on cpu: move them there",
    ),
}
FUNCTIONS = [hw.attention, hw.attention_with_lse, hw.attention_weights, hw.attention_steps, hw.explain]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str, function: Callable[..., Any]) -> None:
    """One line with the argument, the value and the remedy, before any work."""
    inputs, arguments, message = BAD[name]
    with pytest.raises(hw.HeadwayError, match=message) as raised:
        function(*inputs, encoding=Untouched(), **arguments)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", POSITIONS)
def test_bad_positions(name: str) -> None:
    inputs, arguments, message = POSITIONS[name]
    with pytest.raises(hw.HeadwayError, match=message):
        hw.attention(*inputs, encoding=Untouched(), **arguments)


def test_bad_encodings() -> None:
    inputs = (Q, K, V)
    with pytest.raises(hw.HeadwayError, match=r"Silent acts on embeddings.*call Silent\.embed\(x\) once"):
        hw.attention(*inputs, encoding=Silent())
    with pytest.raises(hw.HeadwayError, match=r"encoding is 7: give a name or an object, such as headway\.encoding"):
        hw.attention(*inputs, encoding=7)  # type: ignore[arg-type]
    with pytest.raises(
        hw.HeadwayError, match=r"positions are given but no encoding, term or mask of your own reads them"
    ):
        hw.attention(*inputs, q_positions=torch.arange(5), k_positions=torch.arange(7))


def test_a_normalizer_leaves_no_softmax() -> None:
    inputs, weigh = (Q, K, V), T.Normalizer(lambda scores, allowed: scores.sigmoid())
    with pytest.raises(hw.HeadwayError, match="there is no log-sum-exp"):
        hw.attention_with_lse(*inputs, terms=(weigh,))
    with pytest.raises(hw.HeadwayError, match="replaces the softmax that a sink takes part in"):
        hw.attention(*inputs, terms=(weigh,), sink=torch.zeros(4))


@pytest.mark.parametrize("look", [hw.explain, hw.attention_weights, hw.attention_steps])
def test_looking_draws_nothing(look: Callable[..., object]) -> None:
    """With dropout too, what only looks at a call leaves the random generator as it was."""
    q, k, v = (torch.randn(1, 2, 4, 8) for _ in range(3))
    before = torch.get_rng_state()
    look(q, k, v, dropout=0.5)
    assert torch.equal(torch.get_rng_state(), before)


def test_auto_leaves_plain_bfloat16_to_torch_where_a_processor_has_amx(monkeypatch: pytest.MonkeyPatch) -> None:
    from headway.kernels import _tuned

    monkeypatch.setattr(_tuned, "has_amx", lambda: True)
    half = [x.bfloat16() for x in (torch.randn(1, 2, 9, 8), torch.randn(1, 2, 9, 8), torch.randn(1, 2, 9, 8))]
    explained = hw.explain(*half, mask=M.Causal())
    assert explained.kernel == "sdpa"
    assert "AMX" in str(explained)
    assert not explained.reasons["cpu"]
    assert hw.explain(*half, kernel="cpu").kernel == "cpu"
    assert hw.explain(*half, sink=torch.zeros(2)).kernel == "cpu"
    assert hw.explain(*half, mask=M.Window(3)).kernel == "cpu"
    assert hw.attention_with_lse(*half)[1].shape == (1, 2, 9)
    assert hw.explain(*[torch.randn(1, 2, 400, 8)] * 3).kernel == "cpu"


def test_auto_leaves_plain_attention_of_few_tokens_to_torch_if_it_is_recorded() -> None:
    few, one, many = (torch.randn(1, 2, n, 8, requires_grad=True) for n in (128, 1, 513))
    assert hw.explain(few, few, few, mask=M.Causal()).kernel == "sdpa"
    assert "takes less to start" in str(hw.explain(few, few, few))
    with torch.no_grad():
        assert hw.explain(few, few, few).kernel == "cpu"
    assert hw.explain(one, many, many).kernel == hw.explain(many, many, many).kernel == "cpu"
    assert hw.explain(few, few, few, soft_cap=2.0).kernel == "cpu"


# ---------------------------------------------------------------- hooks that write into what they are given


class WritesInLocate(RoPE):
    def locate(self, coordinates: Coordinates) -> Coordinates:
        coordinates.position.mul_(3)
        return coordinates


class WritesTheIndex(RoPE):
    def locate(self, coordinates: Coordinates) -> Coordinates:
        coordinates.index.add_(1)
        return coordinates


class WritesInTables(RoPE):
    def tables(self, coordinates: Coordinates) -> Any:
        coordinates.position[..., 0] += 1
        return super().tables(coordinates)


class WritesInRelocate(RoPE):
    def relocate(self, q_at: Coordinates, k_at: Coordinates, *inputs: Any) -> tuple[Coordinates, Coordinates]:
        k_at.position.zero_()
        return q_at, k_at


class WritesInTerms(ALiBi):
    def terms(self, q_at: Coordinates, k_at: Coordinates, *inputs: Any) -> Any:
        inputs[0].zero_()
        return super().terms(q_at, k_at)


class WritesInPrepare(RoPE):
    def prepare(self, x: Tensor, coordinates: Coordinates) -> Tensor:
        return super().prepare(x.mul_(2), coordinates)


class WritesIntoATable(RoPE):
    def prepare(self, x: Tensor, coordinates: Coordinates) -> Tensor:
        self.place(coordinates).tables[0].neg_()
        return super().prepare(x, coordinates)


WRITERS = [
    WritesInLocate, WritesTheIndex, WritesInTables, WritesInRelocate, WritesInTerms, WritesInPrepare, WritesIntoATable,
]  # fmt: skip


@pytest.mark.parametrize("composed", [False, True])
@pytest.mark.parametrize("writer", WRITERS)
def test_hooks_that_write_are_told_and_harm_no_other_call(writer: Any, composed: bool) -> None:
    """What is kept from call to call is made anew, and the user's own tensors are not changed without a word."""
    x = torch.randn(1, 5, 16)
    q = torch.randn(1, 2, 5, 8)
    arguments: dict[str, Any] = {"mask": hw.masks.Causal(), "q_input": x, "k_input": x}
    encoding = writer(2) if issubclass(writer, ALiBi) else writer(8)
    encoding = Compose(encoding, hw.encoding("log-n")) if composed else encoding
    fine = [hw.encoding(name, num_heads=2, head_dim=8) for name in ("rope", "alibi")]
    expected = [hw.attention(q, q, q, encoding=each, **arguments) for each in fine]
    positions = torch.arange(5.0)
    for given in (None, positions):
        with pytest.raises(hw.HeadwayError, match=f"{writer.__name__}.* writes .*write into a clone"):
            hw.attention(q.clone(), q, q.clone(), encoding=encoding, q_positions=given, **arguments)
        if writer is not WritesInPrepare:
            for each, right in zip(fine, expected, strict=True):
                assert torch.equal(hw.attention(q, q, q, encoding=each, **arguments), right)


def test_hooks_that_are_assigned_later_are_checked() -> None:
    class Late(ALiBi):
        pass

    q = torch.randn(1, 2, 5, 8)
    late = Late(2)
    Late.terms = lambda *given: None  # type: ignore[method-assign]
    for encoding in (late, Compose(late, RoPE(8))):
        with pytest.raises(hw.HeadwayError, match=r"Late\.terms returns None: return a tuple"):
            hw.attention(q, q, q, encoding=encoding)
    late.terms = lambda q_at, *others: (q_at.position.add_(1), ())[1]  # type: ignore[method-assign]
    with pytest.raises(hw.HeadwayError, match="relocate, terms or prepare of Late writes into its arguments"):
        hw.attention(q, q, q, encoding=late)
    assert late.foreign
    assert not RoPE(8).foreign


@pytest.mark.parametrize("name", CHECKED)
def test_a_class_that_defines_a_step_of_a_call_is_refused(name: str) -> None:
    with pytest.raises(hw.HeadwayError, match=f"Mine defines {name}, a step of a call that headway defines: give it"):
        type("Mine", (RoPE,), {name: lambda self, *given: given})


def test_a_kept_span_is_seen_to_be_written_in_inference_mode() -> None:
    q = torch.randn(1, 2, 5, 8)
    expected = hw.attention(q, q, q, encoding=RoPE(8))
    with torch.inference_mode():
        with pytest.raises(hw.HeadwayError, match="WritesInLocate writes into the coordinates"):
            hw.attention(q.clone(), q.clone(), q.clone(), encoding=WritesInLocate(8))
        assert torch.equal(hw.attention(q, q, q, encoding=RoPE(8)), expected)


def test_a_table_that_wants_a_gradient_is_refused() -> None:
    class Learned(RoPE):
        def __init__(self) -> None:
            super().__init__(8)
            self.speed = torch.nn.Parameter(torch.ones(()))

        def frequencies(self, coordinates: Coordinates) -> Tensor:
            return super().frequencies(coordinates) * self.speed.double()

    q = torch.randn(1, 2, 5, 8)
    for encoding in (Learned(), Compose(Learned(), hw.encoding("alibi", num_heads=2))):
        with pytest.raises(hw.HeadwayError, match="a table of Learned requires a gradient"):
            hw.attention(q, q, q, encoding=encoding)
    positions = torch.arange(5.0, requires_grad=True)  # that is no parameter's
    out = hw.attention(q, q, q, encoding=type("Own", (RoPE,), {})(8), q_positions=positions)
    assert torch.autograd.grad(out.sum(), positions)[0].any()


def test_locate_that_changes_more_than_positions_is_refused() -> None:
    class Rebuilds(RoPE):
        def locate(self, coordinates: Coordinates) -> Coordinates:
            return Coordinates.of(coordinates.axis() * 2, coordinates.index.shape[1])

    q = torch.randn(1, 2, 5, 8)
    with pytest.raises(hw.HeadwayError, match="Rebuilds changes more than positions in locate, or rebuilds"):
        hw.attention(q, q, q, encoding=Rebuilds(8))


@pytest.mark.parametrize(
    ("encoding", "remedy"),
    [
        (hw.encoding("alibi", num_heads=4), "ALiBi was built with num_heads=4: build it with num_heads=3"),
        (hw.encoding("rope + alibi", num_heads=4, head_dim=6), "ALiBi was built with num_heads=4"),
        (hw.encoding("shaw", head_dim=8), "Shaw was built with head_dim=8: build it with head_dim=6"),
    ],
    ids=["heads", "composed", "head_dim"],
)
def test_an_encoding_for_other_sizes_names_those_of_the_call(encoding: hw.PositionEncoding, remedy: str) -> None:
    q = torch.randn(1, 3, 5, 6)
    with pytest.raises(hw.HeadwayError, match=remedy):
        hw.attention(q, q, q, encoding=encoding)
