"""Trainings through Slurm's and Ray's libraries are those of one process, with lost workers too."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from headway import HeadwayError
from headway._common.engines import Engine, Ray, _base, engine_named, processes
from headway._common.engines import slurm as slurm_module
from headway._common.progress import ProgressListener
from headway.cli import main
from headway.study.merging import OF_THE_RUN
from headway.study.suite import SuiteProtocol, SuiteResults, measure

TINY = SuiteProtocol(steps=60, layers=1, width=16, heads=2, batch=4, times=(1, 2))
NAMES = ["none", "randomized + rope"]


OTHER = ("seconds", "processor_seconds", "versions")
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
        ("slurm(jobs=3)", "jobs is not a parameter of submitit: give --jobs and --out"),
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
        ("../mine.py", None, "--on ray sends only files below this folder, not ../mine.py"),
        ("{folder}/mine.py", "ray://head:10001", "--on ray://head:10001 sends only files below this folder, not /"),
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
FEW = ["--tasks", "parity", "--seeds", "1", "--steps", "2"]
SMALL = (
    *("--seeds", "1", "--steps", "2", "--lengths", "128", "--layers", "1", "--width", "16", "--held-out", "64"),
    *("--recall-steps", "2"),
)
"""Options of a text, whose rows are compared."""


def run_commands(
    having: str, folder: Path, monkeypatch: pytest.MonkeyPatch, encodings: str = "none,rope"
) -> dict[str, list[dict[str, Any]]]:
    """Runs the commands of a block of the section with small models of these encodings; returns rows by folders."""
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
            words += ["--encodings", encodings]
        if "book.txt" in words:
            Path("book.txt").write_text("".join(f"line {number} of a book\n" for number in range(300)))
            words += ["--encodings", encodings, *SMALL]
        assert main([*words, "--quiet"]) == 0
        out = words[words.index("--out") + 1]
        rows = [json.loads(row) for row in Path(out, "results.jsonl").read_text().splitlines()]
        found[out] = [{name: value for name, value in row.items() if name not in OF_THE_RUN} for row in rows]
        found[out].sort(key=lambda row: (row["encoding"], row["length"]))
    return found


@pytest.mark.slow
def test_the_engine_of_the_page(tmp_path: Path) -> None:
    section = PAGE.read_text(encoding="utf-8").partition("## Many trainings")[2]
    (code,) = re.findall(r"```python\n(# own_engine.py\n.*?)```", section, re.DOTALL)
    (tmp_path / "own_engine.py").write_text(code)
    subprocess.run([sys.executable, "own_engine.py"], cwd=tmp_path, check=True, timeout=900)
    rows = [json.loads(row) for row in (tmp_path / "in-a-pool" / "results.jsonl").read_text().splitlines()]
    here = measure(["parity"], ["none", "rope"], SuiteProtocol(steps=20, layers=1, width=16), watch=ProgressListener())
    found = [{name: value for name, value in row.items() if name not in OTHER} for row in rows]
    assert sorted(found, key=lambda row: (row["encoding"], row["times"])) == numbers(here)


@pytest.mark.slow
def test_jobs_and_shares_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import forked  # here, since jobs import this module, and cannot import that one

    forked.instead_of_new(processes, monkeypatch)
    here = run_commands("--out here", tmp_path, monkeypatch)
    shared = run_commands("--share", tmp_path, monkeypatch)
    assert shared["all"] == here["here"]
    assert sorted(map(len, shared.values())) == [4, 4, 8]
    assert len(here["here-text"]) == 4, "two encodings and two baselines"


@pytest.mark.slow
def test_slurm_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text_alone: Callable[[str], list[dict[str, Any]]]
) -> None:
    """With one encoding, since each job starts an interpreter."""
    pytest.importorskip("submitit", reason="submitit is not installed")
    found = run_commands("--on slurm", tmp_path, monkeypatch, "rope")
    assert found["on-slurm"] == found["in-partition"]
    assert len(found["on-slurm"]) == 4
    assert found["on-slurm-text"] == text_alone("rope")


def test_ray_of_the_page(
    ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text_alone: Callable[[str], list[dict[str, Any]]]
) -> None:
    found = run_commands("--on ray", tmp_path, monkeypatch)
    assert len(found["on-ray"]) == 8
    assert found["on-ray-text"] == text_alone("none,rope")


@pytest.fixture
def text_alone() -> Callable[[str], list[dict[str, Any]]]:
    """Returns the rows of the page's text, in the folder in which it is, from one process with one thread."""

    def rows(encodings: str) -> list[dict[str, Any]]:
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            command = ["compare", "book.txt", "--baselines", "none", "--jobs", "1", "--out", "text-alone", *SMALL]
            assert main([*command, "--encodings", encodings, "--quiet"]) == 0
        finally:
            torch.set_num_threads(before)
        lines = Path("text-alone", "results.jsonl").read_text().splitlines()
        found = [{name: value for name, value in json.loads(row).items() if name not in OF_THE_RUN} for row in lines]
        return sorted(found, key=lambda row: (row["encoding"], row["length"]))

    return rows


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


@pytest.mark.slow
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


LONG = SuiteProtocol(**{**vars(TINY), "steps": 2000})
FIVE_SECONDS = SuiteProtocol(**{**vars(TINY), "steps": 6000})
"""After which there is a checkpoint."""
KILLS = 6


class Kills(ProgressListener):
    """Kills a worker of Ray at each report, some times."""

    def __init__(self) -> None:
        self.left = KILLS

    def logged(self, job: str, numbers: Mapping[str, float]) -> None:
        import psutil

        running = [one for one in psutil.process_iter(["name"]) if one.info["name"] == "ray::_do"]
        if self.left and running:
            self.left -= 1
            running[self.left % len(running)].kill()


def test_trainings_of_ray_whose_workers_are_killed(ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_base, "LOSSES", 2 * KILLS)
    whole = measure(["parity"], NAMES, LONG, out=tmp_path / "whole", watch=ProgressListener())
    watch = Kills()
    engine = engine_named("ray", 2, tmp_path)
    found = measure(["parity"], NAMES, LONG, out=tmp_path / "out", engine=engine, watch=watch)
    assert watch.left == 0
    assert numbers(found) == numbers(whole)


def test_a_driver_of_ray_that_is_killed(ray: Any, tmp_path: Path) -> None:
    """While a training is half done; the same command goes on from its checkpoint."""
    out = tmp_path / "out"
    program = f"""
import os, signal
from pathlib import Path
from headway._common.progress import ProgressListener
from headway.study.engines import Ray
from headway.study.suite import SuiteProtocol, measure

class Kills(ProgressListener):
    def logged(self, job, numbers):
        if list(Path({str(out)!r}, "checkpoints").glob("*.pt")):
            os.kill(os.getpid(), signal.SIGKILL)

measure(["parity"], {NAMES!r}, SuiteProtocol(**{vars(FIVE_SECONDS)!r}), out={str(out)!r}, engine=Ray(2), watch=Kills())
"""
    killed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=900)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    whole = measure(["parity"], NAMES, FIVE_SECONDS, out=tmp_path / "whole", watch=ProgressListener())
    engine = engine_named("ray", 2, tmp_path)
    assert list((out / "checkpoints").glob("*.pt"))
    found = measure(["parity"], NAMES, FIVE_SECONDS, out=out, engine=engine, watch=ProgressListener())
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
