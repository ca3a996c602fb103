"""Files of JSON objects, one on each line, that grow while something runs and survive its end at any moment."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import HeadwayError
from ..files import atomic_write


def read_lines(path: Path, made_by: str) -> list[dict[str, Any]]:
    """The objects of a file; none if it is missing. A last line that was cut off is left out.

    Raises HeadwayError for any other line that is no JSON object; the message names it.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise HeadwayError(f"{path} cannot be read ({error.strerror}): give a file that {made_by} wrote") from None
    *lines, _ = text.split("\n")  # behind the last end of a line there is nothing, or what was cut off
    found = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise HeadwayError(f"{path} line {number} is damaged: give a file that {made_by} wrote, or delete it")
        found.append(row)
    return found


def append_line(path: Path, row: dict[str, Any]) -> None:
    """Adds a line to a file, in place of a last line that was cut off.

    Raises HeadwayError if the file cannot be written.
    """
    try:
        with path.open("a+b") as file:
            size = file.tell()
            if size:
                file.seek(size - 1)
                if file.read(1) != b"\n":
                    file.seek(0)
                    file.truncate(file.read().rfind(b"\n") + 1)
            file.write(_line(row).encode())
    except OSError as error:
        raise HeadwayError(
            f"{path} cannot be written ({error.strerror}): give a file in a folder that can be written to"
        ) from None


def write_lines(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Writes a file anew. Raises HeadwayError if it cannot be written."""
    with atomic_write(path) as part:
        part.write_text("".join(map(_line, rows)), encoding="utf-8")


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row, allow_nan=False, ensure_ascii=False) + "\n"
