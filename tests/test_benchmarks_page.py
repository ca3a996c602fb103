"""The tables of BENCHMARKS.md are those of the measured rows."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        yield importlib.import_module("page")
    del sys.modules["page"]


def test_the_page_says_what_was_measured(script: ModuleType) -> None:
    text = script.PAGE.read_text(encoding="utf-8")
    assert script.page(text) == text, "run python benchmarks/page.py"
    for line in (*script.FASTER, *script.SLOWER):
        assert line.what in text
        assert line.ratio(script.rows(), "float32") != "–"


def test_a_number_that_no_row_has_is_replaced(script: ModuleType) -> None:
    text = script.PAGE.read_text(encoding="utf-8")
    assert "1.41×" in text
    assert script.page(text.replace("1.41×", "4.11×")) == text
