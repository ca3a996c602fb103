"""The Triton kernel without a GPU: by triton's interpreter, in a process of its own, and by its compiler."""

import json
import os
import re
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
import torch
from compiled_programs import COMPILED, LEAST_SHARED, PARTS, Compiled, printed, table_of_loops
from descriptors import misaddressed
from torch._subclasses.fake_tensor import FakeTensorMode

from headway import masks as M
from headway import reductions as R
from headway import terms as T
from headway.call import make_call
from headway.coordinates import Coordinates
from headway.kernels import KERNELS, Call, Problem
from headway.kernels._reduce import reduce
from headway.kernels.triton import _arguments, _installed, _supports
from headway.kernels.triton._choices import DTYPES, blocks_for
from headway.kernels.triton._lowered import lower_for_programs, sum_of
from headway.kernels.triton._slots import Slots
from headway.kernels.triton._tables import BEYOND, divided, table_by_position, table_of_slots

ROOT = Path(__file__).parents[2]
KERNELS_TESTS = "tests/conformance/test_kernels.py"
REDUCTIONS = "tests/inspection/test_reductions_of_kernels.py"
A_FEW = "everything or linear or power or (dense and shared)"
GROUPS = {
    "a few programs": (
        8,
        ["tests/kernels/test_triton_programs.py", REDUCTIONS],
        f"(test_terms and ({A_FEW})) or (triton and (behind or first_key))",
    ),
    "programs": (200, ["tests/kernels/test_triton_programs.py"], "not test_terms"),
    "programs of terms, and reductions": (
        53,
        ["tests/kernels/test_triton_programs.py", REDUCTIONS],
        f"(test_terms and not ({A_FEW})) or (triton and test_reductions_of_kernels and not (behind or first_key))",
    ),
    "the promise": (
        9,
        [KERNELS_TESTS],
        "triton and ((test_promise_on_terms and (temperature or by and query or dense) and log-sum-exp)"
        " or test_promise_where and (rows or logarithm or stretched or (queries and values))"
        " or (test_masks and (prefix or blockwise)))",
    ),
    "calls": (
        92,
        [
            *(
                f"tests/{name}"
                for name in ("test_attention.py", "test_masks.py", "test_call.py", "kernels/test_sdpa.py")
            ),
            *("tests/test_torch_sdpa.py", "tests/test_compile.py"),
        ],
        "triton and ((test_torch_sdpa and torch.bfloat16 and not odd)"
        " or (test_compile and (one_graph or all_sizes or inductor or export))"
        " or not (test_torch_sdpa or test_compile or promised))",
    ),
}
"""For each group how many tests pass at least, where they are, and which of them."""


@pytest.mark.skipif(_installed.missing() is not None, reason=str(_installed.missing()))
@pytest.mark.parametrize(
    "group", ["a few programs", *(pytest.param(g, marks=pytest.mark.slow) for g in list(GROUPS)[1:])]
)
def test_interpreted(group: str) -> None:
    least, paths, chosen = GROUPS[group]
    keeps = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *paths]
    # numpy warns of NaN, which some tests are about
    command += ["-W", "ignore::RuntimeWarning", *(["-k", chosen] if chosen else [])]
    if group == "a few programs":
        command += ["--triton-on", "cpu"]  # by which they run on a GPU
    ran = subprocess.run(command, cwd=ROOT, env=keeps | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]
    passed = re.search(r"(\d+) passed", ran.stdout)
    assert passed is not None
    assert int(passed[1]) >= least, f"{ran.stdout[-4000:]}\nfewer than {least} tests passed: the others were refused"


# ---------------------------------------------------------------- compiled for GPUs that are not here


@pytest.mark.slow
@pytest.mark.skipif(_installed.missing() is not None, reason=str(_installed.missing()))
@pytest.mark.parametrize("architecture", COMPILED)
def test_compiled(architecture: int) -> None:
    """The compiler takes the programs, and needs what is kept: of all parts for 9.0, of common ones for others.

    ``python tests/kernels/compiled_programs.py --write`` keeps what it needs now.
    """
    found = Compiled.here(architecture)
    if architecture == 86:
        assert {name: one for name, one in found.programs.items() if one["shared"] > LEAST_SHARED} == {}
    kept = json.loads((ROOT / "tests/golden/triton.json").read_text())
    expected = kept["programs"][str(architecture)]
    if found.version == kept["triton"]:
        assert found.programs == expected
    else:  # another version needs other registers
        assert list(found.programs) == list(expected)


