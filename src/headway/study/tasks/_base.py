"""The interface of a task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..protocol import Training, derived_seed

IGNORED = -100
"""The target of a position that is not predicted."""


class Task(ABC):
    """Makes batches of token ids with targets, and measures a trained model."""

    name: ClassVar[str]
    vocabulary: int

    @property
    def title(self) -> str:
        """The name in words."""
        return self.name.replace("_", " ")

    @abstractmethod
    def batch(self, training: Training, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Returns inputs and targets, int64 [batch, length]: the target of a position is the token after it.

        The sizes are those of ``training``; ``generator`` draws.
        """

    @abstractmethod
    def measure(self, model: nn.Module, length: int) -> dict[str, Any]:
        """Returns the results of ``model`` in windows of ``length``, as fields of a row."""

    def step(self, training: Training, seed: int, step: int) -> tuple[Tensor, Tensor]:
        """Returns the batch of one ``step`` of ``training``.

        It depends only on ``seed`` and step, so it is the same for every encoding and after a restart.
        """
        generator = torch.Generator().manual_seed(derived_seed(seed, self.name, "batch", step))
        return self.batch(training, generator)
