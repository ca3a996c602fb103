"""Documents with coreference in the format of the shared task CoNLL-2012, in which OntoNotes is used."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ..._common.scripts import is_han
from ..._common.text_files import lines_of
from ..._common.words import Span
from ...errors import HeadwayError
from ._file import broken
from ._text import AnnotatedText, Mention

LEAST_COLUMNS = 12
WORD_NUMBER, WORD, TAG, PARSE, COREFERENCE = 2, 3, 4, 5, -1
BEGIN = re.compile(r"#begin document \((.*)\); part (\d{1,9})")
SPELLED = {"-LRB-": "(", "-RRB-": ")", "-LCB-": "{", "-RCB-": "}", "-LSB-": "[", "-RSB-": "]", "``": '"', "''": '"'}
"""Words of the Penn Treebank that stand for signs."""


def read_conll2012(path: str | Path) -> list[AnnotatedText]:
    """Reads the documents of a file in the column format of CoNLL-2012, with the mentions of each entity.

        texts = read_conll2012("test.english.v4_gold_conll")
        texts[0].mentions[0]             # Mention(start=0, stop=2, entity=12, head=1)

    The format holds words, but not how the text was written. The reader therefore puts a space between words, but none
    beside Chinese characters and their punctuation, and writes the brackets and quotes of the Penn Treebank as the
    signs that they stand for.

    The head of a mention comes from the column of the parse, if that has a phrase of exactly these words. The head is
    the last part of the phrase that is a noun by itself. If there is none, it is the head of the first part that is a
    noun phrase (in Chinese, of the last), and otherwise the head of the last part. Without such a phrase the head is
    the last word.

    Args:
        path: the file, in UTF-8.

    Returns:
        A text for each part of a document, with the sentences of its words and its mentions, those that begin first and
        are longest first.

    Raises:
        HeadwayError: if the file cannot be read, has no document, or a line of it is broken; it names the line.

    References:
        Pradhan et al. 2012, "CoNLL-2012 Shared Task: Modeling Multilingual Unrestricted Coreference in OntoNotes"; the
        rule for heads is a short form of that of Collins 1999.
    """
    path = Path(path)
    texts = [_text_of(document, path) for document in _documents(path)]
    if not texts:
        raise HeadwayError(f"{path} has no document: give a file with the columns of CoNLL-2012")
    return texts


@dataclass
class _Row:
    line: int
    word: str
    tag: str
    parse: str
    coreference: str


@dataclass
class _Document:
    name: str
    line: int
    sentences: list[list[_Row]] = field(default_factory=lambda: [[]])


def _documents(path: Path) -> Iterator[_Document]:
    document = None
    for number, line in lines_of(path, "CoNLL-2012"):
        if line.startswith("#begin"):
            said = BEGIN.fullmatch(line.strip())
            if document is not None:
                raise broken(path, number, f"the document of line {document.line} has no '#end document' before this")
            if said is None:
                raise broken(path, number, f"{line!r}: give a line such as '#begin document (name); part 000'")
            document = _Document(f"{said[1]}, part {int(said[2])}", number)
        elif line.startswith("#end"):
            if document is None:
                raise broken(path, number, "the end of a document that has no '#begin document'")
            if not any(document.sentences):
                raise broken(path, number, f"the document of line {document.line} has no words")
            yield document
            document = None
        elif not line.strip():
            if document is not None and document.sentences[-1]:
                document.sentences.append([])
        elif not line.startswith("#"):
            if document is None:
                raise broken(path, number, "a word that is in no document: give '#begin document' before it")
            document.sentences[-1].append(_row(path, number, line, len(document.sentences[-1])))
    if document is not None:
        raise broken(path, document.line, "the document has no '#end document': is the file cut off?")


def _row(path: Path, number: int, line: str, expected: int) -> _Row:
    columns = re.split("[ \t]+", line.strip(" \t"))  # other white space, as in "10\u00a0000", belongs to words
    if len(columns) < LEAST_COLUMNS:
        raise broken(path, number, f"{len(columns)} columns: a word of CoNLL-2012 has {LEAST_COLUMNS} or more")
    if columns[WORD_NUMBER] != str(expected):
        raise broken(path, number, f"the word's number is {columns[WORD_NUMBER]!r}: {expected} comes next")
    return _Row(number, columns[WORD], columns[TAG], columns[PARSE], columns[COREFERENCE])


def _text_of(document: _Document, path: Path) -> AnnotatedText:
    text = ""
    words: list[Span] = []
    sentences: list[int] = []
    mentions: list[Mention] = []
    for number, rows in enumerate(filter(None, document.sentences)):
        tree, first = _Tree(path, rows), len(words)
        for start, stop, entity in _mentions(path, rows):
            mentions.append(Mention(first + start, first + stop, entity, first + tree.head(start, stop)))
        for row in rows:
            written = SPELLED.get(row.word, row.word)
            text += " " if text and not (_is_wide(text[-1]) or _is_wide(written[0])) else ""
            words.append((len(text), len(text) + len(written)))
            text += written
        sentences += [number] * len(rows)
    mentions.sort(key=lambda one: (one.start, -one.stop, one.entity))
    return AnnotatedText(
        text, tuple(words), sentences=tuple(sentences), mentions=tuple(mentions), name=f"{path.name}, {document.name}"
    )


def _is_wide(character: str) -> bool:
    """Chinese characters, their punctuation, and Latin ones of their width."""
    return is_han(character) or "\u3000" <= character <= "\u303f" or "\uff00" <= character <= "\uffef"


def _mentions(path: Path, rows: list[_Row]) -> list[tuple[int, int, int]]:
    """The mentions of a sentence: start, stop and entity."""
    mentions = []
    opened: dict[int, list[tuple[int, int]]] = defaultdict(list)  # of each entity, words and their lines
    for i, row in enumerate(rows):
        for part in [] if row.coreference == "-" else row.coreference.split("|"):
            said = re.fullmatch(r"(\()?(\d{1,9})(\))?", part, re.ASCII)
            if said is None or not (said[1] or said[3]):
                raise broken(path, row.line, f"coreference {row.coreference!r}: give - or brackets such as (12|(3)|12)")
            entity = int(said[2])
            if said[1]:
                opened[entity].append((i, row.line))
            if said[3]:
                if not opened[entity]:
                    raise broken(path, row.line, f"{entity}) ends a mention that has not begun in this sentence")
                mentions.append((opened[entity].pop()[0], i + 1, entity))
    for entity, left in opened.items():
        if left:
            raise broken(path, left[-1][1], f"({entity} begins a mention that does not end in its sentence")
    return mentions


@dataclass
class _Phrase:
    label: str
    start: int
    stop: int = 0
    parts: list[_Phrase] = field(default_factory=list)


class _Tree:
    """The phrases of a sentence by the spans of their words; none if the parse is not annotated."""

    def __init__(self, path: Path, rows: list[_Row]) -> None:
        self.chinese = any(is_han(row.word[0]) for row in rows)
        self.phrases: dict[Span, _Phrase] = {}
        if all(row.parse in ("-", "*") for row in rows):
            return
        opened: list[_Phrase] = []
        for i, row in enumerate(rows):
            said = re.fullmatch(r"((?:\([^()*\s]*)*)\*(\)*)", row.parse)
            if said is None:
                raise broken(path, row.line, f"parse {row.parse!r}: give one such as (NP* or *)")
            for label in said[1].split("(")[1:]:
                phrase = _Phrase(label, i)
                if opened:
                    opened[-1].parts.append(phrase)
                opened.append(phrase)
            if not opened:
                raise broken(path, row.line, f"parse {row.parse!r}: the word is in no phrase")
            opened[-1].parts.append(_Phrase(row.tag, i, i + 1))
            for _ in said[2]:
                if not opened:
                    raise broken(path, row.line, f"parse {row.parse!r} ends a phrase that has not begun")
                closed = opened.pop()
                closed.stop = i + 1
                self.phrases[closed.start, closed.stop] = closed
        if opened:
            raise broken(path, rows[-1].line, f"the parse of the sentence does not end {opened[-1].label}")

    def head(self, start: int, stop: int) -> int:
        phrase = self.phrases.get((start, stop))
        return stop - 1 if phrase is None else self._head(phrase)

    def _head(self, phrase: _Phrase) -> int:
        if not phrase.parts:
            return phrase.start
        nouns = [part for part in phrase.parts if not part.parts and part.label.startswith("N")]
        noun_phrases = [part for part in phrase.parts if part.parts and part.label.startswith("NP")]
        if nouns:
            return nouns[-1].start
        if noun_phrases:
            return self._head(noun_phrases[-1 if self.chinese else 0])
        return self._head(phrase.parts[-1])
