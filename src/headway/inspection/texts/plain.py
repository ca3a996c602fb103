"""Plain text: its words and sentences by simple rules, and the sentences that come with Python."""

from __future__ import annotations

import re
from pathlib import Path

from ..._common.scripts import is_han
from ..._common.text_files import read_text as read_file
from ..._common.words import Span, words_in
from ...errors import HeadwayError
from ._text import AnnotatedText

ENDS = frozenset(".!?…。！？؟۔।")
"""Marks that end a sentence."""

CLOSING = frozenset("\"'”’»)]}」』）】》")
"""Marks that still belong to a sentence that has ended."""


def plain_text(text: str, name: str = "") -> AnnotatedText:
    """Returns a text with its words, by ``words_in``, and its sentences.

    A sentence ends after one of .!?…。！？ and marks that close it, if white space or a Chinese character follows.

    Args:
        text: the text, in any script.
        name: its name in messages.
    """
    words = words_in(text)
    return AnnotatedText(text, words, _sentences(text, words), name=name)


def _sentences(text: str, words: tuple[Span, ...]) -> tuple[int, ...]:
    numbers, number, ended = [], 0, False
    for i, (start, stop) in enumerate(words):
        word = text[start:stop]
        apart = i > 0 and (words[i - 1][1] < start or is_han(word[0]))
        if ended and apart and word not in ENDS and word not in CLOSING:
            number, ended = number + 1, False
        elif ended and word not in ENDS and word not in CLOSING:
            ended = False  # "3.5", "example.org"
        ended = ended or word in ENDS
        numbers.append(number)
    return tuple(numbers)


def read_text(path: str | Path) -> list[AnnotatedText]:
    """Reads plain text in UTF-8, or in UTF-16 with a byte-order mark: a text for each paragraph.

    Paragraphs are separated by blank lines; where there are none, each line is a text.

    Args:
        path: the file.

    Returns:
        The texts, with words and sentences, in the order of the file.

    Raises:
        HeadwayError: if it cannot be read, is not UTF-8, or has no words.
    """
    path = Path(path)
    return paragraphs(read_file(path).replace("\r\n", "\n"), path.name)


def paragraphs(text: str, name: str = "") -> list[AnnotatedText]:
    """Returns a text for each paragraph, or for each line if no blank line separates paragraphs.

    Args:
        text: the text.
        name: its name in messages.

    Raises:
        HeadwayError: if there are no words in it.
    """
    parts = [part.strip() for part in re.split(r"\n\s*\n", text.strip())]
    if len(parts) == 1:
        parts = [line.strip() for line in text.splitlines()]
    kept = [" ".join(part.split()) for part in parts]
    texts = [plain_text(part, f"{name or 'the text'}, paragraph {i}") for i, part in enumerate(kept, 1)]
    texts = [one for one in texts if one.words]
    if not texts:
        raise HeadwayError(f"{name or 'the text'} has no words")
    return texts


def python_manual(count: int = 400) -> list[AnnotatedText]:
    """Returns sentences of the manual that comes with every Python, in English.

    Args:
        count: the most sentences.
    """
    from pydoc_data.topics import topics

    text = " ".join(" ".join(topics.values()).split())
    sentences = (one.split() for one in re.split(r"(?<=[.:;]) ", text))
    plain = (
        words
        for words in dict.fromkeys(map(tuple, sentences))
        if 8 <= len(words) <= 30 and all(w.strip(",.:;").isalpha() for w in words)
    )
    return [
        plain_text(" ".join(words), f"Python's manual, sentence {i}")
        for i, words in zip(range(count), plain, strict=False)
    ]
