"""The descriptor of a call, read back as csrc/call.h reads them and computed by the reference kernel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from cpu_words import Reader, computed, read
from torch import Tensor
from torch._dynamo.utils import counters
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import headway as hw
from headway import masks as M
from headway import reductions
from headway import terms as T
from headway.coordinates import Coordinates
from headway.kernels import KERNELS, Call, Problem, _ops, reduce_blocks
from headway.kernels import reference as spec
from headway.kernels._problem import without_tables
from headway.kernels.cpu import _descriptor, _library
from headway.testing import kernels as checks


def compute(words: Any) -> None:
    """What the C++ library does with the words."""
    right = computed(Reader(words))
    results = right.results
    if results["backward"]:
        torch.testing.assert_close(results["row_max"], right.row_max)
        torch.testing.assert_close(results["row_sum"], right.row_sum)
        torch.testing.assert_close(results["out"].float(), right.out, rtol=1e-2, atol=1e-2)
    for memory, values in right.filled:
        memory.copy_(values)


MISSING = _library.why_not()
COMPILED = pytest.param(_library.run, marks=pytest.mark.skipif(bool(MISSING), reason=str(MISSING)), id="compiled")


@pytest.fixture(params=[pytest.param(compute, id="in Python"), COMPILED])
def calls(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Runs a test on the words as read here, and on the compiled library; gives the number of words of each call."""
    counts: list[int] = []

    def run(words: Any) -> None:
        counts.append(len(words))
        request.param(words)

    monkeypatch.setattr(_library, "why_not", lambda: None)
    monkeypatch.setattr(_library, "run", run)
    yield counts
    assert counts, "the kernel was never called"


# ---------------------------------------------------------------- every term and every mask


def run_and_differentiate(call: Call, leaves: list[Tensor], kernel: str) -> list[Tensor]:
    out, lse = KERNELS[kernel].run(call)
    assert lse is not None
    loss = (out * checks.upstream_of(out)).sum() + (lse.nan_to_num(neginf=0) * checks.upstream_of(lse)).sum()
    return [out, lse, *torch.autograd.grad(loss, leaves)]


SUPPORTED = [
    name
    for name in checks.term_names()
    if name not in ("dense bias, function", "product", "score map") and not checks.replaces_softmax(name)
    if name not in ("limited rotation", "channel decay") and not name.startswith("householder path")
]
"""Terms that are one call at any positions; test_cpu_pieces.py has the others."""


@pytest.mark.one_in(5)
@pytest.mark.parametrize("mask", checks.mask_names())
@pytest.mark.parametrize("term", SUPPORTED)
def test_the_descriptor_says_the_call(term: str, mask: str, calls: list[int]) -> None:
    """Results and every gradient are those of the reference kernel."""
    results = []
    for kernel in ("cpu", "reference"):
        call, leaves = checks.build(term, "sink and log-sum-exp", mask, 1, torch.float32, torch.float32)
        assert not KERNELS[kernel].why_not(Problem.of(call))
        results.append(run_and_differentiate(call, leaves, kernel))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert len(calls) == 2


def test_the_descriptor_says_the_reductions(calls: list[int]) -> None:
    q, k, v = (torch.randn(2, heads, tokens, 8) for heads, tokens in ((4, 9), (2, 13), (2, 13)))
    call = hw.call.make_call(q, k, v, mask=M.Causal(), sink=torch.randn(4))
    wanted: list[reductions.Reduction] = [
        *(reductions.RowStatistics(), reductions.Entropy(), reductions.VisibleKeys(), reductions.MeanDistance()),
        *(reductions.TopKeys(3), reductions.TopKeys(1), reductions.ColumnSums(), reductions.PooledMap(2, 5)),
        reductions.PooledMap(2, 5, one_pass=True),
        reductions.WeightsAt(torch.randint(-1, 13, (1, 9, 2))),
        reductions.WeightsAt(torch.randint(-1, 13, (2, 9, 1))),
        reductions.WeightsByLabel(torch.randint(-1, 3, (2, 13)), 3),
        reductions.WeightsByLabel(torch.randint(-1, 2, (1, 13)), 2),
        reductions.WeightsByDistance((-3, 0, 1)),
        reductions.WeightsByDistance((2,)),
        reductions.WeightsOfMatches(torch.randint(-1, 3, (1, 9)), torch.randint(-1, 3, (2, 13)), -2),
        reductions.WeightsOfMatches(torch.randint(-1, 3, (2, 9)), torch.randint(-1, 3, (1, 13)), 0),
    ]
    counted = torch.rand(2, 9) < 0.7
    found, expected = KERNELS["cpu"].reduce(call, wanted, counted), reduce_blocks(call, wanted, counted)
    for one, ours, theirs in zip(wanted, found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6, msg=f"{one}: {{}}".format)
    assert len(calls) == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_tensors_are_read_where_they_lie(dtype: torch.dtype, calls: list[int]) -> None:
    """q, k and v in their own dtype and layout, gradients in the dtype and shape of the leaf."""
    x = torch.randn(2, 6, 3, 4, 8).to(dtype).requires_grad_()
    q, k, v = x.permute(2, 0, 3, 1, 4)
    table, u = torch.randn(1, 9, 8).to(dtype), torch.randn(4, 8, dtype=torch.float64)
    table.requires_grad_(), u.requires_grad_()
    terms = (T.RelativeKeys(T.Rows(table, T.Clip(-4, 4)), u),)
    out = hw.attention(q, k, v, terms=terms, kernel="cpu")
    assert out.dtype == dtype
    assert out.transpose(1, 2).is_contiguous()
    expected = hw.attention(q, k, v, terms=terms, kernel="reference")
    close = {"rtol": 2e-2, "atol": 2e-2} if dtype.itemsize == 2 else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(out, expected, **close)
    for leaf, *pair in zip(
        (x, table, u),
        *(torch.autograd.grad(o.float().square().sum(), (x, table, u)) for o in (out, expected)),
        strict=True,
    ):
        assert pair[0].shape == leaf.shape
        assert pair[0].dtype == leaf.dtype
        torch.testing.assert_close(*pair, **close)


