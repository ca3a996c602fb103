"""The error that headway raises for wrong input, and the checks that several modules share."""

import difflib
import math
from collections.abc import Iterable


class HeadwayError(ValueError):
    """Raised for an input that headway cannot work with.

    The message is one line: what is wrong, the values, the remedy.
    """


def need_positive(**sizes: float) -> None:
    """Raises HeadwayError unless each size is at least 1."""
    for name, value in sizes.items():
        if value < 1:
            raise HeadwayError(f"{name} is {value}: give at least 1")


def need_finite(**values: float | None) -> None:
    """Raises HeadwayError for a number that is NaN or infinite; None is accepted."""
    for name, value in values.items():
        if value is not None and not math.isfinite(value):
            raise HeadwayError(f"{name} is {value}: give a finite number")


def unknown(what: str, name: object, known: Iterable[str]) -> HeadwayError:
    """Returns the error for a name that is not among those that are known; the message has the nearest, or all."""
    names = list(known)
    near = difflib.get_close_matches(str(name), names, 1, 0.5)
    meant = f"did you mean {near[0]!r}?" if near else f"give one of {', '.join(names)}"
    return HeadwayError(f"there is no {what} {name!r}: {meant}")
