"""docs/coverage.md says truly where each statement of the source documents is covered, and docs/zh-CN/coverage.md says
the same in Chinese; links find their headings.

That links lead to files is for every page in test_repository.py, that claims and rows name each other in
examples/test_claims.py.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

from .test_repository import ROOT, text_files

PAGE = ROOT / "docs" / "coverage.md"
CHINESE = ROOT / "docs" / "zh-CN" / "coverage.md"
DOCUMENTS = ["000", "001", "002", "003", "004"]
KINDS = {
    "definition": "定义",
    "formula": "公式",
    "code": "代码",
    "example": "例子",
    "claim": "说法",
    "erratum": "错误",
    "loose": "不严谨",
    "lost": "缺失",
}
"""The kinds of rows in both languages."""
WORDS = {"erratum": "Right", "loose": "Exactly: ", "lost": "Lost: "}
CHINESE_WORDS = {"erratum": "应为", "loose": "准确地说：", "lost": "缺失："}
"""What a row of these kinds says before what is right, exact or missing."""
SIGNS = {  # of a formula, and what computes it in code
    r"softmax": r"softmax",
    r"sin\b": r"sin\b",
    r"cos\b": r"cos\b",
    r"Concat": r"\bcat\(|MultiHeadAttention",
    r"Σ": r"sum\(|@",
    r"√": r"sqrt\(|\*\* ?-0\.5",
    r"e\^": r"exp\(",
}
NUMBER = re.compile(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?(?!\w)")
NO_NUMBERS_TO_FIND = re.compile(r"[Ff]igures? \d-\d+|图 \d-\d+|document \d{3}|\(\d{4}\)|[Ll]esson \d+|第 \d+ 课")
LINK = re.compile(r"\[([^\]]*)\]\(<?([^)>\s]+)")
LESSON = re.compile(r"examples/lesson_(\d+)_|lessons\.md#(\d+)-")


@cache
def prose(path: Path) -> str:
    """A page without its blocks of code, in which # begins a comment and no heading."""
    return re.sub(r"^ *```.*?^ *```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def rows(page: Path = PAGE) -> Iterator[list[str]]:
    """id, statement, kind, where: of each statement, in their order."""
    for line in prose(page).splitlines():
        if re.match(r"\| \d{3}\.", line):
            yield cells(line)


# ---------------------------------------------------------------- every page


def anchors(path: Path) -> set[str]:
    """Those that GitHub gives to the headings of a page."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.+?)[ #]*$", prose(path), re.MULTILINE):
        shown = LINK.sub(lambda link: link[1], heading).lower()
        plain = re.sub(r"[^\w\- ]", "", shown).replace(" ", "-")
        again = chain([plain], (f"{plain}-{number}" for number in range(1, 1000)))
        found.add(next(name for name in again if name not in found))
    return found


def test_anchors_are_githubs(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    lines = [
        "# What *it* is: `hw.load`",
        "## 1. 注意力，加权查找",
        "```sh",
        "# no",
        "```",
        "## A - [b](c)",
        "## A - b ##",
    ]
    page.write_text("\n".join(lines), encoding="utf-8")
    assert anchors(page) == {"what-it-is-hwload", "1-注意力加权查找", "a---b", "a---b-1"}


def test_links_find_their_headings() -> None:
    broken = []
    for path in [p for p in text_files() if p.suffix == ".md"]:
        for where, anchor in re.findall(r"\]\(<?([^)>\s#]*)#([^)>\s]+)", prose(path)):
            page = path.parent / where if where else path
            if page.suffix == ".md" and page.exists() and anchor not in anchors(page):
                broken.append(f"{path.relative_to(ROOT)}: {where}#{anchor}")
    assert not broken


def test_other_pages_name_documents_by_what_they_say() -> None:
    pages = [p for p in [*ROOT.glob("README*.md"), *(ROOT / "docs").rglob("*.md")] if p not in (PAGE, CHINESE)]
    number = re.compile(r"(?<![\d.,])00[0-4](?![\d.,]*\d)")
    assert [(page.name, found) for page in pages for found in number.findall(prose(page))] == []


# ---------------------------------------------------------------- the page of statements


def test_no_number_is_left_out() -> None:
    found = [row[0] for row in rows()]
    counts = [sum(name.startswith(document) for name in found) for document in DOCUMENTS]
    assert min(counts) > 0
    expected = [f"{d}.{n}" for d, count in zip(DOCUMENTS, counts, strict=True) for n in range(1, count + 1)]
    assert found == expected
    for document, count in zip(DOCUMENTS, counts, strict=True):
        assert f"- **{document}** ({count} statements)" in prose(PAGE)


def test_every_row_says_what_and_where() -> None:
    for row in rows():
        assert len(row) == 4, row
        name, statement, kind, where = row
        assert statement, name
        assert kind in KINDS, name
        assert LINK.search(where), name


def test_what_is_named_is_there() -> None:
    """`name` in a link is a function or class of the file that the link leads to."""
    missing = []
    for name, _, _, where in rows():
        for shown, target in LINK.findall(where):
            if shown.startswith("`") and (path := PAGE.parent / target).exists():
                wanted = re.escape(shown.strip("`"))
                if not re.search(rf"^ *(def|class) {wanted}\b", path.read_text(encoding="utf-8"), re.MULTILINE):
                    missing.append(f"{name}: {shown} in {target}")
    assert not missing


def code(where: str) -> str:
    """The code that a row links: functions and classes where it names them, else whole files."""
    parts = []
    for shown, target in LINK.findall(where):
        path = PAGE.parent / target
        if path.suffix != ".py":
            continue
        source = path.read_text(encoding="utf-8")
        if not shown.startswith("`"):
            parts.append(source)
            continue
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == shown.strip("`"):
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                parts.append("\n".join(source.splitlines()[first - 1 : node.end_lineno]))
    return "\n".join(parts)


def test_what_is_wrong_or_missing_is_said() -> None:
    for name, statement, kind, _ in rows():
        found = {other for other, word in WORDS.items() if word in statement}
        assert found == {kind} & set(WORDS), name


def test_formulas_are_computed_by_what_their_rows_link() -> None:
    for name, statement, kind, where in rows():
        if kind == "formula":
            linked = code(where)
            assert linked, name
            for sign, computed in SIGNS.items():
                assert not re.search(sign, statement) or re.search(computed, linked), (name, sign)


def test_errors_that_rows_name_are_raised_in_what_they_link() -> None:
    named = 0
    for name, statement, _, where in rows():
        for error in re.findall(r"`(\w+Error)`", statement):
            assert f"pytest.raises({error}" in code(where), (name, error)
            named += 1
    assert named


def test_numbers_of_rows_are_in_what_they_link() -> None:
    for name, statement, _, where in rows():
        wanted = NUMBER.findall(NO_NUMBERS_TO_FIND.sub("", statement))
        paths = [PAGE.parent / target.partition("#")[0] for _, target in LINK.findall(where)]
        found = {float(number.replace(",", "")) for path in paths for number in NUMBER.findall(path.read_text("utf-8"))}
        assert {float(number.replace(",", "")) for number in wanted} <= found, name


def test_printed_code_is_run_under_the_name_of_its_document() -> None:
    for name, _, kind, where in rows():
        links = [(shown, target) for shown, target in LINK.findall(where) if target.endswith("test_snippets.py")]
        assert links or kind != "code", name
        for shown, target in links:
            assert name.partition(".")[0] in code(f"[{shown}]({target})"), (name, shown)


def test_every_lesson_covers_something() -> None:
    linked = {target for row in rows() for _, target in LINK.findall(row[3])}
    lessons = sorted((ROOT / "examples").glob("lesson_*.py"))
    assert lessons
    assert [lesson.name for lesson in lessons if f"../examples/{lesson.name}" not in linked] == []


def lessons_in(where: str) -> set[str]:
    return {script or section for script, section in LESSON.findall(where)}


@pytest.mark.parametrize(("page", "heading"), [(PAGE, "## By lesson"), (CHINESE, "## 按课排列")])
def test_by_lesson_is_the_same_the_other_way_round(page: Path, heading: str) -> None:
    wanted: dict[str, set[str]] = {}
    for name, _, _, where in rows(page):
        for lesson in lessons_in(where):
            wanted.setdefault(lesson, set()).add(name)
    found: dict[str, set[str]] = {}
    for line in prose(page).partition(heading)[2].splitlines():
        if not (those := lessons_in(line)):
            continue
        (lesson,) = those
        found[lesson] = {
            f"{document}.{number}"
            for document, cell in zip(DOCUMENTS, cells(line)[1:], strict=True)
            for first, last in re.findall(r"(\d+)(?:–(\d+))?", cell)
            for number in range(int(first), int(last or first) + 1)
        }
    assert found == wanted


@pytest.mark.parametrize(("page", "kinds"), [(PAGE, ("erratum", "lost")), (CHINESE, ("错误", "缺失"))])
def test_errata_and_what_is_lost_are_listed_once_more(page: Path, kinds: tuple[str, str]) -> None:
    wanted = [f"- **{name}** {statement}" for name, statement, kind, _ in rows(page) if kind in kinds]
    assert [line for line in prose(page).splitlines() if re.match(r"- \*\*\d{3}\.", line)] == wanted
    assert len(wanted) > 20


# ---------------------------------------------------------------- the page in Chinese


def targets(page: Path, where: str) -> list[tuple[str, str]]:
    """What the links of a row lead to, the same in both languages: lessons and claims by number, others by path."""
    found = []
    for shown, target in LINK.findall(where):
        if lesson := lessons_in(target):
            found.append(("lesson", lesson.pop()))
        elif claim := re.match(r"claims\.md#(\d+)-", target):
            found.append(("claim", claim[1]))
        else:
            path, _, anchor = target.partition("#")
            inside = shown.strip("`") if shown.startswith("`") else anchor
            file = str((page.parent / path).resolve().relative_to(ROOT))
            found.append((file.replace("docs/zh-CN/", "docs/"), inside))  # a page in Chinese is a twin
    return found


def test_the_page_in_chinese_has_the_same_rows() -> None:
    english, chinese = list(rows(PAGE)), list(rows(CHINESE))
    assert [row[0] for row in chinese] == [row[0] for row in english]
    for (name, _, kind, where), (_, statement, its_kind, its_where) in zip(english, chinese, strict=True):
        assert statement, name
        assert its_kind == KINDS[kind], name
        assert targets(CHINESE, its_where) == targets(PAGE, where), name


def test_statements_in_chinese_have_the_same_numbers_and_code() -> None:
    for (name, english, kind, _), (_, chinese, _, _) in zip(rows(PAGE), rows(CHINESE), strict=True):
        numbers, its = ({*NUMBER.findall(NO_NUMBERS_TO_FIND.sub("", text))} for text in (english, chinese))
        assert its == numbers, name
        assert {*re.findall(r"`[^`]+`", chinese)} == {*re.findall(r"`[^`]+`", english)}, name
        assert {other for other, word in CHINESE_WORDS.items() if word in chinese} == {kind} & set(WORDS), name


def test_the_page_in_chinese_counts_its_rows() -> None:
    found = [row[0] for row in rows(CHINESE)]
    for document in DOCUMENTS:
        assert f"- **{document}**（{sum(name.startswith(document) for name in found)} 句）" in prose(CHINESE)
