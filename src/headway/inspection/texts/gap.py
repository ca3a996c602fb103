"""Passages of GAP: a pronoun and two names; the pronoun may stand for one of them."""

from __future__ import annotations

import re
from pathlib import Path

from ..._common.text_files import lines_of
from ..._common.words import Span, words_in
from ...errors import HeadwayError
from ._file import broken
from ._text import AnnotatedText, Choice

COLUMNS = ("ID", "Text", "Pronoun", "Pronoun-offset", "A", "A-offset", "A-coref", "B", "B-offset", "B-coref", "URL")
ANSWERS = {"TRUE": True, "FALSE": False}


def read_gap(path: str | Path) -> list[AnnotatedText]:
    """Reads the passages of a file of GAP, each with one pronoun and two names.

        texts = read_gap("gap-test.tsv")
        choice = texts[0].choices[0]
        texts[0].word(choice.mention[0])     # "His"

    A pronoun that refers to one of the names has one choice. One that refers to neither name, as 227 of the 2,000 of
    gap-test.tsv, has two choices whose right span is None, one for each name; roles leave such passages out and count
    them. Words are those of ``words_in``, cut where a pronoun or a name begins and ends.

    Args:
        path: the file of tab-separated values, with the line of names of columns, in UTF-8.

    Returns:
        A text for each passage.

    Raises:
        HeadwayError: if the file cannot be read, has no passage, or a line of it is broken; it names the line.

    References:
        Webster et al. 2018, "Mind the GAP: A Balanced Corpus of Gendered Ambiguous Pronouns".
    """
    path = Path(path)
    lines = lines_of(path, "GAP")
    _, first = next(lines, (1, ""))
    if tuple(first.split("\t")) != COLUMNS:
        raise broken(path, 1, f"it does not name the columns of GAP: {', '.join(COLUMNS)}, between tabs")
    texts = [_text_of(path, number, line) for number, line in lines if line.strip()]
    if not texts:
        raise HeadwayError(f"{path} has no passage: give a GAP file")
    return texts


def _text_of(path: Path, number: int, line: str) -> AnnotatedText:
    values = line.split("\t")
    if len(values) != len(COLUMNS):
        raise broken(path, number, f"{len(values)} columns between tabs: a passage of GAP has {len(COLUMNS)}")
    row = dict(zip(COLUMNS, values, strict=True))
    spans = [_span(path, number, row, one) for one in ("Pronoun", "A", "B")]
    for i, one in enumerate(spans):
        if any(one[0] < other[1] and other[0] < one[1] for other in spans[:i]):
            raise broken(path, number, "the pronoun and the names overlap")
    for column in ("A-coref", "B-coref"):
        if row[column].upper() not in ANSWERS:
            raise broken(path, number, f"{column} is {row[column]!r}: give TRUE or FALSE")
    is_a, is_b = (ANSWERS[row[one].upper()] for one in ("A-coref", "B-coref"))
    if is_a and is_b:
        raise broken(path, number, "A-coref and B-coref are both TRUE: a pronoun of GAP refers to one name at most")
    words = words_in(row["Text"], cuts=[edge for span in spans for edge in span])
    pronoun, a, b = (
        (next(i for i, word in enumerate(words) if word[1] > start), sum(word[0] < stop for word in words))
        for start, stop in spans
    )
    if is_a or is_b:
        choices = [Choice(pronoun, *((a, b) if is_a else (b, a)))]
    else:
        choices = [Choice(pronoun, None, a), Choice(pronoun, None, b)]
    return AnnotatedText(row["Text"], words, choices=tuple(choices), name=f"{path.name}, {row['ID']}")


def _span(path: Path, number: int, row: dict[str, str], name: str) -> Span:
    said, text = row[f"{name}-offset"], row[name]
    start = int(said) if re.fullmatch(r"\d{1,9}", said, re.ASCII) else -1
    if start < 0 or not text.strip() or row["Text"][start : start + len(text)] != text:
        raise broken(path, number, f"{name} is {text!r} and {name}-offset {said!r}: the text has something else there")
    return start, start + len(text)
