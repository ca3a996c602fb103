"""Associative recall with a question for each pair."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ._base import IGNORED
from ._sequences import MANY, Examples, SequenceTask, distinct

VALUES = 16


class AssociativeRecall(SequenceTask):
    """Shows pairs of a key and a value, and then asks for the value of each key: a0 3 b0 7 b0 a0 → 7 3."""

    name = "associative-recall"
    source = "Arora et al. 2023, arXiv:2312.04927"
    counts = "pairs"
    scored = "the value of each key that is asked"
    symbols = (*MANY, *(f"={value}" for value in range(VALUES)))
    answers = VALUES

    def examples(self, count: int, length: int, generator: torch.Generator) -> Examples:
        """Returns ``length`` pairs and as many questions; see ``SequenceTask``."""
        keys = distinct(count, length, len(MANY), generator)
        values = len(MANY) + torch.randint(VALUES, (count, length), generator=generator)
        order = torch.rand(count, length, generator=generator).argsort(1)
        pairs = torch.stack([keys, values], 2).flatten(1)
        inputs = torch.cat([pairs, keys.gather(1, order)], 1)
        nothing = torch.full_like(pairs, IGNORED)
        return Examples(inputs, torch.cat([nothing, values.gather(1, order)], 1))

    def answer(self, prefix: Sequence[int]) -> int:
        """Returns the value after the first appearance of the last key; see ``SequenceTask``."""
        return prefix[prefix.index(prefix[-1]) + 1]

    def order_free(self, length: int) -> float:
        """Returns the number of bags of values by the number of their orders."""
        return math.comb(length + VALUES - 1, length) / VALUES**length
