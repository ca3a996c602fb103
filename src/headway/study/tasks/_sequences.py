"""What the tasks of symbols share: examples of any length, the answer that a program gives, and how they are scored."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import HeadwayError
from ..evaluate import predictions
from ..protocol import Training, derived_seed
from ._base import IGNORED, Task

EXAMPLES = 256
"""The examples of a measurement."""
CONFIRMING = 1024
"""The examples that show whether a model has learned the trained length."""


class Examples(NamedTuple):
    """Sequences of tokens with their questions.

    Args:
        inputs: int64 [count, tokens].
        targets: int64 [count, tokens]: the token that is right after each; ``IGNORED`` where nothing is asked.
    """

    inputs: Tensor
    targets: Tensor


class SequenceTask(Task):
    """A task of symbols whose examples can be drawn at any length, and whose answers a program computes.

    An answer of several tokens is given token by token after those before it. A model that is right at each of them
    writes the same answer greedily, so that exact match is that of greedy generation.

    A subclass sets ``source``, the paper that the task comes from; ``counts``, what a length counts; ``scored``, which
    tokens are scored; ``trained`` and ``shortest``, between which each step of a training draws a length; ``symbols``,
    the text of each token; and ``answers``, the number of tokens that may be an answer, among which chance guesses.
    """

    source: ClassVar[str]
    counts: ClassVar[str]
    scored: ClassVar[str]
    trained: ClassVar[int] = 16
    shortest: ClassVar[int] = 1
    symbols: ClassVar[Sequence[str]]
    answers: ClassVar[int]

    @property
    def vocabulary(self) -> int:  # type: ignore[override]
        """The number of tokens."""
        return len(self.symbols)

    @property
    def title(self) -> str:
        """The name in words."""
        return self.name.replace("-", " ")

    @abstractmethod
    def examples(self, count: int, length: int, generator: torch.Generator) -> Examples:
        """Returns ``count`` examples of one ``length`` that ``generator`` draws."""

    @abstractmethod
    def answer(self, prefix: Sequence[int]) -> int:
        """Returns the token that is right after ``prefix``, the tokens of an example up to one that is scored."""

    @abstractmethod
    def order_free(self, length: int) -> float:
        """Returns the exact match at a ``length`` of the best rule that knows the tokens before, not their order.

        Where tokens are asked between others, it knows the last token, and those before it without their order.
        """

    def chance(self, length: int) -> float:
        """Returns the exact match at a ``length`` of a guess among ``answers`` at each token that is scored."""
        targets = self.examples(1, length, torch.Generator().manual_seed(0)).targets
        return float(self.answers) ** -int((targets != IGNORED).sum())

    def tokens(self, length: int) -> int:
        """Returns the tokens that a model reads of an example of a ``length``."""
        return self.examples(1, length, torch.Generator().manual_seed(0)).inputs.shape[1]

    def batch(self, training: Training, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Returns examples each of a length of its own, from ``shortest`` to that of ``training``; see ``Task``.

        With one length in each step, a model forgets the others. Shorter examples are padded at the end, where nothing
        is asked and where a causal model does not look.
        """
        lengths = torch.randint(self.shortest, training.length + 1, (training.batch,), generator=generator)
        parts = [
            self.examples(int(count), int(length), generator)
            for length, count in zip(*lengths.unique(return_counts=True), strict=True)
        ]
        tokens = max(part.inputs.shape[1] for part in parts)
        return (
            torch.cat([_filled(part.inputs, tokens, 0) for part in parts]),
            torch.cat([_filled(part.targets, tokens, IGNORED) for part in parts]),
        )

    def step(self, training: Training, seed: int, step: int) -> tuple[Tensor, Tensor]:
        """Returns the batch of one ``step``; see ``Task``.

        Encodings that draw positions in training take them from torch's generator, which each step therefore seeds: a
        training that resumes draws the same.
        """
        # torch.manual_seed would keep a call for each kind of device that is not in use, which takes time and memory
        torch.default_generator.manual_seed(derived_seed(seed, self.name, "positions", step))
        return super().step(training, seed, step)

    def measure(self, model: nn.Module, length: int) -> dict[str, Any]:
        """Returns the shares of right answers and of right tokens of ``model`` at a ``length``."""
        exact, right, asked = self._measured(model, length, "held out")
        return {"exact": exact, "accuracy": float(right.sum() / asked.sum())}

    def validate(self, model: nn.Module) -> float:
        """Returns the exact match of ``model`` at the trained length, on examples that ``measure`` does not use."""
        return self._measured(model, self.trained, "validation")[0]

    def confirm(self, model: nn.Module) -> float:
        """Returns the exact match of ``model`` at the trained length, on examples that nothing else uses.

        It decides whether a model has learned the task. ``validate`` cannot, if its best result among many was chosen.
        """
        return self._measured(model, self.trained, "confirmation", CONFIRMING)[0]

    def written(self, length: int) -> str:
        """Returns an example of a ``length`` in symbols: the input, an arrow, and the scored tokens."""
        inputs, targets = (
            row[0].tolist() for row in self.examples(1, length, torch.Generator().manual_seed(derived_seed(0, "shown")))
        )
        first = next(place for place, target in enumerate(targets) if target != IGNORED)
        asked = [target for target in targets if target != IGNORED]
        read = inputs if targets[first:] != asked or inputs[first + 1 :] != asked[:-1] else inputs[: first + 1]
        return " → ".join(" ".join(self.symbols[token] for token in part) for part in (read, asked))

    def _measured(
        self, model: nn.Module, length: int, purpose: str, count: int = EXAMPLES
    ) -> tuple[float, Tensor, Tensor]:
        """The exact match, and at each token whether it is right and whether it is asked."""
        inputs, targets = self._drawn(length, purpose, count)
        asked = targets != IGNORED
        right = predictions(model, inputs, targets, vocabulary=self.vocabulary).right & asked
        return float((right | ~asked).all(1).double().mean()), right, asked

    def _drawn(self, length: int, purpose: str, count: int = EXAMPLES) -> Examples:
        """The examples of a measurement, always the same."""
        generator = torch.Generator().manual_seed(derived_seed(0, self.name, purpose, length))
        return self.examples(count, length, generator)


