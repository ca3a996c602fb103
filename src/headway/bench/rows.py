"""The folder of a benchmark: one row for each case measured, on disk as soon as it is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import HeadwayError
from ..files import LockedFolder, atomic_write
from .cases import AnyCase, Case

Row = dict[str, Any]
"""What was found for one case, where and when."""


class Rows(LockedFolder):
    """The rows in a folder, which one benchmark at a time writes to, and those among them that were found ``where``.

    with Rows(out, where()) as rows:
        rows.add(case, found, date)

    kind   what its cases are; each kind has a file of its own
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
        """One JSON object on each line."""
        return self.out / self.kind.file

    @property
    def here(self) -> list[Row]:
        """The rows of this processor, with these versions."""
        return [row for row in self.all if row["where"] == self.where]

    def has(self, case: AnyCase, seconds: float) -> bool:
        """Whether the case is there, measured for as long."""
        return any(row["case"] == case.fields() and row.get("seconds", seconds) >= seconds for row in self.here)

    def add(self, case: AnyCase, found: Row, date: str) -> Row:
        """Puts a row in place of an earlier one of the same case, on disk before it returns."""
        row = {"case": case.fields(), "where": self.where, "date": date, **found}
        before = [old for old in self.all if (old["case"], old["where"]) != (row["case"], row["where"])]
        self.all = [*before, row]
        with atomic_write(self.file) as part:
            part.write_text("".join(json.dumps(row) + "\n" for row in self.all))
        return row


def read(path: Path, kind: type[AnyCase] = Case) -> list[Row]:
    """The rows of a file. Raises HeadwayError for a line that is none."""
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
            raise HeadwayError(f"{path} line {number} is damaged: delete that line to measure it anew") from None
    return rows
