"""Indirect indexing: the symbol some places before or after another one."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ._sequences import MANY, Examples, SequenceTask, continued, distinct

SYMBOLS = MANY[:72]
OFFSETS = (-4, -3, -2, -1, 1, 2, 3, 4)


class IndirectIndexing(SequenceTask):
    """Names one of several different symbols and a distance, and asks for the symbol there: a0 b0 c0 d0, b0 +2 → d0."""

    name = "indirect-indexing"
    source = "Gopalakrishnan et al. 2025, arXiv:2509.10534"
    counts = "symbols"
    scored = "the one symbol"
    shortest = 1 + max(OFFSETS)
    trained = 8
    symbols = (*SYMBOLS, *(f"{offset:+d}" for offset in OFFSETS))
    answers = len(SYMBOLS)

    def examples(self, count: int, length: int, generator: torch.Generator) -> Examples:
        """Returns ``length`` symbols, one of them and a distance; see ``SequenceTask``."""
        text = distinct(count, length, len(SYMBOLS), generator)
        which = torch.randint(len(OFFSETS), (count, 1), generator=generator)
        offset = torch.tensor(OFFSETS)[which]
        room = length - offset.abs()
        place = (torch.rand(count, 1, generator=generator) * room).long().clamp(max=room - 1) - offset.clamp(max=0)
        prompt = torch.cat([text, text.gather(1, place), len(SYMBOLS) + which], 1)
        return continued(prompt, text.gather(1, place + offset))

    def answer(self, prefix: Sequence[int]) -> int:
        """Returns the symbol there; see ``SequenceTask``."""
        *_, symbol, offset = prefix
        return prefix[prefix.index(symbol) + OFFSETS[offset - len(SYMBOLS)]]

    def order_free(self, length: int) -> float:
        """Returns the chance of each other symbol."""
        return 1 / (length - 1)
