"""What readers of files share: lines with their numbers, and errors that name them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ...errors import HeadwayError


def broken(path: Path, number: int, said: str) -> HeadwayError:
    """The error of a line, which names file and line."""
    return HeadwayError(f"{path}, line {number}: {said}")


def lines_of(path: Path, kind: str) -> Iterator[tuple[int, str]]:
    """Yields the lines of a text file in UTF-8 with their numbers, from 1 on, without their ends.

    Raises HeadwayError if the file cannot be read, or a line is not UTF-8.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise HeadwayError(f"{path} cannot be read ({error.strerror}): give a {kind} file") from error
    lines = raw.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    for number, line in enumerate(lines[:-1] if lines[-1] == b"" else lines, 1):
        try:
            yield number, line.decode("utf-8").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise broken(path, number, f"{error.reason} at byte {error.start}: give a {kind} file in UTF-8") from error
