"""What a long command needs at its end is checked at its beginning, and a report that fails keeps the results."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from headway import HeadwayError, cli, study
from headway._common.experiment import write_report

LONG = {
    "compare": ["compare", "text.txt", "--out", "out"],
    "extend": ["extend", "model", "--text", "text.txt", "--out", "out"],
    "bench": ["bench", "--out", "out"],
    "vectors compare": ["vectors", "compare", "text.txt", "--out", "out"],
    "inspect": ["inspect", "model", "text.txt", "--out", "out"],
}
"""The commands that measure for minutes, and draw or fill in a report at the end."""
WORK = {
    "headway.study.corpora": "load",
    "headway.checkpoints": "load",
    "headway.bench.run": "CaseStore",
    "headway.study.word_vectors": "read",
}
"""What they begin with."""


@pytest.fixture
def at_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a text, in which no work may begin."""

    def begun(*_: Any, **__: Any) -> None:
        raise AssertionError("the work began")

    for module, name in WORK.items():
        monkeypatch.setattr(importlib.import_module(module), name, begun)
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("one two three\n" * 40)


@pytest.mark.parametrize(
    ("command", "package"),
    [(command, "matplotlib") for command in LONG] + [(command, "jinja2") for command in LONG if command != "inspect"],
)
def test_a_missing_package_is_told_before_the_work(
    command: str, package: str, at_work: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [one for one in sys.modules if one.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    assert cli.main(LONG[command]) == 2
    said = capsys.readouterr().err
    assert f"needs {package}: " in said
    assert "install" in said


def test_no_report_needs_no_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Results that stay in memory have no report, which is not made either."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    found = study.compare(**_small(tmp_path))
    assert found.rows


def test_a_report_that_fails_keeps_the_results(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr("headway.study.report.page", lambda results: 1 / 0)
        with pytest.raises(HeadwayError, match=r"not written \(ZeroDivisionError: .*results are in .*results.jsonl"):
            study.compare(**_small(tmp_path), out=out)
    rows = (out / "results.jsonl").read_text()
    monkeypatch.setattr("headway.study.comparison.outcome", None)  # which trains
    found = study.compare(**_small(tmp_path), out=out)
    assert (out / "report.html").exists()
    assert (out / "results.jsonl").read_text() == rows
    assert len(found.rows) == len(rows.splitlines())


def test_errors_of_reports_say_where_the_results_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said = r"\(out is full: delete something\); the results are in out/rows.jsonl"

    def fails(error: BaseException) -> None:
        def make() -> str:
            raise error

        write_report({"report.md": make}, "out", "rows.jsonl")

    monkeypatch.chdir(tmp_path)
    with pytest.raises(HeadwayError, match=said):
        fails(HeadwayError("out is full: delete something"))
    with pytest.raises(KeyboardInterrupt):
        fails(KeyboardInterrupt())


def _small(folder: Path) -> dict[str, Any]:
    text = folder / "text.txt"
    text.write_text("".join(f"line {number} of a text that is long enough\n" for number in range(300)))
    sizes = {"train_length": 16, "lengths": [16], "layers": 1, "width": 16, "heads": 2, "batch": 2}
    return {"corpus": text, "encodings": ["none"], "baselines": [], "seeds": 1, "steps": 2, "recall_steps": 0, **sizes}
