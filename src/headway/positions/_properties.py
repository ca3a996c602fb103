"""The four properties of a position code as measured: whether each holds, and the numbers behind it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .._common.language import padded, said


@dataclass(frozen=True)
class Property:
    """One property: whether it holds, the number behind the answer, and the meaning of the number.

    Attributes:
        demand: the demand.
        verdict: "yes", "no", "not its job" or "unknown".
        number: the measured number.
        measured: the meaning of the number.
    """

    demand: str
    verdict: str
    number: float
    measured: str


@dataclass(frozen=True)
class Properties:
    """The four properties of a position code; ``str`` gives a table, iteration its rows.

    Each verdict is "yes", "no", "not its job" or "unknown": a relative encoding has no positions to distinguish, and
    whether values stay bounded is unknown if only short distances could be measured.

    Attributes:
        encoding: the name of the encoding.
        distinct: whether each position is distinguished from every other.
        distance: whether the code shows the distance between two positions.
        alike: whether the same distance is alike at any position and in any length.
        bounded: whether the values are bounded.
    """

    encoding: str
    distinct: Property
    distance: Property
    alike: Property
    bounded: Property

    def __iter__(self) -> Iterator[Property]:
        return iter((self.distinct, self.distance, self.alike, self.bounded))

    def __str__(self) -> str:
        lines = [self.encoding]
        for row in self:
            what = f"  {padded(row.demand, 45)} {padded(said(row.verdict), 12)}"
            lines.append(f"{what} {row.number:>11.6g}  {row.measured}")
        return "\n".join(lines)
