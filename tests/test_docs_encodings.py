"""docs/encodings.md holds the list that the command prints."""

from pathlib import Path

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
