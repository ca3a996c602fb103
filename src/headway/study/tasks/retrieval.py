"""Retrieval of one value among many, by length and by depth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ._sequences import MANY, Examples, SequenceTask, continued, distinct

PARTS = 4
"""The parts of the list that a score by depth tells apart."""


class Retrieval(SequenceTask):
    """Shows pairs of a key and a value, all different, and asks for one: a0 B0 b0 C0 b0 → C0."""

    name = "retrieval"
    source = "Liu et al. 2023, arXiv:2307.03172"
    counts = "pairs"
    scored = "the one value"
    shortest = 2
    symbols = (*MANY, *map(str.upper, MANY))
    answers = len(MANY)

    def examples(self, count: int, length: int, generator: torch.Generator) -> Examples:
        """Returns ``length`` pairs and a question; see ``SequenceTask``."""
        keys = distinct(count, length, len(MANY), generator)
        values = len(MANY) + distinct(count, length, len(MANY), generator)
        asked = torch.randint(length, (count, 1), generator=generator)
        pairs = torch.stack([keys, values], 2).flatten(1)
        return continued(torch.cat([pairs, keys.gather(1, asked)], 1), values.gather(1, asked))

    def answer(self, prefix: Sequence[int]) -> int:
        """Returns the value after the first appearance of the last key; see ``SequenceTask``."""
        return prefix[prefix.index(prefix[-1]) + 1]

    def order_free(self, length: int) -> float:
        """Returns the chance of each value."""
        return 1 / length

    def measure(self, model: nn.Module, length: int) -> dict[str, Any]:
        """Returns the shares of ``SequenceTask``, and that of each quarter of the list at a ``length``, first to last.

        A quarter in which no pair was asked has None.
        """
        exact, right, _ = self._measured(model, length, "held out")
        inputs = self._drawn(length, "held out").inputs
        place = (inputs[:, :-1:2] == inputs[:, -1:]).long().argmax(1)
        part = place * PARTS // length
        of_parts = [right[part == number, -1].double() for number in range(PARTS)]
        by_depth = [float(its.mean()) if len(its) else None for its in of_parts]
        return {"exact": exact, "accuracy": exact, "by_depth": by_depth}
