"""Tokens as pieces of a text, and words of tokens. None ends inside of what readers take for one character."""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from ..._common.words import Span, words_in

_JOINER, _NON_JOINER = "\u200d", "\u200c"
_VIRAMA = 9
"""The combining class of signs that join two letters of the scripts of India to one."""


@dataclass(frozen=True)
class Layout:
    """Where tokens stand in a text.

    Attributes:
        spans: start and stop of each token in characters, which rise; empty for a token without text of its own.
        words: the number of tokens of each word.
        labels: how tokens that the model adds are called, by their numbers. A further piece of a grapheme has none.
    """

    spans: tuple[Span, ...]
    words: tuple[int, ...]
    labels: dict[int, str]

    @property
    def word_of(self) -> list[int]:
        """The word of each token."""
        return [word for word, count in enumerate(self.words) for _ in range(count)]

    def gaps_and_lengths(self, text: str) -> tuple[list[int], list[int]]:
        """Returns the text between each token and the one before, and the token's length, in units of UTF-16."""
        gaps, lengths, done = [], [], 0
        for start, stop in self.spans:
            gaps.append(_units(text[done:start]))
            lengths.append(_units(text[start:stop]))
            done = stop
        return gaps, lengths


def _units(text: str) -> int:
    return len(text) + sum(character > "\uffff" for character in text)


def layout(text: str, tokens: Sequence[str], spans: Sequence[Span], word_of: Sequence[int] | None = None) -> Layout:
    """Lays tokens out in a text.

    Of several tokens that share a grapheme the first gets it whole.

    Args:
        text: the text.
        tokens: the word for tokens.
        spans: start and stop of each in characters; empty for tokens that the model adds.
        word_of: the word of each token, −1 for none. Default: by ``words_in``; a token belongs to the word with which
            it shares most characters.
    """
    ends = graphemes(text)
    placed: list[Span] = []
    labels, done = {}, 0
    for number, (start, stop) in enumerate(spans):
        if start == stop:
            labels[number] = tokens[number]
        start = max(start, done)
        stop = done if stop <= start else ends[bisect_right(ends, stop - 1)]
        start = min(start, stop)
        placed.append((start, stop))
        done = stop
    known = _words_of(text, placed) if word_of is None else word_of
    return Layout(tuple(placed), _counted(spans, placed, known), labels)


def _counted(given: Sequence[Span], placed: Sequence[Span], word_of: Sequence[int]) -> tuple[int, ...]:
    counts: list[int] = []
    before = -1
    for (start, stop), (own_start, own_stop), word in zip(given, placed, word_of, strict=True):
        piece = start < stop and own_start == own_stop and own_stop > 0  # of a grapheme that an earlier token has
        if counts and (piece or (word >= 0 and word == before)):
            counts[-1] += 1
        else:
            counts.append(1)
        before = before if piece else word
    return tuple(counts)


def _words_of(text: str, spans: Sequence[Span]) -> list[int]:
    words = words_in(text)
    starts = [start for start, _ in words]
    found = []
    for start, stop in spans:
        best, most = -1, 0
        for word in range(max(bisect_right(starts, start) - 1, 0), len(words)):
            if words[word][0] >= stop:
                break
            shared = min(words[word][1], stop) - max(words[word][0], start)
            if shared > most:
                best, most = word, shared
        found.append(best)
    return found


def graphemes(text: str) -> list[int]:
    """Returns where the graphemes of a text end, in characters: what readers take for one character each.

    The rules are those of Unicode's Annex 29 as far as ``unicodedata`` knows what they read: marks, joiners, conjuncts
    of the scripts of India, syllables of Korean, flags, and emoji with skin tones or joined to one.
    """
    ends = [i for i in range(1, len(text)) if not _joined(text, i)]
    return [*ends, len(text)] if text else []


def _joined(text: str, i: int) -> bool:
    """Whether a character belongs to the same grapheme as the one before."""
    before, own = text[i - 1], text[i]
    if own.isascii() and before.isascii():
        return before == "\r" and own == "\n"
    if before in "\r\n" or unicodedata.category(before) == "Cc":
        return False
    if own in (_JOINER, _NON_JOINER) or _extends(own):
        return True
    if before == _JOINER and unicodedata.category(own) == "So":
        return True
    if _is_flag_letter(own) and _is_flag_letter(before):
        letters = 1
        while letters < i and _is_flag_letter(text[i - 1 - letters]):
            letters += 1
        return letters % 2 == 1
    if unicodedata.category(own) == "Lo":
        j = i - 1
        while j > 0 and text[j] in (_JOINER, _NON_JOINER):
            j -= 1
        if unicodedata.combining(text[j]) == _VIRAMA:
            return text[i - 1] != _NON_JOINER
    return _is_jamo(own) and _is_korean(before) and not (_is_lead(own) and not _is_lead(before))


def _extends(character: str) -> bool:
    code = ord(character)
    return (
        unicodedata.category(character) in ("Mn", "Me", "Mc")
        or 0x1F3FB <= code <= 0x1F3FF  # skin tones
        or 0xE0020 <= code <= 0xE007F  # tags of flags
        or code in (0xFF9E, 0xFF9F)
    )


def _is_flag_letter(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"


def _is_lead(character: str) -> bool:
    return "\u1100" <= character <= "\u115f" or "\ua960" <= character <= "\ua97c"


def _is_jamo(character: str) -> bool:
    return "\u1100" <= character <= "\u11ff" or "\ua960" <= character <= "\ua97c" or "\ud7b0" <= character <= "\ud7fb"


def _is_korean(character: str) -> bool:
    return _is_jamo(character) or "\uac00" <= character <= "\ud7a3"
