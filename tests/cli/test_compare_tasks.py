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


def test_two_machines_share_the_trainings_and_one_report(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    command = [
        "compare",
        "--tasks",
        "parity",
        "--encodings",
        "rope,none",
        "--steps",
        "2",
        "--seeds",
        "1",
        "--jobs",
        "1",
    ]
    for number in (1, 2):
        assert main([*command, "--share", f"{number}/2", "--out", str(tmp_path / f"{number}")]) == 0
    folders = f"{tmp_path / '1'},{tmp_path / '2'}"
    capsys.readouterr()
    assert main(["compare", "--merge", folders, "--out", str(tmp_path / "both"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["encoding"] for row in found["rows"]] == ["rope"] * 4 + ["none"] * 4
    assert (tmp_path / "both" / "suite.html").exists()
    before = (tmp_path / "both" / "results.jsonl").read_text()
    assert main([*command, "--out", str(tmp_path / "both")]) == 0
    assert (tmp_path / "both" / "results.jsonl").read_text() == before, "nothing is left to train"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--tasks", "copi"], "did you mean 'copy'"),
        (["--tasks", "copy", "--suite", "quick"], "are both given"),
        (["--suite", "long"], "no suite 'long'"),
        (["--tasks", "copy", "--minutes", "3"], "--minutes does not go with --tasks and --suite"),
        (["book.txt", "--tasks", "copy"], "a corpus does not go with --tasks and --suite"),
        (["--tasks", "copy", "--jobs", "0"], "jobs is 0"),
        (["--jobs", "0"], "jobs is 0"),
        (["--tasks", "none.py:Mine"], "none.py is not a file"),
        (["--tasks", "copy", "--share", "half"], "--share is 'half'"),
        (["--tasks", "copy", "--share", "3/2"], "share is 3 of 2"),
        (["--share", "1/2"], "with share machines may differ: give --baselines none"),
        (["--share", "1/2", "--minutes", "3"], "share uses others: give steps"),
        (
            ["--share", "9/9", "--seeds", "1", "--baselines", "none"],
            "share 9 of 9 is empty, since there are 6 trainings",
        ),
        (["--merge", "a,b"], "a has no comparison"),
        (["--merge", "a"], "nothing to merge in 1 folder"),
        (["--merge", "a,b", "--seeds", "3"], "--seeds does not go with --merge"),
    ],
)
def test_wrong_input_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], said: str
) -> None:
    assert main(["compare", *arguments, "--out", str(tmp_path / "out")]) == 2
    errors = capsys.readouterr().err
    assert said in errors
    assert errors.count("\n") == 1
