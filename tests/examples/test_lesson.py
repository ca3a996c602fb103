"""What all lessons share: the command line refuses before any work, tables stand in line in Chinese too."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import claims.__main__
import lesson
import lesson_1_weighted_lookup
import lesson_7_many_heads
from headway._common.language import of_environment


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
        lesson.run("lesson_1_weighted_lookup", ["--out", str(tmp_path / "a.png")])


def test_docs_are_written_only_if_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the current folder by default, in --out if given; with --docs in both languages, and nowhere else."""
    monkeypatch.setattr(lesson, "DOCS", tmp_path / "docs")
    monkeypatch.chdir(tmp_path)
    for folder in lesson.LANGUAGES.values():
        (tmp_path / "docs" / folder).mkdir(parents=True)

    def drawn(*words: str) -> list[str]:
        lesson.run("lesson_1_weighted_lookup", [*words])
        found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.png"))
        for path in found:
            (tmp_path / path).unlink()
        return found

    assert drawn() == ["lesson-1.png"]
    assert drawn("--out", "mine.png", "--language", "zh") == ["mine.png"]
    assert drawn("--docs") == ["docs/lessons/1-weighted-lookup.png", "docs/zh-CN/lessons/1-weighted-lookup.png"]


def test_the_environment_decides_the_language(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    assert of_environment() == "en"
    monkeypatch.setenv("LANG", "zh_CN.UTF-8")
    lesson.run("lesson_1_weighted_lookup", [])
    assert "对应的体重是多少" in capsys.readouterr().out
    lesson.run("lesson_1_weighted_lookup", ["--language", "en"])
    assert "What is the weight" in capsys.readouterr().out
    monkeypatch.setenv("LC_ALL", "C")
    assert of_environment() == "en"


def test_a_lesson_may_draw_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = lesson_1_weighted_lookup.draw
    monkeypatch.setattr(lesson_1_weighted_lookup, "draw", lambda *given: {"": one(*given), "more": one(*given)})
    monkeypatch.chdir(tmp_path)
    lesson.run("lesson_1_weighted_lookup", [])
    lesson.run("lesson_1_weighted_lookup", ["--out", "mine.png"])
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "lesson-1-more.png",
        "lesson-1.png",
        "mine-more.png",
        "mine.png",
    ]


def test_a_notebook_shows_what_a_script_prints_and_draws(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[bytes] = []
    ipython = SimpleNamespace(display=shown.append, Image=lambda picture, width: picture)
    monkeypatch.setitem(sys.modules, "IPython.display", ipython)
    one = lesson_1_weighted_lookup.draw
    monkeypatch.setattr(lesson_1_weighted_lookup, "draw", lambda *given: {"": one(*given), "more": one(*given)})
    found = lesson.show("lesson_1_weighted_lookup", "zh")
    assert isinstance(found, lesson_1_weighted_lookup.Found)
    assert "对应的体重是多少" in capsys.readouterr().out
    assert [picture[:8] for picture in shown] == [b"\x89PNG\r\n\x1a\n"] * 2


def test_rows_of_a_training_are_stored_only_if_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lesson, "MEASURED", tmp_path)
    monkeypatch.chdir(tmp_path)
    rows = [{"seed": 0, "right": [0.5, 1.0]}, {"seed": 1, "right": [0.25, 1.0]}]
    name = lesson_1_weighted_lookup.__name__
    monkeypatch.setattr(lesson_1_weighted_lookup, "train", lambda: iter(rows), raising=False)
    lesson.run(name, [])
    assert not list(tmp_path.glob("*.jsonl"))
    lesson.run(name, ["--train"])
    assert lesson.measured(lesson_1_weighted_lookup.__file__) == rows


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--out", "nowhere/a.png"], "nowhere/a.png cannot be written: give a file in a folder that exists"),
        (["--out", "a.txt"], "--out a.txt: give a name that ends with .png"),
        (["--out", "a.png", "--docs"], "--docs and --out: give one of them"),
    ],
)
def test_a_wrong_place_is_refused(
    words: list[str], said: str, no_work: None, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        lesson.run("lesson_1_weighted_lookup", words)
    assert said in f"{stopped.value}{capsys.readouterr().err}"


def test_the_docs_never_get_a_poorer_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADWAY_WEIGHTS", str(tmp_path))
    monkeypatch.setattr(lesson_7_many_heads, "measure", lambda: pytest.fail("it measured first"))
    with pytest.raises(SystemExit):
        lesson.run("lesson_7_many_heads", ["--docs"])
    assert "--docs: without the weights minilm the picture would be poorer" in (said := capsys.readouterr().err)
    assert "make weights ARGS=minilm" in said


def test_the_page_of_claims_is_refused_if_something_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADWAY_WEIGHTS", str(tmp_path))
    monkeypatch.setattr(claims.__main__.subprocess, "run", lambda *a, **b: pytest.fail("it ran a lesson first"))
    with pytest.raises(SystemExit):
        claims.__main__.main(["--docs"])
    assert "--docs: without the weights minilm the page would have less" in capsys.readouterr().err


def test_a_chinese_letter_is_as_wide_as_two() -> None:
    assert lesson.table([["权重", 1.5], ["word", 10]], ["方法", "n"]) == "  方法    n\n  权重  1.5\n  word   10"


@pytest.mark.parametrize(
    ("page", "asks", "answers"),
    [("docs/lessons.md", "**Exercise.**", "Answer"), ("docs/zh-CN/lessons.md", "**练习。**", "答案")],
)
def test_each_lesson_ends_with_an_exercise_whose_answer_runs(page: str, asks: str, answers: str) -> None:
    """tests/test_docs_run.py runs the answers, as all code of the pages."""
    text = (lesson.DOCS.parent / page).read_text(encoding="utf-8")
    sections = re.split(r"^## (\d+)\. ", text, flags=re.M)[1:]
    numbers = [path.stem.split("_")[1] for path in lesson.DOCS.parent.glob("examples/lesson_*.py")]
    assert sections[::2] == sorted(numbers, key=int)
    for number, section in zip(sections[::2], sections[1::2], strict=True):
        exercise = section.partition(f"\n{asks} ")[2]
        summary, answer = f"<details><summary>{answers}</summary>\n\n", exercise.partition("<details>")[2]
        assert summary in exercise, number
        assert re.search(r"^```python\n.+?^```\n\n```text\n.+?^```\n\n</details>\s*\Z", answer, re.M | re.S), number
