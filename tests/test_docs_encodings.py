"""docs/encodings.md holds the list that the command prints, and pages name kernels in which an encoding runs."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.cli.encodings import _facts, markdown
from headway.kernels import KERNELS
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


def kernels_named(text: str) -> Iterator[tuple[str, str]]:
    """Each encoding and the kernel beside it, in the tables of a page that have a column for the kernel."""
    column = None
    for line in text.splitlines():
        cells = [cell.strip(" `*") for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            column = None
        elif column is None:
            column = next((n for n, cell in enumerate(cells) if cell in ("kernel", "内核")), -1)
        elif column >= 0 and cells[0] in ENCODINGS:
            yield cells[0], cells[column].split()[0]


PAGES = [*PAGE.parents[1].glob("README*.md"), *PAGE.parent.rglob("*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_kernel_of_an_encoding_is_one_that_explain_names(page: Path) -> None:
    """Which of the fast ones is chosen depends on the processor; the reference kernel is chosen if no other can run."""
    for name, kernel in kernels_named(page.read_text(encoding="utf-8")):
        found = _facts(name)["kernels"]
        able = list(KERNELS) if found == ["all"] else found
        fast = [one for one in able if one != "reference"]
        assert kernel in (fast or able), f"{page.name} has {name} in the kernel {kernel}, explain in {able}"


def test_a_kernel_is_found_in_a_table() -> None:
    page = (PAGE.parent / "comparison.md").read_text(encoding="utf-8")
    assert dict(kernels_named(page))["t5"] == "cpu"
