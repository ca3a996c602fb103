"""Which calls the CPU kernel leaves to torch's SDPA."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import headway as hw
from headway.call import make_call
from headway.kernels import KERNELS, attend_in_parts, cut
from headway.kernels._base import Deferral
from headway.kernels._choose import choose
from headway.kernels._problem import Problem
from headway.kernels.cpu import _defers, _library
from headway.kernels.cpu._defers import SLOWER, Slower
from headway.masks import Causal, Window

pytestmark = pytest.mark.skipif(_library.why_not() is not None, reason=str(_library.why_not()))


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is that of processors on which the kernel was measured, whatever runs the tests."""
    monkeypatch.setattr(_defers, "NOT_MEASURED", None)
    monkeypatch.setattr(_defers, "has_amx", lambda: False)


@pytest.fixture(params=SLOWER, ids=lambda row: f"{row.isa}-{row.dtypes[0]}")
def row(request: pytest.FixtureRequest) -> Iterator[Slower]:
    if request.param.isa not in _library.isas():
        pytest.skip(f"this machine has no {request.param.isa}")
    with _library.using(request.param.isa):
        yield request.param


def call(row: Slower, n: int = 512) -> list[Tensor]:
    wanted = bool(row.training)
    return [torch.randn(1, 2, max(n, row.least), 16, dtype=row.dtypes[0], requires_grad=wanted) for _ in range(3)]


def test_what_sdpa_runs_faster_is_left_to_it(row: Slower) -> None:
    q, k, v = call(row)
    explained = hw.explain(q, k, v, mask=Causal())
    assert explained.kernel == "sdpa"
    assert f"with {row.isa}" in str(explained)
    assert hw.explain(q, k, v, mask=Causal(), kernel="cpu").kernel == "cpu"
    assert row.ratio[0] <= row.ratio[1] < 1


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
        row.isa == isa and dtype in row.dtypes and row.training in (None, training) and n >= row.least for row in SLOWER
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


def test_on_a_processor_that_was_not_measured_every_call_that_sdpa_can_run_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On Arm the kernel is the portable one, which computes what is right; how fast is not known."""
    monkeypatch.setattr(_defers, "NOT_MEASURED", _defers.not_measured("aarch64"))
    x = torch.randn(1, 2, 512, 16)
    alibi, t5 = hw.encoding("alibi", num_heads=2), hw.encoding("t5", num_heads=2)
    left: list[dict[str, Any]] = [{}, {"mask": Causal()}, {"mask": Window(left=9)}, {"encoding": alibi}]
    for arguments in left:
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            for n in (512, 1):
                q, k = x[:, :, -n:].to(dtype), x.to(dtype)
                explained = hw.explain(q, k, k, **arguments)
                assert explained.kernel == "sdpa"
                assert "not measured against it on aarch64 yet" in str(explained)
                assert hw.explain(q, k, k, **arguments, kernel="cpu").kernel == "cpu"
    kept: list[dict[str, Any]] = [{"soft_cap": 2.0}, {"dropout": 0.5}, {"encoding": t5}, {"sink": torch.zeros(2)}]
    for arguments in kept:
        assert hw.explain(x, x, x, **arguments).kernel == "cpu"
    long = x[:, :1, :1].expand(1, 1, 5000, 16)
    assert hw.explain(long, long, long, mask=Window(left=9)).kernel == "cpu", "a dense mask of more than 16 MiB"


def test_a_part_is_left_to_no_kernel_that_cannot_run_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_defers, "NOT_MEASURED", _defers.not_measured("aarch64"))
    call = make_call(*torch.randn(3, 1, 2, 8, 4))
    out, _ = attend_in_parts([cut(call, "keys", 0, 3), cut(call, "keys", 3, 8)])
    torch.testing.assert_close(out, KERNELS["reference"].run(call)[0])


def test_processors_that_were_measured() -> None:
    assert [_defers.not_measured(machine) for machine in ("x86_64", "AMD64")] == [None, None]
    for machine in ("aarch64", "arm64", "riscv64"):
        found = _defers.not_measured(machine)
        assert found is not None
        assert machine in found.why


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
