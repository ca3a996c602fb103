"""Named lists of checks, and the loop that runs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from ..errors import HeadwayError

T = TypeVar("T")


def by_name(*checks: Callable[[T], None]) -> dict[str, Callable[[T], None]]:
    """Returns the checks by the names of their functions, in this order."""
    return {check.__name__: check for check in checks}


def run_checks(name: str, checks: Mapping[str, Callable[[T], None]], subject: T) -> list[str]:
    """Runs every check on a subject.

    Args:
        name: the name of the subject, for messages.
        checks: functions by name, each of which raises AssertionError or HeadwayError if the subject fails it.
        subject: the argument of each check.

    Returns:
        The names of the checks.

    Raises:
        AssertionError: at the first check that fails; the message names the check and says what it found.
    """
    for each, check in checks.items():
        try:
            check(subject)
        except (AssertionError, HeadwayError) as error:
            raise AssertionError(f"{name} fails {each}: {error}") from error
    return list(checks)
