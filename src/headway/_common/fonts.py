"""Finds fonts for pictures with text of any script, so that no character is drawn as an empty box."""

from __future__ import annotations

import unicodedata
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from .extras import install_command, need

FIRST = "DejaVu Sans"
"""The font that comes with matplotlib; every picture begins with it."""

OF_ZHPLOT = ("CJK", "HIRAGANA", "KATAKANA")
"""Scripts that the font of zhplot has, by the first word of the Unicode names of their letters."""
KOREAN = "install fonts-noto-cjk (Debian, Ubuntu), or Noto Sans KR of https://fonts.google.com/noto"
OTHERS = "install fonts-noto-core (Debian, Ubuntu), or one of https://fonts.google.com/noto"


def fonts_for(texts: Iterable[str]) -> list[str]:
    """Returns the names of fonts that together have every letter of the texts, for matplotlib's ``font.family``.

    The first is DejaVu Sans, which comes with matplotlib. Chinese and Japanese characters are taken from the font of
    the package zhplot if it is installed, other characters from the fonts of the machine. If no font has a script, a
    warning says what to install.

    Args:
        texts: the texts to be written.

    Raises:
        HeadwayError: if matplotlib is not installed.
    """
    need("matplotlib", "a picture", extra="plot")
    missing = {letter for text in texts for letter in text if letter.isprintable() and not letter.isspace()}
    fonts = [FIRST]
    for name, path in _fonts():
        if not missing:
            break
        here = {letter for letter in missing if ord(letter) in _characters(path)}
        missing -= here
        if here and name not in fonts:
            fonts.append(name)
    letters = [letter for letter in missing if unicodedata.category(letter)[0] == "L"]
    for script in sorted({unicodedata.name(letter, "?").partition(" ")[0] for letter in letters}):
        said = f"no font of this machine has {script} letters, which will be boxes: {_what_brings(script)}"
        warnings.warn(said, stacklevel=2)  # Python shows a warning of the same text once
    return fonts


def _what_brings(script: str) -> str:
    """Advice on how to get a font of a script."""
    if script in OF_ZHPLOT:
        return install_command("plot")
    return KOREAN if script == "HANGUL" else OTHERS


def drawable(text: str, fonts: list[str]) -> str:
    """Returns a text with codes such as U+1F9EE in place of symbols that none of the fonts has.

    Args:
        text: the text.
        fonts: the names of fonts, from ``fonts_for``.
    """
    paths = [path for name, path in _fonts() if name in fonts]
    return "".join(
        x if x.isspace() or any(ord(x) in _characters(path) for path in paths) else f"U+{ord(x):04X}" for x in text
    )


def _fonts() -> Iterator[tuple[str, str]]:
    """The names and files of fonts, the preferred ones first."""
    from matplotlib import font_manager

    yield FIRST, font_manager.findfont(FIRST)
    spec = find_spec("zhplot")
    if spec is not None and spec.origin is not None:
        path = Path(spec.origin).parent / "fonts" / "NotoSansSC-Regular.ttf"
        if path.is_file():
            known = font_manager.fontManager.ttflist
            if not any(font.fname == str(path) for font in known):
                font_manager.fontManager.addfont(str(path))
                known.append(replace(known[-1], weight=700))  # it has no bold face, and matplotlib would warn
            yield "Noto Sans SC", str(path)
    regular = [
        font
        for font in font_manager.fontManager.ttflist
        if font.style == "normal" and font.weight in (400, "normal", "regular") and "Last Resort" not in font.name
    ]
    # sans serif first, and always in the same order
    for font in sorted(regular, key=lambda font: ("Sans" not in font.name, "Mono" in font.name, font.name)):
        yield font.name, font.fname


@lru_cache(maxsize=256)
def _characters(path: str) -> frozenset[int]:
    """The codes of the characters that a font file has."""
    from matplotlib.ft2font import FT2Font

    return frozenset(FT2Font(path).get_charmap())
