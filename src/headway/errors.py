"""The error class, and checks of numbers."""

import math


class HeadwayError(ValueError):
    """An invalid input. The message is one line: what is wrong, the values, and the remedy."""


def need_positive(**sizes: float) -> None:
    """Raises HeadwayError unless each size is at least 1."""
    for name, value in sizes.items():
        if value < 1:
            raise HeadwayError(f"{name} is {value}: give at least 1")


def need_finite(**values: float | None) -> None:
    """Raises HeadwayError for a number that is NaN or infinite; None passes."""
    for name, value in values.items():
        if value is not None and not math.isfinite(value):
            raise HeadwayError(f"{name} is {value}: give a finite number")
