"""The languages by name."""

from __future__ import annotations

from ...errors import unknown
from ._chinese import CHINESE
from ._english import ENGLISH
from ._grammar import Language

LANGUAGES = {language.name: language for language in (CHINESE, ENGLISH)}
"""The languages by name."""


def named_language(language: str | Language) -> Language:
    """Returns a language.

    Args:
        language: its name, or itself.

    Raises:
        HeadwayError: if there is none of this name.
    """
    if isinstance(language, Language):
        return language
    if language not in LANGUAGES:
        raise unknown("language", language, LANGUAGES)
    return LANGUAGES[language]
