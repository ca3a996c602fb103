"""The nearest words of a word, and whether they are nearer than those of unrelated words would be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import Self

NOISE_PASSES = 0.05
"""The share of words with unrelated neighbours whose margin is above zero."""
TENTH, SHARE = 10, 20
"""The rank of the second cosine that is tested: 10, or a twentieth of the words if there are fewer than 200."""
FEWEST = 5
"""A word that occurs less often is left out by word2vec, GloVe and fastText unless one asks for it."""
ONE_DIRECTION = 0.99
"""If unrelated words reach this cosine, the vectors have not been trained apart from where they began."""
NUMBERS = 2**24
"""The most numbers of the vectors from which the chance is computed; of a larger table, words at equal steps."""
ITERATIONS = 50
ALMOST = 1 - 1e-9
FARTHEST, STEPS = 40.0, 4097
"""Of the integral over artanh(cosine): how far it goes, and in how many steps."""


@dataclass(frozen=True)
class Neighbours:
    """The words nearest to a word.

    Attributes:
        word: the word.
        nearest: words and cosines, the nearest first; empty if the word has no vector.
        margin: how far the cosines are above those of unrelated words, as ``Vectors.neighbours`` defines it; nan
            without a vector.
        chance: the cosine that the nearest of as many unrelated words reaches; nan without a vector.
        count: how often the word occurred in the texts, 0 if it is not in the vocabulary; None if a file did not say.
        spellings: if the word has no vector, the words of the vocabulary that are spelt most like it.
    """

    word: str
    nearest: tuple[tuple[str, float], ...]
    margin: float = math.nan
    chance: float = math.nan
    count: int | None = None
    spellings: tuple[str, ...] = ()

    @property
    def known(self) -> bool:
        """Whether the word has a vector."""
        return bool(self.nearest)

    @property
    def doubt(self) -> str | None:
        """Why the neighbours may be noise, in a sentence; None if there is no reason to think so."""
        if self.margin <= 0 and self.chance > ONE_DIRECTION:
            return (
                "all words have almost the same direction, as after too few epochs on a small text: these neighbours "
                "may mean nothing; train again with more epochs"
            )
        if self.margin <= 0:
            return (
                f"the cosines, at most {self.nearest[0][1]:.2f}, are no larger than those of unrelated words, of which "
                f"the nearest reaches {self.chance:.2f} by chance: these neighbours may mean nothing"
            )
        if self.count is not None and 0 < self.count < FEWEST:
            times = "once" if self.count == 1 else f"{self.count} times"
            return f"the word occurs {times} in the texts: its neighbours are words of the same few sentences"
        return None


@dataclass(frozen=True)
class Chance:
    """The distribution of the cosines of unrelated words, computed from the directions of all words.

    ``mean`` is the mean of the vectors of length one, float64 [dim]. Their variance is ``along`` in the direction
    ``axis``, in which they vary most, and ``across`` in each other direction. ``words`` is their number.
    """

    mean: Tensor
    axis: Tensor
    along: float
    across: float
    words: int

    @classmethod
    def of(cls, rows: Tensor, words: int) -> Self:
        """Computes it from the vectors [n, dim] of some words, and the number of all."""
        units = F.normalize(rows[rows.any(1)].double(), dim=1)
        mean = units.mean(0) if len(units) else torch.zeros(rows.shape[1], dtype=torch.float64)
        apart = units - mean
        lengths = apart.norm(dim=1)
        axis = apart[lengths.argmax()] if len(units) else mean
        for _ in range(ITERATIONS):
            axis = F.normalize(apart.T @ (apart @ axis), dim=0)
        along = float((apart @ axis).square().sum()) / max(1, len(units))
        total = float(lengths.square().sum()) / max(1, len(units))
        return cls(mean, axis, along, max(0.0, total - along) / rows.shape[1], words)

    def margin(self, vector: Tensor, cosines: Tensor) -> tuple[float, float]:
        """Returns how far cosines are above chance, and the cosine that the nearest unrelated word reaches by chance.

        ``cosines`` are those of ``vector`` with its nearest words, from the largest down.
        """
        unit = F.normalize(vector.double(), dim=0)
        mean = float(unit @ self.mean)
        variance = float(unit @ self.axis) ** 2 * self.along + self.across
        others = self.words - 1
        ranks = sorted({1, max(1, min(TENTH, others // SHARE, len(cosines)))})
        shares = [_expected(rank, NOISE_PASSES / len(ranks)) / (others + 1) for rank in ranks]
        reached = _reached(mean, variance, shares)
        return max(float(cosines[rank - 1]) - by for rank, by in zip(ranks, reached, strict=True)), reached[0]


def _reached(mean: float, variance: float, shares: Sequence[float]) -> list[float]:
    """The cosines that are exceeded with the probabilities ``shares``, if (1 + cosine)/2 has a beta distribution.

    That is the exact distribution of the cosine of random directions in d dimensions, with mean 0 and variance 1/d.
    """
    mean, variance = max(-ALMOST, min(ALMOST, mean)), max(variance, 1 - ALMOST)
    size = max((1 - mean * mean) / variance - 1, 1 - ALMOST)  # a + b of Beta(a, b)
    a, b = size * (1 + mean) / 2, size * (1 - mean) / 2
    # integrated over z = artanh(cosine), in steps that grow away from the mean
    width = (size + 1) ** -0.5
    u = torch.linspace(-1, 1, STEPS, dtype=torch.float64) * math.asinh(FARTHEST / width)
    z = math.atanh(mean) + width * u.sinh()
    density = a * F.logsigmoid(2 * z) + b * F.logsigmoid(-2 * z) + u.cosh().log()
    above = density.softmax(0).flip(0).cumsum(0).flip(0)
    return [float(z[(above > share).sum().clamp(max=STEPS - 1)].tanh()) for share in shares]


@lru_cache
def _expected(rank: int, probability: float) -> float:
    """The mean λ of a Poisson distribution for which P(at least ``rank``) is the probability."""
    low, high = 0.0, float(rank)
    for _ in range(50):
        middle = (low + high) / 2
        reached = torch.special.gammainc(torch.tensor(float(rank)).double(), torch.tensor(middle).double())
        low, high = (middle, high) if float(reached) < probability else (low, middle)
    return low
