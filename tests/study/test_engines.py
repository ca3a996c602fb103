"""Trainings through Slurm's and Ray's libraries are those of one process, with lost workers too."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from headway import HeadwayError
from headway._common.engines import Engine, Ray, engine_named
from headway._common.engines import slurm as slurm_module
from headway._common.progress import ProgressListener
from headway.cli import main
from headway.study.suite import SuiteProtocol, SuiteResults, measure

TINY = SuiteProtocol(steps=60, layers=1, width=16, heads=2, batch=4, times=(1, 2))
NAMES = ["none", "randomized + rope"]


OTHER = ("seconds", "versions")
"""What may differ: workers start anew, perhaps after a commit."""


def numbers(found: SuiteResults) -> list[dict[str, Any]]:
    rows = [{name: value for name, value in row.items() if name not in OTHER} for row in found.rows]
    return sorted(rows, key=lambda row: (row["task"], row["encoding"], row["seed"], row["times"]))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return numbers(measure(["parity"], NAMES, TINY, out=tmp_path_factory.mktemp("alone"), watch=ProgressListener()))


@pytest.fixture(scope="module")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    pytest.importorskip("ray", reason="ray is not installed: make check-engines has it")
    engine = engine_named("ray", 2, tmp_path_factory.mktemp("ray"))
    assert isinstance(engine, Ray)
    with engine.connected() as library:
        yield library


# ------------------------------------------------------------ an engine by its name


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("pbs", "there is no engine 'pbs'"),
        ("slurm(5)", "give parameters as literals"),
        ("slurm(timeout_min=x)", "give parameters as literals"),
        ("slurm(jobs=3)", "jobs is no parameter of submitit: give --jobs and --out"),
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


@pytest.mark.parametrize(
    ("file", "address", "said"),
    [
        ("nowhere.py", None, "nowhere.py is not a file: give the path of a Python file"),
        ("../mine.py", None, "--on ray sends files below this folder alone, not ../mine.py"),
        ("{folder}/mine.py", "ray://head:10001", "--on ray://head:10001 sends files below this folder alone, not /"),
    ],
)
def test_files_that_do_not_go_along_are_named(
    file: str, address: str | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").touch()
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    with pytest.raises(HeadwayError, match=re.escape(said)):
        Ray(1, address, [file.format(folder=tmp_path)])


# ------------------------------------------------------------ the page

PAGE = Path(__file__).parents[2] / "docs" / "scaling.md"
FEW = ["--tasks", "parity", "--encodings", "none,rope", "--seeds", "1", "--steps", "2"]


def run_commands(having: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[dict[str, Any]]]:
    """Runs the commands of a block of the section with small models; returns the rows by their folders."""
    section = PAGE.read_text(encoding="utf-8").partition("## Many trainings")[2]
    blocks = [block for block in re.findall(r"```sh\n(.*?)```", section, re.DOTALL) if having in block]
    assert len(blocks) == 1
    monkeypatch.chdir(folder)
    found = {}
    for line in blocks[0].splitlines():
        _, *words = shlex.split(line)
        if any("://" in word for word in words):
            continue  # there is no cluster here
        words = [word.replace("slurm(", "slurm(cluster='local', ") for word in words]
        words = ["slurm(cluster='local')" if word == "slurm" else word for word in words]
        if "--suite" in words:
            place = words.index("--suite")
            words[place : place + 2] = FEW
        assert main([*words, "--quiet"]) == 0
        out = words[words.index("--out") + 1]
        rows = [json.loads(row) for row in Path(out, "results.jsonl").read_text().splitlines()]
        found[out] = [{name: value for name, value in row.items() if name not in OTHER} for row in rows]
        found[out].sort(key=lambda row: (row["encoding"], row["times"]))
    return found


@pytest.mark.slow
def test_jobs_and_shares_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = run_commands("--out here", tmp_path, monkeypatch)["here"]
    shared = run_commands("--share", tmp_path, monkeypatch)
    assert shared["all"] == here
    assert sorted(map(len, shared.values())) == [4, 4, 8]


@pytest.mark.slow
def test_slurm_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit", reason="submitit is not installed")
    found = run_commands("--on slurm", tmp_path, monkeypatch)
    assert found["on-slurm"] == found["in-partition"]
    assert len(found["on-slurm"]) == 8


def test_ray_of_the_page(ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(run_commands("--on ray", tmp_path, monkeypatch)["on-ray"]) == 8


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


def test_ray_has_the_numbers_of_one_process(ray: Any, tmp_path: Path, alone: list[dict[str, Any]]) -> None:
    engine = engine_named("ray", 2, tmp_path)
    found = measure(["parity"], NAMES, TINY, out=tmp_path / "out", engine=engine, watch=ProgressListener())
    assert numbers(found) == alone


def test_ray_begins_lost_jobs_again_from_the_state_that_came_back(ray: Any, tmp_path: Path) -> None:
    check_losses(engine_named("ray", 2, tmp_path), tmp_path)


def test_a_training_of_ray_whose_worker_is_killed(ray: Any, tmp_path: Path) -> None:
    killed: list[int] = []

    class Kill(ProgressListener):
        def trained(self, job: str, numbers: Mapping[str, float]) -> None:
            import psutil

            for one in () if killed else psutil.process_iter(["name"]):
                if one.info["name"] == "ray::_do":
                    killed.append(one.pid)
                    one.kill()

    long = SuiteProtocol(**{**vars(TINY), "steps": 800})
    whole = measure(["parity"], NAMES[1:], long, out=tmp_path / "whole", watch=ProgressListener())
    engine = engine_named("ray", 2, tmp_path)
    found = measure(["parity"], NAMES[1:], long, out=tmp_path / "out", engine=engine, watch=Kill())
    assert len(killed) == 1
    assert numbers(found) == numbers(whole)


def test_ray_takes_files_along(ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own").mkdir()
    Path("own/mine.py").write_text("from headway.positions import RoPE\nclass Mine(RoPE):\n    pass\n")
    few = SuiteProtocol(**{**vars(TINY), "steps": 2})
    engine = engine_named("ray", 1, tmp_path, ["own/mine.py"])
    found = measure(
        ["parity"], ["own/mine.py:Mine"], few, out=tmp_path / "out", engine=engine, watch=ProgressListener()
    )
    assert {row["encoding"] for row in found.rows} == {"own/mine.py:Mine"}
    with pytest.raises(HeadwayError, match=r"alone, not /.*: start it there"):
        engine_named("ray://127.0.0.1:10001", 1, tmp_path, [str(tmp_path / "own/mine.py")])
