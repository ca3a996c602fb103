"""Tasks that write a string again."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from ._sequences import LETTERS, Examples, SequenceTask, column, continued


class StringTask(SequenceTask):
    """A string of letters and ">", followed by a function of the string.

    Attributes:
        letters: the number of letters.
    """

    letters: ClassVar[int] = 8
    symbols = (*LETTERS[:8], ">")
    answers = 8
    counts = "letters"
    trained = 6

    @staticmethod
    @abstractmethod
    def output(text: Tensor) -> Tensor:
        """Returns the answers to strings [..., length]."""

    def examples(self, count: int, length: int, generator: torch.Generator) -> Examples:
        """Returns strings of ``length`` letters; see ``SequenceTask``."""
        text = torch.randint(self.letters, (count, length), generator=generator)
        return continued(torch.cat([text, column(count, self.letters)], 1), self.output(text))

    def answer(self, prefix: Sequence[int]) -> int:
        """Returns the next letter of the answer; see ``SequenceTask``."""
        end = prefix.index(self.letters)
        return int(self.output(torch.tensor(prefix[:end]))[len(prefix) - end - 1])

    def order_free(self, length: int) -> float:
        """Returns the bags of ``length`` letters divided by the number of strings: each string has its own answer."""
        return math.comb(length + self.letters - 1, length) / self.letters**length
