"""The task of predicting the next token of a text."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..corpora import Corpus
from ..evaluate import doublings, overlapping_windows, predictions, separate_windows
from ..ngrams import ORDERS, ngram_bits
from ..protocol import FixedProtocol, Training
from ._base import IGNORED, Task


class LanguageModel(Task):
    """Predicts the tokens of a corpus; the measure is the loss on its held-out part, per byte of the text.

        bits per byte = −1/B Σₜ log₂ p(tokenₜ | the tokens before it in its window),   B bytes in these tokens

    At every length the same tokens are predicted.

    Args:
        corpus: the text.
        protocol: the lengths, and the number of bytes to predict.
    """

    name = "language_model"

    def __init__(self, corpus: Corpus, protocol: FixedProtocol) -> None:
        longest = max(protocol.lengths)
        self.corpus = corpus
        self.vocabulary = corpus.tokens.vocabulary
        self.lengths = protocol.lengths
        self.train_length = protocol.train_length
        self.start = longest // 2
        part = corpus.held_out
        wanted = round(protocol.evaluation_bytes * len(part) / part.bytes_of(0, len(part)))
        room = min(wanted, len(part) - 1 - self.start)
        self.count = max(1, room // longest) * longest

    def batch(self, training: Training, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Returns windows from random places in the training part; see ``Task``."""
        text = self.corpus.train.ids
        starts = torch.randint(len(text) - training.length, (training.batch, 1), generator=generator)
        windows = text[starts + torch.arange(training.length + 1)].long()
        return windows[:, :-1], windows[:, 1:]

    def measure(self, model: nn.Module, length: int) -> dict[str, Any]:
        """Returns the loss in separate windows, in sliding windows, and by the number of tokens before."""
        text = self.corpus.held_out.ids
        separate = self._bits(model, *separate_windows(text, self.start, self.count, length))
        shorter = max((other for other in self.lengths if other < length), default=0)
        by_position = []
        for size in doublings(length, shorter):
            inputs, targets = overlapping_windows(text, self.start, self.count, size)
            bits = self._bits(model, inputs, targets)[targets != IGNORED]
            by_position.append([size // 2 + 1, size, self._per_byte(bits)])
        return {
            "bits_per_byte": self._per_byte(separate),
            "sliding_bits_per_byte": by_position[-1][2],
            "bits_by_position": by_position,
            "held_out_bytes": self.corpus.held_out.bytes_of(self.start + 1, separate.numel()),
        }

    def validate(self, model: nn.Module) -> float:
        """Returns the loss of ``model`` on the validation part in separate windows of the trained length, per byte."""
        part, length = self.corpus.validation, self.train_length
        count = max(1, min(self.count, len(part) - 1) // length) * length
        bits = self._bits(model, *separate_windows(part.ids, 0, count, length))
        return float(bits.sum()) / part.bytes_of(1, count)

    def counted(self) -> dict[str, float]:
        """Returns the loss of n-gram models of the training part, per byte, on the tokens that ``measure`` predicts."""
        corpus, first = self.corpus, self.start + 1
        text = corpus.held_out.ids[: first + self.count]
        losses = {order: ngram_bits(corpus.train.ids, text, order, self.vocabulary) for order in ORDERS}
        return {f"{order}-gram": self._per_byte(bits[first:]) for order, bits in losses.items()}

    def _bits(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        return predictions(model, inputs, targets, vocabulary=self.vocabulary).bits

    def _per_byte(self, bits: Tensor) -> float:
        """The sum of these losses, of tokens from the first that is measured, per byte."""
        return float(bits.sum()) / self.corpus.held_out.bytes_of(self.start + 1, bits.numel())

    @property
    def measured_tokens(self) -> int:
        """The tokens that go through a model to measure it at every length."""
        sizes = [size for pair in zip(self.lengths, (0, *self.lengths), strict=False) for size in doublings(*pair)]
        separate = sum(self.count // length * length for length in self.lengths)
        return separate + sum(self.count // ((size + 1) // 2) * size for size in sizes)
