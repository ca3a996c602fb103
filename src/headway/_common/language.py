"""The language that commands print and draw in: English, or Chinese if the environment is Chinese.

The code has sentences in English, as templates of ``str.format``; the table has each of them in Chinese. Errors are in
English, like those of torch.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from string import Formatter
from typing import Any

from ..errors import unknown

LANGUAGES = ("en", "zh")

_language: ContextVar[str] = ContextVar("language", default="en")


def of_environment() -> str:
    """Returns the language of messages in this environment: "zh" if it is Chinese, otherwise "en"."""
    names = (os.environ.get(name) for name in ("LC_ALL", "LC_MESSAGES", "LANG"))  # the order of POSIX
    return "zh" if next(filter(None, names), "").startswith("zh") else "en"


def choose(language: str) -> None:
    """Sets the language; inside of ``speaking``, until the end of its block."""
    if language not in LANGUAGES:
        raise unknown("--language", language, LANGUAGES)
    _language.set(language)


def chosen() -> str:
    """Returns the language that is set."""
    return _language.get()


@contextmanager
def speaking(language: str) -> Iterator[None]:
    """Sets the language for a block, and restores the earlier one at its end."""
    token = _language.set(language)
    try:
        yield
    finally:
        _language.reset(token)


def said(sentence: str, /, **values: Any) -> str:
    """Returns a sentence in the chosen language, with the values in its braces; one without a translation stays."""
    template = _in_chinese(sentence) if _language.get() == "zh" else sentence
    return template.format(**values) if values else template


def _in_chinese(sentence: str) -> str:
    from ._chinese import CHINESE  # here, since English needs no table and every import of headway runs this file

    return CHINESE.get(sentence, sentence)


def to_say(sentence: str) -> str:
    """Returns a sentence unchanged; it marks a sentence in a table that ``said`` gets later."""
    return sentence


def retold(sentence: str) -> str:
    """Translates an English sentence with its values filled in, such as one from a file, into the chosen language.

    Its template must be among ``REASONS``, and its values may be such sentences too; any other sentence stays as it is.
    """
    if _language.get() == "en":
        return sentence
    for chinese, pattern in _reasons():
        if match := pattern.fullmatch(sentence):
            return chinese.format(**{name: retold(value) for name, value in match.groupdict().items()})
    return sentence


@cache
def _reasons() -> list[tuple[str, re.Pattern[str]]]:
    """The templates of ``REASONS`` in Chinese, each with the sentences that the English template makes."""
    from ._chinese import REASONS

    made = []
    for template, chinese in REASONS.items():
        parts = [
            re.escape(words) + (f"(?P<{name}>.+)" if name else "") for words, name, _, _ in Formatter().parse(template)
        ]
        made.append((chinese, re.compile("".join(parts))))
    return made


def listed(names: Iterable[str]) -> str:
    """Returns names as a list in a sentence: "a, b and c"."""
    *before, last = names
    return said("{names} and {last}", names=said(", ").join(before), last=last) if before else last


def padded(text: str, columns: int) -> str:
    """Pads a text with blanks to a number of columns of a terminal; a Chinese character takes two columns."""
    return text + " " * max(0, columns - columns_of(text))


def wrapped(text: str, columns: int) -> str:
    """Breaks a text into lines of at most so many columns of a terminal.

    Chinese text may break between any two characters, but no line begins with a closing sign.
    """
    lines, room = [""], columns
    for unit in _units().findall(text):
        wide = columns_of(unit.rstrip())
        if wide > room and lines[-1]:
            lines[-1] = lines[-1].rstrip()
            lines.append("")
            room, unit = columns, unit.lstrip()
        lines[-1] += unit
        room -= columns_of(unit)
    return "\n".join(lines).rstrip()


_WIDE = "\u2e80-\u9fff\uff00-\uffef"


@cache
def _units() -> re.Pattern[str]:
    """The parts between which a line may break: a Chinese character or a word, with the signs around it."""
    return re.compile(
        rf"[（“《]*(?:[{_WIDE}]|[^\s{_WIDE}（）“”《》，。；：、！？]+|[（“《])[），。；：、”！？》]*\s*|[），。；：、”！？》]+\s*|\s+"
    )


def columns_of(text: str) -> int:
    """Returns the number of columns that a text takes in a terminal."""
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text
    )
