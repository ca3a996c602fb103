"""The folder of a benchmark, with a row for each measured case."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import HeadwayError
from ..files import LockedFolder, atomic_write
from .cases import AnyCase, Case

Row = dict[str, Any]
"""The results of one case, with the machine and the date."""


class Rows(LockedFolder):
    """The rows in a folder, which one benchmark at a time writes to.

        with Rows(out, where()) as rows:
            rows.add(case, found, date)

    Args:
        out: the folder; it is created if needed.
        where: the machine and versions, as ``machine.where`` gives them.
        fresh: whether rows with the same ``where`` are dropped, to be measured again.
        kind: the class of the cases; each has its own file.

    Raises:
        HeadwayError: on entering, if the folder cannot be written to, is in use, or its file is damaged.
    """

    used_by = "benchmark"

    def __init__(
        self,
        out: str | Path,
        where: dict[str, Any],
        fresh: bool = False,
        kind: type[AnyCase] = Case,
    ) -> None:
        super().__init__(out)
        self.where, self.fresh, self.kind = where, fresh, kind
        self.all: list[Row] = []

    def _begin(self) -> None:
        self.all = [row for row in read(self.file, self.kind) if not (self.fresh and row["where"] == self.where)]

    @property
    def file(self) -> Path:
        """The file of the rows: a JSON object on each line."""
        return self.out / self.kind.file

    @property
    def here(self) -> list[Row]:
        """The rows of this machine with these versions."""
        return [row for row in self.all if row["where"] == self.where]

    def has(self, case: AnyCase, seconds: float) -> bool:
        """Returns whether the ``case`` is there, measured for at least so many ``seconds``."""
        return any(row["case"] == case.fields() and row.get("seconds", seconds) >= seconds for row in self.here)

    def add(self, case: AnyCase, found: Row, date: str) -> Row:
        """Writes a row of the ``case`` to disk, in place of an earlier one, and returns it.

        ``found`` are its results, and ``date`` is the day.
        """
        row = {"case": case.fields(), "where": self.where, "date": date, **found}
        before = [old for old in self.all if (old["case"], old["where"]) != (row["case"], row["where"])]
        self.all = [*before, row]
        with atomic_write(self.file) as part:
            part.write_text("".join(json.dumps(row) + "\n" for row in self.all))
        return row


def read(path: Path, kind: type[AnyCase] = Case) -> list[Row]:
    """Reads the rows of a file.

    Args:
        path: the file; it may be missing.
        kind: the class of the cases.

    Raises:
        HeadwayError: if a line is damaged.
    """
    if not path.exists():
        return []
    rows: list[Row] = []
    for number, line in enumerate(path.read_text(errors="replace").split("\n"), 1):
        if not line:
            continue
        try:
            row = json.loads(line)
            kind(**row["case"])
            rows.append({**row, "where": dict(row["where"]), "date": str(row["date"])})
        except (ValueError, KeyError, TypeError):
            raise HeadwayError(f"{path} line {number} is damaged: delete that line to measure it again") from None
    return rows
