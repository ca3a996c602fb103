"""Words and sentences of plain text in several scripts."""

from pathlib import Path

import pytest

from headway.errors import HeadwayError
from headway.inspection.texts import paragraphs, plain_text, python_manual, read_text


def sentences(text: str) -> list[str]:
    """The sentences of a text, each as its words with spaces between them."""
    found = plain_text(text)
    parts: list[list[str]] = []
    for i, number in enumerate(found.sentences):
        parts += [[]] if number == len(parts) else []
        assert number == len(parts) - 1
        parts[-1].append(found.word(i))
    return [" ".join(part) for part in parts]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The cat woke up. It ran!", ["The cat woke up .", "It ran !"]),
        ("Pi is 3.14, see example.org now. Yes", ["Pi is 3 . 14 , see example . org now .", "Yes"]),
        ('He said "No!" Then he left... (Why?) So', ['He said " No ! "', "Then he left . . .", "( Why ? )", "So"]),
        ("小猫跑了。它很饿!小明吃苹果", ["小 猫 跑 了 。", "它 很 饿 !", "小 明 吃 苹 果"]),
        ("“真的吗？”小明说。好", ["“ 真 的 吗 ？ ”", "小 明 说 。", "好"]),
        ("هل نام القط؟ نعم.", ["هل نام القط ؟", "نعم ."]),
        ("one", ["one"]),
        ("", []),
    ],
)
def test_sentences(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected


def test_paragraphs_or_lines_are_texts(tmp_path: Path) -> None:
    assert [one.text for one in paragraphs("a b\nc\n\n  d\n\n\n")] == ["a b c", "d"]
    assert [one.text for one in paragraphs("a b\nc\n")] == ["a b", "c"]
    file = tmp_path / "a.txt"
    file.write_bytes("\ufeff小猫 它。\r\n\r\nb".encode())
    found = read_text(file)
    assert [one.text for one in found] == ["小猫 它。", "b"]
    assert found[1].name == "a.txt, paragraph 2"


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text(" \n\n")
    (tmp_path / "latin.txt").write_bytes(b"a\nna\xefve")
    with pytest.raises(HeadwayError, match=r"empty\.txt has no words"):
        read_text(tmp_path / "empty.txt")
    with pytest.raises(HeadwayError, match=r"latin\.txt cannot be read \(line 2: .*UTF-8"):
        read_text(tmp_path / "latin.txt")
    with pytest.raises(HeadwayError, match=r"none\.txt cannot be read"):
        read_text(tmp_path / "none.txt")


def test_the_manual_of_python_is_english_text() -> None:
    found = python_manual(50)
    assert len(found) == 50
    assert all(8 <= len(one) <= 40 for one in found)
    assert len({one.text for one in found}) == 50
