"""What BENCHMARKS.md has of another processor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from .._common.table import Table
from .cases import DIRECTIONS, Case
from .report import MASKS, cache, contiguous, lengths_of, measured, of_kind
from .rows import Row
from .targets import peer, times


def brief(rows: Sequence[Row], where: dict[str, Any], command: str, notes: Sequence[str] = ()) -> str:
    """Returns what BENCHMARKS.md has of another processor: the machine, and a table for each kind of cases."""
    lengths = " · ".join(f"{n:,}" for n in lengths_of(of_kind(rows, "attention")))
    parts = [
        f"## Attention on {where['processor']}",
        f"{measured(rows, where)}, instruction set {where['isa']}, torch {where['torch']}, headway {where['headway']}. "
        f"Kernels: {', '.join(dict.fromkeys(row['kernel'] for row in rows))}. 8 heads. `{command}`",
        *notes,
        lengths and f"SDPA's time divided by headway's at {lengths} tokens:\n\n{by_encoding(rows)}",
        cache(rows),
        contiguous(rows),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def by_encoding(rows: Sequence[Row], names: Mapping[str, str] | None = None) -> str:
    """Returns the table of ratios to SDPA with a line for each encoding and mask; a cell has all lengths.

    ``names`` maps encodings to what the table calls them.
    """
    chosen = of_kind(rows, "attention")
    dtypes = list(dict.fromkeys(row["case"]["dtype"] for row in chosen))
    found: dict[tuple[str, str], dict[tuple[str, str], dict[int, Row]]] = {}
    for row in chosen:
        case = Case(**row["case"])
        line = found.setdefault((case.encoding, case.mask), {})
        line.setdefault((case.dtype, case.direction), {})[case.n] = row

    def name(encoding: str, mask: str) -> str:
        return f"{(names or {}).get(encoding, encoding)}, {MASKS.get(mask, mask)}"

    def cell(by_n: dict[int, Row]) -> str:
        return " · ".join(f"{times(by_n[n], peer(by_n[n])):.2f}" if n in by_n else "–" for n in lengths) + "×"

    lengths, columns = lengths_of(chosen), list(product(dtypes, DIRECTIONS))
    lines = [[name(*key), *(cell(line.get(at, {})) for at in columns)] for key, line in found.items()]
    return Table(["encoding", *(f"{dtype}, {direction}" for dtype, direction in columns)], lines).markdown()
