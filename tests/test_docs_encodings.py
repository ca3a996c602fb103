"""docs/encodings.md holds the list that the command prints."""

import re
from pathlib import Path

import pytest

from headway.cli.encodings import markdown
from headway.positions import ENCODINGS, RECIPES

PAGE = Path(__file__).parents[1] / "docs" / "encodings.md"
START, END = "<!-- made by: headway encodings --markdown -->\n", "<!-- end -->"


def test_the_page_has_todays_list() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text[text.index(START) + len(START) : text.index(END)] == markdown(ENCODINGS), (
        f"put the output of `headway encodings --markdown` into {PAGE.name}"
    )


def test_the_page_names_every_recipe() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert all(f"`{name}`" in text for name in RECIPES)


@pytest.mark.parametrize("page", ["README.md", "README.zh-CN.md"])
def test_the_first_screen_counts_the_encodings(page: str) -> None:
    text = (PAGE.parents[1] / page).read_text(encoding="utf-8")
    assert re.search(rf"\b{len(ENCODINGS)} are built in|内置 {len(ENCODINGS)} 种", text)
