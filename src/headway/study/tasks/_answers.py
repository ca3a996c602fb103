"""Tasks with one answer after a string, which does not depend on the order of the string."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from ._sequences import Examples, SequenceTask, column, continued


class CountingTask(SequenceTask):
    """A string of letters and "=", followed by one answer, a function of the letters' numbers.

    Attributes:
        letters: the number of letters, which are the first tokens; the answers follow, and then "=".
    """

    letters: ClassVar[int]
    counts = "symbols"
    scored = "the one answer"

    @staticmethod
    @abstractmethod
    def result(text: Tensor) -> Tensor:
        """Returns the answer, from 0 on, of strings [..., length]."""

    def examples(self, count: int, length: int, generator: torch.Generator) -> Examples:
        """Returns strings of ``length`` symbols; see ``SequenceTask``."""
        text = torch.randint(self.letters, (count, length), generator=generator)
        prompt = torch.cat([text, column(count, self.vocabulary - 1)], 1)
        return continued(prompt, self.letters + self.result(text)[:, None])

    def answer(self, prefix: Sequence[int]) -> int:
        """Returns the answer; see ``SequenceTask``."""
        return self.letters + int(self.result(torch.tensor(prefix[:-1])))

    def order_free(self, length: int) -> float:
        """Returns 1: the answer does not depend on the order."""
        return 1.0
