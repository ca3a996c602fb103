"""Tables of measured times, by which the faster of several ways to compute is chosen.

A table is a JSON file that `headway tune` writes on a machine, or one that the package has for some processors. It says
where it holds, which code it is of, which ways were verified, and how long each took. Reading it measures nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache, reduce
from itertools import groupby
from operator import and_
from pathlib import Path
from typing import Any, TypeAlias

from ..errors import HeadwayError
from .files import cache_folder, from_json, given_path, make_folder, write_text

__all__ = ["OFF", "Case", "Row", "Table", "checked", "copy", "file_of", "places", "read", "shipped", "write"]

FORMAT = 1
"""The version of the format of a table."""
SHIPPED = Path(__file__).parents[1] / "tuning" / "shipped"
VARIABLE, OFF = "HEADWAY_TUNED", "off"
"""The environment variable that names a table or a folder of tables, and its value with which none is read."""
MOST_BYTES, MOST_ROWS = 4 << 20, 2_000
"""The largest size of a table's file."""
LARGEST = 1e300

Case: TypeAlias = "tuple[tuple[str, str], ...]"
"""Properties of a computation, and their values."""
Times = Mapping[str, "tuple[float, float] | None"]
"""The shortest and the longest measured time of each way; None for a way that was not measured. Only times of one row
are compared, so that they may be in any unit."""


@dataclass(frozen=True, eq=False)
class Row:
    """Times that hold from some sizes on.

    Attributes:
        case: the computations that the row is about: the values of each property.
        sizes: the least size in each direction, above 0; 0 where none is given.
        times: the times of each way.
        said: how the reason is worded, if it is not by the times.
    """

    case: Mapping[str, frozenset[str]]
    sizes: Mapping[str, float]
    times: Times
    said: str = ""

    def holds(self, case: Mapping[str, str]) -> bool:
        """Returns whether a computation has the properties of this row."""
        return all(case.get(name) in values for name, values in self.case.items())

    def reaches(self, sizes: Mapping[str, float]) -> bool:
        """Returns whether a computation is at least as large in each direction."""
        return all(sizes.get(name, 0) >= least for name, least in self.sizes.items())


@dataclass(frozen=True, eq=False)
class Table:
    """What was verified and measured on a machine.

    Attributes:
        name: the name of its file.
        fits: the facts of a machine for which it holds: a value, or several.
        date: when it was measured.
        verified: for each way, the parts that were found right.
        failed: for each way, the parts that were found wrong, and how.
        rows: the times.
        about: the other contents of the file.
    """

    name: str
    fits: Mapping[str, Any]
    date: str
    verified: Mapping[str, frozenset[str]]
    failed: Mapping[str, Mapping[str, str]]
    rows: tuple[Row, ...]
    about: Mapping[str, Any] = field(default_factory=dict)

    def misfit(self, facts: Mapping[str, Any]) -> str:
        """Returns which fact of a machine differs from the table's; empty if none does."""
        for name, wanted in self.fits.items():
            values = wanted if isinstance(wanted, list) else [wanted]
            if facts.get(name) not in values:
                return f"its {name} is {', '.join(map(str, values))}, and here it is {facts.get(name)}"
        return ""

    def applying(self, way: str, case: Case, sizes: Mapping[str, float] | None) -> list[Row]:
        """Returns the rows that decide on a way: those that hold and that no other such row lies within.

        Args:
            way: the way, which the row has to name.
            case: the properties of the computation.
            sizes: its sizes; None for larger ones than any.
        """
        return list(_innermost(tuple(row for row in _of_case(self, way, case) if sizes is None or row.reaches(sizes))))


