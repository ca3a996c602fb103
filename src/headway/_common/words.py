"""What a word is, in all of the package, and the form in which words are compared."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import cache
from itertools import pairwise

from .scripts import HAN

Span = tuple[int, int]
"""Start and stop, of characters or of words."""

_JOINERS = "'\u2018\u2019\uff07\u05f3\u00b7\u0387\u2027\u055a-\u055c\u055e\u055f"
"""Signs that are part of a word between its letters: apostrophes, Catalan's l·l, and the marks of Hebrew and Armenian,
as in the rules WB6 and WB7 of Unicode's Annex 29."""

_VOICED = "\uff9e\uff9f"
"""The marks of Japanese in half width, which Unicode has among the letters."""

_PRESENTATION = re.compile("[\u2f00-\u2fd5\ufb00-\ufc5d\ufc64-\ufdf9\ufe80-\ufefc\uff01-\uffdc]+")
"""Letters that Unicode has a second time: radicals, ligatures, Arabic by place in the word, full and half width."""

_IGNORED = re.compile("[\u00ad\u200e\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\U000e0100-\U000e01ef]")
"""Characters that say how others are shown: soft hyphens, directions and variants. The joiners of Persian and of the
scripts of India, U+200C and U+200D, are spelling."""

_SPELT = str.maketrans("\u2018\u2019\u05f3\u05f4", "'''\"")
"""Signs within words that keyboards write in several ways."""


def words_in(text: str, cuts: Sequence[int] = (), *, signs: bool = True) -> tuple[Span, ...]:
    """Returns the words of a text, by one rule for all languages.

    A run of letters, digits and the marks on them is a word, with the apostrophes between its letters; so is each
    Chinese character, and each other sign that is not white space. "The cat's 小猫!" has the words The, cat's, 小, 猫
    and !. Scripts without spaces between words, such as Thai, have a word for each run.

    Args:
        text: the text.
        cuts: characters before which a word ends in any case.
        signs: whether signs are words.

    Returns:
        The start and the stop of each word.
    """
    edges = sorted({0, len(text), *(cut for cut in cuts if 0 < cut < len(text))})
    return tuple(
        match.span() for start, stop in pairwise(edges) for match in _pattern(signs).finditer(text, start, stop)
    )


def spelling(word: str, *, lower: bool = False) -> str:
    """Returns a word as all of its spellings are compared: don’t as don't, ｃａｔ as cat, e and ´ as é.

    The form is Unicode's NFC, with letters instead of their presentation forms, one apostrophe, and without the
    characters that say only how others are shown. It is not NFKC, which also makes x² x2 and ½ 1⁄2, and takes apart
    letters of Thai and Korean.

    Args:
        word: the word.
        lower: whether to convert it to lower case.
    """
    if word.isascii():
        return word.lower() if lower else word
    word = _PRESENTATION.sub(lambda match: unicodedata.normalize("NFKC", match[0]), word)
    word = unicodedata.normalize("NFC", _IGNORED.sub("", word).translate(_SPELT))
    # lower() turns İ into an i with a second dot, which no word has otherwise
    word = (word.lower() if lower else word).replace("i\u0307", "i")
    return unicodedata.normalize("NFC", word)


def is_alphabetic(word: str) -> bool:
    """Returns whether a word has only letters and the marks on them. ``str.isalpha`` is False for most Hindi words."""
    return bool(word) and all(unicodedata.category(character)[0] in "LM" for character in word)


@cache
def _pattern(signs: bool) -> re.Pattern[str]:
    marks = _of_categories("Mn", "Mc", "Me") + _VOICED
    formats = _of_categories("Cf", but="\u200b")
    others = rf"[^\W\x00-\x7f{_VOICED}{HAN}]"
    more = rf"(?![\x00-\x7f])[{marks}{formats}]+"  # most of what follows a word is ASCII, and the set is large
    letters = f"(?:[A-Za-z0-9]+|{others}+)(?:[A-Za-z0-9]+|{others}+|{more})*"
    joiner = rf"(?:[{_JOINERS}]|(?<=[\u0591-\u05ea])[\"\u05f4](?=[\u05d0-\u05ea]))"
    words = f"{letters}(?:{joiner}{letters})*|[{HAN}](?:{more})?"
    if not signs:
        return re.compile(words)
    sign = rf"(?:[^\w\s\x00-\x1f\x7f-\x9f\u200b{formats}]|_)(?:{more}|[\U0001f3fb-\U0001f3ff])*"
    return re.compile(rf"{words}|{sign}(?:(?<=\u200d){sign})*")


@cache
def _of_categories(*names: str, but: str = "") -> str:
    """The characters of categories of Unicode that stand in planes 0, 1 and 14, as ranges of a set."""
    codes = (*range(0x20000), *range(0xE0000, 0xE1000))
    kept = [code for code in codes if unicodedata.category(chr(code)) in names and chr(code) not in but]
    starts = [code for code, before in zip(kept, [-1, *kept], strict=False) if code != before + 1]
    stops = [code for code, after in zip(kept, [*kept[1:], -1], strict=True) if code + 1 != after]
    return "".join(rf"\U{start:08x}-\U{stop:08x}" for start, stop in zip(starts, stops, strict=True))