DESCRIPTORS = """
        /*0000*/                   ULDC UR6, c[0x0][0x240] ;
        /*0010*/                   USGXT.U32 UR14, UR4, 0xe ;
        /*0020*/               @P0 BRA `(.L_x_0) ;
        /*0030*/                   UIADD3 UR6, UP0, UR14, 0x2, URZ ;
.L_x_0:
        /*0040*/                   UIADD3 UR18, UP0, REGISTER, 0x20, URZ ;
        /*0050*/                   HGMMA.64x16x16.F32.BF16 R56, R28, gdesc[UR16].tnspB, R56 ;
        /*0060*/              @!P0 BRA `(.L_x_0) ;
        /*0070*/                   EXIT ;
"""


@pytest.mark.parametrize(("register", "wrong"), [("UR14", []), ("UR6", ["0050"])])
def test_a_descriptor_that_is_no_address_on_one_path_is_found(register: str, wrong: list[str]) -> None:
    assert list(misaddressed(DESCRIPTORS.replace("REGISTER", register))) == wrong


def test_the_docs_have_the_instructions_of_loops() -> None:
    assert table_of_loops() in (ROOT / "docs/gpu.md").read_text()


@pytest.mark.slow
@pytest.mark.skipif(_installed.missing() is not None, reason=str(_installed.missing()))
def test_a_program_is_compiled_at_most_twice_over_64_lengths() -> None:
    found = printed("--lengths")
    assert {name.split(", ")[0] for name in found} == set(PARTS)
    assert {name: count for name, count in found.items() if count > 2} == {}


# ---------------------------------------------------------------- what it takes


def problem(
    *terms: T.Term, dtype: torch.dtype = torch.float16, width: int = 8, v_width: int | None = None, **arguments: object
) -> Problem:
    q, k, v = (torch.zeros(1, 2, 4, size, dtype=dtype) for size in (width, width, v_width or width))
    return Problem(make_call(q, k, v, terms=list(terms), **arguments))  # type: ignore[arg-type]


LONG = 3000
"""So many tokens that a bias of two heads is larger than 64 MiB."""


def long(*terms: T.Term, positions: torch.Tensor | None = None) -> Problem:
    """Of many tokens, with positions that have gaps."""
    q = torch.zeros(1, 2, LONG, 8, dtype=torch.float16)
    at = Coordinates.of(torch.arange(LONG) * 2 if positions is None else positions, LONG)
    return Problem(make_call(q, q, q, terms=list(terms), q_positions=at, k_positions=at))


def on_a_gpu(monkeypatch: pytest.MonkeyPatch, found: Problem, capability: tuple[int, int] = (9, 0)) -> list[str]:
    """The reasons against a problem, as if its tensors were on a GPU."""
    monkeypatch.setattr(_installed, "missing", lambda: None)
    monkeypatch.setattr(Problem, "capability", capability)
    found.device = "cuda"
    return KERNELS["triton"].why_not(found)


def rows(count: int) -> T.DistanceBias:
    return T.DistanceBias(T.Rows(torch.zeros(2, count), T.Clip(0, count - 1)))


def vectors(count: int = 2) -> T.RelativeKeys:
    return T.RelativeKeys(T.Rows(torch.zeros(2, count, 8), T.Clip(0, count - 1)))


def of_classes(count: int) -> T.DistanceBias:
    return T.DistanceBias(T.Rows(torch.zeros(2, count**2), T.Classes(*[torch.zeros(1, LONG).long()] * 2, count)))


def buckets(reach: int | None) -> T.DistanceBias:
    return T.DistanceBias(T.Rows(torch.zeros(2, 3), T.Bucketize(torch.tensor([-2, 1]), reach=reach)))


def pieces(edges: torch.Tensor | None = None) -> T.DistanceBias:
    numbers = (
        torch.zeros(1) if edges is None else edges,
        torch.zeros(2, 2),
        torch.zeros(2, 2),
        torch.ones(1),
        torch.ones(1, 4),
    )
    return T.DistanceBias(T.Stretched(*numbers))


def dense(*shape: int) -> T.DenseBias:
    return T.DenseBias(torch.zeros(shape))


