"""Trainings through Slurm's and Ray's libraries are those of one process, with lost workers too."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from headway import HeadwayError
from headway._common import training
from headway._common.engines import Engine, engine_named
from headway._common.engines import slurm as slurm_module
from headway._common.progress import ProgressListener
from headway.study.suite import SuiteProtocol, SuiteResults, measure

TINY = SuiteProtocol(steps=60, layers=1, width=16, heads=2, batch=4, times=(1, 2))
NAMES = ["none", "randomized + rope"]


def numbers(found: SuiteResults) -> list[dict[str, Any]]:
    rows = [{name: value for name, value in row.items() if name != "seconds"} for row in found.rows]
    return sorted(rows, key=lambda row: (row["task"], row["encoding"], row["seed"], row["times"]))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return numbers(measure(["parity"], NAMES, TINY, out=tmp_path_factory.mktemp("alone"), watch=ProgressListener()))


# ------------------------------------------------------------ an engine by its name


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("pbs", "there is no engine 'pbs'"),
        ("slurm(5)", "give parameters as literals"),
        ("slurm(timeout_min=x)", "give parameters as literals"),
    ],
)
def test_wrong_names_are_refused(spec: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(HeadwayError, match=said.replace("(", r"\(")):
        engine_named(spec, 1, tmp_path)


@pytest.mark.parametrize(("module", "spec"), [("submitit", "slurm"), ("ray", "ray")])
def test_a_missing_library_is_named(module: str, spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(HeadwayError, match=f"--on {spec} needs {module}: "):
        engine_named(spec, 1, tmp_path)


# ------------------------------------------------------------ work that ends in other ways


def dies_once(job: str, tell: Any, state: Path) -> str:
    """Dies after it has written its state, and then goes on from it."""
    if job == "mistake":
        raise ValueError("a mistake")
    if state.exists():
        return f"{job} {state.read_text()}"
    state.write_text("half")
    for _ in range(3):
        tell("half", 0.5, {"step": 1})
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


def check_losses(engine: Engine, tmp_path: Path) -> None:
    found: dict[str, Any] = {}
    told: list[Any] = []
    engine.run({"a": tmp_path / "a"}, dies_once, told=lambda *said: told.append(said), finished=found.__setitem__)
    assert found == {"a": "a half"}
    assert {job for job, *_ in told} <= {"a"}
    with pytest.raises(HeadwayError, match="ValueError: a mistake"):
        engine.run({"mistake": tmp_path / "b"}, dies_once, told=lambda *_: None, finished=found.__setitem__)


# ------------------------------------------------------------ Slurm, by submitit's processes


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    pytest.importorskip("submitit", reason="submitit is not installed")
    monkeypatch.setattr(slurm_module, "BETWEEN_LOOKS", 0.1)
    return engine_named("slurm(cluster='local', timeout_min=5)", 2, tmp_path / "engine")


@pytest.mark.slow
def test_slurm_has_the_numbers_of_one_process(slurm: Engine, tmp_path: Path, alone: list[dict[str, Any]]) -> None:
    found = measure(["parity"], NAMES, TINY, out=tmp_path / "out", engine=slurm, watch=ProgressListener())
    assert numbers(found) == alone


def test_slurm_begins_lost_jobs_again(slurm: Engine, tmp_path: Path) -> None:
    check_losses(slurm, tmp_path)


def test_slurm_needs_a_cluster_and_known_parameters(tmp_path: Path) -> None:
    pytest.importorskip("submitit", reason="submitit is not installed")
    with pytest.raises(HeadwayError, match="there is no srun here"):
        engine_named("slurm", 1, tmp_path)
    with pytest.raises(HeadwayError, match=r"--on slurm: .*partitoin"):
        engine_named("slurm(cluster='local', partitoin='gpu')", 1, tmp_path)


# ------------------------------------------------------------ Ray on this machine


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    library = pytest.importorskip("ray", reason="ray is not installed: make check-engines has it")
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    library.init(num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1", log_to_driver=False)
    yield library
    library.shutdown()


def test_ray_has_the_numbers_of_one_process(ray: Any, tmp_path: Path, alone: list[dict[str, Any]]) -> None:
    engine = engine_named("ray", 2, tmp_path)
    found = measure(["parity"], NAMES, TINY, out=tmp_path / "out", engine=engine, watch=ProgressListener())
    assert numbers(found) == alone


def test_ray_begins_lost_jobs_again_from_the_state_that_came_back(ray: Any, tmp_path: Path) -> None:
    check_losses(engine_named("ray", 2, tmp_path), tmp_path)


def test_a_training_of_ray_whose_worker_is_killed(
    ray: Any, tmp_path: Path, alone: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    killed: list[int] = []

    class Kill(ProgressListener):
        def trained(self, job: str, numbers: Mapping[str, float]) -> None:
            import psutil

            if not killed:
                tasks = [one for one in psutil.process_iter(["name"]) if (one.info["name"] or "") == "ray::_do"]
                for one in tasks:
                    killed.append(one.pid)
                    one.kill()

    engine = engine_named("ray", 2, tmp_path)
    found = measure(["parity"], NAMES, TINY, out=tmp_path / "out", engine=engine, watch=Kill())
    assert killed
    assert numbers(found) == alone


def test_ray_takes_files_along(ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own").mkdir()
    Path("own/mine.py").write_text("from headway.positions import RoPE\nclass Mine(RoPE):\n    pass\n")
    few = SuiteProtocol(**{**vars(TINY), "steps": 2})
    engine = engine_named("ray", 1, tmp_path, ["own/mine.py"])
    found = measure(["parity"], ["own/mine.py:Mine"], few, out=tmp_path / "out", engine=engine)
    assert {row["encoding"] for row in found.rows} == {"own/mine.py:Mine"}
    with pytest.raises(HeadwayError, match="sends no /"):
        engine_named("ray://127.0.0.1:10001", 1, tmp_path, [str(tmp_path / "own/mine.py")])
