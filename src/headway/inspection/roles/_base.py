"""The base class of roles, and the batches that roles read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from ...records import Record
from .._run import Statistics
from ..statistics import Statistic
from ..texts import EncodedText


class Batch:
    """Texts with equal numbers of tokens, as tensors.

    Args:
        texts: the texts.
        device: the device of the tensors.
    """

    def __init__(self, texts: Sequence[EncodedText], device: torch.device | str = "cpu") -> None:
        self.texts, self.device = tuple(texts), device

    @cached_property
    def ids(self) -> Tensor:
        """The token ids, [batch, n]."""
        return torch.tensor([text.ids for text in self.texts], device=self.device)

    @cached_property
    def word_of(self) -> Tensor:
        """The number of each token's word, [batch, n]; −1 for tokens that the model adds."""
        return torch.tensor([text.word_of for text in self.texts], device=self.device)

    @property
    def words(self) -> Tensor:
        """Which tokens belong to words, [batch, n]."""
        return self.word_of >= 0


class Evidence(NamedTuple):
    """What the heads of a layer did in each text of a batch.

    Attributes:
        hits: the number of cases in which a head did what the role says, or the sum of the weights that it gave in
            them, [batch, H, candidates].
        cases: the number of cases, [batch, 1 or H, candidates].
    """

    hits: Tensor
    cases: Tensor


class Role(Record, ABC):
    """The base class of roles of attention heads.

    The figure of a head is the sum of its hits divided by the number of cases. A role has candidates, such as offsets
    or relations, each with a figure. It also has guesses that need no model; the best one is the baseline. A head has
    the role if this holds for one candidate: on each half of the texts its figure is at least ``threshold``, and at
    least ``margin`` above the baseline, and the interval of the difference is above 0 (see ``head_roles``).

    A subclass is a frozen dataclass with a row in ``ROLES``.
    """

    name: ClassVar[str]
    """What it is called."""

    threshold: float
    """The least figure."""

    margin: float
    """The least distance of the figure from the baseline."""

    def why_not(self, texts: Sequence[EncodedText], longest: int | None) -> str | None:
        """Returns the kind of annotation that this role needs and the texts lack, such as "relations", or None.

        Args:
            texts: all texts.
            longest: the most tokens that the model reads; None for any number.
        """
        return None

    def probes(
        self, texts: Sequence[EncodedText], longest: int | None, generator: torch.Generator
    ) -> Sequence[EncodedText]:
        """Returns the texts on which the role is measured, by default the given ones.

        Args:
            texts: the given texts.
            longest: the most tokens that the model reads; None for any number.
            generator: the source of chance.
        """
        return texts

    def fitted(self, texts: Sequence[EncodedText]) -> Role:
        """Returns the role, fitted to facts of all texts, such as their relations; by default itself.

        The methods below are called on the role that this returns.

        Args:
            texts: all texts on which the role is measured.
        """
        return self

    @abstractmethod
    def candidates(self, texts: Sequence[EncodedText]) -> tuple[str, ...]:
        """Returns the names of the candidates, such as offsets or relations.

        Args:
            texts: all texts on which the role is measured.
        """

    @abstractmethod
    def statistics(self, batch: Batch) -> tuple[str | Statistic, ...]:
        """Returns the statistics from which the evidence is made.

        Statistics of the same name must be the same in all roles.

        Args:
            batch: the texts.
        """

    @abstractmethod
    def evidence(self, batch: Batch, found: Statistics) -> Evidence:
        """Returns hits and cases of one layer.

        Args:
            batch: the texts.
            found: the statistics of their weights.
        """

    def guesses(self, batch: Batch, found: Statistics, equal: Statistics) -> Tensor:
        """Returns the hits of guesses that need no model, [batch, 1 or H, guesses, candidates].

        By default there is one guess: a head that gives all keys in sight equal weights.

        Args:
            batch: the texts.
            found: the statistics of the weights.
            equal: the same statistics of equal weights.
        """
        return self.evidence(batch, equal).hits[:, :, None]


def total(values: Tensor, chosen: Tensor) -> Tensor:
    """The sum of values [batch, H, n] over chosen queries [batch, n], [batch, H]; NaN counts as 0."""
    return values.double().nan_to_num(0.0, 0.0, 0.0).mul(chosen[:, None]).sum(-1)
