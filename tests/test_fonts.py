"""Fonts for pictures with text of any script."""

import sys

import pytest

from headway.errors import HeadwayError
from headway.fonts import FIRST, drawable, fonts_for

pytest.importorskip("matplotlib")


def test_latin_needs_no_other_font() -> None:
    assert fonts_for(["The", "Ġcat", "▁sat", "naïve", "кот"]) == [FIRST]
    assert fonts_for([]) == [FIRST]


def test_chinese_and_japanese_have_a_font() -> None:
    pytest.importorskip("zhplot")
    assert fonts_for(["猫", "繁體", "ねこ", "cat"]) == [FIRST, "Noto Sans SC"]


def test_a_letter_that_no_font_has_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.fonts._characters", lambda path: frozenset(range(128)))
    with pytest.raises(HeadwayError, match=r"no font of this machine has '猫': .*pip install .*\[plot\]'"):
        fonts_for(["a", "猫"])
    assert fonts_for(["🤖", "\n"]) == [FIRST]
    assert drawable("a🤖 b", [FIRST]) == "aU+1F916 b"


def test_matplotlib_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(HeadwayError, match=r"a picture needs matplotlib: .*pip install .*\[plot\]'"):
        fonts_for(["a"])
