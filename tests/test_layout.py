"""DESIGN's layout of the sources is complete, and in the order of the imports; files that READMEs name exist."""

import re
from pathlib import Path

import pytest

from .test_import_arrows import HEIGHT

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "DESIGN.md").read_text(encoding="utf-8")
LAYOUT = re.search(r"^\| in `src/headway/` \|.*?\n\n", PAGE, re.MULTILINE | re.DOTALL)
ROWS = re.findall(r"^\| (`[^|]*) \|", LAYOUT[0], re.MULTILINE) if LAYOUT else []
MAP = [name.removesuffix("/").removesuffix(".py") for row in ROWS for name in re.findall(r"`([\w.]+/?)`", row)]
READMES = [path for path in (ROOT / "src" / "headway").rglob("README.md") if path.parent.name != "csrc"]


def test_every_file_and_folder_is_on_the_map_once() -> None:
    there = {
        path.stem
        for path in (ROOT / "src" / "headway").iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert sorted(MAP) == sorted(there - {"__init__", "__main__"})


def test_the_map_goes_from_the_ground_up() -> None:
    heights = [HEIGHT[name] for name in MAP]
    assert heights == sorted(heights)


@pytest.mark.parametrize("page", READMES, ids=lambda path: path.parent.name)
def test_files_that_a_readme_names_exist(page: Path) -> None:
    """Each is named as from the folder of the page, its ``csrc``, the package, or the repository."""
    named = re.findall(r"`([\w/.-]+(?:\.(?:py|h|cpp|json|jsonl|bib)|/))`", page.read_text(encoding="utf-8"))
    bases = [page.parent, page.parent / "csrc", ROOT / "src" / "headway", ROOT]
    assert named
    assert [name for name in named if not any((base / name).exists() for base in bases)] == []