def test_a_tensor_that_is_negated_lazily(calls: list[int]) -> None:
    complex_q = torch.randn(1, 2, 5, 8, dtype=torch.complex64).conj()
    q = complex_q.imag
    assert q.is_neg()
    k, v = torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8)
    bias = T.DenseBias(torch.randn(2, 5, 5, dtype=torch.complex64).conj().imag)
    found, expected = (hw.attention(q, k, v, terms=(bias,), kernel=name) for name in ("cpu", "reference"))
    torch.testing.assert_close(found, expected)


def misplaced(x: Tensor) -> Tensor:
    """The same numbers at an address that is not a multiple of their size, as a view of a file's bytes may have it."""
    at, kept = max(1, x.itemsize // 2), x.contiguous().flatten().view(torch.uint8).tolist()
    moved = torch.frombuffer(bytearray([0] * at + kept), dtype=x.dtype, offset=at).view(x.shape)
    assert moved.data_ptr() % x.itemsize
    return moved


def test_tensors_at_odd_addresses(calls: list[int]) -> None:
    """q, k, v, positions, masks, terms and the gradient that comes from above; some of them expanded."""
    g = torch.Generator().manual_seed(3)
    drawn = [torch.randn(shape, generator=g) for shape in ((2, 4, 5, 8), (2, 2, 7, 8), (1, 2, 7, 8), (2, 4, 5, 8))]
    drawn += [torch.randn(shape, generator=g) for shape in ((1, 9), (4, 9, 8), (4,), (1, 1, 5, 7), (2, 1, 7), (4,))]
    knots = torch.tensor([-3.0, 0.0, 2.0], dtype=torch.float64)
    places = torch.arange(7)
    results = []
    for move in (misplaced, lambda x: x):
        made = [move(x) for x in drawn]
        q, k, v, up, table, keys, slopes, dense, token, sink = (
            x.requires_grad_(number != 3) for number, x in enumerate(made)
        )
        at = move(places)
        terms = (
            T.DistanceBias(T.Rows(table, T.Bucketize(move(torch.linspace(-3, 3, 8))))),
            T.RelativeKeys(T.Rows(keys, T.Clip(-4, 4))),
            T.DistanceBias(T.Linear(slopes, slopes)),
            T.DistanceBias(T.Piecewise(move(knots), keys[:, :3, 0])),
            T.DenseBias(dense),
            T.TokenBias(keys=token),
        )
        out = hw.attention(
            q,
            k,
            v.expand(2, 2, 7, 8),
            terms=terms,
            sink=sink,
            mask=M.Documents(move(places // 4), move(places[2:] // 4)),
            q_positions=at[2:],
            k_positions=at,
            kernel="cpu",
        )
        leaves = [x for x in made if x.requires_grad]
        results.append([out, *torch.autograd.grad(out, leaves, up)])
    assert all(map(torch.equal, *results))
    assert all(x.any() for x in results[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_halves_at_odd_addresses(dtype: torch.dtype, calls: list[int]) -> None:
    x = torch.randn(1, 2, 5, 8).to(dtype)
    found, expected = (hw.attention(y, y, y, kernel="cpu") for y in (misplaced(x), x))
    assert torch.equal(found, expected)


def test_dtypes_that_differ_are_computed_in_float32(calls: list[int]) -> None:
    """An encoding may widen what it prepares; the output keeps the dtype of q."""
    call, _ = checks.build("none", "log-sum-exp", "causal", 0, torch.bfloat16, torch.float32)
    call = spec.replace(call, k=call.k.float())
    results = []
    for kernel in ("cpu", "reference"):
        results.append(run_and_differentiate(call, [call.q, call.v], kernel))
    for found, expected in zip(*results, strict=True):
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)


def test_no_statistics_where_no_gradient_is_wanted(calls: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []
    monkeypatch.setattr(_library, "run", lambda words: seen.append(read(Reader(words))[1]) or compute(words))
    calls.append(0)
    q, k, v = (torch.randn(1, 2, 5, 8, requires_grad=True) for _ in range(3))
    with torch.no_grad():
        hw.attention(q, k, v, kernel="cpu")
    hw.attention(q.detach(), k.detach(), v.detach(), kernel="cpu")
    hw.attention_with_lse(q.detach(), k.detach(), v.detach(), kernel="cpu")
    out, lse = hw.attention_with_lse(q, k, v.detach(), kernel="cpu")
    (out.sum() + lse.sum()).backward()
    hw.attention(q, k.detach(), v.detach(), kernel="cpu").sum().backward()
    there = [{name for name in ("row_max", "row_sum") if found[name] is not None} for found in seen]
    assert there == [set(), set(), *[{"row_max", "row_sum"}] * 5]
    assert seen[4]["d_lse"] is not None
    assert seen[6]["d_lse"] is None
    assert [len(found["gradients"]) for found in (seen[4], seen[6])] == [2, 1]


@pytest.mark.parametrize("shape", [(2, 0, 3), (2, 3, 0), (2, 0, 0), (0, 3, 3)])
def test_sizes_of_zero(shape: tuple[int, int, int], calls: list[int]) -> None:
    batch, n, m = shape
    q, k, v = (torch.randn(batch, 2, t, 4) for t in (n, m, m))
    sink = torch.tensor([0.5, 2.0])
    positions = {"q_positions": torch.arange(n), "k_positions": torch.arange(m)}
    bias = (T.DistanceBias(T.Linear(torch.ones(2), torch.ones(2))),)
    out, lse = hw.attention_with_lse(
        q, k, v, sink=sink, mask=M.Causal() & M.Documents(torch.zeros(m).long(), torch.zeros(1, n).long()),
        terms=bias, kernel="cpu", **positions,
    )  # fmt: skip
    assert out.shape == (batch, 2, n, 4)
    if not m:
        assert not out.any()
        assert torch.equal(lse, sink[:, None].expand(batch, 2, n))


def test_a_tensor_elsewhere_is_refused(calls: list[int]) -> None:
    calls.append(0)
    q = torch.randn(1, 2, 5, 8)
    with pytest.raises(hw.HeadwayError, match="another tensor of the call is on meta: move it to the CPU"):
        hw.attention(q, q, q, sink=torch.zeros(2, device="meta"), kernel="cpu")


def test_an_axis_that_is_not_there_is_refused(calls: list[int]) -> None:
    calls.append(0)
    q = torch.randn(1, 2, 5, 8)
    for values in (T.Rows(torch.zeros(2, 3), T.Clip(-1, 1, axis=1)), T.Linear(torch.ones(2), torch.ones(2), axis=-1)):
        with pytest.raises(hw.HeadwayError, match=r"reads axis -?1 but positions have 1"):
            hw.attention(q, q, q, terms=(T.DistanceBias(values),), kernel="cpu")


def test_positions_of_two_dtypes(calls: list[int]) -> None:
    q = torch.randn(1, 2, 5, 8)
    bias = T.DistanceBias(T.Linear(torch.ones(2), torch.ones(2)))
    k_side = Coordinates.of(torch.linspace(0, 3, 5), 5)
    sides = [
        Coordinates(torch.arange(5)[None, :, None].to(dtype), torch.arange(5)[None])
        for dtype in (torch.int32, torch.half)
    ]
    for q_side in (Coordinates.span(5), *sides):
        found, expected = (
            hw.attention(q, q, q, terms=(bias,), q_positions=q_side, k_positions=k_side, kernel=name)
            for name in ("cpu", "reference")
        )
        torch.testing.assert_close(found, expected)


# ---------------------------------------------------------------- bounds


@pytest.mark.parametrize(("n", "m"), [(1, 9), (4, 9), (1, 20_000), (4, 20_000), (9_000, 9_000)])
def test_bounds_are_a_slot_for_each_query(n: int, m: int) -> None:
    """Numbers and rules are read from memory that is kept, where they lie in it, and tensors as they are."""
    q, k = Coordinates.span(n, start=m - n), Coordinates.span(m)
    edge = _descriptor.FAR_SLOT
    offsets = (-(10**30), -n - 1, -n, -1, 0, 3, m - n, m, m + 5, edge - n - 1, edge - n, edge - n + 1, edge, 10**30)
    bounds = [torch.arange(n)[None], torch.full((1, 1), 2, dtype=torch.int32), *offsets, *map(M.Slot, offsets)]
    for where in (q, q._with(start=None)):
        words = _descriptor.CallDescriptor(where, k, False)
        words.mask(((None, None), *((bound, 3) for bound in bounds)), None)
        r = Reader(words.words)
        assert r.word() == 1 + len(bounds)
        assert r.some(2, n).tolist() == [[0] * n] * 2
        assert r.some(2, n).tolist() == [[m] * n] * 2
        for bound in bounds:
            found, stop = r.some(2, n), r.some(2, n)
            step = isinstance(bound, M.Slot)
            offset = bound.offset if isinstance(bound, M.Slot) else bound
            if not isinstance(offset, Tensor):
                offset = torch.tensor([[max(-m, min(offset, 2 * m)) + i * step for i in range(n)]])
            assert torch.equal(found.clamp(0, m), offset.clamp(0, m).long().expand(2, n)), bound
            assert stop.tolist() == [[3] * n] * 2


# ---------------------------------------------------------------- sinusoids

RATES = torch.tensor([1.0, 0.3, 0.05], dtype=torch.float64)
POSITIONS = {
    "in a row": torch.arange(9),
    "with gaps": torch.tensor([0, 3, 4, 40, 41, 50, 51, 52, 99]),
    "in no order": torch.tensor([5, 3, 90, 1, 0, 2, 2, 7, 30]),
    "far apart": torch.tensor([0, 1, 2, 3, 10**6, 10**6 + 1, 10**9, 10**9 + 5, 10**9 + 6]),
    "not whole": torch.linspace(-3, 8, 9),
    "by row": torch.stack([torch.arange(9), torch.arange(9) * 3]),
}
IN_SIGHT = {
    "all": None,
    "causal": M.Causal(),
    "a window": M.Window(2, 1) & M.Causal(),
    "two": M.Prefix(2) | M.Window(1, 0),
}


@pytest.mark.parametrize("mask", IN_SIGHT)
@pytest.mark.parametrize("positions", POSITIONS)
def test_sinusoids_are_lowered(positions: str, mask: str, calls: list[int]) -> None:
    """By a table or by further columns, with every gradient, next to a term that reads q itself."""
    at = POSITIONS[positions]
    where = Coordinates.of(at, 9)
    leaves = [
        torch.randn(s).requires_grad_()
        for s in ((2, 4, 4, 8), (2, 2, 9, 8), (2, 2, 9, 5), (4, 8, 6), (4, 8), (1, 5, 8))
    ]
    rates = RATES.clone().requires_grad_()
    q, k, v, weight, u, table = leaves
    terms = (
        T.QueryScale(torch.rand(1, 4, 1) + 0.5),
        T.RelativeKeys(T.Sinusoids(weight, rates), u),
        T.RelativeKeys(T.Rows(table, T.Clip(-2, 2))),
        T.RelativeQueries(T.Rows(table, T.Clip(-2, 2))),
        T.QueryScale(torch.rand(2, 1, 4) + 0.5),
    )
    results = []
    for name in ("cpu", "reference"):
        out = hw.attention(
            q, k, v, terms=terms, mask=IN_SIGHT[mask], q_positions=where.rows(5, 9), k_positions=where, kernel=name
        )
        results.append([out, *torch.autograd.grad(out.square().sum(), [*leaves, rates])])
    names = ("out", "q", "k", "v", "weight", "u", "table", "rates")
    for name, found, expected in zip(names, *results, strict=True):
        assert found.dtype == expected.dtype
        # the gradient of a rate is a sum over distances as large as they are
        scale = expected.abs().max().clamp(min=1)
        torch.testing.assert_close(
            found / scale, expected / scale, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
        )


def test_a_blind_query_that_is_no_number_gives_no_gradient(calls: list[int]) -> None:
    q, k, v = (torch.randn(1, 2, 3, 8) for _ in range(3))
    q[:, :, 1] = torch.nan
    q.requires_grad_()
    seen = torch.tensor([[True, True, False], [False] * 3, [True] * 3])
    weight, u = torch.randn(2, 8, 6, requires_grad=True), torch.randn(2, 8, requires_grad=True)
    for positions in (torch.arange(3), torch.arange(3) / 2):
        terms = (T.RelativeKeys(T.Sinusoids(weight, RATES), u),)
        out = hw.attention(
            q,
            k,
            v,
            terms=terms,
            mask=seen,
            q_positions=positions,
            k_positions=positions,
            kernel="cpu",
            sink=torch.ones(2),
        )
        assert torch.isfinite(out).all()
        for gradient in torch.autograd.grad(out.sum(), (q, weight, u)):
            assert torch.isfinite(gradient).all()


# ---------------------------------------------------------------- what is refused


class Own(M.Mask):
    """A user's own."""


class Steeper(T.Linear):
    """A user's own form."""


def boundaries(dtype: torch.dtype) -> T.Bucketize:
    return T.Bucketize(torch.tensor([-1, 0, 1]).to(dtype))


def rows(parts: T.Map) -> T.DistanceBias:
    return T.DistanceBias(T.Rows(torch.zeros(2, parts.count), parts))


KNOTS = torch.tensor([0.0, 1.0], requires_grad=True)
MANY = torch.zeros(1, (1 << 20) + 1)


def stretched(edges: Tensor) -> T.DistanceBias:
    pieces = torch.zeros(1, 1).expand(1, edges.shape[0] + 1)
    return T.DistanceBias(T.Stretched(edges, pieces, pieces, torch.ones(1), torch.ones(1, 3)))


def of_classes(count: int) -> T.DistanceBias:
    """A table whose rows are one number in memory."""
    first = torch.zeros(1, 3, dtype=torch.int64)
    return T.DistanceBias(T.Rows(torch.zeros(2, 1).expand(2, count**2), T.Classes(first, first, count)))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "float64": ({"dtype": torch.float64}, "it computes in float32, and float64 would be rounded"),
    "device": ({"device": "meta"}, "it runs on a CPU and q is on meta"),
    "product": ({"terms": [T.Product(torch.matmul)]}, "it has no Product"),
    "score map": ({"terms": [T.ScoreMap(torch.matmul)]}, "it has no ScoreMap"),
    "normalizer": ({"terms": [T.Normalizer(torch.matmul)]}, "it has no Normalizer"),
    "function": ({"terms": [T.DenseBias(torch.matmul)]}, "it cannot call the Python function of a DenseBias"),
    "form": ({"terms": [T.DistanceBias(Steeper(*torch.ones(2, 2)))]}, "it has no DistanceBias of Steeper"),
    "boundaries": ({"terms": [rows(boundaries(torch.half))]}, "boundaries of Bucketize are torch.float16"),
    "classes": ({"terms": [of_classes((1 << 15) + 1)]}, "there are more than 32,768 classes"),
    "maps": ({"terms": [rows(T.Grid((T.Clip(0, 0),) * 5))]}, "a Grid has more than 4 maps"),
    "terms": (
        {"terms": [T.SoftCap(2.0)] * 33},
        "it takes at most 32 terms, where a TokenBias or ContentSlope may count as two",
    ),
    "biases of tokens": (
        {"terms": [T.TokenBias(torch.zeros(1, 2, 3), torch.zeros(1, 2, 3))] * 17},
        "it takes at most 32 terms, where a TokenBias or ContentSlope may count as two",
    ),
    "knots": ({"terms": [T.DistanceBias(T.Piecewise(KNOTS, torch.zeros(2, 2)))]}, "no gradient of the knots"),
    "frequencies": ({"terms": [T.DistanceBias(T.Cosines(torch.zeros(2, 2), KNOTS))]}, "no gradient of the frequencies"),
    "waves": ({"terms": [T.DistanceBias(T.Cosines(MANY[:, :65537], MANY[0, :65537]))]}, "more than 65,536 frequencies"),
    "pieces": ({"terms": [stretched(MANY[0, : 1 << 20])]}, "Stretched has more than 1,048,576 pieces"),
    "mask": ({"mask": Own(), "tokens": 100_000}, "would take more than 1,024 MiB as a tensor"),
    "masks": ({"mask": M.And((M.Causal(),) * 33)}, "the mask joins more than 32 masks"),
    "width": ({"head_dim": 65537}, "a head_dim is above 65,536"),
    "positions": (
        {"q_positions": Coordinates(torch.zeros(1, 3, 1, requires_grad=True), torch.arange(3)[None])},
        "it computes no gradient of positions",
    ),
}  # fmt: skip


def test_as_many_terms_as_the_library_counts_are_taken() -> None:
    q, keys = torch.randn(1, 2, 3, 8), torch.randn(1, 2, 3)
    for terms in ([T.TokenBias(keys=keys)] * 32, [T.TokenBias(keys, keys)] * 16):
        found, expected = (hw.attention(q, q, q, terms=terms, kernel=kernel) for kernel in ("cpu", "reference"))
        assert torch.allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_cannot_say_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_library, "why_not", lambda: None)
    arguments, reason = REFUSED[name]
    arguments = dict(arguments)
    sizes = (1, 2, arguments.pop("tokens", 3), arguments.pop("head_dim", 8))
    q = torch.zeros(sizes, dtype=arguments.pop("dtype", torch.float32), device=arguments.pop("device", "cpu"))
    found = hw.explain(q, q, q, **arguments).reasons["cpu"]
    assert len(found) == 1
    assert reason in found[0]


def test_as_many_classes_as_are_allowed_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_library, "why_not", lambda: None)
    q = torch.zeros(1, 2, 3, 8)
    assert hw.explain(q, q, q, terms=[of_classes(1 << 15)]).reasons["cpu"] == []


def test_limits_are_taken(calls: list[int]) -> None:
    """As many terms, maps and masks as are allowed."""
    q = torch.randn(1, 2, 3, 8)
    deep: M.Mask = M.Causal()
    for number in range(15):
        deep = (M.And, M.Or)[number % 2]((M.Window(number), deep))
    for arguments in (
        {"terms": [rows(T.Grid((T.Clip(-1, 1),) * 4))] * 32},
        {"terms": [T.TokenBias(torch.randn(1, 2, 3), torch.randn(1, 2, 3))] * 16},
        {"mask": M.And((M.Causal(),) * 32)},
        {"mask": M.Or((M.Dilated(2), M.Window(1)) * 16)},
        {"mask": deep},
    ):
        found, expected = (hw.attention(q, q, q, **arguments, kernel=name) for name in ("cpu", "reference"))
        torch.testing.assert_close(found, expected)


def forms() -> dict[str, tuple[T.Bias, int, tuple[int, ...]]]:
    """A form, how many words name it, and the tensors behind them: 1 for one alone, 2 for one with its gradient."""
    edges, rows = torch.tensor([0.3, 0.6]), torch.ones(2, 3)
    return {
        "linear": (T.Linear(torch.ones(2), torch.ones(2)), 3, (2, 2)),
        "piecewise": (T.Piecewise(torch.tensor([-1.0, 0.0, 1.0]), rows), 4, (1, 2)),
        "cosines": (T.Cosines(rows, torch.ones(3)), 4, (1, 2)),
        "stretched": (T.Stretched(edges, rows, rows, torch.ones(1), torch.ones(1, 5)), 4, (1, 2, 2, 2, 2)),
    }


@pytest.mark.skipif(bool(MISSING), reason=str(MISSING))
@pytest.mark.parametrize("form", forms())
def test_every_word_of_a_form_is_checked(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values, named, tensors = forms()[form]
    tried: list[int] = []
    run = _library.run

    def break_each(words: Any) -> None:
        first = len(words) - 1 - named - 7 * sum(tensors)
        assert (words[first - 1], words[first]) == (1, 4)
        wrong = [(first + 1, -1), (first + 1, 7), (first + 2, -1), (first + 2, 1)]
        if named == 4:
            wrong += [(first + 3, -1), (first + 3, 4), (first + 3, 1 << 40)]
        at = first + named
        for count in tensors:
            left = words[at + 1]  # the storage holds the tensor and no more
            wrong += [(at, 0), (at, words[at] + 1), (at + 1, left - 1), (at + 1, -1), (at + 2, 5), (at + 3, -1)]
            at += 7
            if count == 2:  # no gradient is wanted: there is none, or memory for all of it
                wrong.append((at, words[at - 7]))
                at += 7
        for number, value in wrong:
            broken = words[:]
            broken[number] = value
            with pytest.raises(hw.HeadwayError, match=r"word [0-9]+ of a call of the cpu kernel is wrong"):
                run(broken)
        tried.append(len(wrong))
        run(words)

    monkeypatch.setattr(_library, "run", break_each)
    q = torch.randn(1, 2, 5, 8)
    hw.attention(q, q, q, terms=(T.DistanceBias(values),), kernel="cpu")
    assert tried


REDUCTION_WORDS = "wt ttt wttt wtt wtt wtt wn tt tt t ww tt w"
"""The words of all reductions: one that counts, a tensor, any number. First the flag, then the queries that count."""


@pytest.mark.skipif(bool(MISSING), reason=str(MISSING))
def test_every_word_of_the_reductions_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    run = _library.run

    def break_each(words: Any) -> None:
        kinds = REDUCTION_WORDS.replace(" ", "")
        at = len(words) - sum(7 if kind == "t" else 1 for kind in kinds)
        assert words[at] == 1
        wrong = []
        for kind in kinds:
            if kind == "w":
                wrong += [(at, -1), (at, words[at] + 1), (at, 1 << 40)]
                at += 1
            elif kind == "n":
                at += 1
            else:
                wrong += [(at + 1, words[at + 1] - 1), (at + 1, -1), (at + 2, 2), (at + 3, -1)]
                wrong += [(at, words[at] + 1)] if words[at + 2] != 5 else []  # booleans may lie anywhere
                at += 7
        for number, value in wrong:
            broken = words[:]
            broken[number] = value
            with pytest.raises(hw.HeadwayError, match=r"word [0-9]+ of a call of the cpu kernel is wrong"):
                run(broken)
        tried.append(len(wrong))
        run(words)

    monkeypatch.setattr(_library, "run", break_each)
    q = torch.randn(1, 2, 5, 8)
    wanted = [
        *(reductions.Entropy(), reductions.VisibleKeys(), reductions.MeanDistance()),
        reductions.TopKeys(3, torch.zeros(1, 2, 5)),
        *(reductions.WeightsAt(torch.zeros(1, 5, 2).long()), reductions.WeightsByLabel(torch.zeros(1, 5).long(), 2)),
        *(reductions.WeightsByDistance((-1, 1)), reductions.ColumnSums(), reductions.PooledMap(2, 3, True)),
        reductions.WeightsOfMatches(torch.zeros(1, 5).long(), torch.zeros(1, 5).long(), 0),
    ]
    KERNELS["cpu"].reduce(hw.call.make_call(q, q, q), wanted, torch.ones(1, 5, dtype=torch.bool))
    assert tried


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_library, "why_not", lambda: "it was not compiled")
    q = torch.randn(1, 2, 3, 8)
    assert hw.explain(q, q, q).kernel == "sdpa"
    with pytest.raises(
        hw.HeadwayError, match=r"kernel 'cpu' cannot run q .*: it was not compiled: leave kernel='auto'"
    ):
        hw.attention(q, q, q, kernel="cpu")


# ---------------------------------------------------------------- autograd


def learned() -> tuple[list[Tensor], Any]:
    leaves = [torch.randn(s).requires_grad_() for s in ((1, 2, 5, 8), (1, 2, 5, 8), (1, 2, 5, 8), (2, 9))]

    def loss(q: Tensor, k: Tensor, v: Tensor, table: Tensor, kernel: str = "cpu") -> Tensor:
        terms = (T.DistanceBias(T.Rows(table, T.Clip(-4, 4))),)
        return hw.attention(q, k, v, terms=terms, mask=M.Causal(), kernel=kernel).square().sum()

    return leaves, loss


def test_a_second_derivative_raises(calls: list[int]) -> None:
    leaves, loss = learned()
    first = torch.autograd.grad(loss(*leaves), leaves, create_graph=True)
    torch.testing.assert_close(first, torch.autograd.grad(loss(*leaves, "reference"), leaves))
    for gradient in first:
        assert gradient.requires_grad
        with pytest.raises(hw.HeadwayError, match="to differentiate a gradient choose kernel='reference'"):
            torch.autograd.grad(gradient.sum(), leaves, retain_graph=True)
    inner = torch.func.grad(loss)
    with pytest.raises(hw.HeadwayError, match="kernel 'cpu' supports first derivatives only"):
        torch.func.grad(lambda *x: inner(*x).square().sum())(*(leaf.detach() for leaf in leaves))


def test_functional_gradient(calls: list[int]) -> None:
    leaves, loss = learned()
    found = torch.func.grad(loss, argnums=(0, 1, 2, 3))(*(leaf.detach() for leaf in leaves))
    torch.testing.assert_close(found, torch.autograd.grad(loss(*leaves), leaves))


def test_transforms_that_it_has_no_rule_for_raise(calls: list[int]) -> None:
    calls.append(0)
    leaves, loss = learned()
    values = [leaf.detach() for leaf in leaves]
    refused = (
        "forward-mode differentiation and functionalize support only plain torch operations: use kernel='reference'"
    )
    with pytest.raises(hw.HeadwayError, match=refused):
        torch.func.jvp(loss, tuple(values), tuple(values))
    with torch.autograd.forward_ad.dual_level(), pytest.raises(hw.HeadwayError, match=refused):
        loss(torch.autograd.forward_ad.make_dual(values[0], values[0]), *values[1:])


def test_a_tensor_in_many_places_gets_one_gradient(calls: list[int]) -> None:
    grads = []
    for kernel in ("cpu", "reference"):
        x = torch.randn(1, 2, 5, 5, generator=torch.Generator().manual_seed(1)).requires_grad_()
        table = torch.linspace(-1, 1, 9).view(1, 9).requires_grad_()
        bias = T.DistanceBias(T.Rows(table, T.Clip(-4, 4)))
        terms = (bias, bias, T.DistanceBias(T.Linear(table[0, :2], table[0, :1])), T.DenseBias(x), T.DenseBias(x[0]))
        out = hw.attention(x, x, x, terms=terms, kernel=kernel)
        grads.append(torch.autograd.grad(out.square().sum(), (x, table)))
    torch.testing.assert_close(*grads)


def test_gradients_of_what_is_asked_for_alone(calls: list[int]) -> None:
    leaves, loss = learned()
    everything = torch.autograd.grad(loss(*leaves), leaves)
    for number, leaf in enumerate(leaves):
        (alone,) = torch.autograd.grad(loss(*leaves), leaf)
        torch.testing.assert_close(alone, everything[number])


def test_what_was_changed_in_place_is_noticed(calls: list[int]) -> None:
    leaves, loss = learned()
    result = loss(*leaves)
    with torch.no_grad():
        leaves[3].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()


# ---------------------------------------------------------------- under the compiler


@pytest.mark.slow
def test_one_operator_for_all_lengths(calls: list[int]) -> None:
    leaves, loss = learned()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    counters.clear()
    for n in (5, 7, 3, 11, 2, 30):
        q, k, v = (torch.randn(1, 2, n, 8).requires_grad_() for _ in range(3))
        results = []
        for function in (compiled, loss):
            out = function(q, k, v, leaves[3])
            results.append([out, *torch.autograd.grad(out, (q, k, v, leaves[3]))])
        torch.testing.assert_close(*results)
        with torch.no_grad():
            torch.testing.assert_close(compiled(q, k, v, leaves[3]), results[1][0])
    assert counters["stats"]["unique_graphs"] <= 4  # two with gradients, two without


@pytest.mark.parametrize(
    "name", ["none", "distance bias, steps", "relative keys, sinusoids", "dense bias", "token bias"]
)
def test_operators_do_what_the_compiler_is_told(name: str, calls: list[int]) -> None:
    """Schema, fake shapes, dtypes and strides of both operators, for inputs of any layout."""
    call, _ = checks.build(name, "sink", "padding behind", 0, torch.float32, torch.float32)
    call = call._with(
        q=torch.randn(2, 7, 4, 8).transpose(1, 2).requires_grad_(),
        k=torch.randn(1, 1, 11, 8).expand(2, 2, 11, 8).requires_grad_(),
        v=torch.randn(2, 2, 6, 11).mT.requires_grad_(),
    )
    tensors: list[Tensor] = []
    text = _ops.write(_ops.flatten(without_tables(call), tensors))
    wanted = [number for number, tensor in enumerate(tensors) if tensor.requires_grad]
    assert len(wanted) > 3
    tensors = [tensor.detach() for tensor in tensors]
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.headway.cpu_forward.default, (tensors, text), test_utils=tests)
    results = torch.ops.headway.cpu_forward(tensors, text)
    upstream = torch.randn_like(results[0]), torch.randn_like(results[1])
    arguments = ([*tensors, *results], text, wanted, *upstream)
    torch.library.opcheck(torch.ops.headway.cpu_backward.default, arguments, test_utils=tests)


def test_operators_are_not_differentiated_in_silence(calls: list[int]) -> None:
    call, _ = checks.build("none", "alone", "none", 0, torch.float32, torch.float32)
    tensors: list[Tensor] = []
    text = _ops.write(_ops.flatten(without_tables(call), tensors))
    out, *_ = torch.ops.headway.cpu_forward(tensors, text)
    with pytest.raises(RuntimeError, match="no autograd formula was registered"):
        out.sum().backward()


def test_modes_see_one_operator(calls: list[int]) -> None:
    """Under a mode that watches operations, and with fake tensors, which have no memory."""
    seen: list[str] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    leaves, loss = learned()
    with Watch():
        loss(*leaves).backward()
    assert "headway.cpu_forward.default" in seen
    assert "headway.cpu_backward.default" in seen
    with FakeTensorMode():
        q = torch.randn(1, 2, 5, 8, requires_grad=True)
        hw.attention(q, q, q, kernel="cpu").sum().backward()
        assert q.grad is not None
        assert q.grad.shape == q.shape
