"""The language of what commands print and draw: English, or Chinese where the environment is Chinese.

Sentences stand in the code in English, as templates of ``str.format``; the table has each of them in Chinese.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ..errors import unknown
from ._chinese import CHINESE

LANGUAGES = ("en", "zh")

_language: ContextVar[str] = ContextVar("language", default="en")


def of_environment() -> str:
    """Returns the language of messages in this environment: "zh" where it is Chinese, else "en"."""
    names = (os.environ.get(name) for name in ("LC_ALL", "LC_MESSAGES", "LANG"))  # the order of POSIX
    return "zh" if next(filter(None, names), "").startswith("zh") else "en"


def choose(language: str) -> None:
    """Sets the language, until the end of ``speaking`` if this is within it."""
    if language not in LANGUAGES:
        raise unknown("--language", language, LANGUAGES)
    _language.set(language)


@contextmanager
def speaking(language: str) -> Iterator[None]:
    """Sets the language, and afterwards what it was before."""
    token = _language.set(language)
    try:
        yield
    finally:
        _language.reset(token)


def said(sentence: str, /, **values: Any) -> str:
    """Returns a sentence in the chosen language, with the values in its braces; one without a translation stays."""
    template = CHINESE.get(sentence, sentence) if _language.get() == "zh" else sentence
    return template.format(**values)
