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


def of(task: str, scores: dict[str, list[float]], times: int) -> SuiteResults:
    """Models that learned a task, with these scores by seed at a multiple of the trained length, and 1 at the other."""
    rows = [
        {
            "task": task,
            "encoding": name,
            "seed": seed,
            "times": each,
            "exact": value if each == times else 1.0,
            "learned": True,
        }
        for name, values in scores.items()
        for seed, value in enumerate(values)
        for each in (1, 2)
    ]
    return SuiteResults(rows, {"times": [1, 2]}, list(scores))


@pytest.mark.parametrize(
    ("better", "worse", "verdict"),
    [
        ([], [], "not measured yet"),
        ([0.9], [0.1], "not separated"),
        ([0.9, 0.8, 0.85], [0.1, 0.1, 0.1], "agree"),
        ([0.1, 0.1, 0.1], [0.9, 0.8, 0.85], "differ"),
        ([0.9, 0.1, 0.5], [0.1, 0.05, 0.4], "not separated"),
    ],
)
@pytest.mark.parametrize(
    ("begins", "pair", "times"),
    [("PoPE", ("pope", "rope"), 1), ("CoPE", ("cope", "rope"), 2)],
    ids=["within", "beyond"],
)
def test_verdicts(
    script: ModuleType,
    begins: str,
    pair: tuple[str, str],
    times: int,
    better: list[float],
    worse: list[float],
    verdict: str,
) -> None:
    """What is said of the trained length is judged there, and the rest beyond it."""
    statement = next(one for one in script.STATEMENTS if one.text.startswith(begins))
    task = statement.pairs[0][0][0]
    scores = dict(zip(pair, (better, worse), strict=True))
    assert script.judged(statement, of(task, scores, times))[1] == verdict
    other = script.judged(statement, of(task, scores, 3 - times))[1]
    assert other == ("not separated" if better else verdict)


@pytest.mark.parametrize(
    ("signs", "verdict", "chinese"),
    [
        ([0, 0], "not separated", "分不开"),
        ([1, 1], "agree", "一致"),
        ([1, 0, 1], "agree in 2 of 3 pairs", "3 对中 2 对一致"),
        ([-1, 0], "differ in 1 of 2 pairs", "2 对中 1 对不一致"),
        ([1, -1, 0], "differ in part", "部分不一致"),
    ],
)
def test_verdicts_of_several_pairs(script: ModuleType, signs: list[int], verdict: str, chinese: str) -> None:
    assert script.verdict_of(signs) == verdict
    assert script.verdict_of(signs, "zh") == chinese
