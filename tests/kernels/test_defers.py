"""Which calls the CPU kernel leaves to torch's SDPA."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import headway as hw
from headway.call import make_call
from headway.kernels import KERNELS, _tuned, attend_in_parts, cut
from headway.kernels._base import Deferral
from headway.kernels._choose import choose
from headway.kernels._problem import Problem
from headway.kernels.cpu import _library
from headway.masks import Causal, Window

pytestmark = pytest.mark.skipif(_library.why_not() is not None, reason=str(_library.why_not()))


class Slower(NamedTuple):
    """A row of the table that comes with headway: what SDPA runs faster, from so many keys on."""

    isa: str
    dtype: torch.dtype
    training: bool
    least: int


SLOWER = [
    Slower("portable", torch.float32, False, 5),
    Slower("portable", torch.float32, True, 5),
    Slower("portable", torch.bfloat16, False, 512),
    Slower("portable", torch.bfloat16, True, 512),
    Slower("portable", torch.float16, False, 1024),
]


def on(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_tuned.platform, "machine", lambda: machine)
    monkeypatch.setattr(_tuned, "has_amx", lambda: False)
    _tuned.forget()


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The tables are those of processors on which the kernel was measured, whatever runs the tests."""
    on("x86_64", monkeypatch)
    yield
    monkeypatch.undo()
    _tuned.forget()


@pytest.fixture(params=SLOWER, ids=lambda row: f"{row.isa}-{row.dtype}-{row.training}")
def row(request: pytest.FixtureRequest) -> Iterator[Slower]:
    if request.param.isa not in _library.isas():
        pytest.skip(f"this machine has no {request.param.isa}")
    with _library.using(request.param.isa):
        yield request.param


def call(row: Slower, n: int = 512) -> list[Tensor]:
    return [torch.randn(1, 2, max(n, row.least), 16, dtype=row.dtype, requires_grad=row.training) for _ in range(3)]


def test_what_sdpa_runs_faster_is_left_to_it(row: Slower) -> None:
    q, k, v = call(row)
    explained = hw.explain(q, k, v, mask=Causal())
    assert explained.kernel == "sdpa"
    assert f"of its time with {row.isa}" in str(explained)
    assert hw.explain(q, k, v, mask=Causal(), kernel="cpu").kernel == "cpu"


def test_a_mask_may_decide() -> None:
    """SDPA computes what a causal mask hides, too."""
    x = torch.randn(1, 2, 512, 16, dtype=torch.float16)
    with _library.using("portable"):
        assert hw.explain(x, x, x).kernel == "sdpa"
        assert hw.explain(x, x, x, mask=Causal()).kernel == "cpu"
        assert hw.explain(x[:, :, :511], x, x).kernel == "cpu"


def test_what_sdpa_cannot_run_stays(row: Slower) -> None:
    q, k, v = call(row)
    t5 = hw.encoding("t5", num_heads=2).to(q.dtype)
    assert hw.explain(q, k, v, encoding=t5).kernel == "cpu", "a table that requires a gradient"
    assert hw.explain(q, k, v, soft_cap=2.0).kernel == "cpu"
    assert hw.explain(q, k, v, dropout=0.5).kernel == "cpu"


