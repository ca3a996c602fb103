"""Files with a JSON object on each line; they grow while something runs, and survive its end at any moment."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any

from ..errors import HeadwayError
from .files import write_text

__all__ = ["append_lines", "read_lines", "write_lines"]


MOST_DIGITS = 18
"""The most digits of a whole number."""


def read_lines(path: Path, remedy: str, parsed: Callable[[Any], dict[str, Any]] = dict) -> list[dict[str, Any]]:
    """Reads the objects of a file, except for a last line that was cut off.

    Args:
        path: the file; it may be missing.
        remedy: what the message about a damaged line advises.
        parsed: maps an object to what is returned for it. It raises ValueError, KeyError or TypeError for a wrong
            object and for None.

    Raises:
        HeadwayError: if the file cannot be read, or a line other than the last is wrong; the message names the line.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise HeadwayError(f"{path} cannot be read ({error.strerror}): {remedy}") from None
    *lines, last = text.split("\n")
    if _object(last) is not None:
        lines.append(last)
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            rows.append(parsed(_object(line)))
        except (ValueError, KeyError, TypeError):
            raise HeadwayError(f"{path} line {number} is damaged: {remedy}") from None
    return rows


def append_lines(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Adds lines to a file, and replaces a last line that was cut off; all are on the disk when it returns.

    If the process is killed meanwhile, all earlier lines stay, and the first ones of the new lines.

    Args:
        path: the file; it may be missing.
        rows: the objects.

    Raises:
        HeadwayError: if the file cannot be written.
    """
    new = "".join(map(_line, rows)).encode("utf-8", "backslashreplace")  # as write_text
    try:
        with path.open("a+b") as file:
            _end_line(file)
            file.write(new)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise HeadwayError(
            f"{path} cannot be written ({error.strerror}): give a file in a folder that can be written to"
        ) from None


def write_lines(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Rewrites a file; the complete new file replaces the old one in one step.

    Args:
        path: the file.
        rows: the objects.

    Raises:
        HeadwayError: if the file cannot be written.
    """
    new = "".join(map(_line, rows))
    write_text(path, new)


def _end_line(file: IO[bytes]) -> None:
    """Removes a last line that was cut off, and ends one that lacks only its line end."""
    size = file.tell()
    if not size:
        return
    file.seek(size - 1)
    if file.read(1) == b"\n":
        return
    file.seek(0)
    held = file.read()
    start = held.rfind(b"\n") + 1
    if _object(held[start:].decode(errors="replace")) is None:
        file.truncate(start)
    else:
        file.write(b"\n")


def _object(line: str) -> dict[str, Any] | None:
    """The object of a line; None if it has none, as when the line was cut off."""
    try:
        row = json.loads(line, parse_float=_finite, parse_int=_whole, parse_constant=_finite)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _finite(text: str) -> float:
    """A number as ``append_lines`` writes it: "1e999" is infinity."""
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is not finite")
    return number


def _whole(text: str) -> int:
    if len(text) > MOST_DIGITS:  # floats and counts are shorter
        raise ValueError(f"{text:.20}… is too long")
    return int(text)


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row, allow_nan=False, ensure_ascii=False) + "\n"
