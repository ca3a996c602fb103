"""What keeps the repository whole: links that lead somewhere, versions that agree, nothing left half done."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import headway

ROOT = Path(__file__).parents[1]
FOLDERS = ["src", "tests", "benchmarks", "cmake", "examples", "docs", "packaging", ".ci", ".github"]
TEXT = {".py", ".md", ".toml", ".txt", ".json", ".jsonl", ".html", ".svg", ".cpp", ".h", ".ts", ".yml", ""}


def text_files() -> Iterator[Path]:
    """The project's own text files: those at the root and those in its folders."""
    inside = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*")))
    for path in [*sorted(ROOT.iterdir()), *inside]:
        if path.is_file() and path.suffix in TEXT and "__pycache__" not in path.parts and path.name != ".git":
            yield path


def test_links_lead_somewhere() -> None:
    broken = []
    pages = [path for path in text_files() if path.suffix == ".md" and path.parent.name != "templates"]
    for path in pages:
        text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.S)
        targets = re.findall(r"\]\(<?([^)>\s]+)", text) + re.findall(r"(?:src|srcset|href)=\"([^\"]+)\"", text)
        for target in targets:
            where = target.partition("#")[0]
            if where and not re.match(r"[a-z]+:", where) and not (path.parent / where).exists():
                broken.append(f"{path.relative_to(ROOT)}: {target}")
    assert not broken


@pytest.mark.parametrize("page", ["README.md", "README.zh-CN.md"])
def test_the_readme_is_short(page: str) -> None:
    assert len((ROOT / page).read_text(encoding="utf-8").splitlines()) <= 130, "details belong into docs/"


CHINESE = [ROOT / "README.zh-CN.md", *sorted((ROOT / "docs" / "zh-CN").glob("*.md"))]


def links_to_english_pages() -> Iterator[tuple[str, Path, bool]]:
    """What a Chinese page says of each English page that it links: the link, the page, and whether it is marked so."""
    for page in CHINESE:
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
        for link in re.finditer(r"\[([^\]]*)\]\(([^)#\s]+\.md)[^)]*\)", text):
            before = text[: link.start()].rpartition("\n")[2]
            names_the_language = link[1] == "English" or before.startswith("| English |")
            target = (page.parent / link[2]).resolve()
            if target not in CHINESE and not names_the_language:
                marked = re.match("（英文）|，英文", text[link.end() :]) is not None
                yield f"{page.relative_to(ROOT)}: {link[0]}", target, marked


def test_chinese_pages_mark_links_to_english_ones() -> None:
    assert [link for link, _, marked in links_to_english_pages() if not marked] == []


def test_chinese_pages_lead_to_chinese_ones() -> None:
    twins = {ROOT / "README.md", *(ROOT / "docs" / page.name for page in CHINESE[1:])}
    assert [link for link, page, _ in links_to_english_pages() if page in twins] == []


def test_chinese_lessons_run_in_chinese() -> None:
    text = (ROOT / "docs" / "zh-CN" / "lessons.md").read_text(encoding="utf-8")
    lines = re.findall(r"^运行：`([^`]+)`", text, re.M)
    assert len(lines) == len(list((ROOT / "examples").glob("lesson_*.py")))
    assert [line for line in lines if not line.endswith(" --language zh")] == []


def test_nothing_is_left_half_done() -> None:
    unfinished = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b|NotImplemented" r"Error\(\)")
    found = [str(p.relative_to(ROOT)) for p in text_files() if unfinished.search(p.read_text(encoding="utf-8"))]
    assert not found


def test_no_path_of_one_machine() -> None:
    local = re.compile(r"(?<![\w.])/(work|root|home|Users|tmp|opt)/\w")
    found = [str(p.relative_to(ROOT)) for p in text_files() if local.search(p.read_text(encoding="utf-8"))]
    assert not found


def test_changelog_tells_of_this_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## (\d[\w.]*)", changelog, re.M)
    assert newest is not None
    assert newest[1] == headway.__version__


def test_the_citation_is_of_this_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.+)$", citation, re.M) == [headway.__version__]


def test_constraints_are_exact_and_start_with_torch() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").split("\n")
    pins = [line for line in lines if line and not line.startswith("#")]
    assert pins[0].startswith("torch==")
    assert [pin for pin in pins if not re.fullmatch(r"[A-Za-z0-9_-]+==[0-9.]+(b[0-9]+)?", pin)] == []


def test_ci_can_be_run() -> None:
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_the_package_says_that_it_is_typed() -> None:
    assert (Path(headway.__file__).parent / "py.typed").is_file()
