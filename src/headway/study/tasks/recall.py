"""The task of recalling a value by its key: each pair is shown once, and later the key asks for its value."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..evaluate import predictions
from ..protocol import Training, derived_seed
from ._base import IGNORED, Task

KEYS = 8
VALUES = 8
TOKENS = 16384
"""Tokens that the questions of each length are distributed over."""


class Recall(Task):
    """Sequences of cards and questions, one token each.

    A card shows a key and a value. Each of 8 keys is shown once: the first at the start, the others at random places.
    Every other token is a question for one of the keys shown so far; its target is that key's value. The card alone
    determines the answer, at any distance. If a model that has learned the task misses cards that are far away, its
    encoding is the reason.
    """

    name = "recall"
    vocabulary = KEYS * VALUES + KEYS

    def batch(self, training: Training, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Returns new random sequences of cards and questions; see ``Task``."""
        ids, targets, _ = self._draw(training.batch, training.length, generator)
        return ids, targets

    def measure(self, model: nn.Module, length: int) -> dict[str, Any]:
        """Returns the share of right answers, and the same by distance: (d/2, d] for each power of two d."""
        generator = torch.Generator().manual_seed(derived_seed(0, self.name, "held out", length))
        ids, targets, distances = self._draw(max(4, TOKENS // length), length, generator)
        right = predictions(model, ids, targets).right
        asked = targets != IGNORED
        by_distance = {}
        far = 1
        while far < 2 * length:
            there = asked & (distances > far // 2) & (distances <= far)
            if there.any():
                by_distance[str(far)] = float(right[there].double().mean())
            far *= 2
        return {"recall": float(right[asked].double().mean()), "recall_by_distance": by_distance}

    @staticmethod
    def _draw(rows: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Ids, targets, and the distance from each question back to its card; all [rows, length]."""
        cards = min(KEYS, length - 1)
        keys = torch.rand(rows, KEYS, generator=generator).argsort(1)[:, :cards]
        values = torch.randint(VALUES, (rows, cards), generator=generator)
        later = torch.rand(rows, length - 1, generator=generator).argsort(1)[:, : cards - 1] + 1
        places = torch.cat([torch.zeros(rows, 1, dtype=torch.int64), later.sort(1).values], 1)
        shown = torch.zeros(rows, length, dtype=torch.int64).scatter_(1, places, 1).cumsum(1)
        asked = (torch.rand(rows, length, generator=generator) * shown).long()
        ids = KEYS * VALUES + keys.gather(1, asked)
        targets = values.gather(1, asked)
        distances = torch.arange(length) - places.gather(1, asked)
        ids.scatter_(1, places, keys * VALUES + values)
        targets.scatter_(1, places, IGNORED)
        return ids, targets, distances
