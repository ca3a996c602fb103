"""What a wheel must not have: versions of glibc that are too new, names that nobody calls, paths of the build."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headway.kernels.cpu import _library

ROOT = Path(__file__).parents[1]
NEWEST_GLIBC = (2, 27)
MOST_BYTES = 6_000_000

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="wheels for Linux promise a version of glibc"),
    pytest.mark.skipif(shutil.which("objdump") is None, reason="binutils, which come with compilers, are missing"),
    pytest.mark.skipif(_library.why_not() is not None, reason="the C++ library is not built"),
]


@pytest.fixture(scope="module")
def symbols() -> list[str]:
    """The dynamic symbols of the library, a line each."""
    command = ["objdump", "-T", str(_library.place())]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.splitlines()


def test_the_library_loads_with_an_old_glibc(symbols: list[str]) -> None:
    needed = {match[1] for line in symbols if (match := re.search(r"\(?GLIBC_([\d.]+)\)?", line))}
    assert needed, "the library calls libc"
    assert max(tuple(map(int, version.split("."))) for version in needed) <= NEWEST_GLIBC


def test_the_library_exports_its_interface_alone(symbols: list[str]) -> None:
    exported = {line.split()[-1] for line in symbols if " g " in line and "*UND*" not in line}
    assert exported
    assert all(name.startswith("hw_") for name in exported), exported


def test_the_library_has_no_path_and_is_small() -> None:
    content = _library.place().read_bytes()
    assert str(ROOT).encode() not in content
    assert len(content) <= MOST_BYTES


def test_the_readme_of_the_index_has_no_link_into_the_repository() -> None:
    tomllib = pytest.importorskip("tomllib")
    hooks = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["metadata"]["hooks"]
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for change in hooks["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(change["pattern"], change["replacement"], text)
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.S)
    assert re.findall(r"\]\((?!https?://)[^)]*\)", prose) == []
    assert "Attention with an encoding" in text
