"""Passages of GAP: what is read of them, and every kind of line that is broken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headway.errors import HeadwayError
from headway.inspection.texts import AnnotatedText, Choice, read_gap

HEAD = "ID\tText\tPronoun\tPronoun-offset\tA\tA-offset\tA-coref\tB\tB-offset\tB-coref\tURL"
TEXT = "“Ann Lee's” aunt met Zoë, and she 小 left."


def row(**changes: str) -> str:
    values = ["t-1", TEXT, "she", "30", "Ann Lee", "1", "TRUE", "Zoë", "21", "FALSE", "u"]
    return "\t".join({**dict(zip(HEAD.split("\t"), values, strict=True)), **changes}.values())


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., list[AnnotatedText]]:
    def read(*lines: str) -> list[AnnotatedText]:
        path = tmp_path / "gap.tsv"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="")
        return read_gap(path)

    return read


Read = Callable[..., list[AnnotatedText]]


def written(text: AnnotatedText, span: tuple[int, int] | None) -> str | None:
    return None if span is None else text.text[text.words[span[0]][0] : text.words[span[1] - 1][1]]


def test_a_passage(read: Read) -> None:
    [text] = read(HEAD, row())
    [choice] = text.choices
    assert text.text == TEXT
    assert text.name == "gap.tsv, t-1"
    assert [written(text, span) for span in choice] == ["she", "Ann Lee", "Zoë"]
    assert choice.right == (1, 3)


def test_the_other_name_and_neither(read: Read) -> None:
    second, neither = read(HEAD, row(**{"A-coref": "false", "B-coref": "True"}), row(**{"A-coref": "FALSE"}))
    assert [written(second, span) for span in second.choices[0]] == ["she", "Zoë", "Ann Lee"]
    she, ann, zoe = neither.choices[0].mention, (1, 3), neither.choices[1].wrong
    assert neither.choices == (Choice(she, None, ann), Choice(she, None, zoe))
    assert written(neither, zoe) == "Zoë"


def test_quotes_are_no_signs_of_the_format_and_names_may_lie_in_words(read: Read) -> None:
    text = '"Ann said she saw Xann'
    [found] = read(
        HEAD,
        row(Text=text, **{"Pronoun-offset": "10"}, A="Ann", **{"A-offset": "1"}, B="ann", **{"B-offset": "19"}),
    )
    assert [written(found, span) for span in found.choices[0]] == ["she", "Ann", "ann"]


BROKEN = {
    "a column too few": (row().rpartition("\t")[0], "line 2: 10 columns"),
    "a tab in the text": (row(Text="Ann\tshe"), "line 2: 12 columns"),
    "an offset that is no number": (row(**{"Pronoun-offset": "x"}), "Pronoun is 'she' and Pronoun-offset 'x'"),
    "an offset below 0": (row(**{"A-offset": "-1"}), "A-offset '-1'"),
    "an offset of another script": (row(**{"A-offset": "١"}), "A-offset '١'"),
    "an offset of another word": (row(**{"A-offset": "2"}), "line 2: A is 'Ann Lee' and A-offset '2'"),
    "an offset beyond the text": (row(**{"B-offset": "999"}), "B-offset '999'"),
    "an empty name": (row(B=""), "line 2: B is ''"),
    "names in each other": (row(B="Lee", **{"B-offset": "5"}), "the pronoun and the names overlap"),
    "another answer": (row(**{"B-coref": "maybe"}), "line 2: B-coref is 'maybe': give TRUE or FALSE"),
    "both names": (row(**{"B-coref": "TRUE"}), "line 2: A-coref and B-coref are both TRUE"),
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_a_broken_line_is_refused_by_its_number(read: Read, broken: tuple[str, str]) -> None:
    line, said = broken
    with pytest.raises(HeadwayError, match=rf"gap\.tsv, line 2: .*{said.removeprefix('line 2: ')}"):
        read(HEAD, line)


def test_files_that_are_no_files_of_gap(read: Read, tmp_path: Path) -> None:
    with pytest.raises(HeadwayError, match=r"gap\.tsv, line 1: it does not name the columns"):
        read(row())
    with pytest.raises(HeadwayError, match=r"gap\.tsv has no passage"):
        read(HEAD)
    with pytest.raises(HeadwayError, match="cannot be read"):
        read_gap(tmp_path / "none.tsv")


def test_the_test_set_of_gap(data: Callable[[str], Path]) -> None:
    texts = read_gap(data("gap-test.tsv"))
    assert len(texts) == 2000
    assert sum(text.choices[0].right is None for text in texts) == 227
    nearer = ties = 0
    for text in texts:
        for mention, right, wrong in text.choices:
            if right is not None:
                start, one, other = (text.words[span[0]][0] for span in (mention, right, wrong))
                nearer += abs(one - start) < abs(other - start)
                ties += abs(one - start) == abs(other - start)
    assert (nearer, ties) == (887, 2)  # 888 of 1,773, if one of two ties is right
