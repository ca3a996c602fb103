"""Lessons run as a reader runs them: a script alone, in a process of its own."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import forked

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from claims import SUBJECTS, numbers

EXAMPLES = Path(__file__).parents[2] / "examples"
PNG = b"\x89PNG\r\n\x1a\n"

LOOK = """
import runpy, sys
sys.path[:0] = sys.argv[2:4]
import lesson, looks
png = lesson._png
def checked(figure):
    assert not (found := looks.faults(figure)), found
    return png(figure)
lesson._png = checked
sys.argv[:] = sys.argv[1:2] + sys.argv[4:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs a script with looks.faults for every picture that it draws."""

Learn = Callable[..., Any]
"""learn("lesson_1_weighted_lookup", *options) → the numbers it found, as they stand in its JSON."""


@pytest.fixture
def learn(tmp_path: Path) -> Learn:
    """Runs a lesson, which must print, draw and support its claims' verdicts; returns its numbers."""

    def learn(name: str, *options: str) -> Any:
        found = tmp_path / "found.json"
        script = [str(EXAMPLES / f"{name}.py"), str(EXAMPLES), str(EXAMPLES.parent / "tests")]
        done = forked.python("-c", LOOK, *script, "--found", str(found), *options, cwd=tmp_path)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        assert not done.stderr, done.stderr
        picture = f"lesson-{name.split('_')[1]}.png"
        assert (tmp_path / picture).read_bytes().startswith(PNG)
        assert picture in done.stdout
        figures = json.loads(found.read_text(encoding="utf-8"))
        for claim in [claim for _, group in SUBJECTS for claim in group if claim.lesson == name]:
            if not claim.timed and not claim.lacks(numbers(figures)):
                claim.check(numbers(figures))
        return figures

    return learn
