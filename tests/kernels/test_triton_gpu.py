"""What only a GPU shows of the Triton kernel: captured graphs, no waiting for the device, memory, many runs, size.

Its numbers are tested by the tests of every kernel, with ``pytest --triton-on cuda``.
"""

from collections.abc import Iterator

import pytest
import torch
from gpu_calls import BATCH, CALLS, HALF, HEADS, KV, WIDTH, both_ways, draw, inputs
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import headway as hw
from headway import masks as M
from headway import plans
from headway import reductions as R
from headway import terms as T
from headway.call import make_call
from headway.coordinates import Coordinates
from headway.kernels import KERNELS
from headway.kernels.triton import _installed

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(_installed.reason_against("cuda") is not None, reason=str(_installed.reason_against("cuda"))),
]


@pytest.fixture(autouse=True)
def _seed() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    torch.cuda.empty_cache()


@pytest.mark.parametrize("name", CALLS)
def test_the_same_bits_in_a_hundred_runs(name: str) -> None:
    tensors = inputs(300)
    learned, arguments = CALLS[name](300)
    first = both_ways(tensors, learned, arguments)
    assert all(x.isfinite().all() for x in first)
    for _ in range(100):
        assert all(torch.equal(a, b) for a, b in zip(first, both_ways(tensors, learned, arguments), strict=True))


@pytest.mark.parametrize("name", CALLS)
def test_the_host_does_not_wait_for_the_device(name: str) -> None:
    tensors = inputs(200)
    learned, arguments = CALLS[name](200)
    both_ways(tensors, learned, arguments)
    torch.cuda.set_sync_debug_mode("error")
    try:
        both_ways(tensors, learned, arguments)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", CALLS)
def test_a_captured_graph_repeats_the_call_on_new_numbers(name: str) -> None:
    tensors = inputs(200)
    learned, arguments = CALLS[name](200)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            both_ways(tensors, learned, arguments)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = both_ways(tensors, learned, arguments)
    with torch.no_grad():
        for x in (*tensors, *learned):
            x.mul_(torch.rand_like(x) + 0.5)  # what is positive stays so
    graph.replay()
    kept = [x.clone() for x in found]
    for a, b in zip(kept, both_ways(tensors, learned, arguments), strict=True):
        assert torch.equal(a, b)


def test_a_captured_graph_decodes_from_caches_that_grow() -> None:
    """The lengths are read on the device, and the keys of each sequence split anew."""
    q, k, v = draw(3, 8, 1, WIDTH), draw(3, 2, 4096, WIDTH), draw(3, 2, 4096, WIDTH)
    slopes, lengths = torch.rand(8, device="cuda"), torch.tensor([1, 70, 4000], device="cuda")

    def step(kernel: str = "triton") -> Tensor:
        positions = {
            "q_positions": Coordinates.of((lengths - 1)[:, None], 1),
            "k_positions": Coordinates.span(4096, device="cuda"),
        }
        terms = (T.DistanceBias(T.Linear(slopes, slopes)),)
        with torch.no_grad():
            return hw.attention(q, k, v, terms=terms, mask=M.Padding(lengths), kernel=kernel, **positions)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    for grown in ([1, 70, 4000], [2, 71, 4001], [4096, 1, 300]):
        lengths.copy_(torch.tensor(grown))
        graph.replay()
        assert torch.equal(found, step())
        torch.testing.assert_close(found, step("reference"), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CALLS)