@pytest.mark.parametrize("isa", ["portable", "avx2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("n", [400, 600, 1100])
def test_a_call_is_left_if_the_table_has_it(isa: str, dtype: torch.dtype, training: bool, n: int) -> None:
    if isa not in _library.isas():
        pytest.skip(f"this machine has no {isa}")
    x = torch.empty(1, 2, n, 16, dtype=dtype, requires_grad=training)
    one = x[:, :, -1:]
    listed = any(
        row.isa == isa and row.dtype == dtype and row.training == training and n >= row.least for row in SLOWER
    )
    with _library.using(isa):
        assert hw.explain(x, x, x, mask=Causal()).kernel == ("sdpa" if listed else "cpu")
        assert hw.explain(x, x, x, mask=Window(left=9)).kernel == "cpu"
        assert hw.explain(x, x, x, encoding=hw.encoding("alibi", num_heads=2)).kernel == "cpu"
        assert hw.explain(one, x, x, mask=Causal()).kernel == "cpu"


@pytest.mark.parametrize("isa", [isa for isa in ("avx512bf16", "avx512") if isa in _library.isas()])
def test_the_instruction_sets_for_which_it_was_written_keep_their_calls(isa: str) -> None:
    with _library.using(isa):
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.randn(1, 2, 512, 16, dtype=dtype, requires_grad=True)
            assert hw.explain(x, x, x, mask=Causal() & Window(left=9)).kernel == "cpu"


@pytest.mark.parametrize(("n", "m", "heads", "kernel"), [
    (4, 32768, 2, "cpu"), (5, 32768, 2, "sdpa"), (11, 40000, 2, "sdpa"), (12, 32768, 2, "cpu"), (48, 32768, 2, "cpu"),
    (5, 32767, 2, "cpu"), (5, 32768, 4, "cpu"),
])  # fmt: skip
def test_a_few_queries_of_many_keys_on_a_xeon(
    n: int, m: int, heads: int, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "avx512" not in _library.isas():
        pytest.skip("this machine has no avx512")
    monkeypatch.setattr(_tuned.processor, "vendor_and_family", lambda: ("GenuineIntel", 6))
    _tuned.forget()
    q, k = torch.randn(1, heads, n, 1), torch.randn(1, 2, m, 1)
    with _library.using("avx512"), torch.no_grad():
        assert hw.explain(q, k, k).kernel == kernel


def test_on_a_processor_that_was_not_measured_every_call_that_sdpa_can_run_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On Arm the kernel is the portable one, which computes what is right; how fast is not known."""
    on("aarch64", monkeypatch)
    x = torch.randn(1, 2, 512, 16)
    alibi, t5 = hw.encoding("alibi", num_heads=2), hw.encoding("t5", num_heads=2)
    left: list[dict[str, Any]] = [{}, {"mask": Causal()}, {"mask": Window(left=9)}, {"encoding": alibi}]
    for arguments in left:
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            for n in (512, 1):
                q, k = x[:, :, -n:].to(dtype), x.to(dtype)
                explained = hw.explain(q, k, k, **arguments)
                assert explained.kernel == "sdpa"
                assert "left to torch's SDPA: not measured on this machine: run `headway tune`" in str(explained)
                assert hw.explain(q, k, k, **arguments, kernel="cpu").kernel == "cpu"
    kept: list[dict[str, Any]] = [{"soft_cap": 2.0}, {"dropout": 0.5}, {"encoding": t5}, {"sink": torch.zeros(2)}]
    for arguments in kept:
        assert hw.explain(x, x, x, **arguments).kernel == "cpu"
    long = x[:, :1, :1].expand(1, 1, 5000, 16)
    assert hw.explain(long, long, long, mask=Window(left=9)).kernel == "cpu", "a dense mask of more than 16 MiB"


def test_a_part_is_left_to_no_kernel_that_cannot_run_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    on("aarch64", monkeypatch)
    call = make_call(*torch.randn(3, 1, 2, 8, 4))
    out, _ = attend_in_parts([cut(call, "keys", 0, 3), cut(call, "keys", 3, 8)])
    torch.testing.assert_close(out, KERNELS["reference"].run(call)[0])


def test_processors_that_were_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(1, 2, 64, 16)
    for machine in ("x86_64", "AMD64", "aarch64", "arm64", "riscv64"):
        on(machine, monkeypatch)
        assert hw.explain(x, x, x).kernel == ("cpu" if machine in ("x86_64", "AMD64") else "sdpa")


def test_a_kernel_defers_only_to_one_that_can_run_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(KERNELS["cpu"]), "defers", lambda self, problem: Deferral("sdpa", "said so"))
    x = torch.randn(1, 2, 5, 8)
    assert hw.explain(x, x, x).kernel == "sdpa"
    assert hw.explain(x, x, x, soft_cap=1.0).kernel == "cpu"
    assert "said so" in str(hw.explain(x, x, x))
    assert "said so" not in str(hw.explain(x, x, x, soft_cap=1.0))


def test_a_deferral_names_a_later_kernel(row: Slower) -> None:
    q, k, v = call(row)
    problem = Problem.of(make_call(q, k, v))
    found = KERNELS["cpu"].defers(problem)
    assert found is not None
    assert list(KERNELS).index(found.to) > list(KERNELS).index("cpu")
    assert choose(KERNELS, problem).kernel == found.to
