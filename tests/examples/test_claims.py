"""The pages of claims show what the table says, in both languages; each lesson's test checks its claims' numbers."""

import re
from types import SimpleNamespace

import pytest

from claims import DOCUMENTS, SUBJECTS, Claim, Verdict, page
from claims.__main__ import PAGES
from lesson import SPEAK

from ..test_coverage import LINK, PAGE, rows
from .conftest import EXAMPLES

CLAIMS = [claim for _, group in SUBJECTS for claim in group]


def test_each_claim_names_its_documents_and_a_lesson() -> None:
    for claim in CLAIMS:
        assert re.fullmatch(r"00[0-4]\.\d+(, 00[0-4]\.\d+)*", claim.statements), claim.says
        assert (EXAMPLES / f"{claim.lesson}.py").is_file(), claim.lesson
        assert all(text.endswith(end) for text, end in zip(claim.says, ".。", strict=True)), claim.says
    assert len({claim.says for claim in CLAIMS}) == len(CLAIMS)
    assert {document for claim in CLAIMS for document in claim.documents} == set(DOCUMENTS)
    introduced = re.findall(r"^- \*\*(\d{3})\*\* \(\d+ statements\), ([^:,]+)", PAGE.read_text(encoding="utf-8"), re.M)
    assert introduced == [(document, english) for document, (english, _) in DOCUMENTS.items()]


def test_claims_and_rows_of_coverage_name_each_other() -> None:
    """The rows that a claim names link it and its lesson; a row that links a claim is named by it."""
    links = {name: {target.rpartition("/")[2] for _, target in LINK.findall(where)} for name, _, _, where in rows()}
    named = {
        (statement, number, claim.lesson)
        for number, claim in enumerate(CLAIMS, start=1)
        for statement in claim.statements.split(", ")
    }
    assert [(name, lesson) for name, _, lesson in named if f"{lesson}.py" not in links[name]] == []
    linked = re.compile(r"claims\.md#(\d+)-")
    assert {(name, number) for name, number, _ in named} == {
        (name, int(found[1]))
        for name, targets in links.items()
        for target in targets
        if (found := linked.match(target))
    }
    assert not any("claims.md" in targets for targets in links.values())


@pytest.mark.parametrize("language", PAGES)
def test_the_page_shows_the_table(language: str) -> None:
    text, t = PAGES[language].read_text(encoding="utf-8"), SPEAK[language]
    shown = re.findall(r"^### (\d+)\. (.+)\n\n\*\*(.+?)\*\* · (.+) · ", text, re.M)
    assert shown == [
        (str(n), t(*claim.says), claim.verdict.text(t), t(", ", "、").join(t(*DOCUMENTS[d]) for d in claim.documents))
        for n, claim in enumerate(CLAIMS, start=1)
    ]


def made_up(stands: bool, value: float | None = 1.0) -> tuple[Claim, dict[str, SimpleNamespace]]:
    claim = Claim(
        "000.1",
        ("One.", "一。"),
        Verdict.HOLDS,
        "lesson_1_x",
        lambda f: (f"It is {f.value}.", f"是 {f.value}。"),
        lambda f: stands,
        needs=("value", ("the file", "文件")),
    )
    return claim, {"lesson_1_x": SimpleNamespace(value=value)}


def test_a_verdict_that_the_numbers_do_not_support_is_an_error() -> None:
    claim, found = made_up(stands=True)
    assert "**holds** · the tutorial in PyTorch" in page([(("A", "甲"), [claim])], found, SPEAK["en"])
    claim, found = made_up(stands=False)
    with pytest.raises(
        RuntimeError, match=r"no longer supports the verdict 'holds'.*000\.1: One\.\nmeasured: It is 1\.0"
    ):
        page([(("A", "甲"), [claim])], found, SPEAK["en"])


def test_what_could_not_be_measured_says_what_it_needs() -> None:
    claim, found = made_up(stands=False, value=None)
    assert "**not measured here** · the tutorial in PyTorch" in page([(("A", "甲"), [claim])], found, SPEAK["en"])
    assert "需要文件。" in page([(("A", "甲"), [claim])], found, SPEAK["zh"])


@pytest.mark.parametrize("language", PAGES)
def test_times_of_a_run_stand_on_the_page_of_lessons_alone(language: str) -> None:
    """Every run gives other times; those of a lesson are written once, beside its picture."""
    sections = re.split(r"^### (\d+)\. ", PAGES[language].read_text(encoding="utf-8"), flags=re.M)[1:]
    measured = {int(number): text.split("\n\n")[2] for number, text in zip(sections[::2], sections[1::2], strict=True)}
    stored = {path.stem for path in EXAMPLES.glob("measured/*.jsonl")}
    timed = [number for number, claim in enumerate(CLAIMS, start=1) if claim.timed and claim.lesson not in stored]
    assert len(timed) == 3
    a_time = re.compile(r"\d[\d.]* ?(times|倍|ms|毫秒)|n\^\d+\.\d|from [\d,]+ tokens on|从 [\d,]+ 个词元起")
    assert [number for number in timed if a_time.search(measured[number])] == []
    assert [number for number in timed if "](lessons.md#" not in measured[number]] == []


def test_both_pages_give_the_same_numbers() -> None:
    """Numbers of one digit may be words in one language."""
    number = re.compile(r"(?<![\w.,])(?:\d+\.\d+(?:e-?\d+)?|\d+e-?\d+|\d{1,3}(?:,\d{3})+|\d{2,})")
    pages = [re.split(r"^### ", page.read_text(encoding="utf-8"), flags=re.M)[1:] for page in PAGES.values()]
    for english, chinese in zip(*pages, strict=True):
        of_one, of_other = ({*number.findall(re.sub(r"\]\([^)]*\)", "", text))} for text in (english, chinese))
        assert of_one == of_other, english.partition("\n")[0]
