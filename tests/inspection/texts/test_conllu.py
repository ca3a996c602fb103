"""Sentences of CoNLL-U: what is read of them, and every kind of line that is broken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headway.errors import HeadwayError
from headway.inspection.texts import AnnotatedText, read_conllu


def row(number: str, form: str, tag: str = "X", governor: str = "0", relation: str = "root", misc: str = "_") -> str:
    return "\t".join([number, form, "_", tag, "_", "_", governor, relation, "9:enhanced", misc])


CAT = [
    "# sent_id = 1",
    "# text = I don't see  the cat.",
    row("1", "I", "PRON", "4", "nsubj"),
    row("2-3", "don't", "_", "_", "_"),
    row("2", "do", "AUX", "4", "aux"),
    row("3", "n't", "PART", "4", "advmod"),
    row("4", "see", "VERB", "0", "root"),
    row("4.1", "saw", "VERB", "_", "_"),
    row("5", "the", "DET", "6", "det"),
    row("6", "cat", "NOUN", "4", "obj", "Gloss=x|SpaceAfter=No"),
    row("7", ".", "PUNCT", "4", "punct"),
]


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., list[AnnotatedText]]:
    def read(lines: list[str], end: str = "\n") -> list[AnnotatedText]:
        path = tmp_path / "x.conllu"
        path.write_bytes((end.join(lines) + end).encode())
        return read_conllu(path)

    return read


Read = Callable[..., list[AnnotatedText]]


def words(text: AnnotatedText) -> list[str]:
    return [text.word(i) for i in range(len(text))]


def test_a_sentence(read: Read) -> None:
    [text] = read([*CAT, ""])
    assert text.text == "I don't see  the cat."
    assert words(text) == ["I", "do", "n't", "see", "the", "cat", "."]
    assert text.governors == (3, 3, 3, -1, 5, 3, 3)
    assert text.relations == ("nsubj", "aux", "advmod", "root", "det", "obj", "punct")
    assert text.tags == ("PRON", "AUX", "PART", "VERB", "DET", "NOUN", "PUNCT")
    assert text.sentences == (0,) * 7
    assert text.name == "x.conllu, sentence 1"


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_sentences_end_at_blank_lines_and_at_the_end(read: Read, end: str) -> None:
    again = [*CAT, "", "", "# newdoc", *CAT]
    first, second = read(again, end)
    assert first.words == second.words
    assert second.name == "x.conllu, sentence 2"


def test_a_byte_order_mark_is_no_column(tmp_path: Path) -> None:
    path = tmp_path / "x.conllu"
    path.write_text("\n".join(CAT), encoding="utf-8-sig")
    assert words(read_conllu(path)[0])[0] == "I"


def test_without_a_text_it_is_put_together(read: Read) -> None:
    [text] = read(CAT[2:])
    assert text.text == "I don't see the cat."
    assert words(text) == ["I", "do", "n't", "see", "the", "cat", "."]


def test_words_that_do_not_spell_what_is_written_are_empty(read: Read) -> None:
    [text] = read(
        [
            "# text = près du 𝒸hat",
            row("1", "près", governor="4", relation="case"),
            row("2-3", "du"),
            row("2", "de", governor="4", relation="case"),
            row("3", "le", governor="4", relation="det"),
            row("4", "𝒸hat"),
        ]
    )
    assert words(text) == ["près", "", "", "𝒸hat"]
    assert text.governors == (3, 3, 3, -1)


def test_words_spell_apart_from_case(read: Read) -> None:
    [text] = read(["# text = CANNOT", row("1-2", "CANNOT"), row("1", "can"), row("2", "not", governor="1")])
    assert words(text) == ["CAN", "NOT"]


def test_a_form_with_spaces_chinese_and_right_to_left(read: Read) -> None:
    assert words(read(["# text = 10 000 km", row("1", "10 000"), row("2", "km", governor="1")])[0]) == ["10 000", "km"]
    chinese = [row("1", "小猫", misc="SpaceAfter=No"), row("2", "睡觉", governor="1", misc="SpaceAfter=No")]
    [text] = read(["# text = 小猫睡觉", *chinese])
    assert text.words == ((0, 2), (2, 4))
    assert read(chinese)[0].text == "小猫睡觉"
    hebrew = [row("1-2", "בבית"), row("1", "ב", governor="2"), row("2", "בית")]
    assert words(read(["# text = בבית", *hebrew])[0]) == ["ב", "בית"]


def test_what_is_not_annotated_is_not_known(read: Read) -> None:
    [text] = read([row("1", "a", "_", "_", "_"), row("2", "b")])
    assert (text.governors, text.relations, text.tags) == ((-2, -1), ("", "root"), ("X", "X"))


BROKEN: dict[str, tuple[int, str, str]] = {
    "spaces for tabs": (3, "1 I _ PRON _ _ 4 nsubj _ _", "line 3: 1 columns"),
    "a column too few": (3, "\t".join(["1", *"_" * 8]), "line 3: 9 columns"),
    "a column too many": (3, row("1", "I") + "\t_", "line 3: 11 columns"),
    "no number": (3, row("one", "I"), "line 3: the word's number is 'one'"),
    "a number of another script": (3, row("١", "I"), "line 3: the word's number is '١'"),
    "a number left out": (7, row("5", "see"), "line 7: the word's number is 5: 4 comes next"),
    "a number twice": (5, row("1", "do"), "line 5: the word's number is 1: 2 comes next"),
    "a word that is empty": (3, row("1", ""), "line 3: the word is empty"),
    "a range that falls": (4, row("2-1", "don't"), "line 4: 2-1 is not a range of two words"),
    "a range of one": (4, row("2-2", "don't"), "line 4: 2-2 is not a range of two words"),
    "a range beyond the sentence": (4, row("2-9", "don't"), "line 4: 2-9 are words of a sentence that has 7"),
    "a range that begins elsewhere": (4, row("3-4", "don't"), "line 4: the word's number is 3-4: 2 comes next"),
    "a range in a range": (6, row("3-4", "n't"), "line 6: 3-4 is not a range of two words or more"),
    "a governor that is no number": (3, row("1", "I", governor="x"), "line 3: the governor of 'I' is 'x'"),
    "a governor below 0": (3, row("1", "I", governor="-1"), "line 3: the governor of 'I' is '-1'"),
    "a governor beyond the sentence": (3, row("1", "I", governor="8"), "line 3: the governor of 'I' is '8'"),
    "its own governor": (3, row("1", "I", governor="1"), "line 3: the governor of 'I' is '1'"),
    "a word that the text does not have": (3, row("1", "You"), "line 3: 'You' is not what comes next in '# text' of"),
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_a_broken_line_is_refused_by_its_number(read: Read, broken: tuple[int, str, str]) -> None:
    number, line, said = broken
    with pytest.raises(HeadwayError, match=rf"x\.conllu, {said}") as error:
        read([*CAT[: number - 1], line, *CAT[number:]])
    assert "\n" not in str(error.value)


def test_words_that_are_withheld_are_refused(read: Read) -> None:
    """As in English-ESL, without a text, and in GUMReddit, with one of underscores."""
    withheld = [row("1", "_", "PRON", "2", "nsubj"), row("2", "_", "VERB"), row("3", "_", "PUNCT", "2", "punct")]
    for lines in (withheld, ["# text = _ __", *withheld], [row("1", "_", "NOUN")]):
        with pytest.raises(HeadwayError, match=r"x\.conllu, line \d+: all words of the sentence are _, as in") as error:
            read([*CAT, "", *lines])
        assert "\n" not in str(error.value)
    [text] = read([row("1", "a"), row("2", "_", "SYM", "1", "dep")])
    assert words(text) == ["a", "_"]
    [text] = read(["# text = __", row("1", "_", "SYM", misc="SpaceAfter=No"), row("2", "_", "PUNCT", "1", "punct")])
    assert words(text) == ["_", "_"]


def test_files_that_are_no_files_of_conllu(tmp_path: Path) -> None:
    with pytest.raises(HeadwayError, match=r"none\.conllu cannot be read \(No such file.*give a CoNLL-U file"):
        read_conllu(tmp_path / "none.conllu")
    with pytest.raises(HeadwayError, match="cannot be read"):
        read_conllu(tmp_path)
    empty = tmp_path / "empty.conllu"
    empty.write_text("# text = nothing\n\n")
    with pytest.raises(HeadwayError, match=r"empty\.conllu has no sentence"):
        read_conllu(empty)
    latin = tmp_path / "latin.conllu"
    latin.write_bytes(b"# text = caf\xe9\n1\tcaf\xe9\n")
    with pytest.raises(HeadwayError, match=r"latin\.conllu .*line 1: byte 12 .*: give a CoNLL-U file in UTF-8"):
        read_conllu(latin)


def test_ud_english_pud(data: Callable[[str], Path]) -> None:
    texts = read_conllu(data("en_pud-ud-test.conllu"))
    assert len(texts) == 1000
    assert sum(map(len, texts)) == 21180  # words, as the README of the treebank says
    assert all(text.governors.count(-1) == 1 for text in texts)
    assert not [text.name for text in texts for start, stop in text.words if start == stop]
    assert texts[0].text.startswith("“While much of the digital transition")
    assert texts[0].word(texts[0].governors[2]) == "unprecedented"