def linear() -> T.DistanceBias:
    return T.DistanceBias(T.Linear(torch.ones(2), torch.ones(2)))


MANY = torch.zeros(1, 1, dtype=torch.int64).expand(1, 1 << 30)
KNOTS = torch.tensor([0.0, 1.0], requires_grad=True)
GAPS = {"q_positions": Coordinates.of(torch.tensor([0, 2, 5, 9]), 4), "k_positions": Coordinates.of(torch.arange(4), 4)}
SPAN = {"q_positions": Coordinates.span(4), "k_positions": Coordinates.span(4)}
AXES = {name: Coordinates.of(torch.arange(8).view(1, 4, 2), 4) for name in SPAN}
FLOATS = GAPS | {"q_positions": Coordinates.of(torch.rand(4), 4)}
REFUSED = {
    "float64": (lambda: problem(dtype=torch.float64), "float64 would be rounded"),
    "wide": (lambda: problem(width=264), "above 256"),
    "another term": (lambda: problem(T.Normalizer(torch.zeros_like)), "no Normalizer"),
    "relative keys by classes": (
        lambda: problem(T.RelativeKeys(T.Rows(torch.zeros(2, 4, 8), T.Classes(*[torch.zeros(1, 4).long()] * 2, 2)))),
        "no relative vectors by Classes",
    ),
    "two terms of relative keys": (lambda: problem(vectors(), vectors()), "one RelativeKeys"),
    "wide relative values": (
        lambda: problem(T.RelativeValues(T.Rows(torch.zeros(1, 2, 264), T.Clip(0, 1))), v_width=264, **SPAN),
        "above 256",
    ),
    "wide relative keys": (
        lambda: problem(
            T.RelativeKeys(T.Rows(torch.zeros(1, 2, 264), T.Clip(0, 1)), query=torch.zeros(1, 2, 4, 264)), **SPAN
        ),
        "relative vectors are wider than 256",
    ),
    "relative keys by buckets without a reach, of gaps": (
        lambda: problem(T.RelativeKeys(T.Rows(torch.zeros(2, 2, 8), T.Bucketize(torch.tensor([0])))), **GAPS),
        "need a reach",
    ),
    "many relative keys, of gaps": (lambda: problem(vectors(5000), **GAPS), "at most 4,096 relative vectors"),
    "relative vectors of two axes": (
        lambda: problem(vectors(), T.RelativeQueries(T.Rows(torch.zeros(2, 2, 8), T.Clip(0, 1, axis=1))), **AXES),
        "must all read the same axis",
    ),
    "wide sinusoids of gaps": (
        lambda: long(T.RelativeKeys(T.Sinusoids(torch.zeros(2, 8, 250), torch.ones(125)))),
        "sinusoids become columns of q and k: at most 256 with head_dim, not 258",
    ),
    "a dense bias that is a function": (
        lambda: problem(T.DenseBias(torch.zeros_like)),
        "the Python function of a DenseBias",
    ),
    "two large dense biases": (
        lambda: long(*(T.DenseBias(torch.zeros(1, 1).expand(*shape, LONG, LONG)) for shape in ((2,), ()))),
        "a sum of DenseBias would be a dense bias larger than 64 MiB",
    ),
    "two large tables of classes": (
        lambda: long(of_classes(2), of_classes(3)),
        "rows by Classes would be a dense bias larger than 64 MiB",
    ),
    "a large table of three axes": (
        lambda: long(T.DistanceBias(T.Rows(torch.zeros(2, 8), T.Grid((T.Clip(0, 1),) * 3)))),
        "rows by Grid would be a dense bias",
    ),
    "a large table of buckets and an axis": (
        lambda: long(
            T.DistanceBias(T.Rows(torch.zeros(2, 4), T.Grid((T.Bucketize(torch.tensor([0]), reach=1), T.Clip(0, 1)))))
        ),
        "rows by Grid would be a dense bias",
    ),
    "many buckets without a reach, of gaps": (lambda: long(buckets(None)), "rows by Bucketize would be a dense bias"),
    "many buckets that reach far, of gaps": (lambda: long(buckets(1 << 17)), "rows by Bucketize would be a dense bias"),
    "many buckets of floats": (
        lambda: long(buckets(2), positions=torch.rand(LONG)),
        "rows by Bucketize would be a dense bias",
    ),
    "many knots of gaps": (
        lambda: long(T.DistanceBias(T.Piecewise(torch.zeros(2), torch.zeros(2, 2)))),
        "Piecewise would be a dense bias",
    ),
    "many cosines of gaps": (
        lambda: long(T.DistanceBias(T.Cosines(torch.zeros(2, 2), torch.ones(2)))),
        "Cosines would be a dense bias",
    ),
    "two tables and two formulas of many gaps": (
        lambda: long(rows(2), linear(), rows(3), linear()),
        "Linear would be a dense bias",
    ),
    "a gradient to knots": (
        lambda: problem(T.DistanceBias(T.Piecewise(KNOTS, torch.zeros(2, 2)))),
        "no gradient of the knots",
    ),
    "a gradient to frequencies": (
        lambda: problem(T.DistanceBias(T.Cosines(torch.zeros(2, 2), KNOTS))),
        "no gradient of the frequencies",
    ),
    "a gradient to edges": (lambda: problem(pieces(KNOTS[:1])), "no gradient of the edges"),
    "a gradient to positions": (
        lambda: problem(rows(2), **GAPS | {"q_positions": Coordinates.of(KNOTS[[0, 0, 1, 1]], 4)}),
        "no gradient of positions",
    ),
    "values of no width": (
        lambda: Problem(make_call(*[torch.zeros(1, 1, 1, width, dtype=torch.float16) for width in (8, 8, 0)])),
        "a head_dim is 0",
    ),
    "too many tokens": (
        lambda: Problem(
            make_call(
                *[torch.zeros(1, 1, 1, 8).expand(1, 1, 1 << 30, 8)] * 3,
                **dict.fromkeys(SPAN, Coordinates(MANY[..., None], MANY)),
            )
        ),
        "more than 1,073,740,800 tokens",
    ),
    "two terms of relative queries": (
        lambda: problem(*[T.RelativeQueries(vectors().rows)] * 2),
        "one RelativeQueries",
    ),
    "two terms of relative values": (
        lambda: problem(*[T.RelativeValues(vectors().rows)] * 2),
        "one RelativeValues",
    ),
    "two soft caps": (lambda: problem(T.SoftCap(3.0), T.SoftCap(0.5)), "one SoftCap"),
    "two stretched biases": (lambda: problem(pieces(), pieces()), "one Stretched bias"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_refuses(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    build, reason = REFUSED[name]
    assert any(reason in found for found in on_a_gpu(monkeypatch, build()))


def test_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    terms = (rows(3), T.TokenBias(torch.zeros(1, 1, 4)), T.Sink(torch.zeros(2)), T.SoftCap(2.0))
    assert on_a_gpu(monkeypatch, problem(*terms, mask=M.Causal(), **SPAN)) == []
    unreached = T.RelativeQueries(T.Rows(torch.zeros(2, 2, 8), T.Bucketize(torch.tensor([0]))))
    assert on_a_gpu(monkeypatch, problem(vectors(5000), unreached, **SPAN)) == []
    assert on_a_gpu(monkeypatch, problem(T.RelativeKeys(T.Sinusoids(torch.zeros(2, 8, 600), torch.ones(300))))) == []
    widest = T.RelativeKeys(T.Rows(torch.zeros(1, 2, 256), T.Clip(0, 1)), query=torch.zeros(1, 2, 4, 256))
    assert on_a_gpu(monkeypatch, problem(widest, **SPAN)) == []
    assert on_a_gpu(monkeypatch, problem(rows(2), mask=M.Documents(torch.zeros(4).long()), **GAPS)) == []
    assert on_a_gpu(monkeypatch, problem(buckets(2), linear(), **GAPS)) == []
    assert on_a_gpu(monkeypatch, problem(dense(4, 4), dense(1, 4), dense(2, 4, 1), dense())) == []
    assert on_a_gpu(monkeypatch, problem(rows(2), linear(), rows(3), linear(), pieces(), **FLOATS)) == []
    assert (
        on_a_gpu(monkeypatch, long(rows(2), rows(3), linear(), T.DenseBias(torch.zeros(1, 1).expand(LONG, LONG)))) == []
    )
    assert on_a_gpu(monkeypatch, long(of_classes(2), rows(2))) == []


def test_a_mask_that_would_be_dense_is_refused_above_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_supports, "REST_LIMIT", 15)
    for mask in (M.Dilated(2), M.Causal() & M.Dilated(2), M.Documents(torch.zeros(4).long()) | M.KeepFirst(1)):
        assert any("would be dense" in found for found in on_a_gpu(monkeypatch, problem(mask=mask))), mask
    for mask in (M.Boolean(torch.ones(4, 4).bool()), M.Causal() & M.Window(2), M.Causal() | M.KeepFirst(1)):
        assert on_a_gpu(monkeypatch, problem(mask=mask)) == [], mask


def test_the_bytes_of_a_dense_mask() -> None:
    each = torch.zeros(3, 4, dtype=torch.int64)  # documents of each of three sequences
    for mask, pairs in ((M.Dilated(2), 1), (M.Documents(each) | M.KeepFirst(1), 3), (M.Causal() & M.Window(2), 0)):
        q = torch.zeros(3, 2, 4, 8, dtype=torch.float16)
        assert _supports.mask_bytes(Problem(make_call(q, q, q, mask=mask)), mask) == pairs * 4 * 4, mask


def test_padding_makes_no_bound_of_each_query() -> None:
    q = torch.zeros(2, 1, 6, 4)
    lengths = torch.tensor([6, 4])
    for mask, intervals in (
        (M.Padding(lengths), ()),
        (M.Causal() & M.Padding(lengths), ((None, M.Slot(1)),)),
        (M.Padding(lengths) & M.Window(2) & M.Causal(), ((M.Slot(-2), M.Slot(1)),)),
    ):
        found = lower_for_programs(make_call(q, q, q, mask=mask))
        assert found.intervals == intervals
        assert found.real_keys[0] is None
        assert torch.equal(found.real_keys[1], lengths[:, None])


def test_biases_of_tokens_are_summed_in_float32() -> None:
    one, other = torch.full((1, 1, 4), 1.0), torch.full((1, 1, 4), 2.0**-8)
    found = sum_of(x if x is None else x.bfloat16() for x in (None, one, None, other))
    assert found is not None
    assert torch.equal(found, one + other)
    assert sum_of([None, None]) is None


def test_no_block_is_larger_than_a_square_or_what_tables_have_beyond_the_last_slot() -> None:
    programs = ("forward", "split", "wide split", "queries", "keys", "diagonals", "table", "reductions")
    for program, dtype, width, warpgroups in product(programs, DTYPES, (16, 64, 128, 256), (False, True)):
        found = blocks_for(program, dtype, width, warpgroups=warpgroups)
        for size in (found.rows, found.block):
            assert size <= BEYOND
            assert BEYOND % size == 0


def test_devices_that_it_cannot_use(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "compute capability 7.5" in on_a_gpu(monkeypatch, problem(), (7, 5))[0]
    monkeypatch.setattr(_installed, "missing", lambda: "triton is not installed")
    assert KERNELS["triton"].why_not(Problem(problem()._call)) == ["it runs on an NVIDIA GPU, and q is on cpu"]
    assert _installed.reason_against("cuda") == "triton is not installed"


@pytest.mark.parametrize(("version", "reason"), [("3.5.1", "too old"), ("3.6.0", None), ("3.10.0+git1", None)])
def test_versions(version: str, reason: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_installed.metadata, "version", lambda name: version)
    found = _installed._missing.__wrapped__()
    assert (found is None) if reason is None else (reason in found)


def test_the_table_of_distances_is_the_bias_of_each_pair() -> None:
    biases = [
        T.Rows(torch.randn(2, 7), T.Clip(-5, 1)),
        T.Rows(torch.randn(1, 4), T.Bucketize(torch.tensor([-3, 0, 2]))),
        T.Linear(torch.rand(2), torch.rand(2)),
        T.Log(torch.rand(2), torch.rand(2)),
        T.Power(torch.rand(2), torch.rand(2)),
        T.Piecewise(torch.tensor([-4.0, 0, 3]), torch.randn(2, 3)),
        T.Cosines(torch.randn(2, 3), torch.rand(3)),
    ]
    q, k = Coordinates.span(6, start=3), Coordinates.span(9)
    found = table_of_slots(biases, Slots(q, k))
    at = torch.arange(9)[None, :] - torch.arange(6)[:, None] + found.origin
    whole = [T.DistanceBias(one) for one in biases]
    zeros = torch.zeros(1, 2, 6, 4), torch.zeros(1, 2, 9, 4), torch.zeros(1, 2, 9, 4)
    expected = _scores(make_call(*zeros, terms=whole, q_positions=q, k_positions=k))
    torch.testing.assert_close(found.values[:, at], expected, rtol=1e-5, atol=1e-6)


def test_one_slope_is_a_formula_as_long_as_slots_are_exact() -> None:
    one, two = (T.Linear(x, y) for x, y in ((torch.ones(2),) * 2, (torch.ones(2), torch.ones(2))))
    assert divided([two, one, one], rising=True, whole=True) == ([two, one], [one], [], [], [])
    assert divided([one], rising=True, whole=True, exact=False) == ([one], [], [], [], [])
    assert divided([two, one], rising=False, whole=True) == ([], [two], [], [one], [])


@pytest.mark.parametrize(
    "where",
    [
        T.Clip(-5, 1),
        T.Clip(2, 6),
        T.Bucketize(torch.tensor([-9.0, -2.5, 0, 0.5, 3]), reach=9),
        T.Bucketize(torch.tensor([-3, 0, 2]), reach=40),
        T.Bucketize(torch.tensor([0]), reach=0),
    ],
)
def test_a_table_for_positions_has_the_row_of_each_distance(where: T.Clip | T.Bucketize) -> None:
    q, k = Coordinates.of(torch.tensor([0, 3, 100]), 3), Coordinates.of(torch.arange(-60, 60), 120)
    values = T.Rows(torch.arange(float(where.count))[None], where)
    found = table_by_position(values, q, k)
    distances = k.axis(0)[:, None, :] - q.axis(0)[:, :, None]
    at = (distances + found.origin).clamp(0, found.values.shape[1] - 1)
    assert torch.equal(found.values[0, at].long(), where.rows(q, k))


def _scores(call: Call) -> torch.Tensor:
    from headway.kernels import reference

    return reference.steps(call)[2][0]


# ---------------------------------------------------------------- reductions


def test_reductions_that_it_refuses() -> None:
    kernel, found = KERNELS["triton"], problem(width=16)
    assert kernel.why_not_reduce(found, [R.TopKeys(64), R.PooledMap(1 << 14, 1 << 15)]) == []
    assert kernel.why_not_reduce(found, [R.TopKeys(65), R.Entropy(), R.PooledMap(1 << 15, 1 << 15)]) == [
        "it finds at most 64 of the largest weights of a query",
        "its maps have at most 1,073,741,824 cells, over all sequences and heads",
    ]
    own = type("OfMyOwn", (R.Reduction,), {})
    assert kernel.why_not_reduce(found, [own()]) == ["it has no reduction OfMyOwn"]
    with FakeTensorMode():
        assert kernel.why_not_reduce(found, [R.Entropy()]) == [
            "it computes reductions only where no compiler or mode observes the call"
        ]


def test_auto_does_not_take_its_reductions_before_a_gpu_has_run_them(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, taken = KERNELS["triton"], list[str]()
    monkeypatch.setattr(type(kernel), "why_not", lambda self, problem: [])
    monkeypatch.setattr(type(kernel), "reduce", lambda self, *arguments: taken.append("triton") or [0])
    q = torch.randn(1, 2, 5, 8)
    call = make_call(q, q, q)
    only = {"triton": kernel}
    assert isinstance(reduce(only, call, [R.Entropy()])[0], torch.Tensor)
    assert taken == []
    assert reduce(only, call, [R.Entropy()], name="triton") == [0]


def test_a_tuple_that_holds_tuples_ends_with_a_constant() -> None:
    """Without it triton 3.6 loses the constants of inner tuples in loops; the interpreter shows nothing of that."""
    classes = {name: one for name, one in vars(_arguments).items() if hasattr(one, "_fields")}
    holding = [
        name
        for name, one in classes.items()
        if any(re.search(rf"\b{other}\b", str(of)) for of in one.__annotations__.values() for other in classes)
    ]
    assert {"Bound", "Dropout", "Grid", "Inputs", "Parts", "Sight", "Span", "Terms"} <= set(holding)
    for name in holding:
        assert classes[name]._fields[-1] == "end", name
        assert classes[name]._field_defaults["end"] is _arguments.END
