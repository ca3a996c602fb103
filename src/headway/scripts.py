"""The characters of Chinese and Japanese, which stand without spaces between words."""

from __future__ import annotations

import re

HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
"""Blocks of Chinese characters, as ranges of a regular expression's set."""
KANA = "\u3040-\u30ff\u31f0-\u31ff"
"""Japanese syllables, likewise."""

_HAN = re.compile(f"[{HAN}]")


def is_han(text: str) -> bool:
    """Returns whether a text begins with a Chinese character.

    Args:
        text: a character or a word.
    """
    return _HAN.match(text) is not None
