"""What all lessons share: the command line refuses before any work, tables stand in line in Chinese too."""

import sys
from pathlib import Path

import pytest

import lesson
import lesson_1_weighted_lookup


@pytest.fixture
def no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lesson_1_weighted_lookup, "measure", lambda: pytest.fail("it measured first"))


def test_a_folder_that_is_not_there_is_refused(no_work: None, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        lesson.run("lesson_1_weighted_lookup", ["--found", "nowhere/found.json"])
    assert "--found nowhere/found.json: give a file in a folder that exists" in capsys.readouterr().err


def test_a_missing_package_is_named(no_work: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "zhplot", None)
    with pytest.raises(SystemExit, match=r"a lesson needs zhplot: .*pip install .*\[lessons\]'"):
        lesson.run("lesson_1_weighted_lookup", ["--out", str(tmp_path)])


def test_a_chinese_letter_is_as_wide_as_two() -> None:
    assert lesson.table([["权重", 1.5], ["word", 10]], ["方法", "n"]) == "  方法    n\n  权重  1.5\n  word   10"
