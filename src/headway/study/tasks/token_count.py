"""Counting one letter among others."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ._sequences import LETTERS, Examples, SequenceTask, column, continued

KINDS, MOST = 8, 9


class TokenCount(SequenceTask):
    """Tells how often a letter appears: a b a c ? a → 2. The number is from 0 to 9 at any length, each as likely."""

    name = "token-count"
    source = "Golovneva et al. 2024, arXiv:2405.18719"
    counts = "letters"
    scored = "the one answer"
    symbols = (*LETTERS[:KINDS], *map(str, range(MOST + 1)), "?")
    answers = MOST + 1

    def examples(self, count: int, length: int, generator: torch.Generator) -> Examples:
        """Returns strings of ``length`` letters with a question; see ``SequenceTask``."""
        asked = torch.randint(KINDS, (count, 1), generator=generator)
        number = torch.randint(min(MOST, length) + 1, (count, 1), generator=generator)
        others = (asked + 1 + torch.randint(KINDS - 1, (count, length), generator=generator)) % KINDS
        rank = torch.rand(count, length, generator=generator).argsort(1)
        text = torch.where(rank < number, asked, others)
        return continued(torch.cat([text, column(count, self.vocabulary - 1), asked], 1), KINDS + number)

    def answer(self, prefix: Sequence[int]) -> int:
        """Returns the number; see ``SequenceTask``."""
        return KINDS + list(prefix[:-2]).count(prefix[-1])

    def order_free(self, length: int) -> float:
        """Returns 1: the answer does not depend on the order."""
        return 1.0
