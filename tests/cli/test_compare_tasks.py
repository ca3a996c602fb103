"""``headway compare`` on tasks of symbols."""

import json
from pathlib import Path

import pytest

from headway.cli import main
from headway.study.tasks import SEQUENCE_TASKS


def test_the_table_of_tasks_has_an_example_of_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--tasks", "help"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in SEQUENCE_TASKS)
    assert "0 1 1 0 = → even" in printed
    assert main(["compare", "--tasks", "help", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["task"] for row in rows] == list(SEQUENCE_TASKS)
    assert all(0 <= row["chance"] <= row["order_free"] <= 1 and row["example"] and row["source"] for row in rows)


def test_it_prints_scores_and_three_sentences_and_resumes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    command = ["compare", "--tasks", "parity", "--encodings", "rope", "--steps", "2", "--seeds", "1", "--jobs", "1"]
    out = tmp_path / "out"
    assert main([*command, "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "At the trained length no model learned a task within the budget." in printed
    assert "0 of 1" in printed
    assert (out / "suite.html").read_text().count("<details>") >= 3
    rows = (out / "results.jsonl").read_text()
    assert main([*command, "--out", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["times"] for row in found["rows"]] == [1, 2, 4, 8]
    assert len(found["notes"]) > 3
    assert (out / "results.jsonl").read_text() == rows


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--tasks", "copi"], "did you mean 'copy'"),
        (["--tasks", "copy", "--suite", "quick"], "are both given"),
        (["--suite", "long"], "no suite 'long'"),
        (["--tasks", "copy", "--minutes", "3"], "--minutes belongs to the comparison on a text"),
        (["book.txt", "--tasks", "copy"], "corpus belongs to the comparison on a text"),
        (["--tasks", "copy", "--jobs", "0"], "jobs is 0"),
        (["--jobs", "2"], "--jobs is given without --tasks or --suite"),
        (["--tasks", "none.py:Mine"], "none.py is not a file"),
    ],
)
def test_wrong_input_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], said: str
) -> None:
    out = [] if arguments == ["--jobs", "2"] else ["--out", str(tmp_path / "out")]
    assert main(["compare", *arguments, *out]) == 2
    errors = capsys.readouterr().err
    assert said in errors
    assert errors.count("\n") == 1
