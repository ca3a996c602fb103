from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from headway.bench import Case, Plan, bench, verify
from headway.bench.sides import kernel_of
from headway.kernels import KERNELS, CpuKernel
from headway.kernels.cpu import _library
from headway.reductions import Entropy, TopKeys


def test_a_kernel_that_is_right_does_not_fail(few_checks: None) -> None:
    failed, said = verify.failing([Case(n=16, head_dim=8), Case(encoding="t5", n=16, head_dim=8, direction="backward")])
    assert failed == {}
    assert "1 kinds of terms" in said
    assert any(kernel in said for kernel in KERNELS)


def test_a_gradient_that_is_zero_but_for_rounding_does_not_fail(few_checks: None) -> None:
    """FIRE's last bias is added to all scores."""
    case = Case("sequence", encoding="fire", mask="causal", n=333, direction="backward")
    assert verify.failing([case])[0] == {}


def wrong(result: tuple[torch.Tensor, torch.Tensor | None]) -> tuple[torch.Tensor, torch.Tensor | None]:
    return 1.1 * result[0], result[1]


def test_a_red_check_gives_no_number(few_checks: None, tiny: Plan, tmp_path: Path, monkeypatch: Any) -> None:
    """The kernel that everything here takes is broken by a tenth: no row, no figure, and the reason in the report."""
    plan = replace(tiny, parts=("attention",), encodings=("none",), directions=("forward",))
    kernel = KERNELS[kernel_of(plan.cases()[0])]
    run = type(kernel).run
    monkeypatch.setattr(type(kernel), "run", lambda self, call: wrong(run(self, call)))
    results = bench(plan, tmp_path)
    assert list(results.failed) == [kernel.name]
    assert results.rows == []
    assert not (tmp_path / "rows.jsonl").exists()
    text = (tmp_path / "bench.md").read_text()
    assert f"No number for the kernel {kernel.name}, whose checks fail" in text
    assert "## Forward" not in text


@pytest.mark.skipif(_library.why_not() is not None, reason="the library is not here")
@pytest.mark.parametrize(
    ("door", "wrong", "said"),
    [
        ("reduce", Entropy, "statistics of cpu alone and of the reference kernel"),
        ("run_and_reduce", Entropy, "statistics of cpu in the pass of attention and of the reference kernel"),
        ("run_and_reduce", TopKeys, "the weights of their keys in statistics of cpu in the pass"),
        ("run_and_reduce", None, "cpu gives another output when it computes statistics"),
    ],
)
def test_wrong_statistics_fail(few_checks: None, monkeypatch: Any, door: str, wrong: Any, said: str) -> None:
    """One reduction of one door is broken, or the output changes by a bit."""
    computed = getattr(CpuKernel, door)

    def broken(self: CpuKernel, call: Any, reductions: Any, counted: Any = None) -> Any:
        found = computed(self, call, reductions, counted)
        out, values = (None, found) if door == "reduce" else found
        for at, one in enumerate(reductions):
            if type(one) is wrong:
                values[at] = (values[at][0], (values[at][1] - 1).clamp(min=0)) if wrong is TopKeys else 1.1 * values[at]
        return values if out is None else (out.nextafter(out + 1) if wrong is None else out, values)

    of = Case("statistics", mask="causal", n=40, head_dim=8)
    failed, checked = verify.failing([of])
    assert failed == {}
    assert checked.endswith("all statistics, alone and in the pass of attention")
    monkeypatch.setattr(CpuKernel, door, broken)
    assert said in verify.failing([of])[0]["cpu"]


def test_a_kernel_that_is_wrong_only_at_size_is_red(few_checks: None, monkeypatch: Any) -> None:
    """What the checks of a few tokens cannot see: more keys than one tile has."""
    kernel = KERNELS["sdpa"]
    run = type(kernel).run
    monkeypatch.setattr(
        type(kernel), "run", lambda self, call: wrong(run(self, call)) if call.q.shape[2] > 100 else run(self, call)
    )
    monkeypatch.setattr(verify, "kernel_of", lambda of: "sdpa")
    assert "differ by" in verify.failing([Case(n=512, head_dim=8)])[0]["sdpa"]
    assert verify.failing([Case(n=64, head_dim=8)])[0] == {}
