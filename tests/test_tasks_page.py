"""The tables of docs/tasks.md are those of the measured rows, and a verdict needs seeds."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from headway.study.suite import SUITES, SuiteResults

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        yield importlib.import_module("suite")
    for name in ("suite", "page", "first_picture"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_page_says_what_was_measured(script: ModuleType, language: str) -> None:
    text = script.PAGES[language].read_text(encoding="utf-8")
    assert script.page(text, language) == text, "run python benchmarks/suite.py --minutes 0"


def test_statements_are_of_the_suite(script: ModuleType) -> None:
    for statement in script.STATEMENTS:
        for task, encoding in (cell for pair in statement.pairs for cell in pair):
            assert task in SUITES["paper"].tasks
            assert encoding in SUITES["paper"].encodings


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_first_picture_is_that_of_the_rows(script: ModuleType, language: str) -> None:
    picture = importlib.import_module("first_picture")
    figure = picture.draw(language)
    left, right = figure.axes
    assert len(figure.legends[0].get_texts()) == len(picture.ENCODINGS) == 6
    found = script.load()
    scores = [found.score(picture.TASK, name, found.times[-1]) for name in picture.ENCODINGS]
    drawn = [line.get_ydata()[-1] for line in left.lines if line.get_color() in picture.COLOURS]
    assert drawn == [100 * score.mean for score in scores]
    assert len([line for line in right.lines if line.get_color() in picture.COLOURS]) == 5


def of(scores: dict[str, list[float]]) -> SuiteResults:
    """Models that learned indirect indexing, with these scores at twice the length by seed."""
    rows = [
        {"task": "indirect-indexing", "encoding": name, "seed": seed, "times": times, "exact": exact, "learned": True}
        for name, values in scores.items()
        for seed, value in enumerate(values)
        for times, exact in ((1, 1.0), (2, value))
    ]
    return SuiteResults(rows, {"times": [1, 2]}, list(scores))


@pytest.mark.parametrize(
    ("pope", "rope", "verdict"),
    [
        ([], [], "not measured yet"),
        ([0.9], [0.1], "not separated"),
        ([0.9, 0.8, 0.85], [0.1, 0.1, 0.1], "agree"),
        ([0.1, 0.1, 0.1], [0.9, 0.8, 0.85], "differ"),
        ([0.9, 0.1, 0.5], [0.1, 0.05, 0.4], "not separated"),
    ],
)
def test_verdicts(script: ModuleType, pope: list[float], rope: list[float], verdict: str) -> None:
    statement = next(one for one in script.STATEMENTS if one.text.startswith("PoPE"))
    assert script.judged(statement, of({"pope": pope, "rope": rope}))[1] == verdict
