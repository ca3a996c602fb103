"""Sentences of treebanks in the CoNLL-U format: words, parts of speech, and dependency relations."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ..._common.text_files import lines_of
from ..._common.words import Span
from ...errors import HeadwayError
from ._file import broken
from ._text import NOT_ANNOTATED, AnnotatedText

COLUMNS = 10
WITHHELD, SIGNS = "_", ("PUNCT", "SYM")
TEXT = re.compile(r"#\s*text\s*=(.*)")


def read_conllu(path: str | Path) -> list[AnnotatedText]:
    """Reads the sentences of a CoNLL-U file, in which Universal Dependencies are published.

        texts = read_conllu("en_pud-ud-test.conllu")
        texts[0].relations[2]            # "nsubj"

    The text is that of the comment ``# text``; without it, words are written with spaces between them except after
    SpaceAfter=No. If several words are written as one and spell it together, apart from case, each is its part of the
    text, as "do" and "n't" of "don't". Otherwise they are empty and get no tokens, as "de" and "le" of "du". The reader
    skips words that are left out of the sentence (8.1) and enhanced dependencies.

    Treebanks that withhold their text have _ for each word, such as English-ESL, English-GUMReddit, French-FTB,
    Arabic-NYUAD, Hindi_English-HIENCS, Japanese-BCCWJ and Japanese-KTC ("Includes text: no" in the README). The reader
    refuses their sentences. If you have the texts, the programs that come with these treebanks insert the words.

    Args:
        path: the file, in UTF-8.

    Returns:
        A text for each sentence, with governors, relations with their subtypes, such as "nsubj:pass", and tags.

    Raises:
        HeadwayError: if the file cannot be read, has no sentence, the words of one are withheld, or a line of it is
            broken; it names the line.

    References:
        https://universaldependencies.org/format.html
    """
    path = Path(path)
    texts = [_text_of(path, sentence, number) for number, sentence in enumerate(_sentences(path), 1)]
    if not texts:
        raise HeadwayError(f"{path} has no sentence: give a CoNLL-U file")
    return texts


@dataclass
class _Row:
    """A word, or several that are written as one: ``first`` to ``last``, from 1 on."""

    line: int
    first: int
    last: int
    form: str
    tag: str
    governor: str
    relation: str
    space_after: bool


@dataclass
class _Sentence:
    text: str | None = None
    text_line: int = 0
    words: list[_Row] = field(default_factory=list)
    fused: dict[int, _Row] = field(default_factory=dict)  # by their first word


def _sentences(path: Path) -> Iterator[_Sentence]:
    sentence = _Sentence()
    for number, line in lines_of(path, "CoNLL-U"):
        if not line.strip():
            if sentence.words:
                yield sentence
            sentence = _Sentence()
        elif line.startswith("#"):
            said = TEXT.fullmatch(line)
            if said:
                sentence.text, sentence.text_line = said[1].strip(), number
        else:
            _add(path, number, line, sentence)
    if sentence.words:
        yield sentence


def _add(path: Path, number: int, line: str, sentence: _Sentence) -> None:
    columns = line.split("\t")
    if len(columns) != COLUMNS:
        raise broken(path, number, f"{len(columns)} columns between tabs: a word of CoNLL-U has {COLUMNS}")
    index, form, tag, governor, relation, misc = (columns[i] for i in (0, 1, 3, 6, 7, 9))
    ids = re.fullmatch(r"(\d{1,9})(?:(-|\.)(\d{1,9}))?", index, re.ASCII)
    if ids is None:
        raise broken(path, number, f"the word's number is {index!r}: give one such as 3, 3-4 or 3.1")
    if ids[2] == ".":
        return
    if not form.strip():
        raise broken(path, number, "the word is empty: give it in the second column")
    first, next_one = int(ids[1]), len(sentence.words) + 1
    if first != next_one:
        raise broken(path, number, f"the word's number is {index}: {next_one} comes next")
    row = _Row(
        number, first, int(ids[3] or first), form, tag, governor, relation, "SpaceAfter=No" not in misc.split("|")
    )
    if ids[2] is None:
        sentence.words.append(row)
    elif row.last <= first or any(first <= one.last for one in sentence.fused.values()):
        raise broken(path, number, f"{index} is not a range of two words or more: give one such as 3-4")
    else:
        sentence.fused[first] = row


def _text_of(path: Path, sentence: _Sentence, number: int) -> AnnotatedText:
    words, n = sentence.words, len(sentence.words)
    if all(row.form == WITHHELD for row in words) and any(row.tag not in SIGNS for row in words):
        raise broken(
            path,
            words[0].line,
            "all words of the sentence are _, as in treebanks that withhold their text (English-ESL, GUMReddit, "
            "French-FTB and others): put the words in by the treebank's own program, or give another treebank",
        )
    for row in sentence.fused.values():
        if row.last > n:
            raise broken(path, row.line, f"{row.first}-{row.last} are words of a sentence that has {n}")
    governors = tuple(_governor(path, row, n) for row in words)
    text, spans = _placed(path, sentence)
    return AnnotatedText(
        text,
        tuple(spans),
        sentences=(0,) * n,
        governors=governors,
        relations=tuple("" if row.relation == "_" else row.relation for row in words),
        tags=tuple("X" if row.tag == "_" else row.tag for row in words),
        name=f"{path.name}, sentence {number}",
    )


def _governor(path: Path, row: _Row, n: int) -> int:
    if row.governor == "_":
        return NOT_ANNOTATED
    if not re.fullmatch(r"\d{1,9}", row.governor, re.ASCII) or int(row.governor) > n or int(row.governor) == row.first:
        raise broken(
            path, row.line, f"the governor of {row.form!r} is {row.governor!r}: give another word, from 1 to {n}, or 0"
        )
    return int(row.governor) - 1


def _placed(path: Path, sentence: _Sentence) -> tuple[str, list[Span]]:
    """The text of a sentence, and the place of each word in it."""
    written = []  # the rows as they are written
    word = 1
    while word <= len(sentence.words):
        row = sentence.fused.get(word, sentence.words[word - 1])
        written.append(row)
        word = row.last + 1
    text = sentence.text
    if text is None:
        text = "".join(row.form + " " * row.space_after for row in written).rstrip()
    spans: list[Span] = []
    at = 0
    for row in written:
        start = at + len(text[at:]) - len(text[at:].lstrip())
        if not text.startswith(row.form, start):
            raise broken(
                path,
                row.line,
                f"{row.form!r} is not what comes next in '# text' of line {sentence.text_line}: "
                f"{text[start : start + 20]!r}",
            )
        at = start + len(row.form)
        spans += _parts([one.form for one in sentence.words[row.first - 1 : row.last]], text[start:at], start)
    return text, spans


def _parts(forms: list[str], written: str, start: int) -> list[Span]:
    """The places of words that are written as one, or of one word; empty ones if they do not spell it."""
    spelled = "".join(forms)
    if len(forms) > 1 and (spelled.lower() != written.lower() or len(spelled) != len(written)):
        return [(start + len(written),) * 2 for _ in forms]
    spans = []
    for form in forms:
        spans.append((start, start + len(form)))
        start += len(form)
    return spans
