"""Training steps of small language models, of a few numbers; what is timed is never asserted."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from headway.bench import report, steps
from headway.bench.cases import DTYPES, MODELS, STEP_MODELS, ModelCase, ModelPlan
from headway.bench.measure import CheckError
from headway.bench.model_sides import Loaded
from headway.bench.models import measure
from headway.bench.sides import OURS
from headway.bench.steps import TORCH, TORCHS_PRODUCTS, X_TRANSFORMERS

PLAN = ModelPlan(seconds=0.0, rounds=1)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "SIZES", {"vocab_size": 16, "embed_dim": 96, "num_layers": 2, "num_heads": 2})
    monkeypatch.setattr(steps, "APART", 0.1)  # biases and norms count for more in a narrow model


def case_of(model: str = "RoPE", dtype: str = "float32") -> ModelCase:
    return ModelCase("step", model, 12, 2, dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("model", STEP_MODELS)
def test_every_model_is_measured_on_all_sides(model: str, dtype: str, tmp_path: Path) -> None:
    if model != "learned":
        pytest.importorskip("x_transformers")
    loaded = Loaded(tmp_path, tmp_path)
    assert loaded.has(model)
    row = measure(case_of(model, dtype), PLAN, loaded)
    assert set(row["ms"]) == {OURS, TORCHS_PRODUCTS, TORCH if model == "learned" else X_TRANSFORMERS}
    assert row["says"] == {}
    text = report.models([{"case": case_of(model, dtype).fields(), "date": "2026-11-22", **row}], WHERE, "a command")
    assert "### A training step of a language model" in text
    assert f"| {model} | 2 × 12 | {dtype} |" in text


WHERE = {"processor": "a processor", "isa": "avx2", "threads": 2, "torch": "2", "headway": "1", "transformers": "5"}


@pytest.mark.parametrize("model", STEP_MODELS)
def test_the_models_of_all_sides_are_causal(model: str) -> None:
    if model != "learned":
        pytest.importorskip("x_transformers")
    ids = torch.arange(12)[None]
    for name, build in steps.models(case_of(model)).items():
        language_model = build().eval()
        with torch.no_grad():
            whole, part = language_model(ids), language_model(ids[:, :7])
        torch.testing.assert_close(whole[:, :7], part, rtol=1e-4, atol=1e-4, msg=lambda said, name=name: name + said)


def test_a_step_trains_and_bfloat16_is_autocast() -> None:
    seen = []
    for dtype in DTYPES:
        [build, *_] = steps.models(case_of(dtype=dtype)).values()
        torch.manual_seed(0)
        model = build()
        model.register_forward_hook(lambda module, given, out: seen.append(out.dtype))
        step = steps.Step(model, case_of(dtype=dtype))
        losses = [step()[0].item() for _ in range(3)]
        assert losses[2] < losses[0]
        assert all(p.grad is not None and p.dtype == torch.float32 for p in model.parameters())
    assert seen == [dtype for dtype in DTYPES.values() for _ in range(3)]


def test_what_is_wrong_gets_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    runs, says = steps.sides(case_of("learned"))
    right = runs[OURS]
    monkeypatch.setattr(steps, "sides", lambda case: ({**runs, OURS: lambda: [1.1 * x for x in right()]}, says))
    with pytest.raises(CheckError, match=r"headway's and torch's linear maps .* differ by"):
        steps.measure(case_of("learned"), PLAN)
    monkeypatch.setattr(steps, "sides", lambda case: ({**runs, TORCH: lambda: [torch.tensor(torch.nan)]}, says))
    with pytest.raises(CheckError, match=r"TransformerEncoder on .* is not finite"):
        steps.measure(case_of("learned"), PLAN)


def test_a_model_of_another_size_is_no_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    real = steps.models
    monkeypatch.setattr(steps, "models", lambda case: {**real(case), TORCH: lambda: nn.Linear(2, 2)})
    with pytest.raises(CheckError, match="has 6 parameters but headway"):
        steps.sides(case_of("learned"))


def test_a_missing_library_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(steps, "import_module", missing)
    row = steps.measure(case_of(), PLAN)
    assert set(row["ms"]) == {OURS, TORCHS_PRODUCTS}
    assert row["says"] == {X_TRANSFORMERS: "No module named 'x_transformers'"}


def test_the_plan_has_the_sizes_of_a_step() -> None:
    cases = [case for case in MODELS.cases() if case.task == "step"]
    assert {(case.batch, case.n) for case in cases} == {(2, 1024), (8, 256)}
    assert {case.model for case in cases} == set(STEP_MODELS)
    assert {case.dtype for case in cases} == {"float32", "bfloat16"}
