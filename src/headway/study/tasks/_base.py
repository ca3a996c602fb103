"""What a task is: it makes batches to learn from, and measures what was learned."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..protocol import Training, derived_seed

IGNORED = -100
"""The target of a position that is not asked."""


class Task(ABC):
    """Sequences of token ids, with a target for each position that is asked."""

    name: ClassVar[str]
    vocabulary: ClassVar[int]

    @abstractmethod
    def batch(self, training: Training, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Inputs and targets, int64 [batch, length]: the target of a position is what follows it."""

    @abstractmethod
    def measure(self, model: nn.Module, length: int) -> dict[str, Any]:
        """What the model can do in windows of ``length``: fields for a row of the results."""

    def step(self, training: Training, seed: int, step: int) -> tuple[Tensor, Tensor]:
        """The batch of one step: by seed and step alone, so that it is alike for every encoding and restart."""
        generator = torch.Generator().manual_seed(derived_seed(seed, self.name, "batch", step))
        return self.batch(training, generator)
