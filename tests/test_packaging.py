"""The check of what a wheel and an sdist contain finds what must not be in them; workflows call what there is."""

import importlib.util
import io
import re
import tarfile
import tempfile
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
import yaml

ROOT = Path(__file__).parents[1]
LIBRARY = "headway/kernels/cpu/_attention.so"
PURE, LINUX = "headway-1-py3-none-win_amd64.whl", "headway-1-py3-none-manylinux_2_28_x86_64.whl"


@pytest.fixture(scope="module")
def contents() -> ModuleType:
    spec = importlib.util.spec_from_file_location("contents", ROOT / "packaging" / "contents.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write(path: Path, files: dict[str, bytes]) -> None:
    """Writes a wheel or an sdist with these files."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path, "w") as wheel:
            for name, data in files.items():
                wheel.writestr(name, data)
        return
    with tarfile.open(path, "w:gz") as sdist:
        for name, data in files.items():
            member = tarfile.TarInfo(f"headway-1/{name}")
            member.size = len(data)
            sdist.addfile(member, io.BytesIO(data))


@pytest.mark.parametrize(
    ("name", "added", "removed", "fault"),
    [
        (PURE, {}, "", ""),
        (LINUX, {LIBRARY: b"\x7fELF"}, "", ""),
        ("headway-1.tar.gz", {"docs/install.md": b""}, "", ""),
        (LINUX, {}, "", "the library is missing"),
        (PURE, {LIBRARY: b"\x7fELF"}, "", f"{LIBRARY} is for one platform, and the file is for others"),
        (LINUX, {LIBRARY: f"\0{tempfile.gettempdir()}/x/call.h".encode()}, "", f"{LIBRARY} has a path of the build"),
        (LINUX, {LIBRARY: f"\0{ROOT}/call.h".encode()}, "", f"{LIBRARY} has a path of the build"),
        (PURE, {"headway/kernels/cpu/csrc/call.h": b""}, "", "headway/kernels/cpu/csrc/call.h must not be in it"),
        (PURE, {"headway/nn/README.md": b""}, "", "headway/nn/README.md must not be in it"),
        (PURE, {"tests/test_call.py": b""}, "", "tests/test_call.py must not be in it"),
        (PURE, {}, "headway/py.typed", "headway/py.typed is missing"),
        (PURE, {"headway/big.py": bytes(6_000_000)}, "", "it has 6,000,"),
        ("headway-1.tar.gz", {"tests/test_call.py": b""}, "", "tests/test_call.py must not be in it"),
        ("headway-1.tar.gz", {"docs/report.png": b""}, "", "docs/report.png must not be in it"),
        ("headway-1.tar.gz", {}, "CMakeLists.txt", "CMakeLists.txt is missing"),
    ],
)
def test_the_contents_of_a_file_are_checked(
    contents: ModuleType, tmp_path: Path, name: str, added: dict[str, bytes], removed: str, fault: str
) -> None:
    path = tmp_path / name
    files = {one: b"text" for one in contents.NEEDED[path.suffix] if one != removed} | added
    write(path, files)
    found = contents.contents(path)
    assert found == files
    wrong = contents.faults(path, found, ROOT)
    assert [one for one in wrong if not one.startswith(fault or "-")] == []
    assert len(wrong) == bool(fault)
    assert sum(int(number) for number in re.findall(r"^ +[\d,]+ +(\d+)  ", contents.table(found), re.M)) == len(files)


def test_a_wheel_may_have_every_file_of_the_package_but_sources_and_pages(contents: ModuleType) -> None:
    package = ROOT / "src" / "headway"
    files = [path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    allowed = re.compile(contents.WHEEL)
    left = {path for path in files if not allowed.fullmatch(path.relative_to(package.parent).as_posix())}
    assert left == {path for path in files if path.parent.name == "csrc" or path.name == "README.md"}


def test_a_folder_without_files_is_an_error(
    contents: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="has no wheel and no sdist"):
        contents.main(tmp_path)
    write(tmp_path / PURE, dict.fromkeys(contents.NEEDED[".whl"], b"text") | {"headway/.DS_Store": b""})
    with pytest.raises(SystemExit, match=rf"^{re.escape(PURE)}: headway/.DS_Store must not be in it$"):
        contents.main(tmp_path)
    assert f"{PURE}: " in capsys.readouterr().out


# ---------------------------------------------------------------- workflows


def steps() -> list[dict[str, object]]:
    """Returns every step of every workflow."""
    workflows = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in (ROOT / ".github/workflows").iterdir()]
    return [step for workflow in workflows for job in workflow["jobs"].values() for step in job["steps"]]


def test_workflows_pin_actions_by_commit_and_name_the_version() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / ".github/workflows").iterdir())
    used = [str(step["uses"]) for step in steps() if "uses" in step]
    assert used
    for action in used:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+(/[\w.-]+)*@[0-9a-f]{40}", action)
        assert re.search(rf"{re.escape(action)} # v\d+\.\d+\.\d+$", text, re.M)
    assert len(set(used)) == len({action.partition("@")[0] for action in used}), "one version of each action"


def test_workflows_call_what_there_is() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    lines = [line for step in steps() for line in str(step.get("run", "")).splitlines()]
    called = [name for line in lines for name in re.findall(r"\bmake ([a-z-]+)", line)]
    assert called
    assert set(called) <= targets
    files = [name for line in lines for name in re.findall(r"\b(?:packaging|tests|viewer)/[\w./-]+", line)]
    assert files
    assert [name for name in files if not (ROOT / name).exists()] == []
