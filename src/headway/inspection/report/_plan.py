"""How the bytes of a report are spent."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...errors import HeadwayError

TAUS = (0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5)
"""The thresholds of lists; the smallest that fits is taken."""
SHORT = 512
"""The most tokens of a text for which all weights are tried first."""
FINE_CELLS, CELLS = 128, 64
"""Cells of a map on each side."""
FINE_FROM = 1024
"""The tokens from which on maps are fine, if they take at most ``MAPS_SHARE`` of the budget."""
MAPS_SHARE = 0.35
LISTS_SHARE = 0.6
"""The share of the budget after the maps that lists may take, if a head can be exact."""
OCTETS_OF_WEIGHT, OCTETS_OF_QUERY = 3.1, 0.35
"""The approximate characters of a weight in a list, and of a query without its weights."""

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def octets_in(budget: str | int | None) -> int | None:
    """Returns the bytes of a budget, such as "15 MB" or 4_000_000; None for no limit.

    Raises HeadwayError for anything else.
    """
    if budget is None:
        return None
    if isinstance(budget, int) and not isinstance(budget, bool) and budget > 0:
        return budget
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kKmMgG]?[bB])\s*", budget) if isinstance(budget, str) else None
    size = round(float(match[1]) * _UNITS[match[2].upper()]) if match else 0
    if size < 1:
        raise HeadwayError(f"budget is {budget!r}: give bytes, or a size such as '15 MB' or '800 kB'")
    return size


def said(octets: int) -> str:
    """Returns a size in decimal units, rounded up, such as "3.1 MB"."""
    return f"{-(-octets // 10**5) / 10:g} MB" if octets > 10**6 else f"{max(1, -(-octets // 1000))} kB"


def cells_for(n: int, heads: int, budget: int | None) -> int:
    """Returns the cells of maps on each side."""
    if n <= FINE_FROM:
        return min(n, CELLS)
    fine = 2 * FINE_CELLS**2 * heads * 2 // 3  # many cells are hidden or alike
    return FINE_CELLS if budget is None or fine <= MAPS_SHARE * budget else CELLS


def first_tau(counts: Sequence[int], queries: int, room: float) -> float:
    """Returns the smallest threshold whose lists may fit, with some tolerance.

    Args:
        counts: the number of weights that are known to be at or above each of ``TAUS``.
        queries: the queries of all heads.
        room: the characters there are.
    """
    for tau, count in zip(TAUS, counts, strict=True):
        if 0.7 * (count * OCTETS_OF_WEIGHT + queries * OCTETS_OF_QUERY) <= room:
            return tau
    return TAUS[-1]
