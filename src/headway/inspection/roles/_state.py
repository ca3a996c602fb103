"""Measured roles as tensors and JSON values, for files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ._judge import Judged
from ._results import HeadRoles, Measured
from ._table import ROLES

FIGURES = tuple(Judged.__annotations__)


def state_of(roles: HeadRoles) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Returns JSON values, and for each role a tensor [figures, heads, candidates], from which ``from_state`` reads."""
    measured = roles._measured
    about = {
        "heads": roles._heads,
        "candidates": {name: one.candidates for name, one in measured.items()},
        "with_baseline": [name for name, one in measured.items() if one.has_baseline],
        "not_measured": roles.not_measured,
    }
    return about, {
        name: torch.stack([getattr(one.judged, figure).double() for figure in FIGURES])
        for name, one in measured.items()
    }


def from_state(about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> HeadRoles:
    """Returns the roles that were given to ``state_of``."""
    measured = {}
    for name, candidates in about["candidates"].items():
        figures: dict[str, Any] = dict(zip(FIGURES, tensors[name], strict=True))
        judged = Judged(**figures | {"guess": figures["guess"].long(), "holds": figures["holds"].bool()})
        measured[name] = Measured(ROLES[name](), tuple(candidates), judged, name in about["with_baseline"])
    return HeadRoles([(layer, head) for layer, head in about["heads"]], measured, about["not_measured"])
