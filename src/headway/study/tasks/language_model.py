"""The task of predicting the next byte of a text."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..corpora import Corpus
from ..evaluate import doublings, overlapping_windows, predictions, separate_windows
from ..protocol import Protocol, Training
from ._base import IGNORED, Task


class LanguageModel(Task):
    """Predicts the bytes of a corpus; the measure is the loss on its held-out part.

        bits per byte = −1/N Σₜ log₂ p(byteₜ | the bytes before it in its window)

    At every length the same N bytes are predicted.

    Args:
        corpus: the text.
        protocol: the lengths, and the number of bytes to predict.
    """

    name = "language_model"
    vocabulary = 256

    def __init__(self, corpus: Corpus, protocol: Protocol) -> None:
        longest = max(protocol.lengths)
        self.corpus = corpus
        self.lengths = protocol.lengths
        self.start = longest // 2
        room = min(protocol.evaluation_bytes, len(corpus.validation) - 1 - self.start)
        self.count = max(1, room // longest) * longest

    def batch(self, training: Training, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Returns windows from random places in the training part; see ``Task``."""
        text = self.corpus.train
        starts = torch.randint(len(text) - training.length, (training.batch, 1), generator=generator)
        windows = text[starts + torch.arange(training.length + 1)].long()
        return windows[:, :-1], windows[:, 1:]

    def measure(self, model: nn.Module, length: int) -> dict[str, Any]:
        """Returns the loss in separate windows, in sliding windows, and by the number of bytes before."""
        text = self.corpus.validation
        separate = predictions(model, *separate_windows(text, self.start, self.count, length)).bits
        shorter = max((other for other in self.lengths if other < length), default=0)
        by_position = []
        for size in doublings(length, shorter):
            inputs, targets = overlapping_windows(text, self.start, self.count, size)
            asked = targets != IGNORED
            bits = float(predictions(model, inputs, targets).bits[asked].mean())
            by_position.append([size // 2 + 1, size, bits])
        return {
            "bits_per_byte": float(separate.mean()),
            "sliding_bits_per_byte": by_position[-1][2],
            "bits_by_position": by_position,
            "held_out_bytes": separate.numel(),
        }

    @property
    def measured_tokens(self) -> int:
        """The tokens that go through a model to measure it at every length."""
        sizes = [size for pair in zip(self.lengths, (0, *self.lengths), strict=False) for size in doublings(*pair)]
        separate = sum(self.count // length * length for length in self.lengths)
        return separate + sum(self.count // ((size + 1) // 2) * size for size in sizes)
