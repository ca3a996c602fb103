"""The four demands on a code of positions, as they come out: which are met, and the numbers behind that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Property:
    """One demand: whether it is met, the number behind that, and what the number is."""

    demand: str
    verdict: str
    number: float
    measured: str


@dataclass(frozen=True)
class Properties:
    """The four demands on a code of positions; ``str`` gives a table, iteration the rows.

    distinct   each position is told from every other
    distance   the distance between two positions shows
    alike      the same distance is alike at any place and in any length
    bounded    the values stay bounded

    Each verdict is "yes", "no" or "not its job": an encoding that knows distances alone has no positions to tell apart.
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
            lines.append(f"  {row.demand:<45} {row.verdict:<12} {row.number:>11.6g}  {row.measured}")
        return "\n".join(lines)