def test_one_graph_of_the_compiler(name: str) -> None:
    tensors = inputs(200)
    learned, arguments = CALLS[name](200)

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return hw.attention(q, k, v, kernel="triton", **arguments)

    out = torch.compile(run, fullgraph=True)(*tensors)
    expected = both_ways(tensors, learned, arguments)
    found = [out, *torch.autograd.grad(out.square().sum(), [*tensors, *learned])]
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints(reentrant: bool) -> None:
    tensors = inputs(100)
    learned, arguments = CALLS["table"](100)
    arguments |= {"dropout": 0.2}

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return hw.attention(q, k, v, kernel="triton", **arguments)

    found = []
    for function in (run, lambda *x: checkpoint(run, *x, use_reentrant=reentrant)):
        torch.manual_seed(3)
        out = function(*tensors)
        for x in (*tensors, *learned):
            x.grad = None
        out.square().sum().backward()
        found.append([out, *(x.grad for x in (*tensors, *learned))])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_rows_of_an_image_that_would_be_a_large_dense_bias() -> None:
    n = 2200
    tensors = inputs(n, torch.float32, batch=1)
    learned, arguments = CALLS["rows of an image"](n)
    found, exact = (both_ways(tensors, learned, arguments, kernel) for kernel in ("triton", "reference"))
    for a, b in zip(found, exact, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    assert all(torch.equal(a, b) for a, b in zip(found, both_ways(tensors, learned, arguments), strict=True))


def test_autocast() -> None:
    tensors = inputs(100, torch.float32)
    with torch.autocast("cuda", dtype=HALF):
        out = hw.attention(*tensors, kernel="triton", mask=M.Causal())
    assert out.dtype == HALF
    expected = hw.attention(*(x.to(HALF) for x in tensors), kernel="triton", mask=M.Causal())
    assert torch.equal(out, expected)


def test_a_gradient_without_strides_of_its_own() -> None:
    tensors = inputs(100)
    found = []
    for upstream in (torch.ones((), device="cuda", dtype=HALF).expand(BATCH, HEADS, 100, WIDTH), None):
        out = hw.attention(*tensors, kernel="triton", mask=M.Causal())
        found.append(torch.autograd.grad(out, tensors, torch.ones_like(out) if upstream is None else upstream))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize(("n", "m"), [(0, 5), (5, 0), (0, 0), (1, 1)])
def test_lengths_of_zero(n: int, m: int) -> None:
    q, k, v = draw(1, 2, n, WIDTH), draw(1, 2, m, WIDTH), draw(1, 2, m, WIDTH)
    out = hw.attention(q, k, v, kernel="triton")
    expected = hw.attention(*(x.cpu() for x in (q, k, v)), kernel="reference")
    torch.testing.assert_close(out.cpu(), expected)
    for x in torch.autograd.grad(out.sum(), (q, k, v)):
        assert x.isfinite().all()


def test_tensors_that_begin_anywhere() -> None:
    """Slices of storage that no 16 bytes divide, and rows that are 16 numbers apart no more."""
    whole = [draw(BATCH, h, 101, WIDTH + 3, dtype=HALF) for h in (HEADS, KV, KV)]
    views = [x[:, :, 1:, 3:] for x in whole]
    out = hw.attention(*views, kernel="triton", mask=M.Causal())
    copies = [x.detach().contiguous().requires_grad_() for x in views]
    expected = hw.attention(*copies, kernel="triton", mask=M.Causal())
    assert torch.equal(out, expected)
    upstream = torch.randn_like(out)
    of_views = torch.autograd.grad(out, whole, upstream)
    of_copies = torch.autograd.grad(expected, copies, upstream)
    for a, b in zip(of_views, of_copies, strict=True):  # sums of rows are ordered by how these are loaded
        assert (a[:, :, 1:, 3:] - b).norm() / b.norm() < 2e-3


@pytest.mark.parametrize("name", CALLS)
def test_the_output_of_a_pass_that_reduces_is_the_same_bits(name: str) -> None:
    n = 300
    q, k, v = inputs(n)
    _, arguments = CALLS[name](n)
    kernel, call = KERNELS["triton"], make_call(q, k, v, **arguments)
    asked = [R.Entropy(), R.TopKeys(3), R.WeightsByDistance((-5, 0)), R.ColumnSums()]
    with torch.no_grad():
        out, values = kernel.run_and_reduce(call, asked)
        assert torch.equal(out, kernel.run(call)[0])
        for _ in range(20):
            again, others = kernel.run_and_reduce(call, asked)
            assert torch.equal(again, out)
            for ours, theirs in zip(values, others, strict=True):
                pairs = zip(*(x if isinstance(x, tuple) else (x,) for x in (ours, theirs)), strict=True)
                assert all(torch.equal(*pair) for pair in pairs)


def test_memory_of_reductions_is_linear_in_the_tokens() -> None:
    asked = [R.Entropy(), R.TopKeys(1), R.ColumnSums(), R.PooledMap(8, 8)]

    def needs(n: int) -> int:
        q, k, v = inputs(n, batch=1)
        call = make_call(q, k, v, mask=M.Causal())
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        KERNELS["triton"].reduce(call, asked)
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before

    assert needs(32768) < 4.2 * needs(8192)


def peak(n: int, name: str) -> int:
    """The bytes that a call needs, forward and backward, besides its tensors."""
    tensors = inputs(n, batch=1)
    learned, arguments = CALLS[name](n)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    both_ways(tensors, learned, arguments)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


@pytest.mark.parametrize(
    "name",
    [
        *("plain", "table", "one slope", "rows of an image", "documents"),
        *("relative keys, queries and values", "sinusoids", "stretched"),
    ],
)
def test_memory_is_linear_in_the_tokens(name: str) -> None:
    few, many = peak(8192, name), peak(32768, name)
    assert many < 4.2 * few
    assert many < 32768**2, "less than a byte for each pair"


@pytest.mark.slow
def test_tensors_of_more_numbers_than_int32_counts() -> None:
    """The last head lies beyond 2³¹ numbers; a window keeps the work small."""
    n = (1 << 31) // WIDTH // 16 + 4096
    if torch.cuda.get_device_properties(0).total_memory < 64 << 30:
        pytest.skip("needs a GPU with 64 GiB")
    mask = M.Causal() & M.Window(100, 0)
    q, k, v = (torch.randn(1, 16, n, WIDTH, device="cuda", dtype=HALF) for _ in range(3))
    last = [x[:, -1:, -5000:].clone().requires_grad_() for x in (q, k, v)]
    for x in (q, k, v):
        x.requires_grad_()
    out = hw.attention(q, k, v, mask=mask, kernel="triton")
    upstream = torch.randn_like(out)
    gradients = torch.autograd.grad(out, (q, k, v), upstream)
    expected = hw.attention(*last, mask=mask, kernel="triton")
    beyond = slice(200, None)  # queries whose window lies in the part
    assert torch.equal(out[:, -1:, -5000:][:, :, beyond], expected[:, :, beyond])
    of_part = torch.autograd.grad(expected, last, upstream[:, -1:, -5000:])
    for a, b in zip(gradients, of_part, strict=True):
        torch.testing.assert_close(a[:, -1:, -5000:][:, :, beyond], b[:, :, beyond], rtol=0.02, atol=0.02)


def test_a_stream_of_its_own() -> None:
    tensors = inputs(100)
    expected = both_ways(tensors, [], {"mask": M.Causal()})
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        found = both_ways(tensors, [], {"mask": M.Causal()})
    side.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_programs_are_compiled_once_for_all_lengths() -> None:
    from headway.kernels.triton import programs

    def compiled() -> int:
        return sum(len(cache[0]) for cache in programs.forward.device_caches.values())

    before = compiled()
    for n in range(20, 84):
        learned, arguments = CALLS["table"](n)
        both_ways(inputs(n), learned, arguments)
    assert compiled() - before <= 2


def test_auto_runs_and_says_why() -> None:
    """The kernel is not chosen before it has been measured."""
    tensors = inputs(100)
    _, arguments = CALLS["table"](100)
    said = str(hw.explain(*tensors, **arguments))
    assert "triton" in said
    out = hw.attention(*tensors, **arguments)
    torch.testing.assert_close(out, hw.attention(*tensors, kernel="triton", **arguments), rtol=0.02, atol=0.02)


# ---------------------------------------------------------------- calls that are kept


def of_encoding(name: str) -> tuple[list[Tensor], Tensor, hw.positions.PositionEncoding | None]:
    encoding = None if name == "none" else hw.encoding(name, num_heads=4, head_dim=64).to("cuda")
    q, k, v, up = (torch.randn(2, 4, 200, 64, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    return [x.requires_grad_() for x in (q, k, v)], up, encoding


def both(inputs: list[Tensor], up: Tensor, encoding: hw.positions.PositionEncoding | None) -> list[Tensor]:
    out = hw.attention(*inputs, encoding=encoding, mask=M.Causal(), kernel="triton")
    parameters = [] if encoding is None else list(encoding.parameters())
    return [out, *torch.autograd.grad(out, [*inputs, *parameters], up)]


@pytest.mark.parametrize("name", ["none", "alibi", "rope", "t5", "kerple-log", "shaw"])
def test_a_kept_call_gives_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made, (inputs, up, encoding) = plans.key_of, of_encoding(name)
    for _ in range(4):
        with torch.no_grad():
            for x in (*inputs, up):
                x.copy_(torch.randn_like(x))
        monkeypatch.setattr(plans, "key_of", made)
        kept = both(inputs, up, encoding)
        monkeypatch.setattr(plans, "key_of", lambda request: None)
        fresh = both(inputs, up, encoding)
        assert all(torch.equal(a, b) for a, b in zip(kept, fresh, strict=True))


@pytest.mark.parametrize("name", ["alibi", "t5"])
def test_a_kept_call_follows_the_current_stream(name: str) -> None:
    inputs, up, encoding = of_encoding(name)
    expected = [both(inputs, up, encoding) for _ in range(3)][-1]
    for stream in (torch.cuda.Stream(), torch.cuda.Stream()):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                torch.cuda._sleep(1_000_000)  # so that another stream would be ahead
                found = both(inputs, up, encoding)
        torch.cuda.current_stream().wait_stream(stream)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_a_graph_outlives_what_was_kept() -> None:
    inputs, up, encoding = of_encoding("alibi")
    expected = [both(inputs, up, encoding) for _ in range(3)][-1]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = both(inputs, up, encoding)
    assert encoding is not None
    plans._plans_of(encoding).clear()
    filled = torch.full((1 << 24,), torch.nan, device="cuda")  # where the plan's tensors were
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert filled.isnan().all()
