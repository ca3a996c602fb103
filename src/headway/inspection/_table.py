"""Rows of numbers, and how they are written to files."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

from .._common import notebook
from .._common.files import write_text


class DataTable(list[dict[str, Any]]):
    """Rows as plain dictionaries that share their keys, as ``pandas.DataFrame`` and ``json`` take them."""

    def csv(self, path: str | Path) -> None:
        """Writes the rows to a CSV file, with a first line of names. NaN becomes an empty cell."""
        names = list(dict.fromkeys(name for row in self for name in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, names)
        writer.writeheader()
        writer.writerows(map(_without_nan, self))
        write_text(Path(path), text.getvalue())

    def json(self, path: str | Path) -> None:
        """Writes the rows to a JSON file, as a list of objects. NaN becomes null."""
        text = json.dumps(list(map(_without_nan, self)), indent=1, ensure_ascii=False, allow_nan=False)
        write_text(Path(path), text + "\n")

    def _repr_html_(self) -> str:
        names = list(dict.fromkeys(name for row in self for name in row))
        return notebook.table([[row.get(name, "") for name in names] for row in self], names)

    def __str__(self) -> str:
        names = list(dict.fromkeys(name for row in self for name in row))
        lines = [names, *[[_said(row.get(name)) for name in names] for row in self]]
        widths = [max(len(line[i]) for line in lines) for i in range(len(names))]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
        )


def _without_nan(row: dict[str, Any]) -> dict[str, Any]:
    return {name: None if isinstance(x, float) and not math.isfinite(x) else x for name, x in row.items()}


def _said(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
