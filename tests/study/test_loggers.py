"""Losses and results for other programs, through their own libraries."""

import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headway import HeadwayError
from headway._common.progress import ProgressListener
from headway.study.loggers import LOGGERS, logging

ROWS = [
    {"task": "copy", "encoding": "rope", "length": length, "exact": exact, "accuracy": None, "steps": 9}
    for length, exact in ((8, 1.0), (16, 0.25))
]


def log(name: str, folder: Path) -> list[str]:
    """Logs two steps and the results of a training; returns what the listener behind is told."""
    told: list[str] = []

    class Behind(ProgressListener):
        def progressed(self, doing: str, share: float) -> None:
            told.append(doing)

        def logged(self, job: str, numbers: Mapping[str, float]) -> None:
            told.append(job)

        def measured(self, job: str, rows: Any) -> None:
            told.append(f"measured {job}")

    with logging(Behind(), name, folder) as watch:
        watch.progressed("begins", 0.0)
        for step in (1, 2):
            watch.logged("copy, rope", {"step": step, "loss": 3.0 - step})
        watch.measured("copy, rope", ROWS)
    return told


TOLD = ["begins", "copy, rope", "copy, rope", "measured copy, rope"]


def test_nothing_is_logged_unless_it_is_asked_for(tmp_path: Path) -> None:
    watch = ProgressListener()
    with logging(watch, None, tmp_path) as same:
        assert same is watch
    with pytest.raises(HeadwayError, match=r"no logger 'tensorbord'.*'tensorboard'"), logging(watch, "tensorbord", ""):
        pass


@pytest.mark.parametrize("name", LOGGERS)
def test_a_missing_library_is_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(HeadwayError, match=f"--log {name} needs {name}: .*install {name}"):
        log(name, tmp_path)


def test_tensorboard_reads_what_was_logged(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed: make check-engines has it")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert log("tensorboard", tmp_path) == TOLD
    read = EventAccumulator(str(tmp_path / "tensorboard" / "copy, rope")).Reload()
    found = {tag: [(one.step, one.value) for one in read.Scalars(tag)] for tag in read.Tags()["scalars"]}
    assert found == {"loss": [(1, 2.0), (2, 1.0)], "exact at 8": [(9, 1.0)], "exact at 16": [(9, 0.25)]}


def test_wandb_and_mlflow_are_called_as_their_libraries_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against objects in their place: neither library is installed here."""
    calls: list[Any] = []
    run = SimpleNamespace(log=calls.append, finish=lambda: calls.append("finish"))
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **named: calls.append(named["name"]) or run))
    log("wandb", tmp_path)
    assert calls[:2] == ["copy, rope", {"step": 1, "loss": 2.0}]
    assert calls[-2:] == [{"step": 9, "exact at 16": 0.25}, "finish"]
    calls.clear()
    client = SimpleNamespace(
        get_experiment_by_name=lambda name: None,
        create_experiment=lambda name: "1",
        create_run=lambda experiment, run_name: SimpleNamespace(info=SimpleNamespace(run_id=run_name)),
        log_metric=lambda run, name, value, step: calls.append((run, name, value, step)),
        set_terminated=lambda run: calls.append("finish"),
    )
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(MlflowClient=lambda: client))
    log("mlflow", tmp_path)
    assert calls[0] == ("copy, rope", "loss", 2.0, 1)
    assert calls[-1] == "finish"
