"""Adding two numbers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from ._sequences import Examples, SequenceTask, column, continued

PLUS, EQUALS = 10, 11
ENUMERATED = 3
"""The most digits for which the best rule that knows no order is found by trying all sums."""


class Addition(SequenceTask):
    """Adds two numbers of as many digits, the lowest digit first: 7 1 + 5 0 = 2 2 0."""

    name = "addition"
    source = "Kazemnejad et al. 2023, arXiv:2305.19466; lowest digit first: Lee et al. 2023, arXiv:2307.03381"
    counts = "digits of a summand"
    scored = "every digit of the sum"
    trained = 4
    symbols = (*"0123456789", "+", "=")
    answers = 10

    def examples(self, count: int, length: int, generator: torch.Generator) -> Examples:
        """Returns sums of two numbers of ``length`` digits; see ``SequenceTask``."""
        first, second = torch.randint(10, (2, count, length), generator=generator)
        prompt = torch.cat([first, column(count, PLUS), second, column(count, EQUALS)], 1)
        return continued(prompt, added(first, second))

    def answer(self, prefix: Sequence[int]) -> int:
        """Returns the next digit of the sum; see ``SequenceTask``."""
        plus, equals = prefix.index(PLUS), prefix.index(EQUALS)
        return digit(prefix[:plus], prefix[plus + 1 : equals], len(prefix) - equals - 1)

    def order_free(self, length: int) -> float:
        """Returns that of at most three digits, which bounds that of more: to know higher digits too can only help."""
        return _order_free(min(length, ENUMERATED))


def added(first: Tensor, second: Tensor) -> Tensor:
    """Returns the digits of sums, [count, length + 1], of numbers [count, length], the lowest digits first."""
    carry, digits = torch.zeros_like(first[:, 0]), []
    for one, other in zip(first.T, second.T, strict=True):
        total = one + other + carry
        digits.append(total % 10)
        carry = total // 10
    return torch.stack([*digits, carry], 1)


def digit(first: Sequence[int], second: Sequence[int], place: int) -> int:
    """Returns a digit of the sum of two numbers that are written with the lowest digit first."""
    one, other = (int("".join(map(str, reversed(number)))) for number in (first, second))
    return (one + other) // 10**place % 10


@cache
def _order_free(length: int) -> float:
    """The share of all sums that is right if each bag of digits gets the sum that most often belongs to it."""
    numbers = torch.arange(10**length)
    digits = numbers[:, None] // 10 ** torch.arange(length) % 10
    both = torch.cat([digits.repeat_interleave(len(digits), 0), digits.repeat(len(digits), 1)], 1)
    bags = (both.sort(1).values * 10 ** torch.arange(2 * length)).sum(1)
    sums = (numbers[:, None] + numbers).flatten()
    pairs, counts = (bags * 10 ** (length + 1) + sums).unique(return_counts=True)
    of_bags, number = (pairs // 10 ** (length + 1)).unique(return_inverse=True)
    most = torch.zeros_like(of_bags).scatter_reduce(0, number, counts, "amax")
    return int(most.sum()) / 10 ** (2 * length)
