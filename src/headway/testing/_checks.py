"""Named lists of checks, and the loop that runs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from ..errors import HeadwayError
from ._rounding import in_words, raised_at

T = TypeVar("T")


def by_name(*checks: Callable[[T], None]) -> dict[str, Callable[[T], None]]:
    """Returns the checks by the names of their functions, in this order."""
    return {check.__name__: check for check in checks}


def run_checks(name: str, checks: Mapping[str, Callable[[T], None]], subject: T, about: str = "") -> list[str]:
    """Runs every check on a subject, and returns the names of the checks.

    Raises AssertionError at the first check that fails. The message has the name of the subject, the name of the check
    and its result. If the subject raised another error, it also has ``about``, the circumstances.
    """
    for each, check in checks.items():
        try:
            check(subject)
        except AssertionError as error:
            raise AssertionError(f"{name} fails {each}: {error}") from error
        except Exception as error:
            raise AssertionError(f"{name} fails {each}: {_said(error)}{about and f' ({about})'}") from error
    return list(checks)


def _said(error: Exception) -> str:
    """An error in a line, with the line of a user's file where it arose."""
    where, lines = raised_at(error), str(error).strip().split("\n")
    said = lines[0] if isinstance(error, HeadwayError) else f"{type(error).__name__}: {lines[0]}"
    explained = [line.strip() for line in lines if line.strip().startswith("Explanation: ")]  # from torch's compiler
    if explained:
        said += ": " + explained[0].removeprefix("Explanation: ")
    return f"{said}; at {in_words(where)}" if where else said