@lru_cache(maxsize=1024)
def _innermost(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """Returns the rows that do not contain another row, which would hold for a part of their computations.

    A set of rows is a whole number with a bit for each of them. A row then takes one operation for each size and
    property, and is not compared with every other row.
    """
    keys = [(frozenset(row.case.items()), frozenset(row.sizes.items())) for row in rows]
    alike = dict(zip(keys, rows, strict=True))
    sizes, properties = {name for row in rows for name in row.sizes}, {name for row in rows for name in row.case}
    inside = [_as_large([row.sizes.get(name, 0) for row in alike.values()]) for name in sizes]
    inside += [_contained([row.case.get(name) for row in alike.values()]) for name in properties]
    every = (1 << len(alike)) - 1
    inner = {
        key for number, key in enumerate(alike) if reduce(and_, (bits[number] for bits in inside), every) == 1 << number
    }
    return tuple(row for key, row in zip(keys, rows, strict=True) if key in inner)


def _as_large(sizes: list[float]) -> list[int]:
    """Returns for each size the bits of those that are as large."""
    found, larger = [0] * len(sizes), 0
    for _, group in groupby(sorted(range(len(sizes)), key=lambda one: -sizes[one]), key=sizes.__getitem__):
        equal = list(group)
        larger |= sum(1 << number for number in equal)
        for number in equal:
            found[number] = larger
    return found


def _contained(sets: list[frozenset[str] | None]) -> list[int]:
    """Returns for each set the bits of those that it contains; None contains all."""
    bits: dict[frozenset[str] | None, int] = {}
    for number, values in enumerate(sets):
        bits[values] = bits.get(values, 0) | 1 << number
    found = {
        values: sum(its for part, its in bits.items() if values is None or (part is not None and part <= values))
        for values in bits
    }
    return [found[values] for values in sets]


@lru_cache(maxsize=512)
def _of_case(table: Table, way: str, case: Case) -> tuple[Row, ...]:
    there = dict(case)
    return tuple(row for row in table.rows if way in row.times and row.holds(there))


# ---------------------------------------------------------------- files


def places() -> list[Path]:
    """Returns the files of tables that were measured here: those that HEADWAY_TUNED or else the cache folder has."""
    named = os.environ.get(VARIABLE)
    if named == OFF:
        return []
    try:
        folder = given_path(named) if named else cache_folder() / "tuned"
        files = sorted(folder.glob("*.json")) if folder.is_dir() else [folder]
        return [file for file in files if file.is_file()]
    except (HeadwayError, OSError):  # there is no cache, or it cannot be read
        return []


def file_of(name: str) -> Path:
    """Returns the file for the table of a device.

    Args:
        name: the name of the device.
    """
    named = os.environ.get(VARIABLE)
    folder = given_path(named) if named and named != OFF else cache_folder() / "tuned"
    if folder.suffix == ".json":
        return folder
    plain = "".join(letter if letter.isalnum() else "-" for letter in name.lower())
    return folder / f"{'-'.join(filter(None, plain.split('-')))}.json"


def shipped() -> list[Table]:
    """Returns the tables that come with the package."""
    return [read(file) for file in sorted(SHIPPED.glob("*.json"))]


def read(file: Path, remedy: str = "run `headway tune` again") -> Table:
    """Returns the table of a file.

    Args:
        file: the file.
        remedy: what to do if it is not a table.

    Raises:
        HeadwayError: if it cannot be read, or is not a table of this format.
    """
    try:
        if file.stat().st_size > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES >> 20} MiB")
        return checked(from_json(file.read_text(encoding="utf-8")), file.stem)
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise HeadwayError(f"{file} is not a table of `headway tune`: {said}: {remedy}") from None


def write(file: Path, content: Mapping[str, Any]) -> None:
    """Writes a table at once, so that who reads it gets the old one or the new one.

    Args:
        file: the file; its folder is made.
        content: the contents of the table.

    Raises:
        HeadwayError: if it cannot be written.
    """
    checked(content, file.stem)
    make_folder(file.parent)
    write_text(file, json.dumps({"format": FORMAT, **content}, indent=1, ensure_ascii=False) + "\n")


