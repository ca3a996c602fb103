"""The majority of bits."""

import math

from torch import Tensor

from ._answers import CountingTask


class Majority(CountingTask):
    """Tells whether there are more ones than zeros: 1 0 1 1 = yes."""

    name = "majority"
    source = "Merrill et al. 2022, arXiv:2106.16213"
    letters = 2
    symbols = ("0", "1", "no", "yes", "=")
    answers = 2

    @staticmethod
    def result(text: Tensor) -> Tensor:
        """Returns 1 where there are more ones, else 0."""
        return (2 * text.sum(-1) > text.shape[-1]).long()

    def chance(self, length: int) -> float:
        """Returns the share of "no", the more frequent answer of an even ``length``, where a tie is not a majority."""
        return sum(math.comb(length, ones) for ones in range(length // 2 + 1)) / 2**length
