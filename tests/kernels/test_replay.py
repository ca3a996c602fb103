"""Recorded calls of the CPU kernel's library are right outside Python too, here and on Arm; and wrong ones are seen."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import recorded_calls
import replay
import torch
from recorded_calls import Filled, Recording, record, recorded, recording

from headway.kernels.cpu import _library
from headway.kernels.cpu._descriptor import double_bits

pytestmark = pytest.mark.skipif(_library._load().c is None, reason="the library is not there")
FEW = 25
"""One of so many calls is recorded."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not shutil.which(replay.COMPILER):
        pytest.skip(f"no {replay.COMPILER}")
    return replay.program(tmp_path_factory.mktemp("replay"))


def repeat(built: Path, found: Recording, folder: Path) -> tuple[int, str]:
    """The exit status of the program, and what it says."""
    found.write(folder / "calls")
    done = replay.replay(built, _library.place(), folder / "calls")
    return done.returncode, done.stdout + done.stderr


def test_recorded_calls_are_right_with_every_instruction_set(built: Path, tmp_path: Path) -> None:
    found = record(FEW)
    status, said = repeat(built, found, tmp_path)
    assert status == 0, said
    for isa, line in zip(reversed(_library.isas()), said.splitlines(), strict=True):
        assert line.startswith(f"{isa}: {found.calls} of {found.calls} calls are right")


def test_terms_that_read_all_keys_and_calls_in_pieces_are_recorded(built: Path, tmp_path: Path) -> None:
    names = (
        "contextual positions",
        "gated path",
        "head network",
        "float32, cope",
        "float32, dape",
        "float32, grape-ap",
        "float32, stick-breaking",
        "float32, wall",
    )
    with recording() as found:
        for name, run in recorded():
            if any(one in name for one in names):
                found.name = name
                run()
    assert found.calls == 2 * (18 + 5 + 5)  # Wall attention over nine tokens is five calls
    status, said = repeat(built, found, tmp_path)
    assert status == 0, said


def test_a_wrong_result_is_seen(built: Path, tmp_path: Path) -> None:
    found = record(FEW)
    found.words[-1] = double_bits(1e3)  # the last right value of the last result of the last call
    status, said = repeat(built, found, tmp_path)
    assert status == 1
    assert f"portable: {found.name}: result " in said
    assert "right is 1000 ± " in said
    assert f"portable: {found.calls - 1} of {found.calls} calls are right" in said


def test_memory_that_holds_no_result_is_watched(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_attention = recorded_calls.of_attention

    def without_results(words: list[int]) -> tuple[list[tuple[int, torch.Tensor]], list[Filled]]:
        return of_attention(words)[0], []

    monkeypatch.setattr(recorded_calls, "of_attention", without_results)
    status, said = repeat(built, record(FEW), tmp_path)
    assert status == 1
    assert "writes memory that holds no result" in said


def test_a_call_that_the_library_refuses_is_seen(built: Path, tmp_path: Path) -> None:
    found = record(FEW)
    first = 1 + (found.words[0] + 7) // 8 + 2  # behind the name, the function and the number of words
    assert found.words[first] == _library.VERSION
    found.words[first] += 1
    status, said = repeat(built, found, tmp_path)
    assert status == 1
    assert ": returns 1\n" in said


def test_another_file_is_refused(built: Path, tmp_path: Path) -> None:
    (tmp_path / "calls").write_bytes(bytes(64))
    done = replay.replay(built, _library.place(), tmp_path / "calls")
    assert done.returncode == 2
    assert "holds no recorded calls" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("processor", replay.ARM_PROCESSORS)
def test_recorded_calls_are_right_on_arm(processor: str, tmp_path: Path) -> None:
    if missing := replay.missing_for_arm():
        pytest.skip(missing)
    found = record(FEW)
    found.write(tmp_path / "calls")
    done = replay.replay_on_arm(tmp_path, tmp_path / "calls", processor)
    assert done.returncode == 0, done.stdout + done.stderr
    for isa, line in zip(replay.ARM_PROCESSORS[processor], done.stdout.splitlines(), strict=True):
        assert line.startswith(f"{isa}: {found.calls} of {found.calls} calls are right")


def test_what_is_missing_for_arm_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(replay.shutil, "which", lambda tool: None if "g++" in tool else tool)
    assert replay.main("--arm") == 1
    said = "no aarch64-linux-gnu-g++: on Debian or Ubuntu, apt install g++-aarch64-linux-gnu\n"
    assert capsys.readouterr().err == said
