"""CONTRIBUTING's map of the sources is complete, and in the order of the imports."""

import re
from pathlib import Path

from .test_import_arrows import HEIGHT

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
ROWS = [re.findall(r"`([\w.]+/?)`", row.split("|")[1]) for row in re.findall(r"^\| `.*`.* \|$", PAGE, re.MULTILINE)]
MAP = [
    name.removesuffix("/").removesuffix(".py")
    for row in ROWS[: PAGE[: PAGE.index("## Add an encoding")].count("\n| `")]
    for name in row
]


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
