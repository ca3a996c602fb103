"""One token after others, of a few numbers; what is timed is never asserted."""

from pathlib import Path

import pytest
import torch

from headway.bench import report, tokens
from headway.bench.cases import MODELS, TOKEN_MODELS, ModelCase, ModelPlan
from headway.bench.measure import CheckError
from headway.bench.model_sides import Loaded
from headway.bench.models import measure
from headway.bench.sides import OURS
from headway.bench.targets import MODEL_TARGETS, judge

PLAN = ModelPlan(seconds=0.0, rounds=1)
WHERE = {"processor": "a processor", "isa": "avx2", "threads": 2, "torch": "2", "headway": "1", "transformers": "5"}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "SIZES", {"embed_dim": 32, "num_heads": 4, "num_kv_heads": 2})
    monkeypatch.setattr(tokens, "LAYERS", 2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("model", TOKEN_MODELS)
def test_both_sides_compute_the_same(model: str, dtype: str, tmp_path: Path) -> None:
    loaded = Loaded(tmp_path, tmp_path)
    assert loaded.has(model)
    case = ModelCase("token", model, 9, 1, dtype)
    row = measure(case, PLAN, loaded)
    assert set(row["ms"]) == {OURS, tokens.BY_HAND}
    text = report.models([{"case": case.fields(), "date": "2026-11-27", **row}], WHERE, "a command")
    assert "### A token after others" in text
    assert f"| {model} | 9 | {dtype} |" in text


@torch.no_grad()
@pytest.mark.parametrize("model", TOKEN_MODELS)
def test_a_run_begins_where_the_last_one_did(model: str) -> None:
    make, encoded = tokens.MAKERS[model]
    runs = make(tokens.RoPE(8) if encoded else None, 9, torch.float32)
    for run in runs.values():
        first, second = run(), run()
        assert len(first) == tokens.WRITTEN
        assert all(map(torch.equal, first, second))
        assert not torch.equal(first[0], first[1])


@pytest.mark.parametrize("model", [name for name in TOKEN_MODELS if "RoPE" in name])
def test_another_rotation_gets_no_number(model: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = tokens.Rotated.__call__
    monkeypatch.setattr(tokens.Rotated, "__call__", lambda self, x, start: real(self, x, 0))
    with pytest.raises(CheckError, match="by hand"):
        measure(ModelCase("token", model, 9), PLAN, Loaded(tmp_path, tmp_path))


def test_the_plan_has_each_after_each_length_and_targets_judge_them() -> None:
    cases = [case for case in MODELS.cases() if case.task == "token"]
    assert {case.model for case in cases} == set(TOKEN_MODELS)
    assert {case.n for case in cases} == {128, 1024, 4096}
    rows = [{"case": case.fields(), "ms": {OURS: 1.2, tokens.BY_HAND: 1.0}, "says": {}} for case in cases]
    of_decoders = [target for target in MODEL_TARGETS if "decoder" in target.what or "the same after" in target.what]
    verdicts = [(judged.target.what, judged.verdict, judged.count) for judged in judge(rows, of_decoders)]
    after_128, longer = (target.what for target in of_decoders)
    assert verdicts == [(after_128, "met", 1), (after_128, "met", 1), (longer, "missed", 2), (longer, "missed", 2)]
