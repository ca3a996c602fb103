"""Stores rows of results in a folder; each is on the disk as soon as it is known."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from .files import LockedFolder
from .kinds import Kind, fits
from .lines import append_lines, read_lines, write_lines

__all__ = ["ResultStore", "Row", "read_rows"]

Row = dict[str, Any]
"""The results of one measurement: a line of a file of JSON objects."""


class ResultStore(LockedFolder):
    """A file of rows in a folder that one process at a time writes to, and that the next one continues.

        with ResultStore(out, "results.jsonl", keys=("method", "seed")) as store:
            store.add([{"method": "yarn", "seed": 0, "loss": 2.5}])

    A row is on the disk when ``add`` returns, and stays there if the process is killed later, at any moment.

    Args:
        out: the folder; it is created if needed.
        file: the name of the file.
        keys: the names of the fields that identify a row.
        kind: the kind of the rows; any that have the keys if None.

    Raises:
        HeadwayError: on entering, if the folder cannot be written to, is in use, or its file is damaged.
    """

    def __init__(
        self,
        out: str | Path,
        file: str,
        keys: Sequence[str],
        kind: Kind | None = None,
    ) -> None:
        super().__init__(out)
        self._kind = kind
        self.file, self.keys = self.out / file, tuple(keys)
        self.rows: list[Row] = []
        self._stale = False

    def _begin(self) -> None:
        self.rows = read_rows(self.file, self.keys, self._kind)

    def add(self, rows: Iterable[Row]) -> None:
        """Writes ``rows`` to the disk, in place of those with the same keys."""
        rows = list(rows)
        new = {_key(row, self.keys) for row in rows}
        kept = [row for row in self.rows if _key(row, self.keys) not in new]
        if self._stale or len(kept) < len(self.rows):
            write_lines(self.file, [*kept, *rows])
        else:
            append_lines(self.file, rows)
        self.rows, self._stale = [*kept, *rows], False

    def keep(self, wanted: Callable[[Row], bool]) -> None:
        """Forgets the rows that are not ``wanted``; they leave the disk when the next one is added."""
        kept = [row for row in self.rows if wanted(row)]
        self._stale |= len(kept) < len(self.rows)
        self.rows = kept


def read_rows(path: Path, keys: Sequence[str], kind: Kind | None = None) -> list[Row]:
    """Reads the rows of a file, except for a last line that was cut off; of rows with the same keys, the last.

    Args:
        path: the file; it may be missing.
        keys: the names of the fields that identify a row.
        kind: the kind of the rows; any that have the keys if None.

    Raises:
        HeadwayError: if a line is damaged, lacks a key or is of another kind; the message names it.
    """

    def checked(line: Row) -> Row:
        for name in keys:
            line[name]  # the KeyError of a line without it
        if kind is not None and not fits(line, kind):
            raise ValueError("a row of another kind")
        return line

    rows = read_lines(path, "delete that line to measure it again", checked)
    return [*{_key(row, keys): row for row in rows}.values()]


def _key(row: Row, keys: Sequence[str]) -> str:
    return json.dumps([row[name] for name in keys], sort_keys=True)
