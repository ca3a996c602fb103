"""Documents of CoNLL-2012: words, sentences, mentions and their heads, and every kind of line that is broken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headway.errors import HeadwayError
from headway.inspection.texts import AnnotatedText, Mention, read_conll2012


def row(number: int, word: str, tag: str = "NN", parse: str = "*", coreference: str = "-") -> str:
    return f"a/b  0  {number}  {word}  {tag}  {parse}  -  -  -  speaker  *  {coreference}"


BEGIN, END = "#begin document (a/b); part 000", "#end document"
DOG = [
    BEGIN,
    row(0, "The", "DT", "(TOP(S(NP(NP*", "(12|(3"),
    row(1, "dog", "NN", "*)", "3)"),
    row(2, "of", "IN", "(PP*"),
    row(3, "Ann", "NNP", "(NP(NP*", "(4)"),
    row(4, "'s", "POS", "*)"),
    row(5, "aunt", "NN", "*)))", "12)"),
    row(6, "-LRB-", "-LRB-", "(VP*"),
    row(7, "saw", "VBD", "*"),
    row(8, "it", "PRP", "(NP*))))", "(12)|(4)"),
    "",
    row(0, "He", "PRP", "(TOP(NP*))", "(3)"),
    END,
]


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., list[AnnotatedText]]:
    def read(lines: list[str]) -> list[AnnotatedText]:
        path = tmp_path / "x.conll"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return read_conll2012(path)

    return read


Read = Callable[..., list[AnnotatedText]]


def test_white_space_within_a_word_ends_no_column(read: Read) -> None:
    [text] = read([BEGIN, row(0, "10\u00a0000", "CD", "(TOP*)", "(1)"), END])
    assert text.word(0) == "10\u00a0000"
    assert text.mentions == (Mention(0, 1, 1, 0),)


def test_a_document(read: Read) -> None:
    [text] = read(DOG)
    assert text.text == "The dog of Ann 's aunt ( saw it He"
    assert text.sentences == (0,) * 9 + (1,)
    assert text.name == "x.conll, a/b, part 0"
    assert text.mentions == (
        Mention(0, 6, 12, 1),  # the dog of Ann's aunt: dog, of the first noun phrase
        Mention(0, 2, 3, 1),
        Mention(3, 4, 4, 3),
        Mention(8, 9, 4, 8),
        Mention(8, 9, 12, 8),
        Mention(9, 10, 3, 9),
    )


def test_documents_and_parts(read: Read) -> None:
    second = [line.replace("part 000", "part 001") for line in DOG]
    assert [one.name for one in read([*DOG, *second])] == ["x.conll, a/b, part 0", "x.conll, a/b, part 1"]


def document(*rows: str) -> list[str]:
    return [BEGIN, *rows, END]


HEADS = {
    "the last noun": ([("the", "DT", "(NP*"), ("big", "JJ", "*"), ("dog", "NN", "*)")], 2),
    "no phrase of these words": (
        [("the", "DT", "(VP(NP*"), ("dog", "NN", "*)"), ("that", "WDT", "(NP*)"), ("barks", "VBZ", "*)")],
        3,
    ),
    "the last of two nouns": ([("apple", "NN", "(NP*"), ("pie", "NN", "*"), ("there", "RB", "*)")], 1),
    "no parse": ([("the", "DT", "*"), ("dog", "NN", "*"), ("there", "RB", "*")], 2),
    "a possessive": ([("Ann", "NNP", "(NP(NP*"), ("'s", "POS", "*)"), ("dog", "NN", "*)")], 2),
    "a possessive alone": ([("Ann", "NNP", "(NP*"), ("'s", "POS", "*)")], 0),
    "two phrases": ([("Ann", "NNP", "(NP(NP*)"), ("and", "CC", "*"), ("Bob", "NNP", "(NP*))")], 0),
    "two phrases in Chinese": ([("中国", "NR", "(NP(NP*)"), ("的", "DEG", "*"), ("经济", "NN", "(NP*))")], 2),
    "a pronoun in phrases": ([("it", "PRP", "(NP(NP*))")], 0),
}


@pytest.mark.parametrize("given", HEADS.values(), ids=HEADS)
def test_heads_of_mentions(read: Read, given: tuple[list[tuple[str, str, str]], int]) -> None:
    words, head = given
    last = len(words) - 1
    mark = {0: "(1", last: "1)"} if last else {0: "(1)"}
    rows = [row(i, *word, mark.get(i, "-")) for i, word in enumerate(words)]
    if words[0][2].startswith("(VP"):  # the mention is no phrase
        rows[0], rows[1] = row(0, *words[0]), row(1, *words[1], "(1")
    [text] = read(document(*rows))
    assert [one.head for one in text.mentions] == [head]


def test_chinese_is_written_without_spaces(read: Read) -> None:
    [text] = read(document(*(row(i, word) for i, word in enumerate(["小猫", "睡觉", "，", "IBM", "PC", "。"]))))
    assert text.text == "小猫睡觉，IBM PC。"
    assert [text.word(i) for i in range(len(text))] == ["小猫", "睡觉", "，", "IBM", "PC", "。"]


def test_an_entity_in_itself(read: Read) -> None:
    [text] = read(
        document(row(0, "a", coreference="(1"), row(1, "b", coreference="(1|1)"), row(2, "c", coreference="1)"))
    )
    assert [one[:3] for one in text.mentions] == [(0, 3, 1), (1, 2, 1)]


BROKEN: dict[str, tuple[list[str], str]] = {
    "columns left out": ([BEGIN, "a/b 0 0 The DT", END], "line 2: 5 columns"),
    "a number left out": (document(row(1, "a")), "line 2: the word's number is '1': 0 comes next"),
    "a word in no document": ([row(0, "a")], "line 1: a word that is in no document"),
    "a document in a document": ([BEGIN, row(0, "a"), BEGIN], "line 3: the document of line 1 has no '#end document'"),
    "a begin without a name": (["#begin document"], "line 1: '#begin document': give a line such as"),
    "an end without a begin": ([END], "line 1: the end of a document that has no"),
    "no end": ([BEGIN, row(0, "a")], "line 1: the document has no '#end document': is the file cut off"),
    "no words": ([BEGIN, END], "line 2: the document of line 1 has no words"),
    "no brackets": (document(row(0, "a", coreference="12")), "line 2: coreference '12': give - or brackets"),
    "no number in brackets": (document(row(0, "a", coreference="(x)")), "line 2: coreference '\\(x\\)'"),
    "an empty part": (document(row(0, "a", coreference="(1)|")), "line 2: coreference"),
    "a mention that does not begin": (document(row(0, "a", coreference="3)")), "line 2: 3\\) ends a mention that has"),
    "a mention that does not end": (
        document(row(0, "a", coreference="(3"), row(1, "b"), "", row(0, "c", coreference="3)")),
        "line 2: \\(3 begins a mention that does not end",
    ),
    "a parse without a word": (document(row(0, "a", parse="(NP)")), "line 2: parse '\\(NP\\)'"),
    "a word in no phrase": (
        document(row(0, "a", parse="(NP*)"), row(1, "b")),
        "line 3: parse '\\*': the word is",
    ),
    "a phrase that does not begin": (document(row(0, "a", parse="(NP*))")), "line 2: parse .* ends a phrase"),
    "a phrase that does not end": (document(row(0, "a", parse="(S(NP*)")), "line 2: the parse .* does not end S"),
    "nothing": (["", "# x"], "has no document"),
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_a_broken_line_is_refused_by_its_number(read: Read, broken: tuple[list[str], str]) -> None:
    lines, said = broken
    with pytest.raises(HeadwayError, match=rf"x\.conll,? {said}") as error:
        read(lines)
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(HeadwayError, match=r"cannot be read .* give a CoNLL-2012 file"):
        read_conll2012(tmp_path / "none.conll")
