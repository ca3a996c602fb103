"""The folder of a benchmark, with a row for each measured case."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from .._common.kinds import Kind, fits
from .._common.lines import read_lines
from .._common.store import ResultStore
from .._common.store import Row as Row
from .cases import AnyCase, Case
from .sides import OURS


def _positive(value: Any) -> bool:
    """Whether a value is a number above 0."""
    return fits(value, float) and value > 0


TYPES: dict[Any, Kind] = {"str": str, "int": int}
"""What the annotations of a case mean."""
ROW: Kind = {
    "where": {"processor": str, "isa": str, "threads": int, "torch": str, "headway": str},
    "date": str,
    "extra_bytes": (float, ...),
    "bytes": ({str: float}, ...),
    "kernel": (str, ...),
    "seconds": (float, ...),
    "roof_gflops": (_positive, ...),
    "ms": ({OURS: _positive, str: _positive}, ...),
    "says": ({str: str}, ...),
}
"""What is read of a row."""


TIMED: Kind = {"kernel": str, "ms": dict, "says": dict}
SIZED: Kind = {"kernel": (str, ...), "extra_bytes": (float, ...), "bytes": (dict, ...)}
"""The further fields of a row of attention, by the kind of measurement."""


class CaseStore(ResultStore):
    """The rows in a folder, which one benchmark at a time writes to.

        with CaseStore(out, where()) as rows:
            rows.add([rows.row(case, numbers, date)])

    ``where`` has the machine and versions, as ``machine.where`` returns them. If ``fresh``, rows with the same
    ``where`` are dropped so that they are measured again. Each ``kind`` of cases has its own file.

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
        """Returns whether the ``case`` is there and was measured for at least this many ``seconds``."""
        return any(row["case"] == case.fields() and row.get("seconds", seconds) >= seconds for row in self.here)

    def row(self, case: AnyCase, numbers: Row, date: str) -> Row:
        """Returns the row of a ``case``: the ``numbers`` that were measured here, on the day ``date``."""
        return {"case": case.fields(), "where": self.where, "date": date, **numbers}


def read(path: Path, kind: type[AnyCase] = Case) -> list[Row]:
    """Reads the rows of a file, which may be missing, except for a last line that was cut off.

    Raises:
        HeadwayError: if a line is damaged.
    """

    def parsed(row: Row) -> Row:
        if not fits(row, ROW):
            raise ValueError("a row of another kind")
        case: Any = kind(**row["case"])
        if not all(fits(getattr(case, field.name), TYPES[field.type]) for field in fields(case)):
            raise ValueError("a case of another kind")
        if kind is not Case and "transformers" not in row["where"]:
            raise ValueError("a row of a model without the version of transformers")
        if kind is Case and not fits(row, SIZED if "memory" in case.kind else TIMED):
            raise ValueError("a row without what was measured")
        return row

    return read_lines(path, "delete that line to measure it again", parsed)