def copy(source: Path, target: Path) -> None:
    """Copies a table.

    Args:
        source: the table.
        target: the file; its folder is made.

    Raises:
        HeadwayError: if it is not a table, or cannot be written.
    """
    read(source)
    write(target, from_json(source.read_text(encoding="utf-8")))


def checked(content: Any, name: str) -> Table:
    """Returns the table with the contents of a file.

    Args:
        content: the value of the JSON text.
        name: the name of the table.

    Raises:
        ValueError: if it is not a table of this format.
    """
    _need(isinstance(content, Mapping), "it is not an object")
    known = content.get("format", FORMAT)
    _need(known == FORMAT, f"its format is {_short(known)}, and this version reads {FORMAT}")
    given = content.get("rows", [])
    _need(isinstance(given, list) and len(given) <= MOST_ROWS, f"rows is not a list of at most {MOST_ROWS:,}")
    fits, date = content.get("fits"), content.get("date", "")
    _need(_object(fits) and bool(fits) and all(map(_fact, fits.values())), "fits names no machine")
    for fact, values in fits.items():
        _need("name" not in fits or not isinstance(values, list), f"fits has a list for {_short(fact)}")
    _need(_line(date) and (not date or _is_date(date)), "date is not a date")
    verified, failed = content.get("verified", {}), content.get("failed", {})
    _need(_object(verified) and all(map(_texts, verified.values())), "verified is not an object of lists")
    _need(_object(failed) and all(map(_said, failed.values())), "failed is not an object of texts")
    return Table(
        name=name,
        fits=dict(fits),
        date=date,
        verified={way: frozenset(parts) for way, parts in verified.items()},
        failed={way: dict(parts) for way, parts in failed.items()},
        rows=tuple(map(_row, given)),
        about={key: value for key, value in content.items() if key not in ("rows", "fits", "verified", "failed")},
    )


def _row(given: Any) -> Row:
    _need(isinstance(given, Mapping), "a row is not an object")
    case, sizes, times = (given.get(key, {}) for key in ("case", "from", "times"))
    _need(all(isinstance(part, Mapping) for part in (case, sizes, times)) and bool(times), "a row lacks times")
    values = {name: [value] if isinstance(value, str) else value for name, value in case.items()}
    _need(all(map(_texts, values.values())), "the case of a row is not an object of texts")
    _need(all(map(_number, sizes.values())), "a size of a row is not a number")
    said = given.get("said", "")
    _need(_line(said), "said is not a text of one line")
    least = {name: size for name, size in sizes.items() if size > 0}
    return Row({name: frozenset(value) for name, value in values.items()}, least, _times(times), said)


def _times(given: Mapping[str, Any]) -> dict[str, tuple[float, float] | None]:
    found: dict[str, tuple[float, float] | None] = {}
    for way, value in given.items():
        pair = value if isinstance(value, list) else [value, value]
        fits = value is None or (len(pair) == 2 and all(map(_number, pair)) and 0 < pair[0] <= pair[1])
        _need(_line(way) and fits, f"the time of {_short(way)} is {_short(value)}")
        found[way] = None if value is None else (pair[0], pair[1])
    return found


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -LARGEST < value < LARGEST


def _line(value: Any) -> bool:
    """Whether a value is a text that can be shown in a line of a terminal, which control letters would change."""
    return isinstance(value, str) and value.isprintable()


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_line, value))


def _object(value: Any) -> bool:
    return isinstance(value, Mapping) and all(map(_line, value))


def _said(value: Any) -> bool:
    return _object(value) and all(map(_line, value.values()))


def _fact(value: Any) -> bool:
    return all(_line(one) or type(one) is int for one in (value if isinstance(value, list) else [value]))


def _is_date(value: str) -> bool:
    try:
        datetime.fromisoformat(value)
    except ValueError:
        return False
    return True


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"


def _need(holds: bool, why: str) -> None:
    if not holds:
        raise ValueError(why)
