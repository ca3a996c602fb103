"""Which calls "auto" leaves to torch's SDPA because SDPA runs them faster than the CPU kernel.

The table of ``headway tune``, or one that comes with headway (``tuning/shipped``), lists them. On a processor without
a table, such as Arm's, every call that SDPA can run is left to it.
"""

from __future__ import annotations

from .. import _tuned
from .._base import Deferral
from .._problem import Problem
from . import _library

DECODE_QUERIES = 4
"""The most queries of a decoding step. Steps are planned, so they start as fast as torch's SDPA."""


def deferral(problem: Problem) -> Deferral | None:
    """Returns why a call is left to another kernel; None if it is not.

    Args:
        problem: the facts of the call.
    """
    wrong = _tuned.why_wrong("cpu", problem)
    if wrong:
        return Deferral("reference", wrong)
    left = _tuned.left_by("cpu", problem, _library.isa())
    return left if left is None or left.to else Deferral("sdpa", f"left to torch's SDPA: {left.why}")
