"""The errors of readers of files, which name the line."""

from __future__ import annotations

from pathlib import Path

from ...errors import HeadwayError


def broken(path: Path, number: int, said: str) -> HeadwayError:
    """The error of a line, which names file and line."""
    return HeadwayError(f"{path}, line {number}: {said}")
