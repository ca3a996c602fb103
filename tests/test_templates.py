"""Templates of reports: every one is filled in, and nothing that is inserted into HTML is read as HTML."""

from pathlib import Path

import pytest

import headway._common.templates
from headway._common.table import Table
from headway._common.templates import render

FOLDER = Path(headway._common.templates.__file__).parent


def test_what_is_inserted_into_html_is_escaped() -> None:
    assert "<script>" not in render("table.html", table=Table(["<script>"], [["<script>"]]))


def test_a_name_without_a_value_is_an_error() -> None:
    jinja2 = pytest.importorskip("jinja2")
    with pytest.raises(jinja2.UndefinedError):
        render("table.html")


@pytest.mark.parametrize("name", [path.name for path in FOLDER.iterdir() if path.suffix in (".html", ".md")])
def test_a_template_is_used(name: str) -> None:
    """A template that nothing renders is left over."""
    sources = FOLDER.parents[1].rglob("*.py")
    assert any(f'"{name}"' in path.read_text(encoding="utf-8") for path in sources)
