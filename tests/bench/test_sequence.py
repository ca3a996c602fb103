"""A sequence that two processes share, of a few tokens; what is timed is never asserted."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import forked
from headway.bench import FULL, Case, report, sequence
from headway.bench.cases import SEQUENCE_MEMORY, SEQUENCE_STEP
from headway.bench.rows import ROW, SIZED, TIMED, fits
from headway.bench.sides import OURS
from headway.parallel import METHODS

WHERE = {"processor": "a processor", "isa": "avx2", "threads": 2, "torch": "2", "headway": "1"}


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Processes are forks of one that has imported torch."""

    def in_a_fork(module: str, task: dict[str, Any]) -> Any:
        code = f"import sys; from headway.bench.{module} import main; main(sys.argv[1])"
        given = json.dumps({**task, "threads": torch.get_num_threads()})
        done = forked.python("-c", code, given, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    monkeypatch.setattr(sequence, "in_new_process", in_a_fork)


@pytest.mark.usefixtures("forks")
def test_each_method_is_measured_against_one_process() -> None:
    """Each process compares the results before anything is timed."""
    case = Case("sequence", "t5", "causal", 24, 8, direction="backward")
    row = sequence.measure(case, replace(FULL, seconds=0.0, rounds=2))
    assert row["rounds"] == 2
    assert set(row["ms"]) == set(row["processor_ms"]) == {OURS, *METHODS}
    stored = {"case": case.fields(), "where": WHERE, "date": "2026-11-27", **row}
    assert fits(stored, ROW)
    assert fits(stored, TIMED)
    text = report.markdown([stored], WHERE, "a command")
    assert "## A sequence over two processes" in text
    assert "| attention | t5 | 24 |" in text


@pytest.mark.slow
def test_a_training_step_is_measured_against_that_of_one_process() -> None:
    case = Case(SEQUENCE_STEP, "forgetting", "causal", 24, direction="backward")
    row = sequence.measure(case, replace(FULL, seconds=0.0, rounds=1))
    assert set(row["ms"]) == {OURS, *METHODS}
    stored = {"case": case.fields(), "where": WHERE, "date": "2026-11-27", **row}
    assert "| a training step | forgetting | 24 |" in report.markdown([stored], WHERE, "a command")


@pytest.mark.slow
@pytest.mark.usefixtures("forks")
def test_memory_is_measured_of_each_side_in_processes_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequence, "METHODS", {"ring": None})  # each side starts two processes
    case = Case(SEQUENCE_MEMORY, "none", "causal", 4096, 8, direction="backward")
    row = sequence.measure(case, FULL)
    assert set(row["bytes"]) == {OURS, "ring"}
    assert row["bytes"]["ring"] >= 4 * 2048 * 8 * 8 * 4  # the output and the gradients of half of the tokens
    assert row["bytes"]["ring"] < row["bytes"][OURS], "that of one process, not of both together"
    stored = {"case": case.fields(), "where": WHERE, "date": "2026-11-27", **row}
    assert fits(stored, ROW)
    assert fits(stored, SIZED)
    monkeypatch.setattr(report, "METHODS", {"ring": None})
    assert "| none | 4,096 |" in report.markdown([stored], WHERE, "a command")
