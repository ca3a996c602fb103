"""How a list of checks is named and run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from ..errors import HeadwayError

T = TypeVar("T")


def by_name(*checks: Callable[[T], None]) -> dict[str, Callable[[T], None]]:
    """The checks by the names of their functions, in this order."""
    return {check.__name__: check for check in checks}


def run_checks(name: str, checks: Mapping[str, Callable[[T], None]], subject: T) -> list[str]:
    """Runs every check on a subject and returns the names of the checks.

    Args:
        name: What the message calls the subject.
        checks: Functions that raise AssertionError or HeadwayError where the subject is wrong, by name.
        subject: What the checks are given.

    Raises:
        AssertionError: A check fails. The message names the check and says what it found. No further check is run.
    """
    for each, check in checks.items():
        try:
            check(subject)
        except (AssertionError, HeadwayError) as error:
            raise AssertionError(f"{name} fails {each}: {error}") from error
    return list(checks)
