"""``headway doctor``: it finds nothing where everything works, and each fault that its checks look for."""

import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import headway
from headway._common import tuned
from headway._common.extras import PACKAGES, install_command, library_command
from headway.cli import _diagnosis, main
from headway.cli._diagnosis import CHECKS, VARIABLES, Section, examine
from headway.kernels import KERNELS, _tuned
from headway.kernels.cpu import _library

SOURCE = Path(_diagnosis.__file__).parents[1]
Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def usual(monkeypatch: Patch, tmp_path: Path) -> None:
    """No variables of this machine, and folders that can be written to."""
    for name in [name for name in os.environ if name.startswith("HEADWAY_") and name not in ("HEADWAY_LIBRARY",)]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))


def test_kernels_are_told_without_the_tensors_of_the_command() -> None:
    facts = _diagnosis.kernels().facts
    assert not any("q is" in str(said) for said in facts.values())
    assert facts["triton"] == "it runs on an NVIDIA GPU"


def test_what_works(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    for title in CHECKS:
        assert f"\n{title}\n" in f"\n{said}"
    assert "right: output" in said
    assert f"torch            {metadata.version('torch')}" in said
    assert "tables of the command line" in said
    assert said.endswith("What is installed works.\n")


@pytest.mark.slow
def test_a_source_tree_that_is_not_installed_works() -> None:
    code = """
import sys
from importlib.metadata import Distribution, PackageNotFoundError
find = Distribution.from_name

def from_name(name):
    if name == "headway":
        raise PackageNotFoundError(name)
    return find(name)

Distribution.from_name = from_name
from headway.cli import main
sys.exit(main(["doctor"]))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert f"headway          {headway.__version__}, in " in ran.stdout


def test_json_is_one_object(capsys: pytest.CaptureFixture[str], monkeypatch: Patch) -> None:
    monkeypatch.setenv("HEADWAY_DATTA", "x")
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["works", "faults", *CHECKS]
    assert found["works"] is True
    assert {"what", "remedy", "broken"} == set(found["faults"][0])
    assert found["machine"]["threads"] == torch.get_num_threads()
    assert set(found["kernels"]) == set(KERNELS)


def test_every_kernel_that_is_available_is_computed_in_every_dtype() -> None:
    available = [name for name, said in CHECKS["kernels"]().facts.items() if said == "available"]
    facts = CHECKS["results"]().facts
    for name in available:
        assert {f"{name}, float32", f"{name}, bfloat16"} <= set(facts)


# ---------------------------------------------------------------- faults, each simulated


def old_package(monkeypatch: Patch, tmp_path: Path) -> None:
    monkeypatch.setattr(_diagnosis, "_version", lambda name: "0.9.9+cpu" if name == "torch" else "99")


def without(*packages: str) -> Callable[[Patch, Path], None]:
    """All other packages are installed, even those that no test needs."""

    def make(monkeypatch: Patch, tmp_path: Path) -> None:
        monkeypatch.setattr(_diagnosis, "_version", lambda name: None if name in packages else "99")
        monkeypatch.setattr(_diagnosis, "_found", lambda module: True)

    return make


no_typer = without("typer", "rich")


several_packages = without("rich", "gguf", "gensim")


def half_a_package(monkeypatch: Patch, tmp_path: Path) -> None:
    monkeypatch.setattr(_diagnosis, "_found", lambda module: module != "gensim")


def too_many_threads(monkeypatch: Patch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    monkeypatch.setattr(_diagnosis, "cores", lambda: 2)


def driver_without_cuda(monkeypatch: Patch, tmp_path: Path) -> None:
    monkeypatch.setattr(_diagnosis.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(torch.version, "cuda", None)


def driver_that_is_too_old(monkeypatch: Patch, tmp_path: Path) -> None:
    def is_available() -> bool:
        warnings.warn("the driver is\ntoo old", UserWarning, stacklevel=1)
        return False

    monkeypatch.setattr(_diagnosis.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", is_available)


def fresh_library(monkeypatch: Patch) -> None:
    monkeypatch.delenv("HEADWAY_LIBRARY", raising=False)
    monkeypatch.setattr(_library, "_library", None)


def no_library(monkeypatch: Patch, tmp_path: Path) -> None:
    fresh_library(monkeypatch)
    monkeypatch.setattr(_library, "__file__", str(tmp_path / "_library.py"))


def library_of_another_version(monkeypatch: Patch, tmp_path: Path) -> None:
    if _library.why_not():
        pytest.skip("there is no library")
    fresh_library(monkeypatch)
    monkeypatch.setattr(_library, "VERSION", 1000)


def damaged_library(monkeypatch: Patch, tmp_path: Path) -> None:
    no_library(monkeypatch, tmp_path)
    _library.place().write_text("no library")


def library_that_is_named_wrongly(monkeypatch: Patch, tmp_path: Path) -> None:
    fresh_library(monkeypatch)
    monkeypatch.setenv("HEADWAY_LIBRARY", str(tmp_path / "none.so"))


def unknown_instruction_set(monkeypatch: Patch, tmp_path: Path) -> None:
    if _library.why_not():
        pytest.skip("there is no library")
    fresh_library(monkeypatch)
    monkeypatch.setenv("HEADWAY_ISA", "avx3")


def threads_of_its_own(monkeypatch: Patch, tmp_path: Path) -> None:
    if _library.why_not():
        pytest.skip("there is no library")
    monkeypatch.setattr(_library, "note", lambda: "starts its own threads in each call: no pool")


def changed(monkeypatch: Patch, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    kind = type(KERNELS["sdpa"])
    compute = kind.compute
    monkeypatch.setattr(kind, "compute", lambda self, call: change(compute(self, call)))


def wrong_output(monkeypatch: Patch, tmp_path: Path) -> None:
    changed(monkeypatch, lambda out: out * 1.001)


def wrong_gradient(monkeypatch: Patch, tmp_path: Path) -> None:
    changed(monkeypatch, lambda out: out + (out * 0.001 - (out * 0.001).detach()))


def not_a_number(monkeypatch: Patch, tmp_path: Path) -> None:
    changed(monkeypatch, lambda out: out * torch.nan)


def kernel_that_raises(monkeypatch: Patch, tmp_path: Path) -> None:
    def broken(out: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no such\ninstruction")

    changed(monkeypatch, broken)


def broken_kernel_table(monkeypatch: Patch, tmp_path: Path) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a fault")

    monkeypatch.setattr(_diagnosis, "explain", broken)


def misspelled_variable(monkeypatch: Patch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEADWAY_CACH", "x")


def data_that_is_gone(monkeypatch: Patch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEADWAY_DATA", str(tmp_path / "gone"))


def cache_below_a_file(monkeypatch: Patch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "file" / "cache"))


def cache_that_is_read_only(monkeypatch: Patch, tmp_path: Path) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(_diagnosis.tempfile, "TemporaryFile", refused)


def no_font(monkeypatch: Patch, tmp_path: Path) -> None:
    monkeypatch.setattr("headway._common.fonts._characters", lambda path: frozenset(range(128)))


def table(patch: Patch, folder: Path, failed: dict[str, Any], **other: str) -> None:
    fits = {name: one for name, one in _tuned.facts_of("cpu").items() if name not in ("vendor", "family")}
    tuned.write(folder / "cpu.json", {"fits": fits | other, "date": "2026-01-02", "failed": failed})
    patch.setenv("HEADWAY_TUNED", str(folder / "cpu.json"))
    patch.setattr(_tuned, "known", _tuned.known.__wrapped__)


def table_of_a_wrong_kernel(patch: Patch, folder: Path) -> None:
    table(patch, folder, {"cpu": {"plain, float32, forward": "off by 3"}})


def table_of_another_torch(patch: Patch, folder: Path) -> None:
    table(patch, folder, {}, torch="1.0")


FAULTS: dict[str, tuple[str, Callable[[Patch, Path], None], str, str, bool]] = {
    "old package": ("versions", old_package, r"torch 0\.9\.9\+cpu is older than 2", "install --upgrade 'torch>=", True),
    "no typer": (
        "versions",
        no_typer,
        r"not installed: typer \(the command line\), rich \(tables",
        install_command("study"),
        False,
    ),
    "several packages": ("versions", several_packages, "rich.*gguf.*gensim", "[study,checkpoints,vectors]", False),
    "half a package": ("versions", half_a_package, "gensim .* Python does not find it", "--force-reinstall gens", True),
    "too many threads": ("machine", too_many_threads, "64 threads for 2 cores", "OMP_NUM_THREADS=2", False),
    "torch without CUDA": ("graphics", driver_without_cuda, "torch was built without CUDA", "pytorch.org", False),
    "old driver": ("graphics", driver_that_is_too_old, "no device: the driver is too old", "nvidia-smi", False),
    "no library": ("library", no_library, "cannot run, .* installed without its C", library_command(), False),
    "library of another version": (
        "library",
        library_of_another_version,
        "belongs to another version of headway",
        library_command(),
        True,
    ),
    "damaged library": ("library", damaged_library, "could not be loaded", library_command(), True),
    "library named wrongly": ("library", library_that_is_named_wrongly, "none.so", "unset HEADWAY_LIBRARY", True),
    "unknown instruction set": ("library", unknown_instruction_set, "'avx3': did you", "unset HEADWAY_ISA", True),
    "own threads": ("library", threads_of_its_own, "the kernel cpu starts its own threads", "report it", False),
    "wrong output": ("results", wrong_output, "sdpa, float32 computes wrong numbers: output", "report it", True),
    "wrong gradient": ("results", wrong_gradient, "sdpa, float32 computes wrong .* gradient of q", "report it", True),
    "not a number": ("results", not_a_number, "sdpa, bfloat16 computes wrong .* not finite", "report it", True),
    "kernel that raises": ("results", kernel_that_raises, "wrong numbers: no such instruction", "report it", True),
    "broken table": (
        "kernels",
        broken_kernel_table,
        "kernels cannot be examined: RuntimeError: a f",
        "report it",
        True,
    ),
    "misspelled variable": (
        "settings",
        misspelled_variable,
        "HEADWAY_CACH is set",
        "mean HEADWAY_CACHE",
        False,
    ),
    "no data": ("settings", data_that_is_gone, "HEADWAY_DATA is .*gone, which is not a folder", "unset it", False),
    "cache below a file": ("files", cache_below_a_file, "cache of headway.*file is a file", "set HEADWAY_CACHE", True),
    "read-only cache": ("files", cache_that_is_read_only, "hub, .*Read-only file system", "set HF_HOME", True),
    "wrong here": (
        "tables",
        table_of_a_wrong_kernel,
        "kernel cpu is wrong on cpu: plain, float32, forward: off",
        "",
        True,
    ),
    "old table": ("tables", table_of_another_torch, "since its torch is 1.0, and here it is", "headway tune", False),
    "no font": ("fonts", no_font, "no font of this machine has CJK letters", install_command("plot"), False),
}
"""The check that must find a fault, how it is made, what is said, the remedy, and whether it counts as broken."""


def test_every_check_has_a_fault() -> None:
    assert {check for check, *_ in FAULTS.values()} == set(CHECKS)


@pytest.mark.one_in(1)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault: str, monkeypatch: Patch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check, make, what, remedy, broken = FAULTS[fault]
    make(monkeypatch, tmp_path)
    for other in set(CHECKS) - {check}:
        monkeypatch.setitem(CHECKS, other, lambda: Section())
    found = [one for one in examine().faults if re.search(what, one.what)]
    assert found, examine().faults
    assert all(remedy in one.remedy and one.broken == broken for one in found)
    assert "\n" not in found[0].what + found[0].remedy
    assert main(["doctor"]) == int(broken)
    said = capsys.readouterr().out
    assert found[0].what in said
    assert found[0].remedy in said
    assert ("Something is broken" in said) == broken


def test_without_the_command_lines_packages_it_runs(monkeypatch: Patch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(__import__("sys").modules, "typer", None)
    no_typer(monkeypatch, Path())
    assert main(["doctor"]) == 0
    assert install_command("study") in capsys.readouterr().out
    assert main(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["versions"]["typer"] == "missing"
    assert main(["encodings"]) == 2
    assert capsys.readouterr().err == f"headway needs typer for its command line: {install_command('study')}\n"


@pytest.mark.parametrize("module", ["gensim", "rich", "safetensors"])
def test_a_command_without_its_package_says_how_to_install_it(
    module: str, monkeypatch: Patch, capsys: pytest.CaptureFixture[str]
) -> None:
    import typer

    def missing(*_: Any, **__: Any) -> Any:
        raise ModuleNotFoundError(f"No module named '{module}'", name=module)

    monkeypatch.setattr(typer.main, "get_command", lambda app: SimpleNamespace(main=missing))
    assert main(["encodings"]) == 2
    package = PACKAGES[module]
    assert capsys.readouterr().err == f"headway needs {package.name} for this: {install_command(package.extra)}\n"


def test_the_table_has_every_variable_that_headway_reads() -> None:
    root = SOURCE.parents[1]
    files = [*SOURCE.rglob("*.py"), *(root / "examples").rglob("*.py"), *(root / "tests" / "weights").rglob("*.py")]
    name = re.compile(r"(?<!_)HEADWAY_[A-Z]+(?:_[A-Z]+)*")  # not _HEADWAY_COMPLETE, which is typer's
    read = {found for file in files for found in name.findall(file.read_text(encoding="utf-8"))}
    assert set(VARIABLES) == read


def test_models_in_the_caches_are_listed(tmp_path: Path, monkeypatch: Patch) -> None:
    (tmp_path / "hub" / "models--owner--name").mkdir(parents=True)
    (tmp_path / "weights" / "minilm").mkdir(parents=True)
    (tmp_path / "weights" / "minilm" / "headway.json").write_text("{}")
    monkeypatch.setenv("HEADWAY_WEIGHTS", str(tmp_path / "weights"))
    facts = CHECKS["files"]().facts
    assert facts["models there"] == ["owner/name"]
    assert facts["weights there"] == ["minilm"]


@pytest.mark.parametrize(
    ("older", "newer"), [("2.9", "2.11"), ("2.11.0.dev1", "2.12"), ("2.13.0+cpu", "2.13.1"), ("5.23.0rc1", "5.24")]
)
def test_versions_are_compared_by_their_numbers(older: str, newer: str) -> None:
    assert _diagnosis._numbers(older) < _diagnosis._numbers(newer)
