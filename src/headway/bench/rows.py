"""The folder of a benchmark, with a row for each measured case."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..lines import read_lines
from ..store import ResultStore
from ..store import Row as Row
from .cases import AnyCase, Case


class Rows(ResultStore):
    """The rows in a folder, which one benchmark at a time writes to.

        with Rows(out, where()) as rows:
            rows.measured(case, found, date)

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
        super().__init__(out, kind.file, keys=("case", "where"))
        self.where, self.fresh, self.kind = where, fresh, kind

    def _begin(self) -> None:
        self.rows = read(self.file, self.kind)
        self.keep(lambda row: not (self.fresh and row["where"] == self.where))

    @property
    def here(self) -> list[Row]:
        """The rows of this machine with these versions."""
        return [row for row in self.rows if row["where"] == self.where]

    def has(self, case: AnyCase, seconds: float) -> bool:
        """Returns whether the ``case`` is there, measured for at least so many ``seconds``."""
        return any(row["case"] == case.fields() and row.get("seconds", seconds) >= seconds for row in self.here)

    def measured(self, case: AnyCase, found: Row, date: str) -> Row:
        """Writes a row of the ``case`` to disk, in place of an earlier one, and returns it.

        ``found`` are its results, and ``date`` is the day.
        """
        row = {"case": case.fields(), "where": self.where, "date": date, **found}
        self.add([row])
        return row


def read(path: Path, kind: type[AnyCase] = Case) -> list[Row]:
    """Reads the rows of a file, except for a last line that was cut off.

    Args:
        path: the file; it may be missing.
        kind: the class of the cases.

    Raises:
        HeadwayError: if a line is damaged.
    """

    def parsed(row: Row) -> Row:
        kind(**row["case"])
        return {**row, "where": dict(row["where"]), "date": str(row["date"])}

    return read_lines(path, "delete that line to measure it again", parsed)
