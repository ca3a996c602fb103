"""Lessons run as a reader runs them: a script alone, in a process of its own."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from claims import SUBJECTS, numbers
from lesson import LANGUAGES, picture_name

EXAMPLES = Path(__file__).parents[2] / "examples"
PNG = b"\x89PNG\r\n\x1a\n"

Learn = Callable[..., Any]
"""learn("lesson_1_weighted_lookup", *options) → the numbers it found, as they stand in its JSON."""


@pytest.fixture
def learn(tmp_path: Path) -> Learn:
    """Runs a lesson, which must print, draw in both languages and support its claims' verdicts; returns its numbers."""

    def learn(name: str, *options: str) -> Any:
        found = tmp_path / "found.json"
        command = [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py")]
        done = subprocess.run(
            [*command, "--out", str(tmp_path / "docs"), "--found", str(found), *options],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        assert not done.stderr, done.stderr
        for folder in LANGUAGES.values():
            picture = f"{folder}/{picture_name(name)}.png"
            assert (tmp_path / "docs" / picture).read_bytes().startswith(PNG)
            assert picture in done.stdout
        figures = json.loads(found.read_text(encoding="utf-8"))
        for claim in [claim for _, group in SUBJECTS for claim in group if claim.lesson == name]:
            if not claim.timed and not claim.lacks(numbers(figures)):
                claim.check(numbers(figures))
        return figures

    return learn
