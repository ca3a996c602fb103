"""Adding two numbers whose digits know their places."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ._sequences import Examples, column, continued, need_at_most
from .addition import EQUALS, PLUS, Addition, added, digit

PLACES = 40
FIRST = EQUALS + 1
"""The token of the first place."""


class MarkedAddition(Addition):
    """Adds two numbers in which a mark before each digit tells its place: p3 7 p4 1 + p3 5 p4 0 = p3 2 p4 2 p5 0.

    The first place is drawn for each sum, so that short sums show every mark.
    """

    name = "marked-addition"
    source = "Zhou et al. 2023, arXiv:2310.16028"
    scored = "every mark and digit of the sum"
    symbols = (*Addition.symbols, *(f"p{place}" for place in range(PLACES)))

    def examples(self, count: int, length: int, generator: torch.Generator) -> Examples:
        """Returns sums of two numbers of ``length`` digits; see ``SequenceTask``."""
        need_at_most(length, PLACES - 1, "places below the last digit of a sum")
        first, second = torch.randint(10, (2, count, length), generator=generator)
        start = torch.randint(PLACES - length, (count, 1), generator=generator)
        summands = (_marked(first, start), column(count, PLUS), _marked(second, start), column(count, EQUALS))
        return continued(torch.cat(summands, 1), _marked(added(first, second), start))

    def answer(self, prefix: Sequence[int]) -> int:
        """Returns the next mark or digit of the sum; see ``SequenceTask``."""
        plus, equals = prefix.index(PLUS), prefix.index(EQUALS)
        place, is_digit = divmod(len(prefix) - equals - 1, 2)
        if not is_digit:
            return prefix[0] + place
        return digit(prefix[1:plus:2], prefix[plus + 2 : equals : 2], place)


def _marked(digits: Tensor, start: Tensor) -> Tensor:
    """Digits [count, length] with the mark of its place before each."""
    marks = FIRST + start + torch.arange(digits.shape[1])
    return torch.stack([marks, digits], 2).flatten(1)
