"""The script of the reports that the documentation links, and those of them that are committed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import write_reports
from headway.inspection.report._page import asset

LARGEST = 300_000
"""The most bytes of a committed page."""


def told(page: Path) -> dict[str, Any]:
    found = re.search(r'<script id="headway-report" type="application/json">(.*?)</script>', page.read_text("utf-8"))
    assert found is not None
    return json.loads(found[1])


@pytest.mark.parametrize("name", ["planted-english", "planted-chinese"])
def test_the_committed_page_is_what_the_script_writes(name: str, tmp_path: Path) -> None:
    write_reports.REPORTS[name](tmp_path / "a.html", 0)
    committed, new = (told(page) for page in (write_reports.DOCS / f"{name}.html", tmp_path / "a.html"))
    assert (write_reports.DOCS / f"{name}.html").stat().st_size < LARGEST
    for key in ("format", "text", "words", "model", "n", "open"):
        assert committed[key] == new[key]
    assert [head["roles"] and head["roles"][0]["role"] for head in committed["heads"]] == [
        head["roles"] and head["roles"][0]["role"] for head in new["heads"]
    ]


@pytest.mark.parametrize("name", ["planted-english", "planted-chinese"])
def test_the_committed_page_has_the_viewer_of_now(name: str) -> None:
    page = (write_reports.DOCS / f"{name}.html").read_text("utf-8")
    script, style = asset("viewer.js").replace("</script", "<\\/script"), asset("viewer.css")
    assert f'<script type="module">\n{script}\n</script>' in page, "run write_reports.py with --docs"
    assert f"<style>\n{style}\n</style>" in page


def test_weights_that_are_not_here_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADWAY_WEIGHTS", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["write_reports.py", "minilm", "--out", str(tmp_path / "out")])
    assert write_reports.main() == 1
    assert capsys.readouterr().err == 'minilm: the weights of minilm are not here: make weights ARGS="minilm"\n'
