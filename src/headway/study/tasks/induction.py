"""Induction: the symbol that followed an earlier appearance of the last one."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ._sequences import MANY, Examples, SequenceTask, continued, distinct


class Induction(SequenceTask):
    """Repeats one of different symbols, and asks for the one that followed it: a0 b0 c0 b0 → c0."""

    name = "induction"
    source = "Olsson et al. 2022, arXiv:2209.11895"
    counts = "symbols"
    scored = "the one that followed"
    shortest = 2
    symbols = MANY
    answers = len(MANY)

    def examples(self, count: int, length: int, generator: torch.Generator) -> Examples:
        """Returns ``length`` symbols and one of them again; see ``SequenceTask``."""
        text = distinct(count, length, len(MANY), generator)
        asked = torch.randint(length - 1, (count, 1), generator=generator)
        return continued(torch.cat([text, text.gather(1, asked)], 1), text.gather(1, asked + 1))

    def answer(self, prefix: Sequence[int]) -> int:
        """Returns the symbol after the first appearance of the last one; see ``SequenceTask``."""
        return prefix[prefix.index(prefix[-1]) + 1]

    def order_free(self, length: int) -> float:
        """Returns the chance of each other symbol."""
        return 1 / (length - 1)
