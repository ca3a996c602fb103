"""A score by its name and arguments."""

from __future__ import annotations

import dataclasses
from typing import Any

from ...errors import HeadwayError, unknown
from ._base import Score
from ._table import SCORES


def made(score: str | Score, arguments: dict[str, Any]) -> Score:
    """The score of a name with its arguments, or the score that is given. Raises HeadwayError if there is none."""
    if isinstance(score, Score):
        if arguments:
            raise HeadwayError(f"{', '.join(arguments)} comes with an object: give it to {type(score).__name__}")
        return score
    if score not in SCORES:
        raise unknown("score", score, SCORES, see="headway.inspection.SCORES")
    kind = SCORES[score]
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for name in arguments.keys() - fields.keys():
        takes = f"it takes {', '.join(fields)}" if fields else "it takes none"
        raise HeadwayError(f"the score {score!r} has no argument {name!r}: {takes}")
    for name, field in fields.items():
        if name not in arguments and field.default is dataclasses.MISSING:
            raise HeadwayError(f"the score {score!r} needs {name}: give scores({score!r}, {name}=…)")
    return kind(**arguments)
