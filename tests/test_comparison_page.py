"""The tables of docs/comparison.md are those of the measured rows."""

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
        yield importlib.import_module("comparison")
    del sys.modules["comparison"], sys.modules["page"]


def test_the_page_says_what_was_measured(script: ModuleType) -> None:
    text = script.PAGE.read_text(encoding="utf-8")
    assert script.page(text) == text, "run python benchmarks/comparison.py"


def test_a_number_that_no_row_has_is_replaced(script: ModuleType) -> None:
    text = script.PAGE.read_text(encoding="utf-8")
    assert script.page(text.replace("2.483 ± 0.043", "1.483 ± 0.043")) == text


def test_every_row_is_there(script: ModuleType) -> None:
    for name in script.TEXTS:
        results = script.ComparisonResults.load(ROOT / "benchmarks" / "results" / f"comparison-{name}")
        found = {(row["encoding"].partition("(extend")[0], row["seed"]) for row in results.rows}
        encodings = {*script.SETTINGS["encodings"], "lstm (equal parameters)", "lstm (equal time)"}
        assert found == {(name, seed) for name in encodings for seed in range(script.SETTINGS["seeds"])}
