"""Confidence intervals of means and of differences over few seeds."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean, mean, stdev
from typing import NamedTuple

from .._common.language import said
from .._common.table import signed

LEVEL = 0.95
"""The confidence of every interval."""


def t_quantile(degrees: int, level: float = LEVEL) -> float:
    """Returns the value that |T| does not exceed with a probability, where T has Student's t distribution.

    P(|T| ≤ √ν·tan θ), with ν ``degrees`` of freedom, is sin θ·(1 + ½·cos² θ + 1·3/(2·4)·cos⁴ θ + …), up to cos^(ν−2) θ,
    for even ν, and 2/π·(θ + sin θ·cos θ·(1 + 2/3·cos² θ + 2·4/(3·5)·cos⁴ θ + …)), up to cos^(ν−3) θ, for odd ν.

    References:
        Abramowitz and Stegun, Handbook of Mathematical Functions, 1964, 26.7.3 and 26.7.4.
    """
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        theta = (low + high) / 2
        low, high = (theta, high) if _probability(theta, degrees) < level else (low, theta)
    return math.sqrt(degrees) * math.tan((low + high) / 2)


def _probability(theta: float, degrees: int) -> float:
    """P(|T| ≤ √ν·tan θ) for ν ``degrees`` of freedom."""
    odd = degrees % 2
    total, term = 0.0, 1.0
    for k in range(1, degrees // 2 + 1):
        total += term
        term *= math.cos(theta) ** 2 * (2 * k - 1 + odd) / (2 * k + odd)
    if odd:
        return 2 / math.pi * (theta + math.sin(theta) * math.cos(theta) * total)
    return math.sin(theta) * total


def p_value(values: Sequence[float]) -> float | None:
    """Returns the two-sided p of Student's t test that the mean of values is 0; None for a single value."""
    count = len(values)
    if count < 2:
        return None
    spread = stdev(values)
    if not spread:
        return float(not mean(values))
    t = abs(mean(values)) * math.sqrt(count) / spread
    return max(0.0, 1 - _probability(math.atan(t / math.sqrt(count - 1)), count - 1))


def holm(ps: Sequence[float]) -> list[float]:
    """Returns p values that hold for all tests jointly.

    The smallest of m is multiplied by m, the next by m − 1, and so on; none becomes smaller than one before it, or
    larger than 1.

    References:
        Holm, A simple sequentially rejective multiple test procedure, 1979.
    """
    order = sorted(range(len(ps)), key=ps.__getitem__)
    corrected, least = [0.0] * len(ps), 0.0
    for rank, place in enumerate(order):
        least = max(least, min(1.0, (len(ps) - rank) * ps[place]))
        corrected[place] = least
    return corrected


def mean_and_half(values: Sequence[float]) -> tuple[float, float | None]:
    """Returns the mean of values and half the width of its t interval, which is None for a single value."""
    count = len(values)
    if count < 2:
        return mean(values), None
    return mean(values), t_quantile(count - 1) * stdev(values) / math.sqrt(count)


@dataclass(frozen=True)
class Difference:
    """The mean difference a − b of two models, over the ``seeds`` that both have.

    ``half`` is half the width of its 95 % t interval, and ``p`` the two-sided p of the t test that it is 0; both are
    None with one seed.
    """

    a: str
    b: str
    mean: float
    half: float | None
    seeds: int
    p: float | None = None

    @property
    def separated(self) -> bool:
        """Whether there is an interval, and it excludes 0."""
        return self.half is not None and abs(self.mean) > self.half

    def number(self) -> str:
        """Returns the mean with its interval, in the form for sentences."""
        if self.half is None:
            return said("{mean} (one seed)", mean=signed(self.mean, "+.3f"))
        low, high = (signed(bound, "+.3f") for bound in (self.mean - self.half, self.mean + self.half))
        return said("{mean} (95 % interval {low} to {high})", mean=signed(self.mean, "+.3f"), low=low, high=high)

    def __str__(self) -> str:
        return said("{a} − {b}: {number}", a=self.a, b=self.b, number=self.number())


def paired(a: str, b: str, first: Mapping[int, float], second: Mapping[int, float]) -> Difference | None:
    """Returns the difference of two models seed by seed; None if no seed has both.

    ``first`` and ``second`` have the numbers of ``a`` and ``b`` by seed.
    """
    apart = [first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())]
    return Difference(a, b, *mean_and_half(apart), len(apart), p_value(apart)) if apart else None


class Interval(NamedTuple):
    """The bounds of an interval."""

    low: float
    high: float


MOST_RESAMPLES = 4096
"""The most resamples. If there are fewer in all, each is taken; otherwise this many are drawn."""


def bootstrap(values: Sequence[float], level: float = LEVEL) -> Interval | None:
    """Returns the percentile interval of the mean of ``values`` under resampling; None for a single value.

    For up to 5 values it takes all resamples and draws nothing. With so few values the interval is too narrow: if all
    have one sign, it always excludes 0.

    References:
        Efron, Bootstrap methods: another look at the jackknife, 1979.
    """
    count = len(values)
    if count < 2:
        return None
    resamples: Iterable[Sequence[float]] = product(values, repeat=count)
    if count**count > MOST_RESAMPLES:
        draw = random.Random(0)
        resamples = (draw.choices(values, k=count) for _ in range(MOST_RESAMPLES))
    means = sorted(fmean(resample) for resample in resamples)
    cut = math.floor((1 - level) / 2 * len(means))
    return Interval(means[cut], means[-1 - cut])
