"""Evaluates vectors by human judgements of similarity and by analogies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .._common.text_files import lines_of
from .._common.words import spelling
from ..errors import HeadwayError
from ._base import Vectors

PAIRS = 256
"""The pairs whose vectors are computed at once."""
NUMBERS = 2**24
"""The cosines computed at once."""
NEAREST = 5
"""The number of words nearest to b − a + c. The first that is not one of the three, in any case, is the answer."""


@dataclass(frozen=True)
class Similarity:
    """How well the cosines of pairs of words agree with human judgements.

    Attributes:
        spearman: the correlation of the ranks, −1 … 1; nan if all cosines, or all judgements, are equal.
        pearson: the correlation of the numbers.
        used: the number of pairs whose words both have a vector.
        total: the number of pairs.
    """

    spearman: float
    pearson: float
    used: int
    total: int

    @property
    def coverage(self) -> float:
        """The share of the pairs that could be used, 0 … 1."""
        return self.used / self.total


@dataclass(frozen=True)
class Section:
    """The numbers of right answers, of questions whose words are all known, and of all questions in one section."""

    name: str
    correct: int
    used: int
    total: int

    @property
    def accuracy(self) -> float:
        """The share of right answers among those used, 0 … 1; nan where none was used."""
        return self.correct / self.used if self.used else float("nan")

    @property
    def coverage(self) -> float:
        """The share of the questions that could be used, 0 … 1."""
        return self.used / self.total


@dataclass(frozen=True)
class Analogies(Section):
    """All analogies together, and kind by kind in ``sections``."""

    sections: tuple[Section, ...] = ()


# ---------------------------------------------------------------- pairs


def word_similarity(
    vectors: Vectors, pairs: str | Path | Iterable[tuple[str, str, float]], *, limit: int | None = 300_000
) -> Similarity:
    """Returns how well the cosines of vectors agree with human judgements of the similarity of words.

        spearman = pearson(rank(cos(v(a), v(b))), rank(score)), ranks of equal numbers averaged

    Case is ignored; of words that differ only in case, the first counts. Pairs with a word without a vector are left
    out; ``coverage`` shows how many remain. FastText and Bert also have vectors for words outside the vocabulary. The
    numbers are those of gensim's evaluate_word_pairs.

    Args:
        vectors: the vectors.
        pairs: a file such as WordSim-353 or SimLex-999, or tuples (a, b, score). A line of a file has two words and a
            score, the first later column that is a number, separated by tabs, commas or spaces; lines that start with #
            and a first line of titles are skipped.
        limit: only this many words of the vocabulary count, from the first on; all if None.

    Raises:
        HeadwayError: if the file does not exist, a line is not a pair, which the message names, or no pair is known.

    References:
        Finkelstein et al. 2002 (WordSim-353); Hill et al. 2015 (SimLex-999).
    """
    vectors._need_fitted()
    asked = pairs_of(Path(pairs)) if isinstance(pairs, (str, Path)) else [_pair(*pair) for pair in pairs]
    index = _index(vectors, limit)
    triples = [(_known(vectors, index, a), _known(vectors, index, b), score) for a, b, score in asked]
    known = [(a, b, score) for a, b, score in triples if a is not None and b is not None]
    if not known:
        raise HeadwayError(f"none of the {len(asked):,} pairs has a vector for both words: give others")
    cosines = torch.cat([_cosines(vectors, known[start : start + PAIRS]) for start in range(0, len(known), PAIRS)])
    scores = torch.tensor([score for _, _, score in known], dtype=torch.float64)
    return Similarity(
        spearman=_correlation(_ranks(cosines), _ranks(scores)),
        pearson=_correlation(cosines, scores),
        used=len(known),
        total=len(asked),
    )


def _cosines(vectors: Vectors, pairs: Sequence[tuple[str, str, float]]) -> Tensor:
    """Returns the cosine of each pair, float64 [pairs]."""
    left = vectors._vectors([a for a, _, _ in pairs]).double()
    right = vectors._vectors([b for _, b, _ in pairs]).double()
    return torch.nn.functional.cosine_similarity(left, right)


def _known(vectors: Vectors, index: dict[str, int], word: str) -> str | None:
    """Returns the word of the vocabulary that differs in case only; else the word itself, if it has a vector."""
    if (number := index.get(_key(word))) is not None:
        return vectors.words[number]
    tokens = vectors.tokenizer(word)
    made = len(tokens) == 1 and tokens[0] not in vectors.index and tokens[0] in vectors
    return tokens[0] if made else None


def _pair(*pair: Any) -> tuple[str, str, float]:
    match pair:
        case str(a), str(b), int(score) | float(score):
            return a, b, score
    raise HeadwayError(f"a pair is {pair!r}: give (word, word, score)")


def pairs_of(path: Path) -> list[tuple[str, str, float]]:
    pairs = []
    lines = [(number, line) for number, line in _lines(path) if not line.startswith("#")]
    for number, line in lines:
        separator = next((mark for mark in "\t," if mark in line), None)
        fields = [field.strip() for field in line.split(separator) if field.strip()]
        score = next((value for field in fields[2:] if (value := _number(field)) is not None), None)
        if score is not None:
            pairs.append((fields[0], fields[1], score))
        elif (number, line) != lines[0]:
            raise HeadwayError(f"{path}, line {number}: {line[:60]!r} is not two words and a score: correct it")
    if not pairs:
        raise HeadwayError(f"{path} holds no pairs: give a file with lines of two words and a score")
    return pairs


def _number(field: str) -> float | None:
    try:
        return float(field)
    except ValueError:
        return None


def _ranks(values: Tensor) -> Tensor:
    """Returns the rank of each number, from 0 on; equal numbers have the mean of their ranks."""
    _, group, count = values.unique(return_inverse=True, return_counts=True)
    return (count.cumsum(0) - (count + 1) / 2).double()[group]


def _correlation(x: Tensor, y: Tensor) -> float:
    x, y = x - x.mean(), y - y.mean()
    size = float(x.norm() * y.norm())
    return float(x @ y) / size if size else float("nan")


# ---------------------------------------------------------------- analogies


def word_analogies(
    vectors: Vectors, questions: str | Path | Iterable[Sequence[str]], *, limit: int | None = 300_000
) -> Analogies:
    """Returns how often the word nearest to v(b) − v(a) + v(c) is d, which is to c as b is to a.

    Vectors are scaled to length one; a, b and c do not count as answers. Case is ignored; of words that differ only in
    case, the first counts. Questions with a word outside the vocabulary are left out, which ``used`` shows. The numbers
    are those of gensim's evaluate_word_analogies.

    Args:
        vectors: the vectors.
        questions: a file such as Google's questions-words.txt, with lines of four words a b c d in sections
            ": name", or tuples (a, b, c, d).
        limit: only this many words of the vocabulary are asked for and may answer, from the first on; all if None.

    Raises:
        HeadwayError: if the file does not exist, a line is not a question, which the message names, no question can be
            asked, or the vectors have no analogies.

    References:
        Mikolov et al. 2013.
    """
    vectors._need_fitted()
    sections = _sections_of(Path(questions)) if isinstance(questions, (str, Path)) else {"all": _fours(questions)}
    index = _index(vectors, limit)
    asked = [[index.get(_key(word), -1) for word in four] for fours in sections.values() for four in fours]
    ids = torch.tensor(asked, dtype=torch.int64).reshape(-1, 4)
    used = ids.min(1).values >= 0
    if not used.any():
        raise HeadwayError(f"none of the {len(asked):,} questions has four known words: give others")
    a, b, c, _ = (vectors.words[number] for number in ids[used][0].tolist())
    vectors.analogy(a, b, c, 1)  # raises if the method has no analogies
    same = torch.tensor([index[_key(word)] for word in vectors.words[:limit]])
    right = torch.zeros_like(used)
    right[used] = _right(vectors, ids[used], same)
    sizes = [len(fours) for fours in sections.values()]
    each = tuple(
        Section(name, int(good.sum()), int(many.sum()), len(many))
        for name, good, many in zip(sections, right.split(sizes), used.split(sizes), strict=True)
    )
    return Analogies("all", int(right.sum()), int(used.sum()), len(asked), each)


def _right(vectors: Vectors, ids: Tensor, same: Tensor) -> Tensor:
    """Returns which questions, ids [n, 4], are answered correctly; ``same`` maps words to the first of another case."""
    right = []
    for batch in ids.split(max(1, NUMBERS // len(vectors))):
        three = batch[:, :3]
        units = torch.nn.functional.normalize(vectors.rows(three.flatten()), dim=1).unflatten(0, (-1, 3))
        cosines = vectors.cosines(units[:, 1] - units[:, 0] + units[:, 2])[:, : len(same)]
        cosines = cosines.scatter(1, three, -torch.inf)
        nearest = same[cosines.topk(min(NEAREST, len(same))).indices]
        other = (nearest[:, :, None] != three[:, None]).all(2)
        answer = nearest.gather(1, other.int().argmax(1, keepdim=True))[:, 0]
        right.append(other.any(1) & (answer == batch[:, 3]))
    return torch.cat(right)


def _sections_of(path: Path) -> dict[str, list[tuple[str, ...]]]:
    sections: dict[str, list[tuple[str, ...]]] = {}
    name = ""
    for number, line in _lines(path):
        if line.startswith(":"):
            name = line[1:].strip()
            continue
        four = tuple(line.split())
        if len(four) != 4:
            raise HeadwayError(f"{path}, line {number}: {line[:60]!r} is not four words: correct it")
        sections.setdefault(name, []).append(four)
    if not sections:
        raise HeadwayError(f"{path} holds no questions: give a file with lines of four words")
    return sections


def _fours(questions: Iterable[Sequence[str]]) -> list[tuple[str, ...]]:
    fours = [tuple(four) for four in questions]
    for four in fours:
        if len(four) != 4 or not all(isinstance(word, str) for word in four):
            raise HeadwayError(f"a question is {four!r}: give four words")
    return fours


# ---------------------------------------------------------------- shared


def _index(vectors: Vectors, limit: int | None) -> dict[str, int]:
    """Maps each word in capitals to the first of the words that differ in case only."""
    if limit is not None and limit < 1:
        raise HeadwayError(f"limit is {limit}: give at least 1")
    index: dict[str, int] = {}
    for number, word in enumerate(vectors.words[:limit]):
        index.setdefault(_key(word), number)
    return index


def _key(word: str) -> str:
    return spelling(word).upper()


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yields the lines of a text that are not empty, with their numbers."""
    return ((number, line.strip()) for number, line in lines_of(path) if line.strip())
