"""Random calls of attention against float64 and against a naive computation: ``python -m headway.testing.fuzz``.

A ``Case`` is a call whose tensors all follow from a few numbers and names, so it can be printed and repeated. ``check``
computes it, ``fuzz`` draws cases until time is up, and ``shrink`` shrinks a failing case.
"""

from .cases import Case, draw
from .check import check
from .search import Finding, fuzz, shrink

__all__ = ["Case", "Finding", "check", "draw", "fuzz", "shrink"]
