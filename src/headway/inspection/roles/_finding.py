"""The result for one head and one role."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One head and one candidate of a role, on the texts that were held out.

    Attributes:
        role: the name of the role.
        candidate: the offset, relation or other case for which the head has the role.
        layer: the name of the layer.
        head: the number of the head.
        figure: the share of hits.
        low: the lower end of its 95 % interval.
        high: the upper end of its 95 % interval.
        baseline: the share of hits of the best guess that needs no model; NaN for a role without one.
        cases: the number of cases.
        holds: whether the head has the role.
    """

    role: str
    candidate: str
    layer: str
    head: int
    figure: float
    low: float
    high: float
    baseline: float
    cases: int
    holds: bool
