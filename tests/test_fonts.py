"""Fonts for pictures with text of any script."""

import sys
import warnings

import pytest

from headway._common.fonts import FIRST, drawable, fonts_for
from headway.errors import HeadwayError

pytest.importorskip("matplotlib")


def test_latin_needs_no_other_font() -> None:
    assert fonts_for(["The", "Ġcat", "▁sat", "naïve", "кот"]) == [FIRST]
    assert fonts_for([]) == [FIRST]


def test_chinese_and_japanese_have_a_font() -> None:
    pytest.importorskip("zhplot")
    assert fonts_for(["猫", "繁體", "ねこ", "cat"]) == [FIRST, "Noto Sans SC"]


def test_what_no_font_has_is_a_warning_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway._common.fonts._characters", lambda path: frozenset(range(128)))
    with pytest.warns(UserWarning, match=r"has CJK letters, which will be boxes: .*pip install .*\[plot\]'$"):
        assert fonts_for(["a", "猫狗"]) == [FIRST]
    with pytest.warns(UserWarning, match=r"has ARABIC letters, .* install fonts-noto-core"):
        fonts_for(["كلمة"])


def test_it_warns_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway._common.fonts._characters", lambda path: frozenset(range(128)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for word in ("猫", "狗", "猫狗"):
            fonts_for([word])
    assert len(caught) == 1


def test_what_no_font_has_can_be_a_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway._common.fonts._characters", lambda path: frozenset(range(128)))
    assert fonts_for(["🤖", "\n"]) == [FIRST]
    assert drawable("a🤖 b", [FIRST]) == "aU+1F916 b"


def test_matplotlib_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(HeadwayError, match=r"a picture needs matplotlib: .*pip install .*\[plot\]'"):
        fonts_for(["a"])