def continued(prompt: Tensor, answer: Tensor) -> Examples:
    """Returns examples in which an answer is written after a prompt.

    Args:
        prompt: int64 [count, n].
        answer: int64 [count, k].
    """
    inputs = torch.cat([prompt, answer[:, :-1]], 1)
    targets = torch.full_like(inputs, IGNORED)
    targets[:, prompt.shape[1] - 1 :] = answer
    return Examples(inputs, targets)


def _filled(rows: Tensor, length: int, value: int) -> Tensor:
    """Rows [count, n] with a value at their ends, [count, length]."""
    return F.pad(rows, (0, length - rows.shape[1]), value=value)


def column(count: int, token: int) -> Tensor:
    """Returns a ``token`` for each of ``count`` examples, [count, 1]."""
    return torch.full((count, 1), token)


def need_at_most(length: int, most: int, what: str) -> None:
    """Checks the length of examples.

    Raises:
        HeadwayError: if it is more than ``most``.
    """
    if length > most:
        raise HeadwayError(f"length is {length} but there are {most} {what}: give at most {most}")


def distinct(count: int, length: int, of: int, generator: torch.Generator) -> Tensor:
    """Returns numbers below ``of``, [count, length], without a repetition in a row.

    Raises:
        HeadwayError: if there are fewer than ``length``.
    """
    need_at_most(length, of, "symbols, none of them twice")
    return torch.rand(count, of, generator=generator).argsort(1)[:, :length]


LETTERS = tuple("abcdefghijklmnop")
MANY = tuple(f"{letter}{number}" for number in range(9) for letter in LETTERS)
"""144 symbols, for tasks in which none appears twice: more than eight times the trained length."""
