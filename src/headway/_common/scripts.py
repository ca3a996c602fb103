"""The characters of Chinese and Japanese, which stand without spaces between words."""

from __future__ import annotations

import re

HAN = (
    "\u2e80-\u2fd5\u3005\u3007\u3021-\u3029\u3038-\u303b\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00016fe3\U00016ff0-\U00016ff6\U00020000-\U0003ffff"
)
"""Chinese characters, as ranges of a regular expression's set: Unicode's script Han, with 々, 〇 and the numerals."""
KANA = "\u3040-\u30ff\u31f0-\u31ff"
"""Japanese syllables, likewise."""

_HAN = re.compile(f"[{HAN}]")


def is_han(text: str) -> bool:
    """Returns whether a text begins with a Chinese character."""
    return _HAN.match(text) is not None


def has_han(text: str) -> bool:
    """Returns whether a text has a Chinese character."""
    return _HAN.search(text) is not None
