"""Words without a vector, and the words of a vocabulary that are spelt like them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from heapq import nlargest
from typing import Protocol

from .._common.words import spelling
from ..errors import HeadwayError

MOST_COMPARED = 100_000
"""The words whose spellings are compared, the most frequent; all of some millions would take a minute."""
LEAST_ALIKE = 0.5
"""The smallest ratio of difflib between two spellings that are near: in Chinese, one character of two."""


class Lookup(Protocol):
    """Word vectors, as far as an error reads them."""

    def __len__(self) -> int:
        """Returns the size of the vocabulary."""

    def spellings(self, word: str) -> list[str]:
        """Returns the words of the vocabulary that are spelt most like a ``word``."""

    def _remedy(self, word: str) -> str:
        """Returns further advice about a ``word`` without a vector."""


class UnknownWordError(HeadwayError):
    """Raised for words that have no vector.

    The message is composed when it is read, since it has the nearest spellings of a large vocabulary.
    """

    words: tuple[str, ...]
    """The words."""

    def __init__(self, words: Sequence[str], vectors: Lookup) -> None:
        super().__init__(words)
        self.words = tuple(words)
        self._vectors = vectors

    def __str__(self) -> str:
        some = len(self.words) > 1
        names = " and ".join(map(repr, self.words))
        size = f"{len(self._vectors):,}"
        said = f"the word{'s' if some else ''} {names} {'were' if some else 'was'} never seen among the {size} of the "
        near = [self._near(word) for word in self.words]
        return f"{said}vocabulary: {'; '.join([*filter(None, near), self._vectors._remedy(self.words[0])])}"

    def __reduce__(self) -> tuple[type[HeadwayError], tuple[str]]:
        return HeadwayError, (str(self),)  # another process gets the message without the vectors

    def _near(self, word: str) -> str:
        spellings = " and ".join(map(repr, self._vectors.spellings(word)))
        return spellings and f"spelt like {'it' if len(self.words) == 1 else repr(word)}: {spellings}"


def nearest_spellings(word: str, words: Iterable[str], count: int) -> list[str]:
    """Returns the ``count`` words whose spelling is nearest to a word, whatever the case; of equal ones, the first."""
    wanted = spelling(word, lower=True)
    matcher = SequenceMatcher(b=wanted, autojunk=False)  # it prepares b once, for all a
    near: list[tuple[float, int, str]] = []
    for number, other in enumerate(words):
        if 2 * min(len(other), len(wanted)) < LEAST_ALIKE * (len(other) + len(wanted)):
            continue
        matcher.set_seq1(spelling(other, lower=True))
        if matcher.quick_ratio() >= LEAST_ALIKE and (ratio := matcher.ratio()) >= LEAST_ALIKE:
            near.append((ratio, -number, other))
    return [other for _, _, other in nlargest(count, near)]
