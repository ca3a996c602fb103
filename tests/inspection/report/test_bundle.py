"""The viewer that reports carry is what its sources give, byte by byte."""

import shutil
import subprocess
from pathlib import Path

import pytest

import headway

VIEWER = Path(__file__).parents[3] / "viewer"
PACKAGE = Path(headway.__file__).parent / "inspection" / "report"

needs_node = pytest.mark.skipif(
    shutil.which("node") is None or not (VIEWER / "node_modules").is_dir(),
    reason="needs Node, and `npm ci` in viewer/",
)


def run(*command: str) -> None:
    done = subprocess.run(command, cwd=VIEWER, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_node
def test_the_bundle_is_that_of_its_sources(tmp_path: Path) -> None:
    run("node", "build.mjs", str(tmp_path))
    for name in ("viewer.js", "viewer.css"):
        assert (tmp_path / name).read_bytes() == (PACKAGE / name).read_bytes(), f"run `npm run build` in {VIEWER.name}/"


@needs_node
def test_its_types_are_right() -> None:
    run("node", "node_modules/typescript/bin/tsc", "--noEmit")


def test_it_is_small_and_has_its_licences() -> None:
    script = (PACKAGE / "viewer.js").read_text(encoding="utf-8")
    assert len(script.encode()) <= 100_000
    assert script.count("Permission is hereby granted") == 2  # preact and its signals
    assert "Permission to use, copy, modify" in script  # d3-array
    assert "</script" not in script.lower()
